"""A file without a name: which network it may be of, and how it differs."""

import pytest
from safetensors.numpy import save_file
from support import golden, weights

from jaxprune.errors import UserError
from jaxprune.open import convert
from jaxprune.weights.guess_network import network_similarity
from jaxprune.weights.read import by_timm


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "name"),
    [
        pytest.param("dinov3_plus", "vit_small_plus_patch16_dinov3", marks=pytest.mark.slow),
        pytest.param("siglip", "vit_base_patch16_siglip_224", marks=pytest.mark.slow),
        pytest.param("aimv2", "aimv2_large_patch14_224", marks=pytest.mark.slow),
        pytest.param("pe_core", "vit_pe_core_base_patch16_224", marks=pytest.mark.slow),
        ("beit", "beit_base_patch16_224"),
    ],
)
def test_the_family_is_found_by_the_tensors(case, name):
    found = network_similarity(by_timm(weights(golden(f"hosts/{case}")), ()))
    assert name in found.names and not found.missing and not found.besides


@pytest.mark.slow
def test_what_differs_is_said():
    tensors = by_timm(weights(golden("hosts/dinov3_plus")), ())
    del tensors["reg_token"]
    tensors["blocks.0.extra"] = tensors["norm.weight"]
    assert str(network_similarity(tensors)).endswith("but the file lacks reg_token and has besides blocks.N.extra")


@pytest.mark.slow
def test_a_file_of_another_family_is_met_with_the_nearest_name(tmp_path):
    save_file(weights(golden("hosts/siglip")), tmp_path / "siglip.safetensors")
    with pytest.raises(UserError, match=r"no plain vision transformer: nearest is .*siglip.*; name it with model="):
        convert(tmp_path / "siglip.safetensors", tmp_path / "out.safetensors")
