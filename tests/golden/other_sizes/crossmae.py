"""CrossMAE: a block of its decoder, and whole networks."""

import json
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx
from support import nhwc

from jaxprune import mim
from jaxprune.mim.parts.cross_decoder import CrossBlock
from jaxprune.nn.params import variables
from other_sizes import Arrays, Family, chosen, computed, differentiated, drawn, images, noise, prefixed, published

# 6 × 6 patches and 5 heads: no number of the golden files.
ENCODER = {"img_size": 30, "patch_size": 5, "embed_dim": 20, "depth": 4, "num_heads": 5}
SIZES = {**ENCODER, "decoder_embed_dim": 12, "decoder_depth": 3, "decoder_num_heads": 3, "norm_eps": 1e-5}
OPTIONS = {"mask_ratio": 0.6, "weight_fm": True, "norm_pix_loss": True}
GRADIENTS = ("cls_token", "mask_token", "wfm.linear.weight", "dec_norms.2.bias", "decoder_blocks.1.mlp.fc2.bias")


def create(*, rngs: nnx.Rngs | None = None, **arguments: Any) -> Any:
    return mim.create("crossmae", **SIZES, **OPTIONS, **arguments, rngs=rngs or nnx.Rngs(0))


def network(blocks: list[int], **options: Any) -> Arrays:
    indices = None if blocks == [-1] else tuple(block % SIZES["depth"] for block in blocks)
    model, tensors = published(create, indices=indices, **options)
    pictures, draws = images(3, 3, 30, 30), noise(3, 36)

    def call(model):
        loss, aux = model(jnp.asarray(nhwc(pictures)), noise=jnp.asarray(draws))
        return loss, (aux, model.decoder.decode(aux.latent, aux.masks))

    loss, (aux, decoded), gradients = differentiated(model, call)
    config = {**SIZES, **OPTIONS, **options, "use_fm": blocks}
    file = {"config": np.array(json.dumps(config)), "images": pictures, "noise_f64": draws.astype(np.float64)}
    file |= {"mask": np.asarray(aux.retained).astype(np.uint8), "ids_restore": aux.ids_restore, "latents": aux.latent}
    rows = np.asarray(aux.pred)[np.asarray(aux.retained)]
    file |= {"decoded": decoded, "pred": rows.reshape(3, -1, rows.shape[-1]), "loss_f64": np.float64(loss)}
    return file | prefixed(tensors, "w.") | chosen(gradients, GRADIENTS, "grad.")


def block(*, self_attn: bool) -> Arrays:
    model = drawn(CrossBlock(15, 10, 5, self_attn=self_attn, norm_eps=1e-5, rngs=nnx.Rngs(0)))
    x, y = images(3, 5, 15, seed=1), images(3, 9, 10, seed=2)
    tensors = {}
    for place, variable in variables(model).items():
        layer, _, kind = place.rpartition(".")
        values = np.asarray(variable[...])
        tensors[f"{layer}.{'bias' if kind == 'bias' else 'weight'}"] = values.T if kind == "kernel" else values
    config = {"encoder_dim": 10, "decoder_dim": 15, "heads": 5, "self_attn": self_attn, "norm_eps": 1e-5}
    out = computed(model, lambda model: model(jnp.asarray(x), jnp.asarray(y)))
    return {"config": np.array(json.dumps(config)), "x": x, "y": y, "out": out} | prefixed(tensors, "w.")


def files() -> dict[str, Arrays]:
    return {
        "newer/crossmae_wfm_third": network([-1], kept_mask_ratio=0.2, use_input=True),
        "newer/crossmae_wfm_two": network([1, -1], kept_mask_ratio=0.6, use_input=False),
        "newer/crossmae_block_10_15": block(self_attn=False),
        "newer/crossmae_block_10_15_self": block(self_attn=True),
    }


FAMILIES = {"crossmae": Family(("newer/crossmae_*",), files, ("mim/test_crossmae.py",))}
