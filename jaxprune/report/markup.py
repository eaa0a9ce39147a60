"""Text in a small Markdown dialect, converted to HTML."""

import html
import inspect
import itertools
import re


def escape(value: object) -> str:
    """Returns `str(value)` with HTML's special characters, including quotes, escaped."""
    return html.escape(str(value), quote=True)


def inline(text: str) -> str:
    """Returns a line of text as HTML: escaped, with `code`, **strong** and *emphasis* as elements."""
    out = []
    for index, piece in enumerate(re.split(r"`([^`\n]+)`", text)):
        piece = escape(piece)
        if index % 2:
            out.append(f"<code>{piece}</code>")
            continue
        piece = re.sub(r"\*\*(?=\S)(.+?)(?<=\S)\*\*", r"<strong>\1</strong>", piece)
        out.append(re.sub(r"(?<![\w*])\*(?=[^\s*])([^*]+?)(?<=\S)\*(?![\w*])", r"<em>\1</em>", piece))
    return "".join(out)


def blocks(text: str) -> str:
    """Returns text as HTML: paragraphs separated by blank lines, `- ` or `* ` lists, and ``` fences.

    Paragraphs and list items may contain the marks of `inline`; everything else is escaped.
    """
    out = []
    for index, piece in enumerate(re.split(r"^```[^\n]*\n(.*?)^```\s*$", inspect.cleandoc(text), flags=re.M | re.S)):
        if index % 2:
            out.append(f'<pre tabindex="0"><code>{escape(piece.rstrip())}</code></pre>')
            continue
        for block in filter(None, re.split(r"\n\s*\n", piece.strip())):
            for is_list, lines in itertools.groupby(block.splitlines(), lambda line: line.lstrip()[:2] in ("- ", "* ")):
                if is_list:
                    items = "".join(f"<li>{inline(line.strip()[2:])}</li>" for line in lines)
                    out.append(f"<ul>{items}</ul>")
                else:
                    out.append(f"<p>{inline(' '.join(line.strip() for line in lines))}</p>")
    return "\n".join(out)
