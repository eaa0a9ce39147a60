"""Uses the installed package: `pip install -e examples/reducer_package && python examples/reducer_package/use.py`."""

import jax.numpy as jnp
from flax import nnx

import jaxprune
from jaxprune.reduction import Plan

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 32, "depth": 4, "num_heads": 2, "num_classes": 10}


def main():
    model = jaxprune.models.create("vit", **SIZES, rngs=nnx.Rngs(0))
    plan = Plan.from_text("alternate@1:keep_rate=0.5")  # the name of the entry point
    _, aux = jaxprune.reduction.apply(model, plan)(jnp.zeros((1, 32, 32, 3)))
    print(f"{plan.text} keeps the patches {', '.join(map(str, aux.kept[0][0, :8].tolist()))}, …")


if __name__ == "__main__":
    main()
