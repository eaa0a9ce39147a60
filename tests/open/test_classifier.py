"""Classifiers opened from run directories, from files of `save_model` and from published files, and what is refused."""

import chex
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors import safe_open
from safetensors.numpy import save_file

from jaxprune import checkpoints, mim, models, ranking, reduction, scoring
from jaxprune.checkpoints import open_classifier
from jaxprune.checkpoints.run import leave_network
from jaxprune.errors import UserError
from jaxprune.models import resnet, swin, vit
from jaxprune.nn.params import variables
from jaxprune.open import at, convert, initialise
from jaxprune.preprocessing import HALF, IMAGENET_MEAN, IMAGENET_STD, Preprocessing

SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
NAMES = ("ant", "bee", "cow")
RECORD = Preprocessing((16, 16), crop_pct=0.8, interpolation="bilinear", mean=HALF, std=HALF, exif=False)


def classifier(**options):
    return models.create("vit", **{**SIZES, "num_classes": 3, **options}, rngs=nnx.Rngs(1))


def same_weights(ours, theirs):
    values = lambda model: {name: np.asarray(variable[...]) for name, variable in variables(model).items()}
    chex.assert_trees_all_equal(values(ours), values(theirs))


@pytest.fixture
def tiny(monkeypatch):
    """Makes ViT-Ti small."""
    known = vit.variants()
    sizes = {"embed_dim": 16, "depth": 1, "num_heads": 2}
    small = {name: {**arguments, **sizes} for name, arguments in known.items() if "_tiny_" in name}
    monkeypatch.setattr(vit, "variants", lambda: {**known, **small})


def test_a_file_of_save_model_with_its_plan_names_and_preprocessing(tmp_path):
    model = classifier()
    model.preprocessing = RECORD
    fast = reduction.apply(model, reduction.Plan("topk", 0.5, (0,)))
    checkpoints.save_model(fast, tmp_path / "fast.safetensors", class_names=NAMES)
    found = open_classifier(tmp_path / "fast.safetensors")
    assert found.class_names == NAMES and found.origin == str(tmp_path / "fast.safetensors")
    assert found.model.plan == fast.plan and found.model.preprocessing == RECORD
    same_weights(found.model, fast)
    larger = open_classifier(tmp_path / "fast.safetensors", img_size=24).model
    assert larger.grid == (6, 6) and larger.preprocessing == RECORD.with_size(24)


@pytest.mark.parametrize("method", ["centre", "norm", "evit", "ltrp"])
def test_a_network_with_a_scorer_at_another_size(method, tmp_path):
    proposal = {"evit": classifier}.get(method, lambda: None)()
    if method == "ltrp":
        sizes = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2}
        proposal = ranking.create("vit", **sizes, rngs=nnx.Rngs(0))
    options = {"grid": (4, 4)} if proposal is None else {"proposal": proposal}
    options |= {"layer": 0} if method == "evit" else {}
    plan = reduction.Plan("from_scores", 0.5)
    checkpoints.save_model(
        reduction.apply(classifier(), plan, scorer=scoring.create(method, **options)), tmp_path / "fast.safetensors"
    )
    if proposal is not None:
        with pytest.raises(UserError, match=rf"is pruned by {method}, whose network scores the patches of one"):
            checkpoints.load_model(tmp_path / "fast.safetensors", img_size=24)
        return
    larger = checkpoints.load_model(tmp_path / "fast.safetensors", img_size=24)
    assert larger.pruner.scorer.grid == (6, 6) and larger.pruner.step.num_keep == 18
    assert nnx.eval_shape(larger, jnp.zeros((2, 24, 24, 3)))[1].kept[0].shape == (2, 18)


@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_run_directory_whose_weights_are_a_published_file(pool, tmp_path):
    model = classifier(global_pool=pool)
    model.preprocessing = RECORD
    leave_network(model, tmp_path, NAMES)
    leave_network(model, tmp_path, NAMES)  # a run that was stopped in between does it again
    found = open_classifier(tmp_path)
    assert found.class_names == NAMES and found.model.preprocessing == RECORD
    same_weights(found.model, model)
    assert checkpoints.load_model(tmp_path, img_size=24).grid == (6, 6)
    with pytest.raises(UserError, match="no averaged parameters"):
        open_classifier(tmp_path, ema=True)


def test_a_classifier_begins_with_the_weights_of_a_file_of_save_model(tmp_path):
    trained, fresh = classifier(), classifier(num_classes=5)
    trained.blocks[0].mlp.fc1.bias[...] += 1.0
    checkpoints.save_model(trained, tmp_path / "model.safetensors")
    initialise(fresh, at(tmp_path / "model.safetensors"))
    np.testing.assert_array_equal(fresh.blocks[0].mlp.fc1.bias[...], trained.blocks[0].mlp.fc1.bias[...])
    assert fresh.num_classes == 5


@pytest.mark.slow
def test_what_a_classifier_has_no_place_for_is_named(tmp_path, caplog):
    checkpoints.save_model(classifier(init_values=1.0), tmp_path / "model.safetensors")
    initialise(classifier(), at(tmp_path / "model.safetensors"))
    assert "The classifier has no blocks.0.ls1.gamma" in caplog.text and "are left out" in caplog.text
    with pytest.raises(UserError, match=r"is a run, which describes its own network: leave out model and key\."):
        convert(tmp_path / "model.safetensors", tmp_path / "out.safetensors", model="vit", key="teacher")


@pytest.mark.parametrize("pool", ["token", "avg"])
@pytest.mark.parametrize("kind", ["ours", "published"])
def test_a_head_is_kept_where_the_classes_match(kind, pool, tmp_path, caplog):
    trained, path = classifier(global_pool=pool), str(tmp_path / "model.safetensors")
    trained.head.kernel[...] += 1.0
    if kind == "ours":
        checkpoints.save_model(trained, path, class_names=NAMES)
    else:
        checkpoints.save_pretrained(trained, path)
    cases = [
        (pool, NAMES, "with its head of 3 classes"),
        (pool, ("0", "1", "2"), "with its head of 3 classes"),  # numbers are not names
        (pool, (*NAMES, "dog"), "with a new head: the one in it is of 3 classes, and here are 4"),
        (pool, None, "with a new head."),
    ]
    if pool == "token":
        cases.append(("avg", NAMES, "with a new head: the loaded one has another pooling"))
    if kind == "ours":
        others = ("ant", "bee", "cat")
        cases.append(
            (pool, others, "with a new head: the one in it is of other classes, such as 'cow' in place of 'cat'")
        )
    for pooled, names, logged in cases:
        caplog.clear()
        fresh = classifier(global_pool=pooled, num_classes=3 if names is None else len(names))
        before = np.asarray(fresh.head.kernel[...])
        with caplog.at_level("INFO", "jaxprune"):
            initialise(fresh, at(path), names)
        kept = "with its head" in logged
        np.testing.assert_array_equal(fresh.head.kernel[...], trained.head.kernel[...] if kept else before)
        np.testing.assert_array_equal(fresh.blocks[0].mlp.fc1.kernel[...], trained.blocks[0].mlp.fc1.kernel[...])
        assert logged in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["token", "avg"])
def test_a_published_file_by_its_name(pool, tiny, tmp_path):
    model = models.create("vit_tiny_patch16_224", num_classes=3, global_pool=pool, rngs=nnx.Rngs(1))
    checkpoints.save_pretrained(model, tmp_path / "vit.safetensors")
    (tmp_path / "names.txt").write_text("ant\nbee \ncow\n\n")
    by_file = {"weights": tmp_path / "vit.safetensors", "name": "vit_tiny_patch16_224"}
    found = open_classifier(**by_file, class_names=tmp_path / "names.txt")
    assert found.class_names == NAMES
    read = found.model.preprocessing
    # timm's; and those of pre-training by masked images, after which networks pool over patches.
    statistics = (HALF, HALF) if pool == "token" else (IMAGENET_MEAN, IMAGENET_STD)
    assert found.model.global_pool == pool and (read.crop_pct, read.mean, read.std) == (0.9, *statistics)
    same_weights(found.model, model)
    assert open_classifier(**by_file).class_names == ("0", "1", "2")
    assert open_classifier(**by_file, class_names=NAMES, img_size=32).model.grid == (2, 2)
    with pytest.raises(UserError, match=r"2 classes are named, and .* has 3"):
        open_classifier(**by_file, class_names=("ant", "bee"))
    with pytest.raises(UserError, match=r"names.csv cannot be read"):
        open_classifier(**by_file, class_names=tmp_path / "names.csv")


def test_no_other_family_is_asked_for_a_file_of_a_named_vit(tiny, monkeypatch, tmp_path):
    model = models.create("vit_tiny_patch16_224", num_classes=3, rngs=nnx.Rngs(1))
    checkpoints.save_pretrained(model, tmp_path / "vit.safetensors")

    def asked():
        raise AssertionError("another family was asked")

    for family in (resnet, swin):
        monkeypatch.setattr(family, "variants", asked)
    monkeypatch.setattr(mim, "methods", asked)
    found = open_classifier(weights=tmp_path / "vit.safetensors", name="vit_tiny_patch16_224")
    same_weights(found.model, model)


def test_a_convnet_is_a_classifier_too(monkeypatch, tmp_path):
    monkeypatch.setitem(resnet.DEPTHS, "resnet_tiny", (False, (1, 1)))
    model = models.create("resnet_tiny", num_classes=3, rngs=nnx.Rngs(1))
    checkpoints.save_pretrained(model, tmp_path / "published.safetensors")
    checkpoints.save_model(model, tmp_path / "ours.safetensors")
    published = {"weights": tmp_path / "published.safetensors", "name": "resnet_tiny"}
    for where in (published, {"run": tmp_path / "ours.safetensors"}):
        found = open_classifier(**where, img_size=32)
        assert found.class_names == ("0", "1", "2") and found.model.preprocessing.img_size == (32, 32)
        same_weights(found.model, model)


def test_what_is_no_classifier_is_refused(tiny, tmp_path):
    decoder = {"decoder_embed_dim": 16, "decoder_depth": 1, "decoder_num_heads": 2}
    others = {
        "framework": mim.create("mae", **SIZES, **decoder, rngs=nnx.Rngs(0)),
        "ranker": ranking.create("vit", **SIZES, rngs=nnx.Rngs(0)),
        "headless": classifier(num_classes=0),
    }
    for name, model in others.items():
        checkpoints.save_model(model, tmp_path / f"{name}.safetensors")
    features = models.create("vit_tiny_patch16_224", num_classes=0, rngs=nnx.Rngs(0))
    checkpoints.save_pretrained(features, tmp_path / "features.safetensors")
    named = {"name": "vit_tiny_patch16_224"}
    for where, message in (
        ({"run": tmp_path / "framework.safetensors"}, "holds a pre-training framework, and a network is needed"),
        ({"run": tmp_path / "ranker.safetensors"}, "holds a ranker of patches, and a network is needed"),
        ({"run": tmp_path / "headless.safetensors"}, "a network without a classifier"),
        ({"run": tmp_path / "features.safetensors"}, "weights without a card: give it as published weights"),
        ({"run": tmp_path / "nowhere"}, "There is no run directory"),
        ({"weights": tmp_path / "features.safetensors", **named}, "no classifier for vit_tiny_patch16_224"),
        ({"weights": tmp_path / "features.safetensors"}, "does not say which network it belongs to"),
        ({"weights": tmp_path / "headless.safetensors", **named}, "written by save_model.*give it as a run"),
        ({"weights": tmp_path / "features.safetensors", "name": "vit_tiny"}, "Unknown model 'vit_tiny'"),
        ({"run": "a", "weights": "b", **named}, "a and b are both named"),
        ({}, "No classifier is named. Give run=RUN"),
    ):
        with pytest.raises(UserError, match=message):
            open_classifier(**where)


def test_weights_that_are_not_the_cards_fill_nothing_in_silence(tmp_path):
    path = tmp_path / "model.safetensors"
    checkpoints.save_model(classifier(), path)
    with safe_open(path, "numpy") as file:
        card, arrays = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    kernel = arrays.pop("head.kernel")
    save_file(arrays, path, metadata=card)
    with pytest.raises(UserError, match=r"head\.kernel is missing"):
        checkpoints.load_model(path)
    save_file({**arrays, "head.kernel": kernel[:3]}, path, metadata=card)
    with pytest.raises(UserError, match=r"head\.kernel is \(3, 3\) and not \(16, 3\)"):
        checkpoints.load_model(path)


def test_a_torn_card_is_named(tmp_path):
    leave_network(classifier(), tmp_path, NAMES)
    card = tmp_path / "model.json"
    card.write_text(card.read_text()[:40])
    with pytest.raises(UserError, match=r"model\.json is damaged"):
        checkpoints.load_model(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["crossmae", "localmim", "mff"])
def test_fine_tuning_starts_from_the_encoder_of_any_framework(method, tmp_path):
    decoder = {"decoder_embed_dim": 16, "decoder_num_heads": 2, "decoder_depth": 1, "reconstruction": "progressive"}
    framework = mim.create(method, **SIZES, **decoder, rngs=nnx.Rngs(0))
    encoder = variables(framework.encoder)
    checkpoints.save_model(framework, tmp_path / "ours.safetensors")
    checkpoints.save_pretrained(framework, tmp_path / "published.safetensors")
    for file in ("ours", "published"):
        model = classifier(global_pool="avg")
        initialise(model, at(tmp_path / f"{file}.safetensors"), NAMES)
        same = [name for name in variables(model) if not name.startswith(("head.", "fc_norm."))]
        assert "blocks.0.attn.qkv.kernel" in same and "pos_embed" in same
        for name in same:
            np.testing.assert_array_equal(variables(model)[name][...], encoder[name][...])


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("swin", "published"),
        pytest.param("convnext", "ours", marks=pytest.mark.slow),
        pytest.param("hiera", "published", marks=pytest.mark.slow),
    ],
)
def test_a_network_of_stages_keeps_the_norm_of_its_head(name, kind, tmp_path):
    sizes = {**models.tiny(name), "head_init_scale": 1.0}
    make = lambda seed, classes: models.create(name, **sizes, num_classes=classes, rngs=nnx.Rngs(seed))
    trained, other, same, path = make(0, 3), make(1, 4), make(2, 3), str(tmp_path / "model.safetensors")
    if trained.head.norm is not None:
        trained.head.norm.scale[...] += 1
    if kind == "ours":
        checkpoints.save_model(trained, path, class_names=NAMES)
    else:
        checkpoints.save_pretrained(trained, path)
    initialise(other, at(path), (*NAMES, "dog"))
    initialise(same, at(path), NAMES)
    same_weights(same, trained)
    wanted = variables(trained)
    for name, variable in variables(other).items():
        if not name.startswith("head.fc."):
            np.testing.assert_array_equal(variable[...], wanted[name][...])
    assert other.head.fc.kernel.shape[1] == 4


def test_names_of_another_number_of_classes_are_refused(tmp_path):
    with pytest.raises(UserError, match="2 class names for 3 classes: name each class"):
        checkpoints.save_model(classifier(), tmp_path / "vit.safetensors", class_names=NAMES[:2])
    assert not list(tmp_path.iterdir())


def test_a_file_of_names_may_begin_with_the_mark_of_an_editor(tmp_path):
    checkpoints.save_model(classifier(), tmp_path / "vit.safetensors")
    (tmp_path / "names.txt").write_text("\ufeffant\nbee\ncow\n", encoding="utf-8")
    assert open_classifier(tmp_path / "vit.safetensors", class_names=tmp_path / "names.txt").class_names == NAMES
