"""Evaluates plans on a network without a classifier, by what its features retrieve from those of the full network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool

from jaxprune.commands.evaluate import retrieval_page
from jaxprune.commands.evaluate.retrieval_page import RetrievalRow
from jaxprune.commands.shared import inputs, plans_page, reporting
from jaxprune.config import Config
from jaxprune.data.source import Source
from jaxprune.errors import UserError
from jaxprune.evaluate import Stacked, run_over
from jaxprune.evaluate.collectors.agreement import BLANK
from jaxprune.evaluate.collectors.kept import KeptCollector, KeptPatches
from jaxprune.evaluate.contestants import Contestant
from jaxprune.evaluate.feature_probe import Labelled
from jaxprune.evaluate.forwards import under_plan
from jaxprune.measures.intervals import paired_difference, share
from jaxprune.measures.retrieval import Retrieved, retrieved
from jaxprune.reduction import DENSE
from jaxprune.report.table import Table


def evaluate(candidates: Mapping[str, Contestant], origin: str, config: Config, workdir: Path) -> dict[str, Any]:
    """Retrieves the nearest training images of held-out ones, whose features are those of each candidate.

    The gallery has the full network's features, as an index that exists. `config` has the images of the network.

    Raises:
      UserError: predictions are restricted to classes, and there are none.
    """
    if config.only_present:
        raise UserError(f"{origin} has no classifier, so it predicts no classes: leave --config.only_present out.")
    sources = {split: inputs.source(config, split, in_memory=False) for split in ("train", "eval")}
    gallery, _ = _vectors({DENSE: candidates[DENSE]}, sources["train"], config, "gallery")
    queries, kept = _vectors(candidates, sources["eval"], config, "queries")
    full = queries.vectors[DENSE]
    results = retrieved(gallery.vectors[DENSE], full, queries.vectors, k=config.neighbours)
    right = _right(results, gallery, queries)
    rows = Table(_row(name, candidate, results[name], right) for name, candidate in candidates.items())
    title, slug = "Retrieval under token-reduction plans", f"retrieval-{Path(origin).name}"
    with reporting.report_section(workdir, origin, title, slug) as section:
        retrieval_page.describe(section, rows, len(gallery.index), len(full), config.neighbours)
        retrieval_page.pictures(section, results, (gallery, queries), sources, inputs.preprocessing(config))
        plans_page.kept_patches(section, kept)
        reporting.broken_files(section, *sources.values())
    print(rows.brief())
    neighbour_shares = {
        f"one of the nearest, {row.plan}": row.neighbour_share.value for row in rows if row.plan != DENSE
    }
    return {**neighbour_shares, "images": len(full), "gallery": len(gallery.index)}


def _vectors(
    candidates: Mapping[str, Contestant], source: Source, config: Config, desc: str
) -> tuple[Labelled, dict[str, KeptPatches]]:
    """The features of images by each candidate, and the patches that plans keep of some."""
    models = {name: candidate.model for name, candidate in candidates.items()}
    grids = {name: model.step_grids(model.preprocessing.img_size) for name, model in models.items()}
    batches = inputs.eval_batches(config, source, networks=list(models.values()))
    forwards = {name: under_plan(candidate) for name, candidate in candidates.items()}
    columns = ("index", "label")
    collectors = (KeptCollector(grids), *(Stacked(name, columns, "logits") for name in forwards))
    kept, *stacked = run_over(batches, forwards, collectors, inputs.mesh(config), desc=desc)
    vectors = {name: features.astype(np.float32) for name, (features, _) in zip(forwards, stacked, strict=True)}
    of_images = stacked[0][1]
    return Labelled(of_images["index"], of_images["label"], vectors), kept


def _right(results: Mapping[str, Retrieved], gallery: Labelled, queries: Labelled) -> dict[str, Bool[np.ndarray, "n"]]:
    """By network, whether the nearest image has the class of the query; {} where images have no class, or several."""
    labels = (gallery.labels, queries.labels)
    if any(of_images.ndim > 1 or (of_images < 0).any() for of_images in labels):
        return {}
    return {name: gallery.labels[result.nearest] == queries.labels for name, result in results.items()}


def _row(name: str, candidate: Contestant, result: Retrieved, right: Mapping[str, np.ndarray]) -> RetrievalRow:
    count = len(result.same)
    is_full = name == DENSE
    return RetrievalRow(
        plan=name,
        neighbour_share=share(int(result.is_neighbour.sum()), count),
        same=share(int(result.same.sum()), count),
        cosine=float(result.cosines.mean()),
        accuracy=share(int(right[name].sum()), count) if right else None,
        difference=(BLANK if is_full else paired_difference(right[name], right[DENSE])) if right else None,
        gflops=candidate.gflops(),
    )
