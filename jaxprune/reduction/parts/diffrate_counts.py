"""Numbers of tokens that DiffRate's authors found by gradient for DeiT and fine-tuned MAE networks of 224 pixels."""

import csv
from pathlib import Path

Counts = tuple[int, ...]


def _read() -> dict[str, dict[float, tuple[Counts, Counts]]]:
    counts: dict[str, dict[float, tuple[Counts, Counts]]] = {}
    with open(Path(__file__).with_suffix(".csv"), newline="") as file:
        for row in csv.DictReader(file):
            pruned, merged = (tuple(map(int, row[name].split())) for name in ("pruned", "merged"))
            counts.setdefault(row["name"], {})[float(row["gmacs"])] = (pruned, merged)
    return counts


# {network: {billions of multiply-accumulates: (tokens after dropping, after merging) in each block}}; CLS counts too.
PUBLISHED = _read()
