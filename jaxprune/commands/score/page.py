"""Comparison of the patches that scorers keep: agreement over all pictures, drawings of some."""

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from PIL import Image

from jaxprune.data.pictures import Pictures
from jaxprune.evaluate.score_files import read_part
from jaxprune.files import make_directory, writing
from jaxprune.open import ScorerSet
from jaxprune.report import Section
from jaxprune.report.keep_slider import Scored, keep_slider
from jaxprune.report.pictures.film_strip import drawn_strip, film_strip, unrolled
from jaxprune.report.pictures.heatmap import heatmap
from jaxprune.report.pictures.layout import tile, upscale
from jaxprune.report.pictures.text import label
from jaxprune.report.pictures.token_groups import token_groups
from jaxprune.report.scorer_names import about_images
from jaxprune.report.table import Table, column

_LONGEST = 150  # bytes of a picture's name in that of its drawing


@dataclasses.dataclass(frozen=True)
class SharedPatches:
    """The share of a scorer's patches that the first scorer also keeps, by keep rate."""

    scorer: str = column("scorer")
    shares: Mapping[str, float] = column(format=".1%")


def kept(opened: ScorerSet, text: str, scores: np.ndarray, keep_rate: float) -> np.ndarray:
    """Returns the patches that a scorer keeps at a rate, by its own count and selection, (n, k).

    Args:
      opened: the scorers.
      text: text of the scorer.
      scores: its scores, (n, p).
      keep_rate: of all patches.
    """
    scorer = opened.scorers[text]
    count = max(scorer.num_keep(keep_rate, opened.num_prefix_tokens), 1)
    return np.asarray(scorer.select(jnp.asarray(scores), count))


def agreement(paths: Sequence[Path], opened: ScorerSet, keep_rates: Sequence[float]) -> Table[SharedPatches]:
    """Returns a row for each scorer.

    Args:
      paths: the files of scores.
      opened: the scorers.
      keep_rates: of all patches.
    """
    first = next(iter(opened.scorers))
    shares: dict[tuple[str, float], list[float]] = {}
    for path in paths:
        part = read_part(path)
        readable = [not why for why in part.broken]
        if not any(readable):
            continue
        for rate in keep_rates:
            reference = kept(opened, first, part.scores[first][readable], rate)
            for text, values in part.scores.items():
                ids = kept(opened, text, values[readable], rate)
                common = [len(np.intersect1d(a, b)) / len(b) for a, b in zip(reference, ids, strict=True)]
                shares.setdefault((text, rate), []).extend(common)
    mean = lambda text: {f"at {100 * rate:.4g}%": float(np.mean(shares[text, rate])) for rate in keep_rates}
    return Table(SharedPatches(text, mean(text)) for text in opened.scorers)


def draw(
    folder: Path, pictures: Pictures, opened: ScorerSet, paths: Sequence[Path], keep_rates: Sequence[float], limit: int
) -> list[Scored]:
    """Saves drawings of pictures spread evenly over those that can be read, and returns them with their scores.

    A folder of classes lists one class after the other: the first pictures would all be of one.

    Args:
      folder: of the drawings.
      pictures: the pictures.
      opened: the scorers.
      paths: the files of scores.
      keep_rates: of all patches.
      limit: maximum number of drawings.
    """
    make_directory(folder)
    readable = [index for index, why in enumerate(why for path in paths for why in read_part(path).broken) if not why]
    count = min(limit, len(readable))
    spread = {readable[place * len(readable) // count] for place in range(count)}
    examples: list[Scored] = []
    numbers = itertools.count()
    for path in paths:
        part = read_part(path)
        for row, name in enumerate(part.files):
            index = next(numbers)
            if index not in spread:
                continue
            scored = Scored(name, pictures.read(index), {text: values[row] for text, values in part.scores.items()})
            file = folder / f"{index:06d}_{_file_name(name)}.png"
            with writing(file):
                Image.fromarray(drawing(scored, opened, keep_rates)).save(file)
            examples.append(scored)
    return examples


def _file_name(name: str) -> str:
    """The name of a picture in that of its drawing; of a long one the end, which tells pictures apart."""
    letters = re.sub(r"[^\w.-]+", "_", str(Path(name).with_suffix("")))
    return letters.encode()[-_LONGEST:].decode(errors="ignore")


def drawing(scored: Scored, opened: ScorerSet, keep_rates: Sequence[float]) -> np.ndarray:
    """Draws a row for each scorer: the picture, its scores as a heat map, and the patches kept at each rate.

    Clips are drawn as film strips, one below the other.
    """
    if len(opened.grid) == 3:
        return _strips(scored, opened, keep_rates)
    image = upscale(scored.image)
    cells = []
    for text, scores in scored.scores.items():
        cells += [label(image, text), label(heatmap(image, scores.reshape(opened.grid)), "scores")]
        for rate in keep_rates:
            ids = kept(opened, text, scores[None], rate)[0]
            assign = np.full(scores.size, -1)
            assign[ids] = ids
            grid = (opened.grid[0], opened.grid[1])
            cells.append(label(token_groups(image, assign, grid), f"{rate:.0%}: {len(ids)} patches"))
    return tile(cells, columns=2 + len(keep_rates), pad=6)


def _strips(scored: Scored, opened: ScorerSet, keep_rates: Sequence[float]) -> np.ndarray:
    grid = (opened.grid[0], opened.grid[1], opened.grid[2])
    cells = [label(film_strip(scored.image, None, grid), scored.caption)]
    for text, scores in scored.scores.items():
        values = unrolled(scores, grid)
        colours = lambda strip, cut, values=values: heatmap(strip, values.reshape(cut))
        cells.append(label(drawn_strip(scored.image, colours, grid), f"{text}: scores"))
        for rate in keep_rates:
            ids = kept(opened, text, scores[None], rate)[0]
            strip = film_strip(scored.image, np.isin(np.arange(scores.size), ids), grid)
            cells.append(label(strip, f"{text}, {rate:.0%}: {len(ids)} of {scores.size} tubes"))
    return tile(cells, columns=1, pad=6)


def describe(
    section: Section,
    opened: ScorerSet,
    examples: Sequence[Scored],
    shares: Table[SharedPatches],
    broken: Mapping[str, str],
    keep_rate: float,
    networks: str = "",
    num_images: int = 0,
) -> None:
    """Adds pictures with a slider, and the agreement of the scorers, to a section of a report.

    Args:
      opened: the scorers.
      examples: the pictures that are drawn, and their scores.
      shares: what `agreement` returned.
      broken: pictures that cannot be read, and why.
      keep_rate: initial value of the slider.
      networks: a sentence on the networks that the scorers read; see `scorer_names.about_scorers`.
      num_images: how many pictures were scored; that not all are drawn is said.
    """
    clips, times = bool(opened.preprocessing.num_frames), lambda sides: " × ".join(map(str, sides))
    inputs = f"clips of {times(opened.size)}" if clips else f"images of {times(opened.size)} pixels"
    section.text(
        f"The patches that each scorer keeps of {inputs} in {times(opened.grid)} {'tubes' if clips else 'patches'}; "
        f"the others are {'dark, and grey where a slider shows them' if clips else 'grey'}. {networks} "
        f"{about_images(opened.preprocessing)}"
    )
    if 0 < len(examples) < num_images:
        section.text(
            f"All {num_images} were scored; {len(examples)} of them, spread evenly over the list of files, are drawn "
            "here (`--config.num_pictures`)."
        )
    if clips:
        section.gallery([drawing(scored, opened, (keep_rate,)) for scored in examples], columns=1)
    keep_slider(section, examples, opened.grid, keep_rate=keep_rate)
    first = next(iter(opened.scorers))
    section.table(shares, caption=f"Share of its patches that {first} also keeps, over all images.")
    if broken:
        section.note(f"Unreadable and left out: {len(broken)}.", kind="warning")
        section.table([{"file": name, "why": why} for name, why in broken.items()])
