"""A framework of one's own, in one file of a few lines, goes through pre-training, resume, report and loading."""

import json
import textwrap

import jax
import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, commands, mim
from jaxprune.commands import pretrain
from jaxprune.commands.shared import training
from jaxprune.errors import UserError
from jaxprune.nn.params import split
from jaxprune.ranking import pseudo_labels
from jaxprune.train import workdir as workdirs

SOURCE = '''
    """Colours of a checkerboard: every other patch is masked, and a linear layer predicts what a teacher sees there."""

    import dataclasses

    import jax
    import jax.numpy as jnp
    from flax import nnx

    from jaxprune.mim import Decoder, Framework, Masker, Masks, Target
    from jaxprune.models.vit import VisionTransformer
    from jaxprune.nn import Linear
    from jaxprune.nn.block_cost import linear_flops
    from jaxprune.nn.params import Fixed
    from jaxprune.ops.patches import patchify


    @dataclasses.dataclass(frozen=True)
    class Checkerboard(Masker):
        grid: tuple[int, int]

        @property
        def num_visible(self):
            return (self.num_patches + 1) // 2

        @property
        def num_retained(self):
            return self.num_masked

        def draw(self, batch, *, key=None):
            row, column = jnp.divmod(jnp.arange(self.num_patches), self.grid[1])
            masked = jnp.broadcast_to((row + column) % 2 == 1, (batch, self.num_patches))
            order = jnp.argsort(masked, axis=1, stable=True).astype(jnp.int32)
            everything = jnp.broadcast_to(jnp.arange(self.num_patches, dtype=jnp.int32), masked.shape)
            restore = jnp.argsort(order, axis=1).astype(jnp.int32)
            return Masks(order[:, : self.num_visible], restore, masked, masked, everything)


    class MeanColour(Target, nnx.Module):
        """The mean colour of a patch, as a teacher sees it: its channels mixed by a matrix that is not trained."""

        size, name = 3, "mean colours"

        def __init__(self, patch_size, rngs):
            self.patch_size = patch_size
            self.mix = Fixed(jax.random.normal(rngs.params(), (3, 3)))

        def __call__(self, images):
            patches = patchify(images.astype(jnp.float32), self.patch_size)
            return patches.reshape(*patches.shape[:2], -1, 3).mean(2) @ self.mix[...]

        def to_pixels(self, pred, images):
            return jnp.tile(pred @ jnp.linalg.inv(self.mix[...]), (1, 1, self.patch_size[0] * self.patch_size[1]))


    class LinearDecoder(Decoder):
        def __init__(self, dim, size, rngs):
            self.pred = Linear(dim, size, rngs=rngs)

        def __call__(self, latent, masks):
            pred = self.pred(latent.mean(1)).astype(jnp.float32)[:, None]
            return jnp.broadcast_to(pred, (*masks.masked.shape, pred.shape[2]))

        def flops(self, visible, present, *, as_published=True):
            return linear_flops(self.pred, 1)


    class Colours(Framework):
        encoder_class = VisionTransformer

        def __init__(self, *, embed_dim=16, rngs, **encoder):
            vit = VisionTransformer(embed_dim=embed_dim, num_classes=0, rngs=rngs, **encoder)
            target = MeanColour(vit.patch_embed.patch_size, rngs)
            super().__init__(
                encoder=vit,
                masker=Checkerboard(vit.grid),
                decoder=LinearDecoder(embed_dim, target.size, rngs),
                target=target,
            )
'''


@pytest.fixture
def colours(tmp_path, monkeypatch):
    """The family with one more file."""
    folder = tmp_path / "family"
    folder.mkdir()
    (folder / "colours.py").write_text(textwrap.dedent(SOURCE))
    monkeypatch.setattr(mim, "__path__", [*mim.__path__, str(folder)])


def config(**changes):
    smoke = pretrain.smoke(pretrain.defaults(mim={"name": "colours", "encoder": "vit_base_patch16_224"}))
    smoke.update(changes)
    return smoke


def create(**sizes):
    tiny = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "depth": 1, "num_heads": 2}
    return mim.create("colours", **{**tiny, **sizes}, rngs=nnx.Rngs(0))


@pytest.mark.slow
def test_it_is_pre_trained_and_loads_back(colours, tmp_path, monkeypatch):
    settings, workdir = config(seed=3), tmp_path / "run"
    whole = commands.find("pretrain")(settings, tmp_path / "whole")
    # The second half of this run is a resumed one.
    with monkeypatch.context() as patched:
        patched.setattr(training, "length", lambda *_: training.Length(4, 2))
        pretrain.run(settings, workdir)
    (workdir / workdirs.COMPLETE).unlink()
    resumed = pretrain.run(settings, workdir)
    assert resumed["steps"] == whole["steps"] == 4 and resumed["loss"] == whole["loss"]
    assert "mean_colour_loss" not in json.loads((workdir / "metrics.jsonl").read_text().splitlines()[-1])
    assert (
        "Colours predicts the mean colours of the 50% of patches that it masks."
        in (workdir / "report.html").read_text()
    )
    assert sorted(path.name for path in (workdir / "pictures").iterdir())

    model = checkpoints.load_model(workdir)
    teacher = checkpoints.run.build("mim", settings.mim.to_dict(), rngs=nnx.Rngs(3)).target
    np.testing.assert_array_equal(model.target.mix[...], teacher.mix[...])
    assert "target.mix" not in split(model).params


def test_its_weights_have_published_names(colours, tmp_path):
    model, path = create(), tmp_path / "colours.safetensors"
    checkpoints.save_pretrained(model, path)
    other = create()
    other.decoder.pred.kernel[...] += 1
    other.target.mix[...] += 1
    checkpoints.load_pretrained(other, path)
    parts, loaded = split(model), split(other)
    for name, array in {**parts.params, **parts.rest}.items():
        np.testing.assert_array_equal({**loaded.params, **loaded.rest}[name], array)


def test_it_is_counted_drawn_and_refused_by_what_it_has(colours):
    model, images = create(), jax.random.normal(jax.random.key(0), (2, 32, 32, 3))
    assert model.flops().total == sum(model.flops()) > 0
    assert model.flops(as_published=False).patch_embed == model.flops().patch_embed // 2
    picture = jax.jit(lambda images, key: model.picture(images, key))(images, jax.random.key(0))
    assert picture.images.shape == images.shape and picture.masked.sum() == 16 and picture.predicted.all()
    assert model.mean_colour_loss(images, model.draw(images)) is None
    with pytest.raises(UserError, match="Colours reconstructs with a LinearDecoder, which cannot leave out a patch"):
        pseudo_labels(model, images, key=jax.random.key(0))
    with pytest.raises(UserError, match="Colours has no argument 'mask_ratio'"):
        create(mask_ratio=0.5)
    assert create(reg_tokens=2).encoder.num_prefix_tokens == 3
