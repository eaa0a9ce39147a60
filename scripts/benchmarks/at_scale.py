"""Masked pre-training on many chips, by their compilers: memory, time, share of peak, communication; nothing runs.

python scripts/benchmarks/at_scale.py [--sizes base large huge] [--methods mae prmim] [--batch 128]
                                      [--targets v5e:4x4 v5e:16x16 v5e:4x4:2 h100:8] [--meshes data=-1 fsdp=-1]

Each row is the training step of configs/mim/imagenet.py, compiled for described chips with a number of images a chip.
“Of peak” divides its operations by the compiler's estimated time (TPU) or the roofline of each kernel (GPU).
Communication takes place beside the computation or after it: the two last columns are the shares of the time in which a
chip computes, if all of it is hidden and if none is. A step that does not fit is compiled again with recomputed
activations. Needs the extra tpu-compile, or for H100s cuda-compile; rows that the CSV has already are not compiled
again. A step of ViT-B took five minutes of a core to compile.
"""

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import jax
import stored_table
from ml_collections import ConfigDict

from jaxprune import accelerators, main
from jaxprune.accelerators import Target, compiling_for
from jaxprune.commands.shared.ahead_of_time import Compiler
from jaxprune.commands.shared.compiled_step import CompiledStep
from jaxprune.errors import command
from jaxprune.report.table import Table, column

SIZES = {"base": "vit_base_patch16_224", "large": "vit_large_patch16_224", "huge": "vit_huge_patch14_224"}
CONFIG = "configs/mim/imagenet.py"


@dataclasses.dataclass(frozen=True)
class Row:
    """A training step on one topology; see the module."""

    size: str = column("size")
    method: str = column("method")
    target: str = column("compiled for")
    mesh: str = column("mesh")
    images: int = column("images a chip")
    remat: bool = column("recomputes")
    fits: bool = column("fits")
    memory: float = column("memory", "GiB")
    tflop: float = column("TFLOP a chip")
    ms: float = column("estimated", "ms")
    share: float = column("of peak")
    sent: float = column("sent", "GiB")
    sent_away: float = column("sent to other slices", "GiB")
    communication: float = column("communication", "ms")
    hidden: float = column("computes, all hidden")
    exposed: float = column("computes, none hidden")

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What the step is, without what was found."""
        return self.size, self.method, self.target, self.mesh, self.images

    @classmethod
    def of(cls, key: tuple[str, str, str, str, int], remat: bool, step: CompiledStep) -> "Row":
        """Returns the row of a compiled step."""
        costs = step.costs
        if costs is None:
            return cls(*key, remat, False, step.refused or float("nan"), *[float("nan")] * 8)
        hidden = costs.ms / max(costs.ms, costs.communication)
        exposed = costs.ms / (costs.ms + costs.communication)
        sent = (costs.sent, costs.sent_away, costs.communication)
        return cls(*key, remat, True, costs.total, costs.tflop, costs.ms, costs.share, *sent, hidden, exposed)


def config_of(size: str, method: str, images: int, mesh: str, remat: bool, smoke: bool) -> Any:
    """Returns the config of a step of so many images."""
    config = ConfigDict(main.load_config(f"{CONFIG}:method={method}{',smoke' if smoke else ''}").to_dict())
    config.mim.update({"remat": remat} if smoke else {"encoder": SIZES[size], "remat": remat})
    config.update(batch_size=images, mesh=mesh)
    return config


@command
def run():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="*", default=list(SIZES), choices=list(SIZES))
    parser.add_argument("--methods", nargs="*", default=["mae", "prmim"])
    parser.add_argument("--targets", nargs="*", default=["v5e:4x4", "v5e:16x16", "v5e:4x4:2", "h100:8"])
    parser.add_argument("--meshes", nargs="*", default=["data=-1", "fsdp=-1"])
    parser.add_argument("--batch", type=int, default=128, help="images a chip")
    parser.add_argument("--out", type=Path, default=Path("at_scale.csv"))
    parser.add_argument("--smoke", action="store_true", help="the smallest networks, whatever the sizes")
    args = parser.parse_args()
    accelerators.stay_on_cpu()
    rows = stored_table.read(Row, args.out)
    for target in map(Target.parse, args.targets):
        keys = [
            (size, method, str(target), mesh, args.batch)
            for size in args.sizes
            for method in args.methods
            for mesh in args.meshes
        ]
        for key in keys:
            if any(row.key == key for row in rows):
                continue
            size, method, _, mesh, images = key
            for remat in (False, True):
                start = time.monotonic()
                config = config_of(size, method, images * target.chips, mesh, remat, args.smoke)
                with compiling_for(target):
                    compiler = Compiler.of(config, target, 0.0)
                    row = Row.of(key, remat, compiler.compile({}, images))
                print(f"{size} {method} {mesh} for {target}: {time.monotonic() - start:.0f} s", flush=True)
                if row.fits:
                    break
            rows.append(row)
            Table(rows).write_csv(args.out, jax=jax.__version__)
    print(Table(rows).text())


if __name__ == "__main__":
    run()
