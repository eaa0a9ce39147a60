"""Names and layouts of mmsegmentation's heads and of BEiT's neck."""

from jaxprune.nn.tensor_rules import (
    Rule,
    Tensor,
    batch_norm,
    convolution,
    convolution_back,
    linear,
    linear_back,
    pointwise,
    pointwise_back,
)


def transposed(tensor: Tensor) -> Tensor:
    """(in, out, row, column) of a transposed convolution to (row, column, in, out)."""
    return tensor.transpose(2, 3, 0, 1)


def transposed_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `transposed`."""
    return tensor.transpose(2, 3, 0, 1)


HEAD = (
    Rule("conv_seg.weight", "classifier.linear.kernel", pointwise, pointwise_back),
    Rule("conv_seg.bias", "classifier.linear.bias"),
    Rule("psp_modules.{any}.1.conv.weight", "psp_modules.{any}.conv.kernel", convolution, convolution_back),
    *batch_norm("psp_modules.{any}.1.bn", "psp_modules.{any}.bn"),
    Rule("{any}.conv.weight", "{any}.conv.kernel", convolution, convolution_back),
    *batch_norm("{any}.bn", "{any}.bn"),
)

_UPSAMPLE = tuple(
    rule
    for published, path in (("fpn1.0", "first"), ("fpn1.3", "second"), ("fpn2.0", "double"))
    for rule in (
        Rule(f"{published}.weight", f"{path}.kernel", transposed, transposed_back),
        Rule(f"{published}.bias", f"{path}.bias"),
    )
)
NECK = (*_UPSAMPLE, *batch_norm("fpn1.1", "bn"))


def query_rules(published: str, path: str) -> tuple[Rule, ...]:
    """SegViT's class queries and its class layer."""
    return (
        Rule(f"{published}q.weight", f"{path}queries"),
        Rule(f"{published}class_embed.weight", f"{path}class_embed.kernel", linear, linear_back),
        Rule(f"{published}class_embed.bias", f"{path}class_embed.bias"),
    )


def decoder(published: str, path: str) -> tuple[Rule, ...]:
    """A decoder of SegViT.

    Args:
      published: the published name of its parts, with {} for "input_proj", "proj_norm" and "decoder".
    """
    layer, layer_path = published.format("decoder") + ".layers.{any}", f"{path}.layers.{{any}}"
    dense_layers = {
        published.format("input_proj"): f"{path}.input_proj",
        **{f"{layer}.linear{i}": f"{layer_path}.fc{i}" for i in (1, 2)},
        **{f"{layer}.multihead_attn.{part}": f"{layer_path}.cross_attn.{part}" for part in ("q", "k", "v", "proj")},
        f"{layer}.self_attn.out_proj": f"{layer_path}.self_attn.proj",
        f"{layer}.self_attn.in_proj": f"{layer_path}.self_attn.qkv",
    }
    norms = {
        published.format("proj_norm"): f"{path}.proj_norm",
        **{f"{layer}.norm{i}": f"{layer_path}.norm{i}" for i in (1, 2, 3)},
    }
    rules = [Rule(f"{torch}.bias", f"{name}.bias") for torch, name in (dense_layers | norms).items()]
    rules += [Rule(f"{torch}.weight", f"{name}.kernel", linear, linear_back) for torch, name in dense_layers.items()]
    rules += [Rule(f"{torch}.weight", f"{name}.scale") for torch, name in norms.items()]
    return tuple(rule._replace(published=rule.published.replace("in_proj.", "in_proj_")) for rule in rules)
