"""The distillation of a student from its teacher: its parameters, its optimizer, and the loss of every step."""

from typing import Any

from flax import nnx

from jaxprune import reduction
from jaxprune.data.augment import random_flip
from jaxprune.nn.images import normalize, renormalized_for
from jaxprune.nn.params import merge, split
from jaxprune.preprocessing import trained_on
from jaxprune.recover.distance import distance, view
from jaxprune.recover.learning import Learning, learning
from jaxprune.recover.rates import falling, in_turn, require_same_parameters
from jaxprune.recover.settings import Settings
from jaxprune.reduction import Plan
from jaxprune.train import optimizer
from jaxprune.train.keep_rate import ByStep
from jaxprune.train.step import FIXED, LossFn


class Distillation:
    """A student and its teacher: the parameters that train, and the loss of every step."""

    def __init__(self, student: Any, teacher: Any, settings: Settings):
        self.student, self._settings, self._teacher = student, settings, split(teacher)
        self.record = teacher.preprocessing
        self.learning: Learning = learning(settings.trainable, student, split(student).params, settings.seed)
        self.fixed = {"teacher": self._teacher.params, "frozen": self.learning.frozen}

    def optimizer(self, schedule: optimizer.Schedule | float) -> Any:
        settings = self._settings
        mask = optimizer.decay_mask(self.learning.trained)
        return optimizer.adamw(schedule, weight_decay=settings.weight_decay, decay_mask=mask, clip_norm=1.0)

    def losses(self, steps: int) -> Any:
        """The loss of the student, by step where its plan sets in slowly or has several rates."""
        student, settings = self.student, self._settings
        if getattr(student, "plan", None) is None:
            return self.loss(student)
        if settings.keep_rates:
            plans = in_turn(student, settings.keep_rates, settings.seed)
        elif settings.easing and settings.stages and steps > settings.stages:
            plans = falling(student, steps, settings.easing, settings.stages)
        else:
            return self.loss(student)
        require_same_parameters(student, self._under(plans(0)))
        return ByStep(plans, lambda plan: self.loss(self._under(plan)))

    def _under(self, plan: Plan) -> Any:
        if plan == self.student.plan:
            return self.student
        scorer = None if self.student.pruner is None else self.student.pruner.scorer
        return reduction.apply(self.student, plan, scorer=scorer, rngs=nnx.Rngs(self._settings.seed))

    def loss(self, student: Any) -> LossFn:
        """The loss of the student under a plan."""
        teacher, parts, record, settings = self._teacher, split(student), self.record, self._settings

        def loss_fn(params, batch, key):
            fixed = batch[FIXED]
            images = normalize(batch["image"], record.mean, record.std)
            if settings.flip:
                images = random_flip(key, images)
            trained = self.learning.params(params, fixed["frozen"])
            teacher_view = view(merge(teacher.graph, fixed["teacher"], teacher.rest), images)
            of_student = renormalized_for(student, images, trained_on(record))
            student_view = view(merge(parts.graph, trained, parts.rest), of_student)
            return distance(student_view, teacher_view, settings.weights)

        return loss_fn
