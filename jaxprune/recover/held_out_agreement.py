"""How alike a student is to its teacher on held-out images."""

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import Mesh

from jaxprune.data.loader import eval_batches
from jaxprune.data.source import Source
from jaxprune.evaluate import Averages, Forward, run_over
from jaxprune.nn.images import normalize, renormalized_for
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import trained_on
from jaxprune.recover.distance import similarity, view
from jaxprune.recover.settings import Settings


class HeldOutAgreement:
    """Measures how alike a student with some parameters is to its teacher, on held-out images."""

    def __init__(self, student: Any, teacher: Any, held_out: Source, settings: Settings, mesh: Mesh):
        self._student, self._parts, self._teacher, self._mesh = student, split(student), split(teacher), mesh
        self._batches = eval_batches(
            held_out,
            batch_size=settings.batch_size,
            preprocessing=teacher.preprocessing,
            process_index=jax.process_index(),
            process_count=jax.process_count(),
        )
        self._teacher_record = teacher.preprocessing
        # One object for all evaluations: JAX compiles another one anew.
        self._forward = Forward(self._call, None)

    def __call__(self, params: Mapping[str, jax.Array]) -> dict[str, float]:
        """Returns the means of `distance.similarity`."""
        arrays = {"student": dict(params), "teacher": self._teacher.params}
        forward = self._forward._replace(arrays=arrays)
        (averages,) = run_over(self._batches, {"alike": forward}, [Averages("alike")], self._mesh, desc="held out")
        return averages

    def _call(self, arrays: Any, batch: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        images = normalize(batch["image"], self._teacher_record.mean, self._teacher_record.std)
        teacher_view = view(merge(self._teacher.graph, arrays["teacher"], self._teacher.rest), images)
        student = merge(self._parts.graph, arrays["student"], self._parts.rest)
        student_view = view(student, renormalized_for(self._student, images, trained_on(self._teacher_record)))
        return similarity(student_view, teacher_view)
