"""Runs the quick tests with the oldest declared and the newest versions of all dependencies, on each Python version.

python scripts/check_versions.py [--legs oldest-3.11 newest-3.13 newest-3.14] [--work DIR] [pytest arguments]

Needs `uv` (pip install uv), which also installs missing Python versions. Each leg has its own environment under --work,
where its output is written. Takes about ten minutes per leg on two cores.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
LEGS = ("oldest-3.11", "newest-3.11", "newest-3.12", "newest-3.13", "newest-3.14")
RESOLUTION = {"oldest": "lowest-direct", "newest": "highest"}


def test(leg: str, work: Path, arguments: list[str]) -> str:
    """Makes the environment of a leg, runs the tests in it, and returns pytest's last line."""
    age, python = leg.split("-")
    place = work / leg
    environment = {**os.environ, "VIRTUAL_ENV": str(place), "PYTHONPATH": ""}
    subprocess.run(["uv", "venv", "--quiet", "--clear", "--python", python, place], check=True)
    install = ["uv", "pip", "install", "--quiet", "--resolution", RESOLUTION[age], "--upgrade", "-e", ".[test]"]
    subprocess.run(install, cwd=ROOT, env=environment, check=True)
    command = [place / "bin" / "python", "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    with (work / f"{leg}.txt").open("w") as output:
        subprocess.run(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    lines = (work / f"{leg}.txt").read_text().splitlines()
    return next((line for line in reversed(lines) if re.search(r"\d (passed|failed|error)", line)), "no summary")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--legs", nargs="+", choices=LEGS, default=LEGS)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "jaxprune-versions")
    args, passed_on = parser.parse_known_args()
    args.work.mkdir(parents=True, exist_ok=True)
    results = {}
    for leg in args.legs:
        print(f"{leg} …", file=sys.stderr, flush=True)
        try:
            results[leg] = test(leg, args.work, passed_on)
        except subprocess.CalledProcessError as error:
            results[leg] = f"no environment: {' '.join(map(str, error.cmd[:3]))} ended with status {error.returncode}"
        print(f"{leg:<12} {results[leg].strip('= ')}", flush=True)
    sys.exit(any("failed" in line or "error" in line or "passed" not in line for line in results.values()))


if __name__ == "__main__":
    main()
