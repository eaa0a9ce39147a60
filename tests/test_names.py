"""Variables carry the field's nouns: pronouns and participles, which do not say what they hold, are refused."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "jaxprune"
WORDS = """
found own each shown chosen wanted known theirs ours mine one other others another whole some made given taken seen
needed asked answered what which more less few many such both either these those them it this that
"""
REFUSED = frozenset(WORDS.split())
FILES = sorted(PACKAGE.rglob("*.py"))


def bindings(source):
    """The names that a file binds: variables, arguments and caught exceptions, with their lines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.FunctionDef) and node.name != "__eq__":
            arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
            yield from ((argument.arg, argument.lineno) for argument in arguments)
        elif isinstance(node, ast.Lambda):
            yield from ((argument.arg, argument.lineno) for argument in node.args.args)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, node.lineno


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_are_nouns(path):
    refused = [f"{name} in line {line}" for name, line in bindings(path.read_text()) if name.strip("_") in REFUSED]
    assert not refused, f"{path}: name what it holds instead of {', '.join(refused)}"


def test_the_rule_sees_every_kind_of_binding():
    source = "def f(own, *, each=0):\n    found = [other for other in own]\n    g = lambda shown: shown\n"
    assert sorted(name for name, _ in bindings(source) if name in REFUSED) == ["each", "found", "other", "own", "shown"]
