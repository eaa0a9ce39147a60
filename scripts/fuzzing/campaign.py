"""Attacks what the library reads, thousands of times, and writes how the cases ended as a table.

python scripts/fuzzing/campaign.py [--only "plan texts" …] [--share .02] [--seed 1] [--out campaign.csv]

Every case ends as if nothing had happened, or in one line (`UserError`). Counted are: other exceptions (raw); wrong
values that nothing was said about (unnoticed); the longest line; the slowest case in seconds of the processor; and the
memory that the largest case took. Status 1 if anything was raw or unnoticed.
"""

import argparse
import dataclasses
import logging
import sys
import tempfile
import time
import warnings
from pathlib import Path

import attacks
from attacks import (
    annotations,
    boxes,
    cards,
    configs,
    leaderboards,
    notes,
    objects,
    pickles,
    pictures,
    plans,
    stored,
    tfds,
    weights,
)

from jaxprune.report.table import Table, column

# By kind: its attack, and how many cases a full campaign has: a million in all, fewer of what is slow to read. Of the
# bits of a small file there are no more than it has.
ATTACKS: dict[str, tuple[attacks.Attack, int]] = {
    **{f"cards of {name}": (cards.cards_of(name), 500) for name in cards.NETWORKS},
    "plan texts": (plans.plans, 30_000),
    "bits of complete.json": (notes.complete, 20_000),
    "bits of model.json": (notes.card, 20_000),
    "bits of metrics.jsonl": (notes.metrics, 20_000),
    "descriptions of TFDS": (tfds.descriptions, 30_000),
    "files of scores": (stored.scores, 70_000),
    "observations of analyse": (stored.analyses, 70_000),
    "measurements of tune": (stored.tunings, 40_000),
    **{f"features as {form}": (attack, 60_000) for form, attack in stored.features.items()},
    "forged leaderboards": (leaderboards.forgeries, 1000),
    "headers of safetensors": (weights.safetensors, 70_000),
    "archives of arrays": (weights.archives, 60_000),
    "indices of shards": (weights.indices, 70_000),
    "annotations of COCO": (annotations.coco, 70_000),
    "objects of COCO": (objects.coco, 60_000),
    "boxes of YOLO": (boxes.yolo, 60_000),
    "boxes of VOC": (boxes.voc, 60_000),
    "files of PyTorch": (pickles.pickles, 20_000),
    "arguments of configs": (configs.arguments, 10_000),
    "settings of configs": (configs.settings, 10_000),
    "pictures": (pictures.pictures, 100_000),
    "videos": (pictures.clips, 40_000),
}


@dataclasses.dataclass(frozen=True)
class Row:
    """How the cases of one kind ended."""

    kind: str = column("kind")
    cases: int = column("cases")
    refused: int = column("refused")
    raw: int = column("raw")
    unnoticed: int = column("unnoticed")
    longest: int = column("longest line")
    seconds: float = column("slowest, s")
    megabytes: float = column("memory, MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=tuple(ATTACKS), default=tuple(ATTACKS), metavar="KIND")
    parser.add_argument("--share", type=float, default=1.0, help="of the full counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("campaign.csv"))
    args = parser.parse_args()
    logging.disable(logging.INFO)
    for name in ("jaxprune", "absl", "PIL"):  # thousands of warnings
        logging.getLogger(name).propagate = False
        logging.getLogger(name).addHandler(logging.NullHandler())
    warnings.simplefilter("ignore")
    rows, harmed = [], []
    for kind in args.only:
        attack, count = ATTACKS[kind]
        start = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            outcome = attacks.run(attack(Path(folder), max(round(args.share * count), 1), args.seed))
        ended = outcome.cases, outcome.refused, len(outcome.raw), len(outcome.unnoticed)
        rows.append(Row(kind, *ended, outcome.longest, outcome.seconds, outcome.megabytes))
        problems = [f"{kind}: raw: {case}" for case in outcome.raw]
        problems += [f"{kind}: unnoticed: {case}" for case in outcome.unnoticed]
        harmed += problems
        ended_in = f"{kind}: {outcome.cases} cases in {time.monotonic() - start:.0f} s"
        print(*problems, ended_in, sep="\n", file=sys.stderr, flush=True)
        Table(rows).write_csv(args.out)
    print(Table(rows).text(ends=False))
    print(*harmed, sep="\n")
    sys.exit(bool(harmed))


if __name__ == "__main__":
    main()
