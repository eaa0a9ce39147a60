"""Writes the losses of one set of instructions; run with PYTHONPATH=.:tests and XLA_FLAGS=--xla_cpu_max_isa=SET.

XLA_FLAGS=--xla_cpu_max_isa=AVX2 PYTHONPATH=.:tests python tests/golden/losses/make_losses.py AVX2
"""

import json
import sys
from pathlib import Path

import jax
from stored_losses import SETS, instructions, losses

from jaxprune import mim


def main() -> None:
    (name,) = sys.argv[1:]
    if list(SETS).index(name) < list(SETS).index(instructions()):
        sys.exit(f"This processor has no {name}.")
    found = {method: losses(method) for method in sorted(mim.methods())}
    lines = ",\n".join(f'    "{method}": {json.dumps(values)}' for method, values in found.items())
    path = Path(__file__).with_name(f"{name.lower()}.json")
    path.write_text(f'{{\n  "jax": "{jax.__version__}",\n  "losses": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    main()
