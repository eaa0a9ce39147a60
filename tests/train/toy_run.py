"""A toy run of the real loop, as tests call it and as a program that can kill itself.

python toy_run.py WORKDIR [WHERE:STEP]   where WHERE is one of `KILLS`.
"""

import os
import signal
import sys
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxprune import parallel
from jaxprune.checkpoints import store
from jaxprune.train.loop import FitResult, Hook, fit
from jaxprune.train.writer import Writer

STEPS = 24
CHECKPOINT_EVERY = 5
BATCH = 16
SCHEDULE = optax.cosine_decay_schedule(0.1, STEPS)


class Batches:
    """Rows of a linear problem; batch i depends on i alone."""

    def __init__(self, size: int = BATCH, bad: int | None = None):
        self.position, self.size, self.bad = 0, size, bad

    def __next__(self) -> dict[str, np.ndarray]:
        rng = np.random.default_rng([7, self.position])
        x = rng.normal(size=(self.size, 4)).astype(np.float32)
        y = x @ np.array([1, -2, 3, 0.5], np.float32) + 1
        if self.position == self.bad:
            y[0] = np.inf
        self.position += 1
        return {"x": x, "y": y}

    def get_state(self) -> dict:
        return {"position": self.position}

    def set_state(self, state: dict) -> None:
        self.position = state["position"]


def parameters() -> dict[str, np.ndarray]:
    return {"linear.kernel": np.zeros((4,), np.float32), "linear.bias": np.zeros((), np.float32)}


def loss_fn(params, batch, key):
    noise = 0.1 * jax.random.normal(key, batch["y"].shape)
    error = batch["x"] @ params["linear.kernel"] + params["linear.bias"] - batch["y"] - noise
    return jnp.mean(error**2), {"worst": jnp.max(jnp.abs(error))}


def evaluate_hook(step, state, writer: Writer) -> None:
    writer.metrics(step, "eval", {"bias": state.params["linear.bias"]})


def toy_fit(workdir, **options) -> FitResult:
    """Runs `fit` on the toy problem; `options` replace its arguments."""
    batches = options.pop("batches", None) or Batches()
    return fit(
        **{
            "loss_fn": loss_fn,
            "params": parameters(),
            "optimizer": optax.adam(SCHEDULE),
            "batches": batches,
            "workdir": workdir,
            "mesh": parallel.make_mesh(),
            "total_steps": STEPS,
            "seed": 3,
            "log_every": 2,
            "checkpoint_every": CHECKPOINT_EVERY,
            "examples_per_step": batches.size,
            "hooks": [Hook(6, evaluate_hook)],
            "schedule": SCHEDULE,
            **options,
        }
    )


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying(function, path: str):
    """Returns `function`, fatal when one of its arguments ends in `path`."""

    def wrapped(*args, **kwargs):
        if any(str(arg).endswith(path) for arg in args):
            die()
        return function(*args, **kwargs)

    return wrapped


def kill_in_step(step: int, hooks: list[Hook]) -> None:
    hooks.append(Hook(1, lambda now, state, writer: die() if now == step else None))


def kill_while_orbax_writes(step: int, hooks: list[Hook]) -> None:
    """Lets a timer go off somewhere inside Orbax's save."""

    def save(self, directory, *args, **kwargs):
        if f"/{step}.writing" in str(directory):
            threading.Thread(target=lambda: (time.sleep(0.01), die()), daemon=True).start()
        return original(self, directory, *args, **kwargs)

    original, store.ocp.Checkpointer.save = store.ocp.Checkpointer.save, save


def kill_before_manifest(step: int, hooks: list[Hook]) -> None:
    store.manifest_of = dying(store.manifest_of, f"/{step}.writing")


def kill_before_commit(step: int, hooks: list[Hook]) -> None:
    os.rename = dying(os.rename, f"/checkpoints/{step}.writing")


def kill_after_commit(step: int, hooks: list[Hook]) -> None:
    """Dies when the oldest checkpoint is about to be removed, half of it already gone."""

    def rmtree(path, *args, **kwargs):
        if str(path).endswith(".removing") and (path.parent / str(step)).exists():
            (path / "data.json").unlink()
            die()
        return original(path, *args, **kwargs)

    original, store.shutil.rmtree = store.shutil.rmtree, rmtree


KILLS = {
    "step": kill_in_step,
    "orbax": kill_while_orbax_writes,
    "manifest": kill_before_manifest,
    "commit": kill_before_commit,
    "prune": kill_after_commit,
}


if __name__ == "__main__":
    workdir, *kill = sys.argv[1:]
    extra_hooks: list[Hook] = []
    if kill:
        where, at = kill[0].split(":")
        KILLS[where](int(at), extra_hooks)
    writer = Writer(workdir, tensorboard=False)
    toy_fit(workdir, hooks=[Hook(6, evaluate_hook), *extra_hooks], writer=writer)
    writer.close()
