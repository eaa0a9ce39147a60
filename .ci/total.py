"""Prints one summary line, as pytest's own, over several runs: python total.py JUNIT_XML ..."""

import sys
import xml.etree.ElementTree as ElementTree

OUTCOMES = {"failures": "failed", "passed": "passed", "skipped": "skipped", "errors": "errors"}


def counted(path: str) -> dict[str, float]:
    """Returns how many tests of a run ended in which way, and its seconds."""
    suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    found = {name: sum(int(suite.get(name)) for suite in suites) for name in ("tests", "failures", "errors", "skipped")}
    found["passed"] = found.pop("tests") - sum(found[name] for name in ("failures", "errors", "skipped"))
    return {**found, "seconds": sum(float(suite.get("time")) for suite in suites)}


def main(paths: list[str]) -> None:
    runs = [counted(path) for path in paths]
    total = {name: sum(run[name] for run in runs) for name in runs[0]}
    words = ", ".join(f"{total[name]} {word}" for name, word in OUTCOMES.items() if total[name])
    print(f" {words} in {total['seconds']:.2f}s ".center(80, "="))


main(sys.argv[1:])
