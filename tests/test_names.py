"""Variables carry the field's nouns: pronouns and participles, which do not say what they hold, are refused."""

import ast
import doctest
from pathlib import Path

import pytest
from support import code_blocks

ROOT = Path(__file__).parent.parent
WORDS = """
found own each shown chosen wanted known theirs ours mine one other others another whole some made given taken seen
needed asked answered what which more less few many such both either these those them it this that
there drawn apart near together among every gone here said
"""
REFUSED = frozenset(WORDS.split())
# What users type stays as it is: the keys of configs.
KEYS = {"jaxprune/commands/analyse/settings.py": {"together"}}
FILES = sorted(
    path for folder in ("jaxprune", "scripts", "examples", "configs") for path in (ROOT / folder).rglob("*.py")
)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def bindings(source):
    """The names that a file binds: variables, arguments and caught exceptions, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.FunctionDef) and node.name != "__eq__":
            arguments = (
                *node.args.posonlyargs,
                *node.args.args,
                node.args.vararg,
                *node.args.kwonlyargs,
                node.args.kwarg,
            )
            yield from ((argument.arg, argument.lineno) for argument in arguments if argument)
        elif isinstance(node, ast.Lambda):
            yield from ((argument.arg, argument.lineno) for argument in node.args.args)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno


def refused(source):
    """The refused names among the bindings of a source, with their lines."""
    return [f"{name} in line {line}" for name, line in bindings(source) if name.strip("_") in REFUSED]


def doctests(path):
    """The examples of each docstring of a file, as sources."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            examples = doctest.DocTestParser().get_examples(ast.get_docstring(node) or "")
            yield "".join(example.source for example in examples)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_are_nouns(path):
    keys = KEYS.get(path.relative_to(ROOT).as_posix(), ())
    names = [name for name in refused(path.read_text()) if name.split()[0] not in keys]
    assert not names, f"{path}: name what it holds instead of {', '.join(names)}"


def test_names_in_examples_are_nouns():
    package = [path for path in FILES if path.is_relative_to(ROOT / "jaxprune")]
    sources = [(path, source) for path in PAGES for source in code_blocks(path.read_text(), "python")]
    sources += [(path, source) for path in package for source in doctests(path)]
    names = [f"{path.relative_to(ROOT)}: {name} of\n{source}" for path, source in sources for name in refused(source)]
    assert not names, "\n".join(names)


def test_the_rule_sees_every_kind_of_binding():
    source = "def f(own, *, each=0, **drawn):\n    found = [other for other in own]\n    g = lambda shown: shown\n"
    names = sorted(name for name, _ in bindings(source) if name in REFUSED)
    assert names == ["drawn", "each", "found", "other", "own", "shown"]
