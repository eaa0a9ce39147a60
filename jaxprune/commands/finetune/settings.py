"""The settings of fine-tuning: MAE's recipe as in PR-MIM Tab. 14, except for `data.randaugment`, which is off."""

from ml_collections import ConfigDict

from jaxprune import dynamic, models
from jaxprune.commands.shared import groups, inspection
from jaxprune.commands.shared.settings import ABSENT, choice, number, path, record, refused, setting
from jaxprune.config import Config
from jaxprune.errors import UserError, quoted
from jaxprune.reduction import Plan
from jaxprune.reduction.parts.find_method import shown_name
from jaxprune.text import parse_items
from jaxprune.train.objective import ASYMMETRIC, CROSS_ENTROPY, Objective


@record(recipe=True, is_open=True)
class Model(groups.Model):
    """`config.model`: the network to train, and a published file to start from."""

    global_pool: str = setting("avg", '"avg" or "token": what the classifier reads')
    drop_path_rate: float = number(0.1, "rate of stochastic depth in the last block", at_least=0, below=1)
    head_init_scale: float = number(1e-3, "factor on the initial classifier", at_least=0)
    remat: bool = setting(False, "recompute activations in the backward pass, to save memory", free=True)


@record(recipe=True)
class Optimizer(groups.Optimizer):
    """`config.optimizer`: with layer-wise rates, and a separate rate for pre-trained parameters."""

    layer_decay: float = number(0.65, "factor on the learning rate from a layer to the one below", above=0, at_most=1)
    limits_decay: bool = setting(
        True, "layer_decay scales min_lr and warmup_lr too (MAE); False: not (SimMIM)", free=True
    )
    backbone_scale: float = number(1.0, "factor on base_lr, not on min_lr, of pre-trained parameters", at_least=0)
    freeze_epochs: float = number(0.0, "epochs during which they are frozen", at_least=0)


@record(is_open=True)
class Reduction:
    """`config.reduction`: a token-reduction method, where and how much it reduces, and its options."""

    method: str = setting("", "a token-reduction method; empty: the dense network")
    keep_rate: float | tuple[float, ...] = setting(ABSENT, "share of the patches that a step keeps")
    reduction_loc: tuple[int, ...] = setting(
        ABSENT, "blocks that reduce; empty: after a quarter, a half, three quarters"
    )


@record()
class KeepRateWarmUp:
    """`config.keep_rate_warmup`: the keep rate falls from 1 over `epochs`, from epoch `start` on (EViT)."""

    start: float = number(0, "first epoch with a lower keep rate", at_least=0)
    epochs: float = number(0, "epochs in which it falls; 0: the plan's rate from the start", at_least=0)


@record()
class Distill:
    """`config.distill`: weights of the losses against a teacher."""

    logits: float = number(0.5, "weight of the loss on the teacher's logits", at_least=0)
    tokens: float = number(0.5, "weight of the loss on the teacher's tokens", at_least=0)
    tokens_kind: str = choice("mse", "or kl", ("mse", "kl"))


@record(recipe=True)
class Settings(groups.Recipe):
    """A classifier, its optimizer, a plan, and images to train on."""

    TOGETHER = True
    FIRST = (
        *("data.source", "data.path", "model.name", "model.weights", "run"),
        *("reduction.method", "reduction.keep_rate", "epochs", "max_minutes", "batch_size"),
    )

    run: str = path("", "a run directory to start from, or set model.weights; neither: from scratch")
    trainable_blocks: int = number(-1, "last blocks to train, with norm and head; -1: all", at_least=-1, free=True)
    only_method: bool = setting(False, "train only the parameters of the plan's methods, as DTEM does", free=True)
    loss: str = choice(CROSS_ENTROPY, 'or "asymmetric", for images of several classes', (CROSS_ENTROPY, ASYMMETRIC))
    ema_decay: float = number(0.0, "decay of averaged parameters, evaluated too; 0: none", at_least=0, below=1)
    reduction: Reduction = Reduction(keep_rate=0.7, reduction_loc=())
    scorer: str = inspection.scorer_text("", 'of from_scores: "ltrp:run=RUN", "papr", … as in configs/score.py')
    keep_rate_warmup: KeepRateWarmUp = KeepRateWarmUp()
    teacher: str = path("", "the run directory of a dense classifier to distil from")
    distill: Distill = Distill()
    loss_weights: str = setting("", 'of reduction methods, such as "ratio=1.0"; empty: those of the methods', free=True)
    model: Model = Model(name="vit_base_patch16_224")
    optimizer: Optimizer = Optimizer(base_lr=5e-4, b2=0.999, min_lr=1e-6)
    augment: groups.Augment = groups.Augment()

    @staticmethod
    def check(config: Config, prefix: str) -> list[str]:
        """Returns the problems of the plan and the objective."""
        problems = [*refused(lambda: plan_of(config)), *refused(lambda: objective(config))]
        warmup = config.keep_rate_warmup
        if warmup.epochs and warmup.start + warmup.epochs >= config.epochs:
            problems.append(
                f"{prefix}keep_rate_warmup reaches the plan's rate at epoch {warmup.start + warmup.epochs}, and the "
                f"run has {config.epochs:g}: raise {prefix}epochs, or lower {prefix}keep_rate_warmup.start or epochs."
            )
        return problems or refused(lambda: require_teacher(config))

    @staticmethod
    def missing(config: Config) -> list[str]:
        """Returns that the scorer lacks a network."""
        has_host = bool(config.run or config.model.weights)
        return inspection.without_network((config.scorer,), host=has_host)


def smoke(config: Config) -> Config:
    """Shrinks a config of the command to run in seconds on a CPU, on built-in data."""
    groups.shrink(config)
    config.reduction.reduction_loc = (1,)
    if sizes := dynamic.tiny(config.model.name):
        config.model = {**config.model.to_dict(), **sizes}
        return config
    if models.tiny(config.model.name):
        return _tiny(config)
    arguments = models.arguments(config.model.name)
    # Relative positions are kept: a pre-training run may have them (SimMIM).
    beit = arguments if arguments.get("style") == "beit" else {}
    kind = ("style", "qkv_bias", "pos_embed", "init_values")
    config.model = {
        **{name: value for name, value in beit.items() if name in kind},
        **config.model.to_dict(),
        **groups.TINY,
        "name": "vit",
    }
    return config


def fitted(config: Config) -> Config:
    """A config with sizes of its network, if `smoke` gave it those of a ViT and the name was replaced afterwards."""
    model = config.model.to_dict()
    was_vit = all(model.get(name) == value for name, value in groups.TINY.items())
    if config.model.name in dynamic.methods():
        return config
    return _tiny(ConfigDict(config.to_dict())) if was_vit and models.tiny(config.model.name) else config


def _tiny(config: Config) -> Config:
    """Gives a network that is not a ViT the smallest sizes of its family, and images of that size."""
    sizes = models.tiny(config.model.name)
    kept = {name: value for name, value in config.model.to_dict().items() if name not in groups.TINY}
    config.model = {**kept, **sizes}
    config.data.img_size = sizes.get("img_size", config.data.img_size)
    return config


def plan_of(config: Config) -> Plan | None:
    """The plan of `config.reduction`; None without a method.

    Raises:
      UserError: a scorer is given but not used, or needed but not given.
    """
    arguments = config.reduction.to_dict()
    if (arguments["method"] == "from_scores") != bool(config.scorer):
        raise UserError(
            f"reduction.method={quoted(arguments['method'])} and scorer={quoted(config.scorer)} do not go together: "
            "from_scores needs a scorer, such as 'ltrp:run=RUN' or 'papr', and other methods take none."
        )
    if config.scorer:
        arguments.pop("reduction_loc", None)  # it prunes before the first block
    if not arguments["method"]:
        return None
    if not arguments.get("reduction_loc", True):
        del arguments["reduction_loc"]  # the default places
    plan = Plan(**arguments)
    # What works off the shelf has its trained form in training, unless the config says otherwise.
    return plan if plan.reducer_class.off_the_shelf in arguments else plan.with_parameters()


def objective(config: Config) -> Objective:
    """The training objective of `config.loss`, `config.distill` and `config.loss_weights`."""
    weights = parse_items(config.loss_weights, f"config.loss_weights={config.loss_weights!r}")
    for name, weight in weights.items():
        if isinstance(weight, str | bool | None):
            raise UserError(f"The weight {name}={weight!r} in config.loss_weights is not a number: write {name}=1.0.")
    return Objective(config.loss, weights, **config.distill, micro_batches=config.accumulate)


def require_teacher(config: Config) -> None:
    """Checks that a method with distillation in its published loss has a teacher.

    Raises:
      UserError: there is no teacher, and the weights of the distillation losses are not 0.
    """
    plan, distill = plan_of(config), config.distill
    if plan is None or config.teacher or not (distill.logits or distill.tokens):
        return
    for cls in plan.reducer_classes:
        if cls.needs_teacher:
            raise UserError(
                f"{shown_name(cls)} learns from a dense teacher, and config.teacher is empty: give "
                "--config.teacher=RUN, the run of a dense classifier of the same classes, or set "
                f"config.distill.logits={distill.logits} and config.distill.tokens={distill.tokens} to 0."
            )
