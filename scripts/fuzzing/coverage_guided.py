"""Fuzzes a reader with bytes that reach new branches of it (libFuzzer, by the package atheris).

python scripts/fuzzing/coverage_guided.py safetensors [--seconds 60] [--corpus DIR] [--seed 1]

What is fuzzed is a key of `fuzz_targets.TARGETS`. The bytes that reached something new are kept in the corpus; what
fails is left as `crash-…` in the current folder, and the exit status is not 0. Needs `pip install atheris`. The entry
for OSS-Fuzz, `oss_fuzz`, builds a program of each target.
"""

import argparse
import importlib
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

LARGEST = 1 << 16  # bytes of a file
SLOWEST, MEMORY = 60, 4096  # seconds of a case, and MiB of the process


def fuzz(name: str, arguments: Sequence[str], corpus: Path | None = None) -> None:
    """Fuzzes a target until libFuzzer ends.

    Args:
      name: a key of `fuzz_targets.TARGETS`.
      arguments: of libFuzzer, which win over the limits here.
      corpus: a folder for whole files to begin with, and for what reaches something new.
    """
    import atheris

    with atheris.instrument_imports(include=["jaxprune"]):
        fuzz_targets = importlib.import_module("fuzz_targets")
    if name not in fuzz_targets.TARGETS:
        sys.exit(f"{name!r} is no target. Choose one of: {', '.join(fuzz_targets.TARGETS)}.")
    logging.disable(logging.ERROR)
    if corpus is not None:
        fuzz_targets.write_seeds(name, corpus)
        arguments = [*arguments, str(corpus)]
    with tempfile.TemporaryDirectory() as folder:
        feed = fuzz_targets.Feed(name, Path(folder))

        def one(content: bytes) -> None:
            feed(content)

        limits = [f"-max_len={LARGEST}", f"-timeout={SLOWEST}", f"-rss_limit_mb={MEMORY}"]
        atheris.Setup([sys.argv[0], *limits, *arguments], one)
        atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--corpus", type=Path, help="a folder of cases to go on with; temporary by default")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    corpus = args.corpus or Path(tempfile.mkdtemp(prefix="corpus-"))
    fuzz(args.target, [f"-max_total_time={args.seconds}", f"-seed={args.seed}", "-print_final_stats=1"], corpus)


if __name__ == "__main__":
    main()
