"""Names and layouts of detectron2's ViTDet detectors."""

from collections.abc import Sequence
from typing import Any

from jaxprune.dense.parts.published import transposed, transposed_back
from jaxprune.dense.parts.simple_pyramid import pyramid_rules
from jaxprune.nn.tensor_rules import Rule, convolution, convolution_back, linear, linear_back

BOX_HEAD = ("box_head", "box_predictor")
_CONVS = 8  # convolutions of a head that have published names


def _conv(published: str, path: str, bias: bool = True) -> tuple[Rule, ...]:
    kernel = Rule(f"{published}.weight", f"{path}.kernel", convolution, convolution_back)
    return (kernel, Rule(f"{published}.bias", f"{path}.bias")) if bias else (kernel,)


def _dense(published: str, path: str) -> tuple[Rule, ...]:
    kernel = Rule(f"{published}.weight", f"{path}.kernel", linear, linear_back)
    return kernel, Rule(f"{published}.bias", f"{path}.bias")


def _convs_with_norm(published: str, path: str) -> tuple[Rule, ...]:
    """Convolutions, numbered from 1 in published files and from 0 here."""
    parts: list[Rule] = []
    for number in range(_CONVS):
        torch, place = f"{published}{number + 1}", f"{path}.{number}"
        parts += [Rule(f"{torch}.norm.weight", f"{place}.norm.scale"), Rule(f"{torch}.norm.bias", f"{place}.norm.bias")]
        parts += _conv(torch, f"{place}.conv", bias=False)
    return tuple(parts)


def patch_side(encoder: Any) -> int:
    """The height of a patch of a host; 16 for one without patches, whose levels are numbered as a ViT's."""
    return getattr(getattr(encoder, "patch_embed", None), "patch_size", (16,))[0]


def rules(patch_size: int, box_heads: Sequence[Sequence[str]]) -> tuple[Rule, ...]:
    """The rules of everything besides the host.

    Args:
      patch_size: by which the levels of the pyramid are numbered.
      box_heads: for each stage, the published names of the head and of its two last layers.
    """
    rpn = "proposal_generator.rpn_head."
    finest = max(patch_size // 4, 1).bit_length() - 1
    parts: list[Any] = [*pyramid_rules("backbone.", "pyramid.", finest)]
    for number in range(_CONVS):
        parts += _conv(f"{rpn}conv.conv{number}", f"rpn.convs.{number}")
    parts += [*_conv(f"{rpn}objectness_logits", "rpn.objectness"), *_conv(f"{rpn}anchor_deltas", "rpn.offsets")]
    for stage, (head, predictor) in enumerate(box_heads):
        path = f"box_heads.{stage}"
        parts += _convs_with_norm(f"{head}.conv", f"{path}.convs")
        parts += _dense(f"{head}.fc1", f"{path}.fc")
        parts += [
            *_dense(f"{predictor}.cls_score", f"{path}.classifier"),
            *_dense(f"{predictor}.bbox_pred", f"{path}.offsets"),
        ]
    mask = "roi_heads.mask_head."
    parts += _convs_with_norm(f"{mask}mask_fcn", "mask_head.convs")
    parts += [
        Rule(f"{mask}deconv.weight", "mask_head.deconv.kernel", transposed, transposed_back),
        Rule(f"{mask}deconv.bias", "mask_head.deconv.bias"),
        *_conv(f"{mask}predictor", "mask_head.predictor"),
    ]
    return tuple(parts)
