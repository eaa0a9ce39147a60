"""Builds the site: `pip install -e ".[docs]"`, then `sphinx-build -W -b html docs build/docs`.

The Markdown pages are written by hand. This file generates the API pages and adds the options of each method's class to
its page, so that new files appear automatically. Formulas are converted to MathML, which browsers render without a
script.
"""

import inspect
import pkgutil
import re
import sys
from importlib import import_module
from pathlib import Path

import latex2mathml.converter

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

import jaxprune  # noqa: E402
from jaxprune import dynamic, mim, reduction, scoring  # noqa: E402

project, author, copyright = "jaxprune", "the jaxprune authors", "the jaxprune authors, Apache-2.0"
release = version = jaxprune.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "jaxprune"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_copy_source = html_show_sourcelink = False

add_module_names = False
python_use_unqualified_type_names = True
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
napoleon_custom_sections = [("Class attributes", "Attributes")]
napoleon_use_ivar = True
default_role = "code"  # single backticks in docstrings

# Families with one page per method: folder of the pages -> package of the family.
FAMILIES = {"reduction": reduction, "scoring": scoring, "mim": mim, "dynamic": dynamic}
METHODS = {folder: family.methods() for folder, family in FAMILIES.items()}

# Pages of methods that this version does not have are left out.
exclude_patterns = [
    f"{folder}/{page.name}"
    for folder, methods in METHODS.items()
    for page in sorted((HERE / folder).glob("*.md"))
    if page.stem not in (*methods, "index")
]

API = HERE / "api"
# The modules of the command line, and those that only tests and tasks import.
LEFT_OUT = {"main", "configs", "commands", "tools", "bench", "train", "report", "compile_cache"}
LEFT_OUT |= {"config", "config_imports", "host_memory", "processes", "search_path", "text"}


def write_api(app) -> None:
    """Writes a page for each package or module of jaxprune, with the members of all its modules."""
    API.mkdir(exist_ok=True)
    pages = {}
    for info in pkgutil.iter_modules(jaxprune.__path__):
        if info.name in LEFT_OUT:
            continue
        name = f"jaxprune.{info.name}"
        below = []
        if info.ispkg:
            found = pkgutil.walk_packages(import_module(name).__path__, f"{name}.")
            below = [module.name for module in found if not module.name.rpartition(".")[2].startswith("_")]
        pages[info.name] = "\n".join(map(automodule, [name, *sorted(below)]))
    for name, text in pages.items():
        write(API / f"{name}.md", f"# jaxprune.{name}\n\n{text}")
    for stale in {path.stem for path in API.glob("*.md")} - {*pages, "index"}:
        (API / f"{stale}.md").unlink()
    listed = "\n".join(sorted(pages))
    write(
        API / "index.md",
        "# API\n\nGenerated from the docstrings. Shapes in signatures are written as in jaxtyping: `b` batch, `n` "
        "tokens with the prefix, `p` patches, `k` kept, `h` heads, `d` width.\n\n"
        f"```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n",
    )


def write(path: Path, text: str) -> None:
    """Writes a file only if it changes, so that Sphinx does not read it again otherwise."""
    if not path.exists() or path.read_text() != text:
        path.write_text(text)


def automodule(name: str) -> str:
    """Returns the directive for one module, with its own heading below that of the page."""
    heading = "" if name.count(".") == 1 else f"## {name}\n\n"
    options = "   :members:\n   :ignore-module-all:\n   :show-inheritance:\n"
    return f"{heading}```{{eval-rst}}\n.. automodule:: {name}\n{options}```\n"


def add_options(app, docname: str, source: list[str]) -> None:
    """Appends the docstring of the class to the page of a method."""
    folder, _, name = docname.partition("/")
    cls = METHODS.get(folder, {}).get(name)
    if cls is None:
        return
    path = f"{cls.__module__}.{cls.__qualname__}"
    source[0] += f"\n\n## Options\n\n```{{eval-rst}}\n.. autoclass:: {path}\n   :no-index:\n```\n\n"
    source[0] += f"All members: {{py:class}}`{path}`.\n"


def as_rst(app, what, name, obj, options, lines: list[str]) -> None:
    """Escapes what is not meant as reStructuredText in a docstring: `*`, `|` and a final `_` outside backticks."""
    for index, line in enumerate(lines):
        if line.lstrip().startswith(("..", "* ", ">>>")):
            continue
        field, text = re.fullmatch(r"(\s*:[^:`]+:)?(.*)", line, re.DOTALL).groups()
        if field and field.strip() == ":rtype:":
            lines[index] = f"{field} ``{text.strip()}``"  # plain words, not names to link
            continue
        if field and field.strip().startswith((":ivar ", ":param ")):
            field = field.replace(", ", ",")  # of several names, the first ones would be read as a type
        parts = re.split(r"(``.*?``|`[^`]*`|\*\*\S+?\*\*|\*\w[^*|]*\w\*)", text)
        lines[index] = (field or "") + "".join(part if i % 2 else escaped(part) for i, part in enumerate(parts))


def escaped(text: str) -> str:
    """Escapes plain text for reStructuredText."""
    return re.sub(r"(?<!\\)([*|])", r"\\\1", re.sub(r"(\w)_(?=\W|$)", r"\1\\_", text))


def arguments(app, what, name, obj, options, signature, returned):
    """Shows the constructor's arguments as those of the class; NNX hides them behind a metaclass."""
    own = inspect.getattr_static(obj, "__init__", None) if what == "class" else None
    if not inspect.isfunction(own):
        return None
    _, *parameters = inspect.signature(own).parameters.values()
    shown = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(shown)), None


def skip(app, what, name, obj, skipped, options):
    """Skips the fields of named tuples, which the docstring of the class describes."""
    alias = inspect.getdoc(obj) or ""
    return True if alias.startswith("Alias for field number") else None


def inline_math(writer, node) -> None:
    writer.body.append(latex2mathml.converter.convert(node.astext()))
    raise writer_skip()


def block_math(writer, node) -> None:
    writer.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
    raise writer_skip()


def writer_skip() -> Exception:
    from docutils.nodes import SkipNode

    return SkipNode()


def setup(app) -> None:
    app.add_html_math_renderer("mathml", inline_renderers=(inline_math, None), block_renderers=(block_math, None))
    app.connect("builder-inited", write_api)
    app.connect("source-read", add_options)
    app.connect("autodoc-process-docstring", as_rst)
    app.connect("autodoc-process-signature", arguments)
    app.connect("autodoc-skip-member", skip)
