"""Names and layouts of mmsegmentation's heads and of BEiT's neck."""

from jaxprune.nn.tensor_rules import Rule, Tensor, convolution, convolution_back


def pointwise(tensor: Tensor) -> Tensor:
    """(out, in, 1, 1) to (in, out)."""
    return tensor[:, :, 0, 0].T


def pointwise_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `pointwise`."""
    return tensor.T[:, :, None, None]


def transposed(tensor: Tensor) -> Tensor:
    """(in, out, row, column) of a transposed convolution to (row, column, in, out)."""
    return tensor.transpose(2, 3, 0, 1)


def transposed_back(tensor: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """The inverse of `transposed`."""
    return tensor.transpose(2, 3, 0, 1)


def batch_norm(published: str, path: str) -> tuple[Rule, ...]:
    """The tensors of a batch norm."""
    names = (("weight", "scale"), ("bias", "bias"), ("running_mean", "mean"), ("running_var", "var"))
    return tuple(Rule(f"{published}.{torch}", f"{path}.{ours}") for torch, ours in names)


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
