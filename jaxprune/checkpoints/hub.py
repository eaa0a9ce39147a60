"""Networks on the Hugging Face Hub: the two calls of its mixin, with a page written from the run card."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxprune.checkpoints.model_card import model_card
from jaxprune.checkpoints.run import load_card, load_model, save_model
from jaxprune.files import write_atomically
from jaxprune.weights.hub import library, one_line, repository

FILE = "model.safetensors"
# The Hub counts downloads by requests of it.
CONFIG = "config.json"
PAGE = "README.md"


def push_to_hub(
    model: Any,
    repo_id: str,
    *,
    license: str,
    measured: Mapping[str, Any] | None = None,
    base_model: str = "",
    class_names: tuple[str, ...] = (),
    commit_message: str = "Push model using huggingface_hub.",
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> str:
    """Uploads a network with its plan and a page, and returns the address of the commit.

    The repository gets `model.safetensors`, as `save_model` writes it, its card as `config.json`, and the page as
    `README.md`: the plan, what was measured on which hardware, and what was not checked.

    Args:
      model: a network as for `save_model`, or the path of a run directory or of a file of `save_model`.
      repo_id: "OWNER/NAME"; it is created if there is none.
      license: of the weights, as the Hub writes it, such as "apache-2.0"; that of jaxprune does not hold for them.
      measured: a row of a leaderboard that was measured of this network; the page says so if there is none.
      base_model: the repository of the weights that it was made from, such as "timm/vit_small_patch14_dinov2.lvd142m".
      class_names: of a classifier that is not given as a path.
      commit_message, private, token, branch, create_pr: as in `huggingface_hub.ModelHubMixin.push_to_hub`.

    Raises:
      UserError: the network cannot be rebuilt from a file, `measured` is of another network, `huggingface_hub` is not
        installed, or the upload fails.
    """
    repo_id, _ = repository(f"hf-hub:{repo_id}")
    hub = library(f"Uploading {repo_id}")
    if isinstance(model, str | os.PathLike):
        class_names = load_card(model).class_names
        model = load_model(model)
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        save_model(model, directory / FILE, class_names=class_names)
        card = load_card(directory / FILE)
        write_atomically(directory / CONFIG, card.as_json() + "\n")
        facts = {"license": license, "measured": measured, "base_model": base_model}
        write_atomically(directory / PAGE, model_card(model, card, repo_id, **facts))
        remedy = "check the name, the connection and the token (huggingface-cli login), or save it with save_model."
        with one_line(f"{repo_id} cannot be uploaded", remedy):
            api = hub.HfApi(token=token)
            api.create_repo(repo_id, private=private, exist_ok=True)
            if branch is not None:
                api.create_branch(repo_id, branch=branch, exist_ok=True)
            place: dict[str, Any] = {"revision": branch, "create_pr": create_pr}
            done = api.upload_folder(repo_id=repo_id, folder_path=folder, commit_message=commit_message, **place)
    return str(getattr(done, "commit_url", done))


def from_pretrained(
    pretrained_model_name_or_path: str | os.PathLike,
    *,
    force_download: bool = False,
    token: str | bool | None = None,
    cache_dir: str | os.PathLike | None = None,
    local_files_only: bool = False,
    revision: str | None = None,
    **model_kwargs: Any,
) -> Any:
    """Returns a network that `push_to_hub` uploaded, with its plan and its preprocessing.

    >>> import os, tempfile; import jaxprune; from flax import nnx
    >>> sizes = dict(img_size=16, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=3)
    >>> model = jaxprune.models.create("vit", **sizes, rngs=nnx.Rngs(0))
    >>> folder = tempfile.mkdtemp()
    >>> jaxprune.checkpoints.save_model(model, os.path.join(folder, "model.safetensors"))
    >>> from_pretrained(folder).num_classes
    3

    Args:
      pretrained_model_name_or_path: "OWNER/NAME", with or without "hf-hub:" and "@REVISION"; or a directory with
        `model.safetensors`, or what `load_model` takes.
      force_download, token, cache_dir, local_files_only, revision: as in that of `huggingface_hub.ModelHubMixin`.
      model_kwargs: of `load_model`, such as `img_size`.

    Raises:
      UserError: it cannot be fetched and is not in the cache, or holds no network of `save_model`.
    """
    path = Path(pretrained_model_name_or_path)
    if path.exists():
        return load_model(path / FILE if (path / FILE).is_file() else path, **model_kwargs)
    name = str(pretrained_model_name_or_path)
    repo_id, at = repository(name if name.startswith("hf-hub:") else f"hf-hub:{name}")
    hub = library(f"Fetching {repo_id}")
    remedy = "check the name and the connection, or download it elsewhere and give the directory."
    with one_line(f"{repo_id} cannot be fetched and is not in the cache", remedy):
        file = hub.hf_hub_download(
            repo_id,
            FILE,
            revision=revision or at,
            cache_dir=cache_dir,
            force_download=force_download,
            token=token,
            local_files_only=local_files_only,
        )
    return load_model(file, **model_kwargs)
