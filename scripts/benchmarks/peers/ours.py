"""The jobs of `peers.py` in this library."""

from pathlib import Path
from typing import Any

import numpy as np
from protocol import PRODUCTS, Job, Made, product_operations, serve


def networks(job: Job) -> Any:
    """Returns the network of a job, under its plan, with the weights shared by all frameworks."""
    import jax
    from flax import nnx

    from jaxprune import compile_cache, models, reduction
    from jaxprune.checkpoints import load_pretrained
    from jaxprune.nn.params import unfilled

    compile_cache.enable(job.cache or compile_cache.OFF)
    jax.block_until_ready(jax.numpy.zeros(()))
    job.mark("imported")
    make = lambda: models.create(job.model, num_classes=job.classes, **job.sizes, rngs=nnx.Rngs(0))
    model = unfilled(make)
    load_pretrained(model, job.weights)
    if job.plan:
        model = reduction.apply(model, reduction.Plan.from_text(job.plan), rngs=nnx.Rngs(0))
    return model


def weights(job: Job) -> Made:
    """Writes the weights of a network under timm's names."""
    from flax import nnx

    from jaxprune import models
    from jaxprune.checkpoints import save_pretrained

    model = models.create(job.model, num_classes=job.classes, **job.sizes, rngs=nnx.Rngs(0))
    save_pretrained(model, job.weights, overwrite=True)
    return (lambda: None), {}


def forward(job: Job) -> Made:
    """Classifies a batch."""
    import jax.numpy as jnp

    from jaxprune import flops
    from jaxprune.evaluate.contestants import Runner

    model = networks(job)
    job.mark("built")
    run = Runner(model, jnp.asarray(job.images()))
    job.mark("compiled")
    macs = job.batch * flops.of_model(model).total
    return (lambda: np.asarray(run())), _facts(macs, _bytes(model) + 12 * job.batch * job.side**2)


def mae(job: Job) -> Made:
    """Takes one optimizer step of masked pre-training; `plan` is the kind of reconstruction."""
    from flax import nnx

    from jaxprune import compile_cache, mim
    from jaxprune.nn.params import merge, split

    compile_cache.enable(compile_cache.OFF)
    model: Any = mim.create("mae", encoder=job.model, **job.sizes, **job.decoder, **_way(job), rngs=nnx.Rngs(0))
    parts = split(model)

    def loss(params, batch, key):
        return merge(parts.graph, params, parts.rest)(batch["image"], key=key)[0], {}

    macs = 3 * job.batch * model.flops(as_published=False).total
    return _step(job, parts, loss, 0.05), _facts(macs, 8 * _bytes(model))


def _way(job: Job) -> dict[str, Any]:
    return {"reconstruction": job.plan} if job.plan else {}


def finetune(job: Job) -> Made:
    """Takes one optimizer step of a classifier."""
    import optax

    from jaxprune import flops
    from jaxprune.nn.params import merge, split

    model = networks(job)
    parts = split(model)

    def loss(params, batch, key):
        logits, _ = merge(parts.graph, params, parts.rest)(batch["image"])
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch["label"]).mean(), {}

    return _step(job, parts, loss, 0.05), _facts(3 * job.batch * flops.of_model(model).total, 8 * _bytes(model))


def of_pixels(job: Job) -> Any:
    """Returns UPerNet, SegViT, or the backbone of a detector, with new weights."""
    from flax import nnx

    from jaxprune import compile_cache, dense, models

    compile_cache.enable(compile_cache.OFF)
    if not job.head:
        return models.create(job.model, **job.sizes, drop_path_rate=0.0, rngs=nnx.Rngs(0))
    sizes = {"img_size": job.side, "num_classes": job.classes, **job.sizes}
    if job.head == "segvit":
        sizes["head_heads"] = job.head_heads
    return dense.create(job.head, encoder=job.model, **sizes, rngs=nnx.Rngs(0))


def maps(job: Job) -> Made:
    """Computes the classes of all pixels, or the map that a detector reads."""
    import jax.numpy as jnp

    from jaxprune.evaluate.contestants import Runner

    model = of_pixels(job)
    run = Runner(model, jnp.asarray(job.images()), (lambda model, images: model(images)) if job.head else _backbone)
    return run, {"parameters": _parameters(model), **_versions()}


def maps_step(job: Job) -> Made:
    """Takes one optimizer step of UPerNet, or of a backbone on the mean square of its map."""
    import jax
    import jax.numpy as jnp

    from jaxprune.nn.params import merge, split

    model = of_pixels(job)
    parts, classes = split(model), jnp.asarray(job.label_maps(), jnp.int32)

    def loss(params, batch, key):
        network = merge(parts.graph, params, parts.rest)
        if job.head:
            return network.loss(batch["image"], classes, key=key)[0], {}
        return jnp.square(_backbone(network, batch["image"])).mean(), {}

    jax.block_until_ready(classes)
    return _step(job, parts, loss, 0.05), {"parameters": _parameters(model), **_versions()}


def _backbone(model: Any, images: Any) -> Any:
    tokens, _ = model.forward_features(images)
    return model.patch_maps(tokens, images.shape[1:-1])


def _parameters(model: Any) -> int:
    return _bytes(model) // 4


def _step(job: Job, parts: Any, loss: Any, weight_decay: float) -> Any:
    import jax
    import jax.numpy as jnp

    from jaxprune import parallel
    from jaxprune.train import optimizer, state
    from jaxprune.train.step import make_train_step

    tx = optimizer.adamw(1e-4, b2=0.95, weight_decay=weight_decay, decay_mask=optimizer.decay_mask(parts.params))
    current = [state.create(parts.params, tx, parallel.make_mesh({"data": 1}, jax.devices()[:1]))]
    batch = {"image": jnp.asarray(job.images()), "label": jnp.asarray(job.labels(), jnp.int32)}
    step, key = make_train_step(loss, tx), jax.random.key(0)

    def run():
        current[0], metrics = step(current[0], batch, key)
        jax.block_until_ready(metrics["loss"])

    return run


def _bytes(model: Any) -> int:
    from jaxprune.nn.params import split

    return 4 * sum(array.size for array in split(model).params.values())


def _facts(macs: int, traffic: int) -> dict[str, Any]:
    """Returns the multiply-accumulates of a call, and the minimum number of bytes that it moves."""
    return {"macs": macs, "bytes": traffic, **_versions()}


def _versions() -> dict[str, Any]:
    import jax

    import jaxprune

    return {"versions": f"jaxprune {jaxprune.__version__}, jax {jax.__version__}"}


def products(job: Job) -> Made:
    """Computes large matrix products."""
    import jax

    x = jax.random.normal(jax.random.key(0), (job.side, job.side)) / job.side**0.5
    chain = jax.jit(lambda x: [x := x @ x for _ in range(PRODUCTS)][-1])
    return (lambda: jax.block_until_ready(chain(x))), {"operations": product_operations(job.side)}


def copy(job: Job) -> Made:
    """Reads a large array and writes another."""
    import jax
    import jax.numpy as jnp

    x = jnp.zeros(job.copied // 4)
    step = jax.jit(lambda x: x + 1, donate_argnums=0)
    current = [x]

    def run():
        current[0] = jax.block_until_ready(step(current[0]))

    return run, {"moved": 2 * job.copied}


def pictures(job: Job) -> Made:
    """Writes JPEG files with the dimensions and file sizes of ImageNet's, in one class directory."""
    from PIL import Image

    from jaxprune.data import Scenes

    folder = Path(job.folder) / "class"
    folder.mkdir(parents=True, exist_ok=True)
    scenes, rng = Scenes(split="train", num_examples=job.count, image_size=(375, 500), seed=0), np.random.default_rng(0)
    for index in range(job.count):
        grain = rng.normal(scale=6, size=(375, 500, 1))
        pixels = np.clip(scenes[index]["image"] + grain, 0, 255).astype(np.uint8)
        Image.fromarray(pixels).save(folder / f"{index:04}.jpg", quality=90)
    return (lambda: None), {}


def jpeg(job: Job) -> Made:
    """Reads a batch of pictures as in training or in evaluation, depending on `plan`."""
    from jaxprune import data
    from jaxprune.data.folder import ImageFolder
    from jaxprune.preprocessing import Preprocessing

    source, view = ImageFolder(job.folder), Preprocessing((job.side, job.side))
    common = {"batch_size": job.batch, "preprocessing": view, "num_threads": job.threads}
    if job.plan == "train":
        batches = iter(data.train_batches(source, seed=0, scale=(0.08, 1.0), **common))
    else:
        passes = data.eval_batches(source, **common)
        batches = (batch for _ in iter(int, 1) for batch in passes)

    def run():
        next(batches)

    return run, _versions()


def pillow(job: Job) -> Made:
    """Reads the same batch with Pillow alone, in as few lines as possible."""
    import PIL
    from PIL import Image

    files, rng = sorted(Path(job.folder).rglob("*.jpg")), np.random.default_rng(0)
    side, enlarged = job.side, int(job.side / 0.875)

    def view(image: Any) -> Any:
        width, height = image.size
        if job.plan == "train":
            area, aspect = width * height * rng.uniform(0.08, 1), np.exp(rng.uniform(np.log(3 / 4), np.log(4 / 3)))
            w, h = min(round((area * aspect) ** 0.5), width), min(round((area / aspect) ** 0.5), height)
            left, top = rng.integers(0, width - w + 1), rng.integers(0, height - h + 1)
            return image.crop((left, top, left + w, top + h)).resize((side, side), Image.Resampling.BICUBIC)
        zoom = enlarged / min(width, height)
        image = image.resize((round(width * zoom), round(height * zoom)), Image.Resampling.BICUBIC)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        return image.crop((left, top, left + side, top + side))

    def run():
        np.stack(
            [np.asarray(view(Image.open(files[i]).convert("RGB"))) for i in rng.integers(0, len(files), job.batch)]
        )

    return run, {"versions": f"Pillow {PIL.__version__}"}


if __name__ == "__main__":
    jobs = (weights, forward, mae, finetune, maps, maps_step, products, copy, pictures, jpeg, pillow)
    serve({job.__name__: job for job in jobs})
