"""Networks in run directories and files: saved with their card, and rebuilt from it."""

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from jaxprune import mim, processes, scoring
from jaxprune.checkpoints.build import at_size, build, from_card, require_no_larger
from jaxprune.checkpoints.run_card import CARD, Card, with_tuples
from jaxprune.checkpoints.shared_arrays import arrays_of, of_networks, stored_once
from jaxprune.checkpoints.store import load_params, load_running
from jaxprune.dynamic.cascade import Cascade
from jaxprune.errors import UserError, shortened
from jaxprune.files import as_path, write_atomically
from jaxprune.measures.training_images import TrainingImages
from jaxprune.models.class_names import require_class_names
from jaxprune.nn.around_host import AroundHost
from jaxprune.nn.params import split, unfilled, variables
from jaxprune.preprocessing import Preprocessing
from jaxprune.reduction import Plan, apply
from jaxprune.scoring import Scorer
from jaxprune.scoring.parts.resized_inputs import ResizedInputs
from jaxprune.weights.finite import require_finite
from jaxprune.weights.formats.shards import holds_weights
from jaxprune.weights.positions import resample_to, table_names
from jaxprune.weights.printable import require_printable
from jaxprune.weights.read import fill, read_tensors
from jaxprune.weights.trained_methods import trained_methods
from jaxprune.weights.write import save_pretrained

WEIGHTS = "model.safetensors"  # of a run directory whose checkpoints are not the weights of its network
SCORER = "scorer.safetensors"  # the weights of a scorer that prunes before the first block
_NAMES_SHOWN = 5  # in an error
FIXED = "fixed.safetensors"  # arrays that are not trained, such as a teacher's
TRAINING_IMAGES = "training_images.safetensors"  # of a healed network that is trained further


def backbone(model: Any) -> Any:
    """The network for features: a pre-training framework's encoder, which then carries the card."""
    is_framework = isinstance(model, mim.Framework)
    encoder = model.backbone() if is_framework else getattr(model, "encoder", None)
    if encoder is None:
        return model
    encoder.recipe, encoder.preprocessing = model.recipe, model.preprocessing
    return encoder


def write_card(
    workdir: str | os.PathLike,
    model: Any,
    class_names: Sequence[str] = (),
    *,
    fixed: Mapping[str, Any] | None = None,
) -> None:
    """Writes the card of a run directory: the network of its checkpoints, and its plan.

    The weights of a scorer that prunes before the first block are stored next to the card; so is, of a healed network
    that is trained further, by what to know the images again that taught it.

    Args:
      class_names: of a classifier.
      fixed: {dotted name: array} of untrained arrays, which checkpoints do not contain.
    """
    Card.of(model, class_names).write(workdir)
    if not processes.leads():
        return
    pruner = getattr(model, "pruner", None)
    if pruner is not None:
        arrays = {name: np.asarray(variable[...]) for name, variable in variables(pruner.scorer).items()}
        write_atomically(Path(workdir) / SCORER, save(arrays))
    if fixed:
        write_atomically(Path(workdir) / FIXED, save({name: np.asarray(array) for name, array in fixed.items()}))
    _write_training_images(workdir, model)


def _write_training_images(workdir: str | os.PathLike, model: Any) -> None:
    if record := getattr(model, "training_images", None):
        write_atomically(Path(workdir) / TRAINING_IMAGES, save(record.arrays()))


def save_model(model: Any, path: str | os.PathLike, *, class_names: Sequence[str] = ()) -> None:
    """Writes a network, dense or reduced, with everything needed to rebuild it, to one `.safetensors` file.

    >>> import os, tempfile; import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> fast = jaxprune.reduction.apply(model, jaxprune.reduction.Plan("topk", 0.5, (1,)))
    >>> path = os.path.join(tempfile.mkdtemp(), "fast.safetensors")
    >>> save_model(fast, path)
    >>> load_model(path).plan == fast.plan
    True

    Of a healed network the file also holds by what to know the images again that taught it.

    Args:
      model: a network from `models.create`, `mim.create` or `ranking.create`, optionally with a plan applied; or one
        from `dynamic.create`, such as a cascade of networks, with its `dial`.
      path: path of the file, which is overwritten.
      class_names: of a classifier.

    Raises:
      UserError: the network was built in another way, or has other arrays than it was built with, the path is not a
        `.safetensors`, or there are more or fewer names than classes.
    """
    path = as_path(path)
    require_class_names(class_names, getattr(model, "num_classes", 0))
    if path.suffix != ".safetensors":
        raise UserError(f"{path} would not be a .safetensors: call it {path.stem}.safetensors.")
    if not path.parent.is_dir():
        raise UserError(f"There is no directory {path.parent} to write {path.name} to: create it.")
    card = Card.of(model, class_names)
    if isinstance(model, Cascade):
        for network, described in zip(model.networks, card.networks, strict=True):
            _require_as_built(network, described)
        arrays, shared = stored_once(arrays_of(model))
        card = dataclasses.replace(card, shared=shared)
    else:
        _require_as_built(model, card)
        arrays = {name: np.asarray(variable[...]) for name, variable in variables(model).items()}
    if record := getattr(model, "training_images", None):
        arrays |= record.arrays()
    write_atomically(path, save(arrays, metadata={"jaxprune": card.as_json()}))


def _require_as_built(model: Any, card: Card) -> None:
    """Checks that a network has the arrays of the one that its card describes, which a reader of the file builds."""
    built = variables(nnx.eval_shape(lambda: _created(card, card.arguments)))
    of_plan = re.compile(r"(^|\.)(reducer|pruner)\.")
    arrays = {name: array for name, array in variables(model).items() if not of_plan.search(name)}
    shapes = lambda arrays, name: tuple(arrays[name].shape) if name in arrays else "missing"
    changes = [
        f"{name} is {shapes(arrays, name)} and was {shapes(built, name)}"
        for name in dict.fromkeys([*built, *arrays])
        if shapes(arrays, name) != shapes(built, name)
    ]
    if changes:
        raise UserError(
            f"This {type(model).__name__} has other arrays than when it was created, and a file describes it as it was "
            f"created: {'; '.join(changes[:_NAMES_SHOWN])}. Create it with the sizes that it has, such as num_classes; "
            "open.with_head gives a network another classifier."
        )


def load_card(path: str | os.PathLike) -> Card:
    """Returns the card of a run directory, or of a file that `save_model` wrote.

    Raises:
      UserError: there is neither.
    """
    path = as_path(path)
    if not path.is_file():
        return Card.read(path)
    card = _metadata(path)
    if card is None:
        raise UserError(
            f"{path} holds weights without a card: give it as published weights, with the name of their network "
            "(checkpoints.open_classifier), or build that with models.create and fill it with "
            "checkpoints.load_pretrained."
        )
    return Card.from_json(card, path)


def is_ours(path: str | os.PathLike) -> bool:
    """Returns whether a path is a run directory or a file of `save_model`, as opposed to a published file."""
    path = as_path(path)
    directory = path.is_dir() and ((path / CARD).is_file() or not holds_weights(path))
    return directory or carries_card(path)


def carries_card(path: str | os.PathLike) -> bool:
    """Returns whether a file is one that `save_model` wrote."""
    path = as_path(path)
    return path.is_file() and path.suffix == ".safetensors" and _metadata(path) is not None


def _metadata(path: Path) -> str | None:
    try:
        with safe_open(path, "numpy") as file:
            return (file.metadata() or {}).get("jaxprune")
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a readable safetensors file ({shortened(error)}): write or download it again."
        ) from error


def load_model(path: str | os.PathLike, *, ema: bool = False, img_size: int | tuple[int, int] | None = None) -> Any:
    """Returns a network from a run directory (its newest good checkpoint) or from a file of `save_model`.

    Its plan is applied, and `model.preprocessing` is set.

    Args:
      ema: take the averaged weights of a run instead of the last ones, with the averages of its running statistics.
      img_size: for images of another size: positions are resampled to the new grid, as `load_pretrained` does. A plan
        by keep rate keeps the same share of the patches.

    Raises:
      UserError: there is no network, or the run has no checkpoint yet, or no averaged weights; or weights that are not
        finite.
    """
    path, card = as_path(path), load_card(path)
    if ema and (card.weights or path.is_file()):
        raise UserError(f"{path} holds no averaged parameters: leave ema out.")
    weights = path / card.weights if card.weights and path.is_dir() else None
    arrays = _arrays(path, card, ema) if weights is None else read_tensors(weights)
    with from_card(path):
        if card.networks:
            model = _cascade(path, card, arrays, img_size)
        else:
            require_no_larger(card.kind, card.arguments, arrays, path, backbone if card.part else None)
            model = _loaded(path, card, arrays, img_size)
        if card.dial:
            model.set_dial(card.dial)
        return model


def _cascade(path: Path, card: Card, arrays: Mapping[str, Any], img_size: Any) -> Cascade:
    if img_size is not None:
        raise UserError(f"{path} holds a cascade, whose networks have image sizes of their own: leave img_size out.")
    networks = []
    parts = of_networks(arrays, card.shared, len(card.networks), path)
    for network, part in zip(card.networks, parts, strict=True):
        require_no_larger(network.kind, network.arguments, part, path)
        networks.append(_loaded(path, network, part, None))
    return Cascade(networks)


def _loaded(path: Path, card: Card, arrays: dict[str, Any], img_size: int | tuple[int, int] | None) -> Any:
    model = _rebuilt(path, card, arrays, img_size)
    beside = path / TRAINING_IMAGES
    if record := TrainingImages.from_arrays(_read(beside) if beside.is_file() else arrays):
        model.training_images = record
    return model


def _rebuilt(path: Path, card: Card, arrays: dict[str, Any], img_size: int | tuple[int, int] | None) -> Any:
    arguments = dict(card.arguments)
    if img_size is not None:
        arguments = at_size(card.kind, arguments, img_size)
    make = lambda: _created(card, arguments)
    # What is around an encoder is not in the file, and need not be made.
    model = unfilled(make) if card.part else make()
    model.preprocessing = card.preprocessing if img_size is None else card.preprocessing.with_size(img_size)
    trained = None
    if img_size is not None and table_names(model):
        trained = nnx.eval_shape(lambda: _created(card, card.arguments))
    if card.weights and path.is_dir():
        return fill(model, arrays, str(path / card.weights), source=trained)
    if card.plan is not None:
        recipe = card.scorer if img_size is None or card.scorer is None else _on_grid_of(model, card.scorer, path)
        scorer = None if recipe is None else _scorer(recipe, _scorer_arrays(path, arrays), path)
        model = apply(model, card.plan, scorer=scorer, rngs=nnx.Rngs(0))
    names = [] if trained is None else [name for name in table_names(trained) if name in arrays]
    arrays |= {name: resample_to(model, name, arrays[name], source=trained) for name in names}
    with trained_methods(model, arrays):
        _fill(model, arrays, path)
    return model


def _created(card: Card, arguments: Mapping[str, Any]) -> Any:
    """The network of a card without its plan, freshly initialised with these arguments."""
    model = build(card.kind, arguments, dtype=card.dtype, rngs=nnx.Rngs(0))
    return backbone(model) if card.part else model


def _fill(model: Any, arrays: Mapping[str, Any], path: Path) -> None:
    """Sets the arrays of a network after checking that all fit; runs do not store computed tables."""
    targets = variables(model)
    stored = targets if path.is_file() else split(model).params
    missing = [name for name in stored if name not in arrays]
    # Of what a run keeps running, some is not a network's: what its evaluation needed.
    present = {name: array for name, array in arrays.items() if name in targets}
    misfits = [
        f"{name} is {tuple(array.shape)} and not {targets[name].shape}"
        for name, array in present.items()
        if tuple(array.shape) != targets[name].shape
    ]
    if missing or misfits:
        faults = [f"{', '.join(missing[:_NAMES_SHOWN])} is missing"] * bool(missing) + misfits[:_NAMES_SHOWN]
        raise UserError(
            f"The weights in {path} are not those of the network on its card: {'; '.join(faults)}. The file is "
            "damaged, or was written by a version with a different network: train or save it again."
        )
    for name, array in present.items():
        targets[name][...] = jnp.asarray(array)


def _arrays(path: Path, card: Card, ema: bool) -> dict[str, Any]:
    if path.is_file():
        return _read(path)
    fixed = _read(path / FIXED) if (path / FIXED).is_file() else {}
    # Averages are those of the running statistics too; runs of earlier versions have the last ones alone.
    return {**fixed, **load_running(path), **load_params(path, ema=ema)}


def _read(path: Path) -> dict[str, Any]:
    try:
        arrays = load_file(path)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} cannot be read ({shortened(error)}): it is damaged; save the network again."
        ) from error
    require_printable(arrays, str(path))
    require_finite(arrays, str(path))
    return arrays


def _scorer_arrays(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    if path.is_dir():
        return _read(path / SCORER)
    parts = ((name.rpartition("pruner.scorer."), array) for name, array in arrays.items())
    # The scorer of a network around a host is that of its encoder.
    return {name: array for (place, mark, name), array in parts if mark and place in ("", "encoder.")}


def _scorer_network(recipe: Mapping[str, Any]) -> Any:
    dtype = recipe.get("dtype", "float32")
    network = build(recipe["kind"], with_tuples(recipe["arguments"]), dtype=dtype, rngs=nnx.Rngs(0))
    network.preprocessing = Preprocessing.of_dict(recipe["preprocessing"])
    network, plan = backbone(network), recipe.get("plan", "")
    return apply(network, Plan.from_text(plan), rngs=nnx.Rngs(0)) if plan else network


def _on_grid_of(model: Any, recipe: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The recipe of a scorer for the patches of a network at another image size."""
    host = model.encoder if isinstance(model, AroundHost) else model
    method = scoring.methods()[recipe["name"]]
    if method.own_patches or method.reads == "ranker":
        raise UserError(
            f"{path} is pruned by {recipe['name']}, whose network scores the patches of one image size: leave img_size "
            "out, or apply the plan to a dense network of that size, with a scorer for it."
        )
    if not host.prunes_input:  # scores of any grid are resampled to its maps
        return recipe
    return {**recipe, "arguments": {**recipe["arguments"], "grid": list(host.entrance(None).grid)}}


def _scorer(recipe: Mapping[str, Any], arrays: Mapping[str, Any], path: Path) -> Scorer:
    for entry in ("network", "focus"):
        if (network := recipe.get(entry)) is not None:
            part = backbone if network["kind"] in ("mim", "dense") else None
            require_no_larger(network["kind"], with_tuples(network["arguments"]), arrays, path, part)

    def make() -> Scorer:
        arguments = with_tuples(recipe["arguments"])
        for argument, entry in (("proposal", "network"), ("focus", "focus")):
            if (network := recipe.get(entry)) is not None:
                arguments[argument] = _scorer_network(network)
        scorer = scoring.create(recipe["name"], rngs=nnx.Rngs(0), **arguments)
        return ResizedInputs(scorer, tuple(recipe["size"])) if "size" in recipe else scorer

    scorer = unfilled(make)
    for name, variable in variables(scorer).items():
        variable[...] = jnp.asarray(arrays[name])
    return scorer


def leave_network(model: Any, workdir: str | os.PathLike, class_names: Sequence[str] = ()) -> None:
    """Writes a dense network into a run directory whose checkpoints are not its weights, once in all processes.

    The weights are in `model.safetensors`, as `save_pretrained` writes them. `load_model` reads the directory.

    Args:
      class_names: of a classifier.
    """
    if processes.leads():
        # The card comes last: a directory with one is whole.
        save_pretrained(model, Path(workdir) / WEIGHTS, overwrite=True)
        _write_training_images(workdir, model)
        Card.of(model, class_names, weights=WEIGHTS).write(workdir)
