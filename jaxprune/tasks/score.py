"""Scores the patches of your own images by any scorers, and shows side by side what each of them keeps."""

import io
import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from PIL import Image

from jaxprune import data as loader
from jaxprune import parallel
from jaxprune.checkpoints.files import write_atomically
from jaxprune.config import Config
from jaxprune.data.folder import image_files
from jaxprune.data.scenes import Scenes
from jaxprune.errors import UserError
from jaxprune.preprocessing import Preprocessing
from jaxprune.tasks import setup
from jaxprune.tasks.scorers import Opened, open_scorers, ready
from jaxprune.train import workdir as workdirs
from jaxprune.train.progress import progress
from jaxprune.viz.keep_slider import Scored, keep_slider
from jaxprune.viz.pictures.heatmap import heatmap
from jaxprune.viz.pictures.layout import tile, upscale
from jaxprune.viz.pictures.text import label
from jaxprune.viz.pictures.token_groups import token_groups
from jaxprune.viz.report import Report

SCENES = 6  # images that "scenes" stands for

_log = logging.getLogger(__name__)


class Images(NamedTuple):
    """Numbered images, all of one size.

    Attributes:
      names: what each is called.
      read: a number to its image, uint8 (h, w, 3), as the scorers see it; a `UserError` says why it cannot be read.
    """

    names: Sequence[str]
    read: Callable[[int], np.ndarray]


class Part(NamedTuple):
    """The scores of a stretch of the images, as one file holds them.

    Attributes:
      files: the images.
      broken: why an image cannot be read; "" where it can.
      scores: by scorer, float32 (n, p); NaN for images that cannot be read.
    """

    files: tuple[str, ...]
    broken: tuple[str, ...]
    scores: dict[str, np.ndarray]


def run(config: Config, workdir: Path) -> dict[str, Any]:
    """Scores `config.images` part by part, and draws the first of them; parts that are there already are kept."""
    opened = open_scorers(config)
    images = open_images(config, opened.size)
    with workdirs.locked(workdir):
        workdirs.prepare(workdir, setup.plain(config))
        paths = score(config, workdir / "scores", images, opened)
        broken = {name: why for path in paths for name, why in _broken(read_part(path))}
        if len(broken) == len(images.names):
            raise UserError(f"No image of {config.images} can be read: {next(iter(broken.values()))}")
        pictures = draw(config, workdir / "pictures", images, opened, paths)
        _describe(config, workdir, opened, pictures, broken, agreement(paths, opened, config.keep_rates))
    told = {"unreadable": len(broken)} if broken else {}
    return {"images": len(images.names) - len(broken), **told, "scores": str(workdir / "scores")}


def open_images(config: Config, size: tuple[int, int]) -> Images:
    """Finds the images: a folder, one picture, or the built-in scenes.

    Raises:
      UserError: there are none.
    """
    if config.images == "scenes":
        scenes = Scenes(split="test", num_examples=SCENES, image_size=size, seed=config.seed)
        return Images([f"scene {i}" for i in range(SCENES)], lambda index: scenes[index]["image"])
    if not config.images:
        raise UserError("Give --config.images=FOLDER, or one picture, to score.")
    root = Path(config.images).expanduser()
    files = [root] if root.is_file() else [Path(file) for file in image_files(root)]
    if not files:
        raise UserError(f"{config.images} holds no pictures: give a folder with some, or one picture.")
    base, view = root.parent if root.is_file() else root, Preprocessing(size)
    return Images([str(file.relative_to(base)) for file in files], lambda index: loader.read_image(files[index], view))


# --- scores -------------------------------------------------------------------------------------------------------


def score(config: Config, folder: Path, images: Images, opened: Opened) -> list[Path]:
    """Writes the scores of all images, one file a batch, and returns the files; those that are whole already stay."""
    mesh = setup.mesh(config)
    run = ready(opened.scorers, config)
    arrays = parallel.replicate(mesh, run.arrays)
    # No larger than what there is, but a share for every device.
    size = min(config.batch_size, -(-len(images.names) // mesh.size) * mesh.size)
    starts = list(range(0, len(images.names), size))
    paths = {start: folder / f"{start:08d}.npz" for start in starts}
    names = {start: tuple(images.names[start : start + size]) for start in starts}
    folder.mkdir(parents=True, exist_ok=True)
    waiting = [s for s in starts if not (paths[s].exists() and read_part(paths[s]).files == names[s])]
    if len(waiting) < len(starts):
        _log.info("%d of %d files of scores are there already", len(starts) - len(waiting), len(starts))
    with progress("scoring", len(waiting)) as bar:
        for start, pictures in zip(waiting, _read_ahead(config, images, waiting, size), strict=True):
            broken = tuple(why for _, why in pictures)
            batch = np.zeros((size, *opened.size, 3), np.uint8)
            for row, (image, why) in enumerate(pictures):
                if image is None:
                    _log.warning("%s is left out: %s", names[start][row], why)
                else:
                    batch[row] = image
            placed = parallel.place_batch(mesh, {"image": batch})["image"]
            found = run.scores(arrays, placed, jax.random.fold_in(jax.random.key(config.seed), start))
            lost = np.array([bool(why) for why in broken])[:, None]
            # A jitted function returns a dict sorted by name.
            scores = {text: np.where(lost, np.nan, np.asarray(found[text])[: len(lost)]) for text in opened.scorers}
            _write_part(paths[start], Part(names[start], broken, scores), opened.grid)
            bar.update(len(lost))
    return list(paths.values())


def read_part(path: Path) -> Part:
    """Reads a file of scores."""
    with np.load(path) as file:
        fields = {name: file[name] for name in file.files if name != "grid"}
    files, broken = (tuple(map(str, fields.pop(name))) for name in ("files", "broken"))
    return Part(files, broken, fields)


def _write_part(path: Path, part: Part, grid: tuple[int, int]) -> None:
    data = io.BytesIO()
    scores: Any = {text: values.astype(np.float32) for text, values in part.scores.items()}
    np.savez_compressed(data, files=np.array(part.files), broken=np.array(part.broken), grid=np.array(grid), **scores)
    write_atomically(path, data.getvalue())


def _broken(part: Part) -> list[tuple[str, str]]:
    return [(name, why) for name, why in zip(part.files, part.broken, strict=True) if why]


def _read_ahead(
    config: Config, images: Images, starts: Sequence[int], size: int
) -> Iterator[list[tuple[np.ndarray | None, str]]]:
    """Yields the batches that begin at `starts`, each image with why it cannot be read; the next is read meanwhile."""

    def read(index: int) -> tuple[np.ndarray | None, str]:
        try:
            return images.read(index), ""
        except UserError as error:
            return None, str(error)

    with ThreadPoolExecutor(config.num_threads) as pool:
        ask = lambda start: pool.map(read, range(start, min(start + size, len(images.names))))
        batches = (ask(start) for start in starts)
        asked = next(batches, None)
        while asked is not None:
            following = next(batches, None)
            yield list(asked)
            asked = following


# --- what they say ------------------------------------------------------------------------------------------------


def kept(opened: Opened, text: str, scores: np.ndarray, keep_rate: float) -> np.ndarray:
    """The patches that a scorer keeps at a rate, by its own count and choice, (n, k)."""
    scorer = opened.scorers[text]
    count = max(scorer.num_keep(keep_rate, opened.num_prefix_tokens), 1)
    return np.asarray(scorer.select(jax.numpy.asarray(scores), count))


def agreement(paths: Sequence[Path], opened: Opened, keep_rates: Sequence[float]) -> list[dict[str, Any]]:
    """Returns a row for each scorer: the share of its patches that the first scorer keeps too, by keep rate."""
    first = next(iter(opened.scorers))
    shares: dict[tuple[str, float], list[float]] = {}
    for path in paths:
        part = read_part(path)
        whole = [not why for why in part.broken]
        if not any(whole):
            continue
        for rate in keep_rates:
            reference = kept(opened, first, part.scores[first][whole], rate)
            for text, values in part.scores.items():
                own = kept(opened, text, values[whole], rate)
                common = [len(np.intersect1d(a, b)) / len(b) for a, b in zip(reference, own, strict=True)]
                shares.setdefault((text, rate), []).extend(common)
    return [
        {"scorer": text, **{f"at {rate:.0%}": float(np.mean(shares[text, rate])) for rate in keep_rates}}
        for text in opened.scorers
    ]


def draw(config: Config, folder: Path, images: Images, opened: Opened, paths: Sequence[Path]) -> list[Scored]:
    """Saves a picture of each of the first images that can be read, and returns them with their scores."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn: list[Scored] = []
    numbers = itertools.count()
    for path in paths:
        part = read_part(path)
        for row, (name, why) in enumerate(zip(part.files, part.broken, strict=True)):
            index = next(numbers)
            if why or len(drawn) >= config.num_pictures:
                continue
            scored = Scored(name, images.read(index), {text: values[row] for text, values in part.scores.items()})
            file = re.sub(r"[^\w.-]+", "_", str(Path(name).with_suffix("")))
            Image.fromarray(picture(scored, opened, config.keep_rates)).save(folder / f"{index:06d}_{file}.png")
            drawn.append(scored)
        if len(drawn) >= config.num_pictures:
            break
    return drawn


def picture(scored: Scored, opened: Opened, keep_rates: Sequence[float]) -> np.ndarray:
    """Draws a row for each scorer: the image, its scores as a heat map, and what it keeps at each rate."""
    image = upscale(scored.image)
    cells = []
    for text, scores in scored.scores.items():
        cells += [label(image, text), label(heatmap(image, scores.reshape(opened.grid)), "scores")]
        for rate in keep_rates:
            ids = kept(opened, text, scores[None], rate)[0]
            assign = np.full(scores.size, -1)
            assign[ids] = ids
            cells.append(label(token_groups(image, assign, opened.grid), f"{rate:.0%}: {len(ids)} patches"))
    return tile(cells, columns=2 + len(keep_rates), pad=6)


def _describe(
    config: Config,
    workdir: Path,
    opened: Opened,
    pictures: Sequence[Scored],
    broken: dict[str, str],
    shares: list[dict[str, Any]],
) -> None:
    page = Report("jaxprune", config.images)
    section = page.section("Patches that matter", slug="score")
    section.text(
        f"What each scorer would keep of images of {opened.size[0]} × {opened.size[1]} pixels in "
        f"{opened.grid[0]} × {opened.grid[1]} patches; the others are dark."
    )
    keep_slider(section, pictures, opened.grid, keep_rate=config.keep_rates[len(config.keep_rates) // 2])
    first = next(iter(opened.scorers))
    columns = {name: "max" for name in shares[0] if name != "scorer"}
    caption = f"Share of its patches that {first} keeps too, over all images"
    section.table(shares, caption=caption, formats=dict.fromkeys(columns, ".1%"))
    if broken:
        section.note(f"Left out, because they cannot be read: {len(broken)}.", kind="warning")
        section.table([{"file": name, "why": why} for name, why in broken.items()])
    section.command(setup.command())
    page.add_to(workdir / "report.html")
