"""The settings of fine-tuning: MAE's recipe as in PR-MIM Tab. 14, except for `data.randaugment`, which is off."""

from ml_collections import ConfigDict

from jaxprune import models
from jaxprune.commands.shared import checks
from jaxprune.commands.shared import defaults as shared
from jaxprune.config import Config
from jaxprune.errors import UserError
from jaxprune.reduction import Plan, methods
from jaxprune.text import parse_items
from jaxprune.train.objective import Objective


def defaults() -> Config:
    """Returns the defaults of the task."""
    return ConfigDict(
        {
            **shared.training("finetune"),
            "run": "",  # a run directory to start from, or set model.weights to a published file; neither: from scratch
            "trainable_blocks": -1,  # number of last blocks to train, with norm and head; -1: the whole network
            "loss": "cross_entropy",  # or "asymmetric", for images of several classes
            "ema_decay": 0.0,  # decay of an average of the parameters, which is evaluated too; 0: none
            "reduction": {"method": "", "keep_rate": 0.7, "reduction_loc": (3, 6, 9)},  # and the method's options
            "scorer": "",  # of the method from_scores: "ltrp:run=RUN", "papr", … as in configs/score.py
            # The keep rate falls from 1 over `epochs`, from epoch `start` on (EViT); 0 epochs: the plan's rate from the
            # start.
            "keep_rate_warmup": {"start": 0, "epochs": 0},
            "teacher": "",  # the run directory of a dense classifier to distil from
            # Additional losses: weights for a teacher's logits and tokens, and for the losses of reduction methods,
            # such as "ratio=1.0" for DynamicViT; empty: the defaults of each method.
            "distill": {"logits": 0.5, "tokens": 0.5, "tokens_kind": "mse"},
            "loss_weights": "",
            "model": {
                "name": "vit_base_patch16_224",
                "weights": "",  # a published file to start from
                "global_pool": "avg",
                "drop_path_rate": 0.1,
                "head_init_scale": 1e-3,
                "remat": False,
            },
            "optimizer": {
                **shared.adamw(base_lr=5e-4, b2=0.999, weight_decay=0.05, warmup_epochs=5.0, min_lr=1e-6),
                "layer_decay": 0.65,
                "backbone_scale": 1.0,  # factor on the learning rate of pre-trained parameters
                "freeze_epochs": 0.0,  # epochs during which they are frozen
            },
            "augment": {
                "flip": True,
                "erasing": 0.25,
                "mixup": 0.8,
                "cutmix": 1.0,
                "label_smoothing": 0.1,
            },
        }
    )


def smoke(config: Config) -> Config:
    """Shrinks a config of the task to run in seconds on a CPU, on built-in data."""
    shared.shrink(config)
    config.reduction.reduction_loc = (1,)
    known = models.arguments(config.model.name)
    if sizes := models.tiny(config.model.name):
        config.model = {**config.model.to_dict(), **sizes}
        config.data.img_size = sizes.get("img_size", config.data.img_size)
        return config
    # Relative positions are kept: a pre-training run may have them (SimMIM).
    beit = known if known.get("style") == "beit" else {}
    kind = ("style", "qkv_bias", "pos_embed", "init_values")
    config.model = {
        **{name: value for name, value in beit.items() if name in kind},
        **config.model.to_dict(),
        **shared.TINY,
        "name": "vit",
    }
    return config


def plan_of(config: Config) -> Plan | None:
    """The plan of `config.reduction`; None without a method.

    Raises:
      UserError: a scorer is given but not used, or needed but not given.
    """
    arguments = config.reduction.to_dict()
    if (arguments["method"] == "from_scores") != bool(config.scorer):
        raise UserError(
            f"reduction.method={arguments['method']!r} and scorer={config.scorer!r} do not go together: from_scores "
            "needs a scorer, such as 'ltrp:run=RUN' or 'papr', and other methods take none."
        )
    if config.scorer:
        arguments.pop("reduction_loc", None)  # it prunes before the first block
    return Plan(**arguments) if arguments["method"] else None


def objective(config: Config) -> Objective:
    """The training objective of `config.loss`, `config.distill` and `config.loss_weights`."""
    weights = parse_items(config.loss_weights, f"config.loss_weights={config.loss_weights!r}")
    for name, weight in weights.items():
        if isinstance(weight, str | bool | None):
            raise UserError(f"The weight {name}={weight!r} in config.loss_weights is not a number: write {name}=1.0.")
    return Objective(config.loss, weights, **config.distill)


def require_teacher(config: Config) -> None:
    """Checks that a method with distillation in its published loss has a teacher.

    Raises:
      UserError: there is no teacher, and the weights of the distillation losses are not 0.
    """
    plan, distill = plan_of(config), config.distill
    if plan is None or config.teacher or not (distill.logits or distill.tokens):
        return
    for name in dict.fromkeys(step.method for step in plan.steps):
        if methods()[name].needs_teacher:
            raise UserError(
                f"{name} learns from a dense teacher, and config.teacher is empty: give --config.teacher=RUN, the run "
                f"of a dense classifier of the same classes, or set config.distill.logits={distill.logits} and "
                f"config.distill.tokens={distill.tokens} to 0."
            )


def check(config: Config) -> list[str]:
    """Returns the problems of the plan and the objective."""
    if found := [*checks.refused(lambda: plan_of(config)), *checks.refused(lambda: objective(config))]:
        return found
    return checks.refused(lambda: require_teacher(config))
