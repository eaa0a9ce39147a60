"""Every plot of a report is a PDF and an SVG beside it."""

import pytest

from jaxprune.errors import UserError
from jaxprune.report import Report, plots

CURVE = {"a_$1$": ([0, 1], [0, 1])}


def names(path):
    return sorted(file.name for file in (path.parent / "plots").iterdir())


@pytest.mark.slow
def test_plots_are_named_by_section_and_axes(tmp_path):
    path, report = tmp_path / "run" / "report.html", Report("r")
    section = report.section("Training")
    section.figure(plots.line_plot(CURVE, "step", "loss")).section("More").gallery([plots.line_plot(CURVE)] * 2)
    report.add_to(path)
    stems = ["training--loss-by-step", "training--plot", "training--plot-2"]
    assert names(path) == sorted(f"{stem}.{ending}" for stem in stems for ending in ("pdf", "svg"))
    assert (path.parent / "plots" / "training--plot.pdf").read_bytes().startswith(b"%PDF")
    assert "<code>plots/</code>" in path.read_text()
    before = {file.name: file.read_bytes() for file in (path.parent / "plots").iterdir()}
    report.add_to(path)
    assert {file.name: file.read_bytes() for file in (path.parent / "plots").iterdir()} == before


@pytest.mark.slow
def test_a_section_that_is_replaced_takes_its_plots_along(tmp_path):
    path = tmp_path / "report.html"
    for labels in ({"A": ("x", "y"), "A b": ("x", "y")}, {"A": ("x", "z")}):
        report = Report("r")
        for title, (xlabel, ylabel) in labels.items():
            report.section(title).figure(plots.line_plot(CURVE, xlabel, ylabel))
        report.add_to(path)
        (tmp_path / "plots" / "a--mine.txt").write_text("kept")
    assert names(path) == ["a--mine.txt", "a--z-by-x.pdf", "a--z-by-x.svg", "a-b--y-by-x.pdf", "a-b--y-by-x.svg"]


def test_a_report_without_plots_has_no_folder(tmp_path):
    report = Report("r")
    report.section("s", "words")
    assert "<code>plots/</code>" not in report.save(tmp_path / "report.html").read_text()
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]


def test_names_stay_short_enough_for_files(tmp_path):
    report = Report("r")
    report.section("é" * 240).figure(plots.line_plot(CURVE, "x" * 300, "y"))
    report.save(tmp_path / "report.html")
    assert len(names(tmp_path / "report.html")) == 2


def test_one_plot_is_saved_in_the_format_of_its_ending(tmp_path):
    figure = plots.line_plot(CURVE, "x", "y")
    (png,) = plots.save(figure, tmp_path / "a.png")
    assert png.read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in plots.save(figure, tmp_path / "b.svg")[0].read_bytes()
    with pytest.raises(UserError, match="format of a plot"):
        plots.save(figure, tmp_path / "c.docx")
