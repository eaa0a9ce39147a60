"""Messages of the library name arguments, which a Python caller has; flags and settings are words of the commands."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "jaxprune"
COMMANDS = ("commands", "tools", "main.py", "command_line.py", "help_texts.py")
# A flag, or a setting of a config; config.json is a file.
OF_COMMANDS = re.compile(r"(?<![\w<!-])--[a-z]\w*|\bconfig\.(?!json\b)[a-z]\w*")
OF_OTHER_PROGRAMS = {"--file_format"}  # of `tfds build`


def texts(source):
    """Yields the strings of a module but its docstrings; what an f-string fills in is left out."""
    tree = ast.parse(source)
    skipped = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            skipped.add(node.body[0].value)
        if isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
            yield "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in skipped:
            yield node.value


def named_settings(source):
    """The flags and settings of commands in the sentences of a module; a word by itself is not a sentence."""
    words = [word for text in texts(source) if " " in text for word in OF_COMMANDS.findall(text)]
    return [word for word in words if word not in OF_OTHER_PROGRAMS]


@pytest.mark.slow
def test_no_message_below_the_commands_names_a_flag():
    modules = [path for path in PACKAGE.rglob("*.py") if path.relative_to(PACKAGE).parts[0] not in COMMANDS]
    assert len(modules) > 200
    leaks = {str(path.relative_to(PACKAGE)): named_settings(path.read_text()) for path in modules}
    assert {path: words for path, words in leaks.items() if words} == {}


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('raise UserError(f"{path} is absent: give --config.run=RUN.")', ["--config"]),
        ('raise UserError(f"config.what={what!r} is empty: give some.")', ["config.what"]),
        ('log("first " "give another --workdir")', ["--workdir"]),
        ('def f():\n    """Reads `--config.run`."""\n    return "config.json is there"', []),
        ('style = f"--columns:{count};--least:8rem"\ncomment = "<!--jaxprune:report (x)-->"', []),
    ],
)
def test_what_counts_as_a_flag(source, words):
    assert named_settings(source) == words
