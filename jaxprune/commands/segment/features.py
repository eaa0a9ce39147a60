"""Features of a frozen encoder, computed once, and the batches of them that a head is trained on."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxprune import data as loader
from jaxprune.commands.shared.dense_settings import preprocessing
from jaxprune.config import Config
from jaxprune.data.batch_reader import Batch
from jaxprune.data.joint.segmentation import TrainMaps
from jaxprune.data.loader import TrainBatches, require_a_batch
from jaxprune.data.order import Order
from jaxprune.evaluate import Forward, Stacked, run_over
from jaxprune.nn.images import normalize
from jaxprune.nn.patch_embed import pair

FEATURES = "features_{}"


class ColumnReader:
    """Reads the batch of a step from columns in memory, in place of a `BatchReader`.

    Args:
      columns: {name: array}, one row for each example.
      order: which of them make up a step.
    """

    def __init__(self, columns: dict[str, np.ndarray], order: Order):
        self.columns, self.order = columns, order

    def __call__(self, step: int) -> Batch:
        _, indices, _ = self.order(step)
        return {name: column[indices] for name, column in self.columns.items()}

    def note_replaced(self, step: int, batch: Batch) -> None:
        """Nothing to note: columns have no broken examples."""


def of_frozen(network: Any, examples: Any, config: Config, mesh: jax.sharding.Mesh) -> dict[str, np.ndarray]:
    """Returns the columns of training: the maps that the head reads, float16, `label_map`, `label` and `index`.

    Images and maps are resized to the network's size, without crops. With `config.mirrors` every image comes twice, the
    second time mirrored.

    Raises:
      UserError: those that can be read do not fill a batch.
    """
    record = preprocessing(config)
    batches = loader.eval_batches(
        examples,
        batch_size=config.test.batch_size or config.batch_size,
        preprocessing=record,
        transform=TrainMaps(pair(config.data.img_size)),
        num_threads=config.data.num_threads,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )

    def forward(mirrored: bool) -> Forward:
        def call(module: Any, batch: Any) -> dict[str, jax.Array]:
            images = normalize(batch["image"], record.mean, record.std)
            maps = module.features(images[:, :, ::-1] if mirrored else images)
            return {FEATURES.format(level): x.astype(jnp.float16) for level, x in enumerate(maps)}

        return Forward.of(network, call)

    names = ("plain", "mirrored") if config.mirrors else ("plain",)
    forwards = {name: forward(name == "mirrored") for name in names}
    kept = ("label_map", "label", "index")
    parts = run_over(batches, forwards, [Stacked(name, kept) for name in names], mesh, desc="features")
    columns = []
    for name, (features, beside) in zip(names, parts, strict=True):
        maps = beside["label_map"][:, :, ::-1] if name == "mirrored" else beside["label_map"]
        columns.append({**features, **beside, "label_map": maps})
    joined = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    require_a_batch(examples.name, len(joined["index"]), config.batch_size)
    return joined


def batches(columns: dict[str, np.ndarray], config: Config) -> TrainBatches:
    """The endless, shuffled batches of a training run on features."""
    place = jax.process_index(), jax.process_count()
    order = Order.of_process(len(columns["index"]), config.batch_size, *place, config.seed)
    return TrainBatches(ColumnReader(columns, order), 0, 0)  # type: ignore[arg-type]
