"""A stage of SAR alone, which loads under the names that it has in its golden file."""

from flax import nnx

from jaxprune.dynamic.parts.gated import batch_norms
from jaxprune.dynamic.parts.sar_module import SarModule
from jaxprune.nn.tensor_rules import Rule, convolution, convolution_back


class SarStage(nnx.Module):
    """The stage that a golden file's `config_json` describes."""

    def __init__(self, config, *, rngs):
        names = ("stride", "groups", "mask_size", "alpha", "beta", "base_scale")
        sizes = (config["in_channels"], config["out_channels"], config["blocks"])
        options = {name: config[name] for name in names}
        self.stage = SarModule(*sizes, bottleneck=config["block"] == "Bottleneck", **options, rngs=rngs)
        kernel = Rule("{any}.weight", "stage.{any}.kernel", convolution, convolution_back)
        norms = [rule._replace(path=f"stage.{rule.path}") for rule in batch_norms(self.stage)]
        self.published_rules = (*norms, kernel, Rule("{any}", "stage.{any}"))
