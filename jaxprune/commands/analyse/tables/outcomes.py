"""Effects of plans on a network's predictions: accuracy, agreement with the dense network, by image and class."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxprune.evaluate.collectors.hard_images import HardScore, hard_images
from jaxprune.evaluate.collectors.observations import Observed
from jaxprune.measures.intervals import normal_interval, paired_difference, wilson_interval
from jaxprune.measures.knn import knn_classes_of_others
from jaxprune.measures.several_labels import Rankings
from jaxprune.reduction import DENSE

CLASSIFIER, NEIGHBOURS = "classifier", "neighbours"


class MemberPredictions(NamedTuple):
    """The predictions of a network and its plans.

    Attributes:
      by: `CLASSIFIER`, or `NEIGHBOURS`: without a classifier, the nearest neighbours among the dense features vote.
      labels: the true classes, (n,).
      predictions: predicted classes by member, (network, plan).
    """

    by: str
    labels: np.ndarray
    predictions: dict[tuple[str, str], np.ndarray]

    measure = "accuracy"

    def right(self, member: tuple[str, str]) -> np.ndarray:
        """Whether each prediction is right, (n,)."""
        return self.predictions[member] == self.labels

    def score(self, member: tuple[str, str]) -> float:
        """The accuracy."""
        return float(self.right(member).mean())

    def columns(self, member: tuple[str, str], base: tuple[str, str]) -> Mapping[str, Any]:
        """The cells of a member, compared with the dense network."""
        return _accuracy(self, member, base)

    def by_class(self, base: tuple[str, str], class_names: Sequence[str]) -> list[dict[str, Any]]:
        """See `by_class`."""
        return by_class(self, base, class_names)


def name_of(observed: Observed) -> tuple[str, str]:
    """Returns (network, plan)."""
    return observed.member.network, observed.member.plan


def member_predictions(observations: Sequence[Observed], *, neighbours: int) -> MemberPredictions | Rankings | None:
    """Returns the predictions of all members; None if images have no label, or several without a classifier.

    Without a classifier, an image gets the class that the nearest dense features of other images vote for: a plan is
    right if its features still lie among those of the image's class.

    Args:
      observations: members of any networks, including the dense ones; classifiers are used only if all have one.
      neighbours: number of neighbours that vote.
    """
    labels = observations[0]["label"]
    if labels.ndim > 1 and all("logits" in observed for observed in observations) and labels.any():
        return Rankings(labels, {name_of(observed): observed["logits"] for observed in observations})
    if labels.ndim > 1 or (labels < 0).any():
        return None
    if all("prediction" in observed for observed in observations):
        return MemberPredictions(
            CLASSIFIER, labels, {name_of(observed): observed["prediction"] for observed in observations}
        )
    if not all("pooled" in observed for observed in observations) or len(labels) < 2:
        return None
    dense = {observed.member.network: observed["pooled"] for observed in observations if observed.member.plan == DENSE}
    classes = lambda o: knn_classes_of_others(dense[o.member.network], labels, o["pooled"], k=neighbours)
    return MemberPredictions(NEIGHBOURS, labels, {name_of(observed): classes(observed) for observed in observations})


def plan_rows(
    observations: Sequence[Observed],
    outcome: MemberPredictions | Rankings | None,
    gflops: Callable[[Any], float],
    hard: Mapping[str, np.ndarray] | None = None,
) -> list[dict]:
    """Returns a row for each member: cost, accuracy and its difference from the dense network's, agreement.

    `cosine` is the mean cosine between pooled features and the dense network's for the same image; `rows` the number of
    rows after each step as a share of the patches, averaged over images.

    Args:
      observations: members of any networks, the dense one of each first.
      outcome: what `member_predictions` returned.
      gflops: returns the GFLOPs of a network.
      hard: by network, whether it gets each image wrong where that is smaller; see `hard_images_of`.
    """
    rows, dense = [], {observed.member.network: observed for observed in observations if observed.member.plan == DENSE}
    for observed in observations:
        member, base = observed.member, dense[observed.member.network]
        row: dict[str, Any] = {"network": member.network, "plan": member.plan, "GFLOPs": gflops(member.model)}
        if outcome is not None:
            row |= outcome.columns(name_of(observed), name_of(base))
        if hard and isinstance(outcome, MemberPredictions) and member.network in hard:
            row |= HardScore.of(outcome.right(name_of(observed)), hard[member.network]).cells()
        if "pooled" in observed and "pooled" in base:
            cosines = cosines_of(observed["pooled"], base["pooled"])
            low, high = normal_interval(cosines)
            row |= {"cosine": float(cosines.mean()), "cosine low": low, "cosine high": high}
        if member.layers:
            row["rows"] = ", ".join(f"{rate.mean:.3f}" for rate in observed.patterns.rates())
        rows.append({**row, "images": len(observed["index"])})
    return rows


def hard_images_of(
    observations: Sequence[Observed], rivals: Sequence[Observed], *, neighbours: int
) -> dict[str, np.ndarray]:
    """Returns by network which images it gets wrong wherever they are smaller; {} where nothing says what is right.

    Args:
      observations: members of any networks, including the dense ones.
      rivals: the dense networks on smaller images, on the same images.
      neighbours: see `member_predictions`.
    """
    dense = [observed for observed in observations if observed.member.plan == DENSE]
    outcome = member_predictions([*dense, *rivals], neighbours=neighbours) if rivals else None
    if not isinstance(outcome, MemberPredictions):
        return {}
    smaller: dict[str, list[np.ndarray]] = {}
    for observed in rivals:
        smaller.setdefault(observed.member.network, []).append(outcome.right(name_of(observed)))
    return {network: hard_images(right) for network, right in smaller.items()}


def lost(outcome: MemberPredictions, member: tuple[str, str], base: tuple[str, str]) -> np.ndarray:
    """Returns the positions of the images that the dense network gets right and the plan does not."""
    return np.flatnonzero(outcome.right(base) & ~outcome.right(member))


def by_class(outcome: MemberPredictions, base: tuple[str, str], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each class that occurs: its images, the dense accuracy, and its change under each plan.

    Classes with the largest loss over all plans come first.

    Args:
      outcome: what `member_predictions` returned.
      base: the dense member of the network.
      class_names: of the data.
    """
    plans = [member for member in outcome.predictions if member[0] == base[0] and member != base]
    rows = []
    for number in np.unique(outcome.labels):
        in_class = outcome.labels == number
        dense = float(outcome.right(base)[in_class].mean())
        changes = {plan: float(outcome.right((network, plan))[in_class].mean()) - dense for network, plan in plans}
        start = {"network": base[0], "class": class_names[number], "images": int(in_class.sum())}
        rows.append({**start, "accuracy, dense": dense, **changes})
    return sorted(rows, key=lambda row: sum(row[plan] for _, plan in plans))


def confusions(
    outcome: MemberPredictions, base: tuple[str, str], class_names: Sequence[str], *, most: int = 20
) -> list[dict[str, Any]]:
    """Returns rows for the pairs (class, other predicted class) that a plan changes most, by plan.

    `dense` and `with plan` are the numbers of images, `change` their difference; pairs that grew come first.

    Args:
      outcome: what `member_predictions` returned.
      base: the dense member of the network.
      class_names: of the data.
      most: maximum number of pairs of a plan that grew, and of those that shrank.
    """
    rows, images = [], np.bincount(outcome.labels, minlength=len(class_names))
    before = _confused(outcome, base, len(class_names))
    for member in (member for member in outcome.predictions if member[0] == base[0] and member != base):
        after = _confused(outcome, member, len(class_names))
        changes = {pair: after.get(pair, 0) - before.get(pair, 0) for pair in sorted(before.keys() | after.keys())}
        for sign in (1, -1):
            changed = sorted((pair for pair in changes if changes[pair] * sign > 0), key=lambda p: -abs(changes[p]))
            for label, confused in changed[:most]:
                pair = {"class": class_names[label], "predicted": class_names[confused], "images": int(images[label])}
                counts = {"dense": before.get((label, confused), 0), "with plan": after.get((label, confused), 0)}
                row = {"network": base[0], "plan": member[1], **pair, **counts, "change": changes[label, confused]}
                rows.append(row)
    return rows


def by_image(outcome: MemberPredictions, names: Sequence[str], class_names: Sequence[str]) -> list[dict[str, Any]]:
    """Returns a row for each image: its name, its class, and the prediction of each member.

    Args:
      outcome: what `member_predictions` returned.
      names: of the images.
      class_names: of the data.
    """
    rows = []
    for place, (name, label) in enumerate(zip(names, outcome.labels, strict=True)):
        by_member = {
            f"{member[0]}, {member[1]}": class_names[classes[place]] for member, classes in outcome.predictions.items()
        }
        rows.append({"image": name, "class": class_names[label], **by_member})
    return rows


def cosines_of(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the cosine between two features of each image, (n,)."""
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return (first * second).sum(1) / np.maximum(lengths, 1e-12)


def _confused(outcome: MemberPredictions, member: tuple[str, str], num_classes: int) -> dict[tuple[int, int], int]:
    """The number of images of each (class, other predicted class) that occurs."""
    wrong = ~outcome.right(member)
    codes = outcome.labels[wrong].astype(np.int64) * num_classes + outcome.predictions[member][wrong]
    pairs, counts = np.unique(codes, return_counts=True)
    return {divmod(pair, num_classes): count for pair, count in zip(pairs.tolist(), counts.tolist(), strict=True)}


def _accuracy(outcome: MemberPredictions, member: tuple[str, str], base: tuple[str, str]) -> Mapping[str, Any]:
    right, dense = outcome.right(member), outcome.right(base)
    low, high = wilson_interval(int(right.sum()), len(right))
    change, least, most = (0.0, 0.0, 0.0) if member == base else paired_difference(right, dense)
    agreement = float((outcome.predictions[member] == outcome.predictions[base]).mean())
    return {
        "accuracy": float(right.mean()),
        "low": low,
        "high": high,
        "change": change,
        "change low": least,
        "change high": most,
        "agreement": agreement,
        "lost": int((dense & ~right).sum()),
        "won": int((right & ~dense).sum()),
    }
