"""Methods that work off the shelf take their trained form where weights bring it."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from flax import nnx

from jaxprune.nn import Host
from jaxprune.plugins import build


@contextlib.contextmanager
def trained_methods(model: Any, names: Iterable[str]) -> Iterator[None]:
    """Gives the methods of a network parameters that tensors are there for, and its plan the text that says so.

    An error in the block undoes it.

    Args:
      names: our names of the tensors, such as "blocks.3.reducer.score.kernel".
    """
    plan = getattr(model, "plan", None)
    if not isinstance(model, Host) or plan is None:
        yield
        return
    sites, names = model.sites(), tuple(names)
    forms = {at.layer: at for at in plan.with_parameters().steps_for(len(sites))}
    blocks, brought = [], False
    for site in sites:
        reducer = model.block(site).reducer
        if reducer is None or reducer.off_the_shelf is None or not getattr(reducer, reducer.off_the_shelf):
            continue
        blocks.append((model.block(site), reducer, dict(forms[site.layer].options)))
        brought = brought or any(name.startswith(f"{site.path}.reducer.") for name in names)
    if not brought:
        yield
        return
    for block, reducer, options in blocks:
        block.reducer = nnx.data(build(type(reducer), options, reducer.step, rngs=nnx.Rngs(0)))
    model.plan = plan.with_parameters()
    try:
        yield
    except BaseException:
        for block, reducer, _ in blocks:
            block.reducer = nnx.data(reducer)
        model.plan = plan
        raise
