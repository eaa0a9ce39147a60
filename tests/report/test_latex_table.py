"""Tables as LaTeX: what LaTeX would read otherwise is escaped, and numbers keep their signs and ranges."""

import math

from jaxprune.report.latex_table import latex_table, latex_text

ROWS = [
    {"plan": "l∞_50%", "difference": (-0.051, -0.072, 0.01), "n": 1000},
    {"plan": "−1 ± 2", "difference": (0.0, math.nan, math.nan), "n": None},
]


def test_signs_ranges_and_gaps():
    lines = latex_table(ROWS, {"difference": "+.1%"}).splitlines()
    assert lines[1] == r"\begin{tabular}{lrr}" and lines[3] == r"plan & difference (\%) & n \\"
    assert lines[5] == r"l$\infty$\_50\% & $-$5.1 ($-$7.2 to +1.0) & 1,000 \\"
    assert lines[6] == r"$-$1 $\pm$ 2 & +0.0 & -- \\"


def test_what_latex_reads_is_escaped():
    assert latex_text(r"\a{b}^~#$&_%") == (r"\textbackslash{}a\{b\}\textasciicircum{}\textasciitilde{}\#\$\&\_\%")


def test_with_a_caption_it_floats():
    text = latex_table(ROWS, {}, caption=r"Ours, $n=2$.", label="tab:x")
    assert text.splitlines()[1:3] == [r"\begin{table}", r"\centering"]
    assert text.endswith("\\caption{Ours, $n=2$.}\n\\label{tab:x}\n\\end{table}")
