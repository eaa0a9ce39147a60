"""Prints the parts of the package and the imports between them as a Mermaid graph.

python scripts/module_graph.py [--depth 1] [--package jaxprune] > graph.mmd

Built from import-linter's graph (grimp), with the same imports that the layer contracts in pyproject.toml check. The
number on an arrow is the number of modules of one part that import modules of the other.
"""

import argparse
from collections import Counter

import grimp


def part(module: str, depth: int) -> str:
    """Returns the part that a module belongs to: the first `depth` names after the package."""
    return ".".join(module.split(".")[1 : 1 + depth]) or module


def arrows(package: str, depth: int) -> Counter[tuple[str, str]]:
    """Counts the imports between parts."""
    graph = grimp.build_graph(package)
    pairs = Counter()
    for importer in graph.modules:
        for imported in graph.find_modules_directly_imported_by(importer):
            ends = part(importer, depth), part(imported, depth)
            if package not in ends and ends[0] != ends[1]:
                pairs[ends] += 1
    return pairs


def mermaid(pairs: Counter[tuple[str, str]]) -> str:
    """Formats the arrows as a Mermaid graph."""
    name = lambda part: part.replace(".", "_")
    parts = sorted({part for pair in pairs for part in pair})
    nodes = [f'  {name(part)}["{part}"]' for part in parts]
    lines = [f"  {name(a)} -->|{count}| {name(b)}" for (a, b), count in sorted(pairs.items())]
    return "\n".join(["graph TD", *nodes, *lines])


def main() -> None:
    """Prints the graph, preceded by a comment with its size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", default="jaxprune")
    parser.add_argument("--depth", type=int, default=1)
    args = parser.parse_args()
    pairs = arrows(args.package, args.depth)
    parts = {part for pair in pairs for part in pair}
    print(f"%% {len(parts)} parts, {len(pairs)} arrows, {sum(pairs.values())} imports between parts")
    print(mermaid(pairs))


if __name__ == "__main__":
    main()
