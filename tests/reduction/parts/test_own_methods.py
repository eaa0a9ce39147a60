"""A method of one's own: its class and its results are checked, and where it keeps every row nothing changes."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from support import quickly

from jaxprune import models, reduction
from jaxprune.errors import UserError
from jaxprune.reduction import Plan, best, keep_rows

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}


class Most(reduction.Reducer):
    """The method of the README."""

    where, needs = "after", frozenset({"cls_attn"})

    def __call__(self, tokens, attended, *, train=False, key=None):
        prefix = self.step.num_prefix_tokens
        scores = attended.cls_attn.max(1)[:, prefix:]
        return keep_rows(tokens, best(scores, self.step.num_keep), prefix)


class Few(Most):
    def __call__(self, tokens, attended, *, train=False, key=None):
        return keep_rows(tokens, jnp.zeros((len(tokens.x), 3), jnp.int32), self.step.num_prefix_tokens)


class Tokens(Most):
    def __call__(self, tokens, attended, *, train=False, key=None):
        return tokens


class Untrained(Most):
    def __call__(self, tokens, attended):
        return tokens


def network():
    return models.create("vit", **SIZES, rngs=nnx.Rngs(0))


def call(model):
    return quickly(model, lambda model, images: model(images)[0])(jnp.ones((2, 16, 16, 3)))


@pytest.mark.parametrize("keep_rate", [1.0, (1.0, 1.0)])
def test_a_step_that_keeps_every_row_is_the_dense_network(keep_rate):
    fast = reduction.apply(network(), Plan(Most, keep_rate=keep_rate, reduction_loc=(0, 1)))
    np.testing.assert_array_equal(call(fast), call(network()))
    some = reduction.apply(network(), Plan(Most, keep_rate=(1.0, 0.5), reduction_loc=(0, 1)))
    assert call(some).shape == (2, 3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"where": "between"}, r"Unknown Most\.where 'between'"),
        ({"needs": frozenset({"cls_attention"})}, r"Unknown field of attention in Most\.needs 'cls_attention'"),
        ({"needs": "cls_attn"}, r"Most\.needs='cls_attn' is not a set"),
        ({"row_options": lambda self: [3]}, r"Most\.row_options=.* is not a set"),
    ],
)
def test_what_a_class_says_is_checked(changes, message, monkeypatch):
    for name, value in changes.items():
        monkeypatch.setattr(Most, name, value)
    with pytest.raises(UserError, match=message):
        reduction.apply(network(), Plan(Most, keep_rate=0.5, reduction_loc=(1,)))


@pytest.mark.parametrize(
    ("cls", "message"),
    [
        (Few, "Few leaves 3 rows at a step that is counted with 8: keep self.step.num_keep rows"),
        (Tokens, r"Tokens returns a Tokens, where a block needs tokens and a report: return \(Tokens, StepReport\)"),
        (Untrained, "Untrained.__call__ has no argument 'train': write"),
    ],
)
def test_what_it_returns_is_checked(cls, message):
    with pytest.raises(UserError, match=message):
        call(reduction.apply(network(), Plan(cls, keep_rate=0.5, reduction_loc=(1,))))


def test_a_plan_has_one_amount():
    for make in (lambda: Plan("tome", keep_rate=0.5, r=3), lambda: Plan.from_text("tome:keep_rate=0.5,r=3")):
        with pytest.raises(UserError, match=r"takes r or keep_rate, not both: leave keep_rate=0\.5 or r=3 out"):
            make()
    assert Plan.from_text("tome:r=3", keep_rate=0.5) == Plan("tome", r=3)
