"""Every style of encoder x every way to remove a patch, against whole calls of encoder and decoder."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import mim
from jaxprune.errors import UserError
from jaxprune.mim import RandomMasker
from jaxprune.models.vit_styles import STYLES
from jaxprune.nn.params import Computed, unfilled, variables
from jaxprune.nn.tokens import all_present
from jaxprune.ranking.masks import label_masks
from jaxprune.ranking.removals import REMOVALS

VISIBLE, NUMBER = 6, 2  # patches that the encoder sees, and the index of the removed one
IMAGES = np.random.default_rng(1).normal(size=(2, 16, 16, 3)).astype(np.float32)


def make(style):
    sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "init_values": 0.5}
    decoder = {"decoder_embed_dim": 8, "decoder_depth": 2, "decoder_num_heads": 2}
    return mim.create("mae", style=style, **sizes, **decoder, rngs=nnx.Rngs(0))


@functools.cache
def autoencoder(style):
    model, rng = unfilled(lambda: make(style)), np.random.default_rng(0)
    for variable in variables(model).values():
        if not isinstance(variable, Computed):
            variable[...] = rng.normal(size=variable.shape).astype(np.float32)
    return model


@functools.cache
def masks():
    drawn = RandomMasker((4, 4), 1 - VISIBLE / 16).draw(len(IMAGES), key=jax.random.key(0))
    return label_masks(drawn, (4, 4))


def removed(style, removal):
    return REMOVALS[removal](autoencoder(style), jnp.asarray(IMAGES), masks(), over="masked")


def encoded(model, ids):
    return model.encoder.encode(model.encoder.embed(jnp.asarray(IMAGES), ids), ids).tokens.x


def decoded(model, x, count):
    """Predictions for the first rows, by whole calls of the decoder's blocks."""
    for block in model.decoder.blocks:
        x = block(all_present(x, 0))[0].x
    return model.decoder.head(x)[:, :count]


def latent_without(model, ids):
    """The encoder's output if one patch is hidden: the others as if it was not there, and its own row by itself."""
    encoder, row = model.encoder, model.encoder.num_prefix_tokens + NUMBER
    others = encoded(model, jnp.delete(ids, NUMBER, axis=1))
    alone = encoder.embed(jnp.asarray(IMAGES), ids)[:, row : row + 1]
    for block in encoder.blocks:
        alone = block.feed(block.mix(alone, jnp.zeros_like(alone)))
    return encoder.final_norm(jnp.insert(others, row, alone[:, 0], axis=1))


def brute_force(model, removals, removal):
    """Predictions for the masked patches without one visible patch."""
    row, count = removals.staying + NUMBER, removals.decoded
    if removal == "encoder":
        x = removals.sequence(latent_without(model, masks().ids_keep))
    elif removal == "mask_token":
        token = model.decoder.mask_tokens(masks().ids_keep[:, NUMBER : NUMBER + 1], jnp.float32)
        x = removals.x.at[:, row].set(token[:, 0])
    else:  # to the masked patches, a hidden row is one that is not there
        x = jnp.delete(removals.x, row, axis=1)
    return decoded(model, x, count)


MADE = [style for style in STYLES if not STYLES[style].block.grained]
# The others act in the decoder, which has no style.
TABLE = [
    pytest.param(style, removal, marks=() if removal == "encoder" or style == "vit" else pytest.mark.slow)
    for style in MADE
    for removal in REMOVALS
]


@pytest.mark.slow
@pytest.mark.parametrize(("style", "removal"), TABLE)
def test_a_removal_is_what_whole_calls_of_the_networks_give(style, removal):
    model, removals = autoencoder(style), removed(style, removal)
    whole = model.encoder.final_norm(encoded(model, masks().ids_keep))
    anchor = decoded(model, removals.sequence(whole), removals.decoded)
    chex.assert_trees_all_close(removals.anchor, anchor, atol=2e-5)
    if removal != "delete":
        # An index past the last visible patch removes none.
        chex.assert_trees_all_close(removals.without(jnp.asarray([VISIBLE]))[:, 0], anchor, atol=2e-5)
    without = removals.without(jnp.asarray([NUMBER]))[:, 0]
    chex.assert_trees_all_close(without, brute_force(model, removals, removal), atol=2e-5)
    assert np.abs(without - anchor).max() > 1e-3


def test_blocks_that_choose_their_queries_need_every_patch():
    (style,) = STYLES.keys() - set(MADE)
    with pytest.raises(UserError, match="DGE's blocks choose their own queries and need every patch"):
        removed(style, "encoder")
