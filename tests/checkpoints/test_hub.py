"""Uploading a network and reading it back, against a stand-in of the Hub on the loopback."""

import base64
import hashlib
import http.server
import json
import re
import sys
import threading
import types

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxprune import checkpoints, dense, mim, models
from jaxprune.checkpoints import from_pretrained, load_model, push_to_hub, save_model
from jaxprune.checkpoints.model_card import model_card
from jaxprune.checkpoints.run_card import Card
from jaxprune.dynamic.cascade import Cascade
from jaxprune.errors import UserError
from jaxprune.flops import of_model
from jaxprune.nn.params import variables
from jaxprune.reduction import Plan, apply
from jaxprune.weights.fingerprint import fingerprint

hub = pytest.importorskip("huggingface_hub")
SIZES = {"img_size": 16, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2, "num_classes": 3}
REPOSITORY = "someone/fast"


def network():
    return apply(models.create("vit", **SIZES, rngs=nnx.Rngs(0)), Plan("topk", 0.5, (1,)))


def row(model, **changes):
    """A row as `bench.leaderboard.read` returns it, with invented measurements."""
    shares = {"accuracy": 0.801, "low": 0.79, "high": 0.812, "agreement": 0.95, "agreement low": 0.94}
    speeds = {"speed-up": 1.62, "speed-up low": 1.58, "speed-up high": 1.7, "images/s": 812.4}
    setting = {"images": 1000, "batch size": 8, "rounds": 7, "device": "cpu (x86_64)", "jax": "0.10.2"}
    origin = {"weights": fingerprint(model), "plan": model.plan.text, "code": "0.2.0-0123", "data": "4567"}
    return {
        **shares,
        "agreement high": 0.96,
        **speeds,
        **setting,
        **origin,
        "GFLOPs": 0.5,
        "FLOP-implied": 1.9,
    } | changes


class Server(http.server.BaseHTTPRequestHandler):
    """The requests that huggingface_hub makes, answered from a dictionary of files."""

    protocol_version = "HTTP/1.1"
    files: dict[str, bytes]

    def log_message(self, *_):
        pass

    def answer(self, body=b"", code=200, **headers):
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def as_json(self, values):
        self.answer(json.dumps(values).encode(), Content_Type="application/json")

    def do_POST(self):
        data = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/api/repos/create":
            self.as_json({"url": f"{self.server.address}/{REPOSITORY}"})
        elif "/preupload/" in self.path:
            files = json.loads(data)["files"]
            modes = [{"path": file["path"], "uploadMode": "regular", "shouldIgnore": False} for file in files]
            self.as_json({"files": modes})
        elif "/commit/" in self.path:
            for line in map(json.loads, data.splitlines()):
                if line["key"] == "file":
                    self.server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            url = f"{self.server.address}/{REPOSITORY}/commit/{'0' * 40}"
            self.as_json({"commitUrl": url, "commitOid": "0" * 40, "success": True})
        else:
            self.as_json({"warnings": [], "errors": []})

    def do_GET(self):
        match = re.fullmatch(rf"/{REPOSITORY}/resolve/[^/]+/(.+)", self.path)
        if match is None:
            return self.as_json({"id": REPOSITORY, "sha": "0" * 40, "siblings": [], "private": False, "tags": []})
        body = self.server.files.get(match[1])
        if body is None:
            return self.answer(code=404, X_Error_Code="EntryNotFound")
        return self.answer(body, ETag=f'"{hashlib.sha256(body).hexdigest()}"', X_Repo_Commit="0" * 40)

    do_HEAD = do_GET


def point_at(address, monkeypatch):
    """Makes the client ask there, and only there."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", address)
    template = f"{address}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


@pytest.fixture
def server(monkeypatch, tmp_path):
    found = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    found.files, found.address = {}, f"http://127.0.0.1:{found.server_port}"
    threading.Thread(target=found.serve_forever, daemon=True).start()
    point_at(found.address, monkeypatch)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    yield found
    found.shutdown()
    found.server_close()


def same(found, expected):
    assert found.plan == expected.plan and found.preprocessing == expected.preprocessing
    for name, variable in variables(expected).items():
        np.testing.assert_array_equal(variables(found)[name][...], variable[...], err_msg=name)


@pytest.mark.slow
def test_what_is_pushed_comes_back(server, tmp_path):
    model = network()
    address = push_to_hub(model, REPOSITORY, license="apache-2.0", measured=row(model), token="hf_test")
    assert address.endswith(f"{REPOSITORY}/commit/{'0' * 40}")
    assert server.files.keys() == {"README.md", "config.json", "model.safetensors"}
    Card.from_json(server.files["config.json"].decode(), "config.json")
    same(from_pretrained(REPOSITORY, cache_dir=tmp_path / "fetched"), model)
    # What was fetched once needs no connection.
    server.files.clear()
    same(from_pretrained(REPOSITORY, cache_dir=tmp_path / "fetched", local_files_only=True), model)


@pytest.mark.slow
def test_a_file_or_a_run_is_pushed_with_its_classes(server, tmp_path):
    path = tmp_path / "fast.safetensors"
    save_model(network(), path, class_names=("a", "b", "c"))
    push_to_hub(path, REPOSITORY, license="other", token="hf_test")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "model.safetensors").write_bytes(server.files["model.safetensors"])
    same(from_pretrained(tmp_path / "copy"), load_model(path))
    assert Card.from_json(server.files["config.json"].decode(), "").class_names == ("a", "b", "c")


def test_without_a_connection_it_is_one_line(monkeypatch, tmp_path, caplog):
    point_at("http://127.0.0.1:9", monkeypatch)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # between its retries
    failed = r"cannot be (fetched and is not in the cache|uploaded) \(.+\): check"
    for call in (
        lambda: from_pretrained("someone/other", cache_dir=tmp_path),
        lambda: from_pretrained("someone/other", cache_dir=tmp_path, local_files_only=True),
        lambda: push_to_hub(network(), REPOSITORY, license="mit", token="hf_test"),
    ):
        with pytest.raises(UserError, match=failed) as error:
            call()
        assert "\n" not in str(error.value) and len(str(error.value)) < 450
    assert not [record for record in caplog.records if record.name.startswith("huggingface_hub")]


def test_without_the_library_it_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(UserError, match=r"Uploading someone/fast needs huggingface_hub.*pip install 'jaxprune\[hub\]'"):
        push_to_hub(network(), REPOSITORY, license="mit")
    with pytest.raises(UserError, match=r"Fetching someone/fast needs huggingface_hub"):
        from_pretrained(REPOSITORY)


def page(model, **facts):
    return model_card(model, Card.of(model), REPOSITORY, **{"license": "apache-2.0", **facts})


def test_the_page_says_what_was_measured_where_and_what_was_not_checked():
    model = network()
    text = page(model, measured=row(model), base_model="timm/a.b")
    front, body = text.removeprefix("---\n").split("\n---\n", 1)
    assert "library_name: jaxprune" in front and "license: apache-2.0" in front and 'base_model: "timm/a.b"' in front
    assert "pipeline_tag: image-classification" in front
    for fact in (
        model.plan.text,
        "1.62 | 1.58 to 1.70 over 7 rounds",
        "95.0% | 94.0% to 96.0%",
        "On cpu (x86_64), batch 8",
    ):
        assert fact in body, fact
    unchecked = body.split("## Not checked")[1]
    assert "Speed on other devices than cpu (x86_64)" in unchecked and "other versions than JAX 0.10.2" in unchecked
    front_of_hub = hub.ModelCardData(**hub.ModelCard(text).data.to_dict())
    assert front_of_hub.library_name == "jaxprune" and front_of_hub.license == "apache-2.0"


def test_the_row_of_a_network_as_it_was_saved_shows_no_speed_up_over_itself():
    model = network()
    text = page(model, measured=row(model, plan="dense", GFLOPs=of_model(model).total / 1e9))
    assert "measured speed-up" not in text and "| images/s | 812.4 | |" in text
    assert "agreement with" not in text.split("## Not checked")[0]
    assert "Speed-up over and agreement with the network without a plan" in text


def test_a_page_without_measurements_says_so():
    text = page(models.create("vit", **{**SIZES, "num_classes": 0}, rngs=nnx.Rngs(0)))
    assert "Nothing was measured" in text and "- Speed, accuracy and agreement, on any device" in text
    assert "pipeline_tag: image-feature-extraction" in text and "every token stays" in text


SMALL = {"patch_size": 4, "embed_dim": 16, "depth": 1, "num_heads": 2, "rngs": nnx.Rngs(0)}
FURTHER = {
    "image-segmentation": lambda: dense.create("linear", encoder="vit", img_size=16, num_classes=3, **SMALL),
    "image-classification": lambda: Cascade(
        [models.create("vit", img_size=side, num_classes=3, **SMALL) for side in (8, 12, 16)]
    ),
    "": lambda: mim.create("mae", img_size=16, decoder_embed_dim=16, decoder_depth=1, **SMALL),
}


@pytest.mark.parametrize("task", FURTHER)
def test_the_example_of_a_page_runs(task, monkeypatch):
    model = FURTHER[task]()
    text = page(model)
    assert (f"pipeline_tag: {task}" in text) == bool(task)
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.S)
    monkeypatch.setattr(checkpoints, "from_pretrained", lambda repository: model)
    images = jnp.zeros((2, *model.preprocessing.img_size, 3), jnp.uint8 if "pixels" in code else jnp.float32)
    exec(code, names := {"images": images, "pixels": images})
    if task:
        assert names["logits"].shape[-1] == 3 and 2 in names["logits"].shape


def test_a_network_with_the_classes_of_its_name_is_a_classifier():
    model = models.create("vit_tiny_patch16_224", img_size=32, depth=1, rngs=nnx.Rngs(0))
    assert "pipeline_tag: image-classification" in page(model)


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        (lambda model: {"license": "Apache License"}, "license='Apache License' names no licence as the Hub does"),
        (lambda model: {"measured": row(model, weights="00")}, "measured is of other weights"),
        (
            lambda model: {"measured": row(model, plan="dense")},
            "measured is of the plan 'dense', and the network has topk",
        ),
    ],
)
def test_what_a_page_refuses(facts, message):
    model = network()
    with pytest.raises(UserError, match=message):
        page(model, **facts(model))


def test_names_of_repositories(monkeypatch):
    asked = []

    def download(*names, **options):
        asked.append((names[0], options["revision"]))
        raise OSError("no")

    monkeypatch.setitem(sys.modules, "huggingface_hub", types.SimpleNamespace(hf_hub_download=download))
    for name in ("a/b", "hf-hub:a/b@v2", "a/b@v3"):
        with pytest.raises(UserError, match="a/b cannot be fetched"):
            from_pretrained(name)
    assert asked == [("a/b", None), ("a/b", "v2"), ("a/b", "v3")]
    with pytest.raises(UserError, match="names no repository"):
        from_pretrained("nowhere")
