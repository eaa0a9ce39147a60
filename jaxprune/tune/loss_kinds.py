"""What a plan loses on an image, by the kind of network: what its answers are, and which loss a tuning bounds.

A classifier, or a network that pools features, is right or wrong about an image: its losses are 0 or 1
(`image_errors`). A segmentation network loses a share of the pixels (`pixel_losses`). Everything else of a tuning, its
search, its halves and its tests, is the same.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import numpy as np
from jax.sharding import Mesh

from jaxprune.dynamic import confidence
from jaxprune.evaluate import Batch, Stacked, run_over
from jaxprune.evaluate.segmentation.measure import passes
from jaxprune.measures.segmentation import Areas, confusion
from jaxprune.open.gallery import gallery_kernel
from jaxprune.ops.label_maps import IGNORED
from jaxprune.tune import blockwise, image_errors
from jaxprune.tune.image_errors import ClassScores, ImagePredictions
from jaxprune.tune.pixel_images import PixelImages
from jaxprune.tune.pixel_losses import PixelCounts, PixelScores, accuracy_losses, agreement_losses
from jaxprune.tune.requirement import Bound

Arrays = Mapping[str, np.ndarray]  # the answers of a network, as they are stored


class LossKind(Protocol):
    """What a tuning bounds.

    Attributes:
      graded: whether a loss may lie between 0 and 1; see `pareto_testing`.
      key: what answers depend on besides the network and the numbers of the images.
    """

    graded: ClassVar[bool]
    key: Mapping[str, Any]

    def answers(self, model: Any, numbers: np.ndarray, dense: Callable[[], Arrays] | None, desc: str) -> Arrays:
        """Returns the answers of a network to the images of these numbers.

        Args:
          dense: returns those of the dense network to the same images; None for the dense network itself.
        """
        ...

    def losses(self, dense: Arrays, plan: Arrays, bank: Arrays, *, in_bank: bool) -> np.ndarray:
        """Returns the loss of each image under a plan, from 0 to 1.

        Args:
          dense: answers of the dense network, whose first images are those of the plan.
          plan: answers under the plan.
          bank: answers of the dense network to the estimation images.
          in_bank: whether the images are the first of these.
        """
        ...

    def scores(self, answers: Arrays, dense: Arrays) -> PixelScores | ClassScores | None:
        """Returns what else is reported of a network.

        Args:
          answers: its answers.
          dense: those of the dense network, whose first images are the same ones.
        """
        ...

    def about(self, bound: Bound) -> str:
        """Returns what the risk is, in words."""
        ...


class ClassLoss:
    """The error of an image: its class, or the images that its features retrieve.

    Args:
      dense: the network without a plan.
      show: see `tuning.Show`.
      bound: what is asked for.
      neighbours: see `image_errors.agreement_errors`.
      mesh: the devices for the images.
      programs: compiled blocks.
      exits: whether networks also say how sure they are, see `confidence`.
    """

    graded: ClassVar[bool] = False

    def __init__(
        self,
        dense: Any,
        show: Callable,
        bound: Bound,
        neighbours: int,
        mesh: Mesh,
        programs: blockwise.Programs,
        *,
        exits: bool = False,
    ):
        self.key: Mapping[str, Any] = {"exits": True} if exits and dense.num_classes else {}
        self._sides, self._show, self._mesh, self._programs = dense.preprocessing.sides, show, mesh, programs
        self._errors = image_errors.accuracy_errors if bound.counts == "accuracy" else image_errors.agreement_errors
        self._neighbours = neighbours

    def answers(
        self,
        model: Any,
        numbers: np.ndarray,
        dense: Callable[[], Arrays] | None,
        desc: str,
        *,
        resizing: bool = False,
    ) -> Arrays:
        """See `LossKind`: predicted classes or features, and labels.

        Args:
          resizing: whether a network for smaller images sees those of the dense network, resized, as in a cascade.
        """
        images = {} if resizing or model.preprocessing.sides == self._sides else {"record": model.preprocessing}
        forward = blockwise.outputs(model, self._programs)
        collector = Stacked("answers", ("label",))
        ((values, columns),) = run_over(
            self._show(numbers, **images), {"answers": forward}, [collector], self._mesh, desc=desc
        )
        values, labels = np.asarray(values, np.float32), np.asarray(columns["label"])
        # An image with several classes has no single right class.
        labels = labels if labels.ndim == 1 else np.full(len(values), -1)
        sure = {"sure": confidence(values[None])[0]} if self.key else {}
        return {"values": values.argmax(-1) if model.num_classes else values, "label": labels, **sure}

    @staticmethod
    def confidence(plan: Arrays, bank: Arrays, *, in_bank: bool) -> np.ndarray:
        """Returns how sure a network is of each image, as the exits of a cascade ask: the largest probability.

        Without classes it is that of the nearest image of a gallery, the bank, see `open.gallery`.

        Args:
          plan: its answers.
          bank, in_bank: see `losses`; no image finds itself.
        """
        if "sure" in plan:
            return plan["sure"]
        cosines = plan["values"] @ gallery_kernel(bank["values"])
        if in_bank:
            np.fill_diagonal(cosines, -np.inf)
        return confidence(cosines[None])[0]

    def losses(self, dense: Arrays, plan: Arrays, bank: Arrays, *, in_bank: bool) -> np.ndarray:
        """See `LossKind`."""
        of_dense, of_plan, of_bank = (
            ImagePredictions(arrays["values"], arrays["label"]) for arrays in (dense, plan, bank)
        )
        of_dense = of_dense[: len(of_plan.values)]
        return self._errors(of_dense, of_plan, of_bank, neighbours=self._neighbours, in_bank=in_bank)

    def scores(self, answers: Arrays, dense: Arrays) -> ClassScores | None:
        """See `LossKind`: the accuracy of a classifier, where all images have labels."""
        of_network, of_dense = (ImagePredictions(arrays["values"], arrays["label"]) for arrays in (answers, dense))
        return ClassScores.of(of_network, of_network if answers is dense else of_dense)

    @staticmethod
    def about(bound: Bound) -> str:
        """See `LossKind`."""
        error = (
            "an image that the dense network gets right and the plan wrong"
            if bound.counts == "accuracy"
            else "an image on which the plan does not agree with the dense network"
        )
        return f"the fraction of errors, {error}"


class PixelLoss:
    """The share of an image's pixels that a segmentation network loses.

    Args:
      images: the images, and how networks are tested on them.
      bound: what is asked for.
      mesh: the devices for the images.
      programs: compiled blocks.
    """

    graded: ClassVar[bool] = True

    def __init__(self, images: PixelImages, bound: Bound, mesh: Mesh, programs: blockwise.Programs):
        self.key: Mapping[str, Any] = {"test": str(images.time), "maps": images.has_maps}
        self._images, self._mesh, self._programs, self._bound = images, mesh, programs, bound

    def answers(self, model: Any, numbers: np.ndarray, dense: Callable[[], Arrays] | None, desc: str) -> Arrays:
        """See `LossKind`: pixels counted by image; of the dense network also the class of each pixel."""
        images = self._images
        time = images.time.at(model.preprocessing.img_size)
        shapes = [images.shapes[number] for number in numbers]
        maps = None if dense is None else _maps_of(dense())
        collector = _Counting(model.num_classes, images.has_maps, maps)
        for places, way, batches in passes(
            images.examples(numbers), [time], shapes, model.preprocessing, **images.options
        ):
            collector.places = places
            forward = blockwise.pixel_classes(model, self._programs, time, way)
            run_over(batches, {"answers": forward}, [collector], self._mesh, desc=desc)
        return collector.result()

    def losses(self, dense: Arrays, plan: Arrays, bank: Arrays, *, in_bank: bool) -> np.ndarray:
        """See `LossKind`."""
        of_plan = _counts(plan)
        if self._bound.counts != "accuracy":
            return agreement_losses(of_plan)
        return accuracy_losses(_counts(dense)[: len(of_plan.counted)], of_plan)

    def scores(self, answers: Arrays, dense: Arrays) -> PixelScores:
        """See `LossKind`."""
        return PixelScores.of(_counts(answers))

    def about(self, bound: Bound) -> str:
        """See `LossKind`."""
        if bound.counts == "accuracy":
            return (
                "the mean over images of the increase of the share of wrong pixels over the dense network's, where "
                "fewer count as none"
            )
        where = " (of those that have a class in the label map)" if self._images.has_maps else ""
        return f"the mean over images of the share of pixels{where} whose class is another than by the dense network"


class _Counting:
    """Counts the pixels of images, over several passes; files that cannot be read have no counts.

    Args:
      num_classes: of the network.
      has_maps: whether pixels have labels.
      maps: the class of each pixel by the dense network, {place: map}; None to keep these.

    Attributes:
      places: the places of the images of this pass.
    """

    def __init__(self, num_classes: int, has_maps: bool, maps: Mapping[int, np.ndarray] | None):
        self.places: Sequence[int] = ()
        self._classes, self._dense = num_classes if has_maps else 0, maps
        self._maps: dict[int, np.ndarray] = {}
        self._counts: dict[int, tuple[int, int]] = {}
        self._areas: dict[int, np.ndarray] = {}

    def update(self, batch: Batch, outputs: Mapping[str, Any]) -> None:
        """See `Collector`."""
        for row, index in enumerate(batch["index"]):
            place, (height, width) = self.places[int(index)], batch["shape"][row]
            classes = np.asarray(outputs["answers"][row, :height, :width])
            labels = np.asarray(batch["label_map"][row, :height, :width])
            counts = labels != IGNORED if self._classes else np.ones(labels.shape, bool)
            agrees = counts if self._dense is None else counts & (classes == self._dense[place])
            self._counts[place] = int(counts.sum()), int(agrees.sum())
            table = confusion(labels, classes, self._classes) if self._classes else np.zeros((0, 0), int)
            self._areas[place] = np.concatenate(Areas.of(table[None]))
            if self._dense is None:
                self._maps[place] = classes

    def result(self) -> Arrays:
        """Returns the counts in the order of the places, and the maps of the dense network in one row."""
        places = sorted(self._counts)
        counted, agreeing = np.array([self._counts[place] for place in places]).T
        right, labelled, predicted = np.stack([self._areas[place] for place in places], axis=1)
        arrays = {"counted": counted, "agreeing": agreeing, "right": right, "labelled": labelled}
        arrays["predicted"] = predicted
        if self._dense is None:
            maps = [self._maps[place] for place in places]
            arrays["places"], arrays["shapes"] = np.array(places), np.array([classes.shape for classes in maps])
            arrays["maps"] = np.concatenate([classes.reshape(-1) for classes in maps])
        return arrays


def _counts(arrays: Arrays) -> PixelCounts:
    areas = Areas(arrays["right"], arrays["labelled"], arrays["predicted"])
    return PixelCounts(arrays["counted"], arrays["agreeing"], areas)


def _maps_of(arrays: Arrays) -> dict[int, np.ndarray]:
    """The maps of images that are stored in one row, by place."""
    shapes = arrays["shapes"]
    parts = np.split(arrays["maps"], np.cumsum(shapes.prod(1))[:-1])
    return {int(place): part.reshape(shape) for place, part, shape in zip(arrays["places"], parts, shapes, strict=True)}
