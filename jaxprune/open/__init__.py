"""The one door to networks: where they come from (`Origin`), and what opens them.

    Run("runs/base")                                          a run directory, or a file of `save_model`
    File("deit.safetensors", "deit_small_patch16_224")        published weights, and the name of their network
    File("timm:vit_small_patch14_dinov2")                     the same on the Hugging Face Hub
    Package("efficientnet_lite0")                             weights of an installed Python package
    Random("vit_small_patch16_224")                           an untrained network

`open_network`, `open_classifier`, `open_framework` and `open_ranker` take any of them; `initialise` starts a training
from one; `open_scorers` opens scorers from their texts, with the networks that these name.
"""

from jaxprune.open.classifier import Classifier, open_classifier
from jaxprune.open.convert import convert
from jaxprune.open.framework import open_framework, open_label_model
from jaxprune.open.initialise import initialise
from jaxprune.open.network import open_network, open_ranker
from jaxprune.open.new_head import with_head
from jaxprune.open.origin import RANDOM, File, Origin, Package, Random, Run, at, exists, named, parse
from jaxprune.open.scorer_text import NetworkCache, parse_scorer, require_network
from jaxprune.open.scorers import ScorerSet, open_scorer, open_scorers, resized_inputs

__all__ = [
    "RANDOM",
    "Classifier",
    "File",
    "NetworkCache",
    "Origin",
    "Package",
    "Random",
    "Run",
    "ScorerSet",
    "at",
    "convert",
    "exists",
    "initialise",
    "named",
    "open_classifier",
    "open_framework",
    "open_label_model",
    "open_network",
    "open_ranker",
    "open_scorer",
    "open_scorers",
    "parse",
    "parse_scorer",
    "require_network",
    "resized_inputs",
    "with_head",
]
