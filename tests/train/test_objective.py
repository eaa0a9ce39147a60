import jax.numpy as jnp
import numpy as np
import pytest

from jaxprune.commands import finetune
from jaxprune.commands.finetune.settings import objective


@pytest.mark.parametrize("classes", ["asymmetric", "cross_entropy"])
def test_the_mean_over_micro_batches_is_the_loss_of_the_batch(classes):
    rng = np.random.default_rng(0)
    logits = jnp.asarray(rng.normal(size=(8, 5)), jnp.float32)
    targets = jnp.asarray(np.eye(5, dtype=np.float32)[rng.integers(0, 5, 8)])
    whole, _ = objective(finetune.defaults(loss=classes))((), logits, None, targets)
    in_parts = objective(finetune.defaults(loss=classes, accumulate=4))
    parts = [in_parts((), logits[part::4], None, targets[part::4])[0] for part in range(4)]
    np.testing.assert_allclose(np.mean(parts), whole, rtol=1e-5)
