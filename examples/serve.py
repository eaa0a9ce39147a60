"""Serves a classifier from one file, over HTTP or for files: a network, a network under a plan, or a cascade.

    python examples/serve.py save model.safetensors --weights=deit_small.safetensors --name=deit_small_patch16_224
    python examples/serve.py save model.safetensors --weights=deit_small.safetensors --sizes 128 224
    python examples/serve.py classify model.safetensors photos/*.jpg
    python examples/serve.py measure model.safetensors          # what the queue costs
    python examples/serve.py http model.safetensors --port=8000

    curl --data-binary @photo.jpg localhost:8000/classify     # {"class": …, "probability": …, "exit": …, "seconds": …}
    curl --data 0.5 localhost:8000/dial                       # from 0, the most exact, to 1, the fastest
    curl localhost:8000/metrics

Without weights, `save` writes a tiny network with random parameters, whose predictions are arbitrary. With `--sizes` it
writes a cascade of the network at these sizes with a dial: thresholds that change the class of at most a share
`--alpha` of images like the photographs (without any, the built-in scenes), all of them with 90 % confidence.
"""

import argparse
import http.server
import json
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from flax import nnx
from scipy.special import softmax

import jaxprune
from jaxprune import checkpoints, dynamic
from jaxprune.data.crop_resize import prepare, read_image
from jaxprune.data.decode import Broken, decode
from jaxprune.errors import UserError, command
from jaxprune.nn.params import jitted
from jaxprune.reduction import Plan
from jaxprune.tune.cascades import certified_path

TINY = {"img_size": 64, "patch_size": 8, "embed_dim": 48, "depth": 12, "num_heads": 3, "num_classes": 10}
SCENES = 400  # that stand in for photographs
LARGEST = 2**25  # bytes of a request


def save(args):
    """Saves a network under a plan, or a cascade of one network at several sizes, to a file."""
    if args.weights:
        opened = [
            checkpoints.open_classifier(weights=args.weights, name=args.name, img_size=size)
            for size in args.sizes or [None]
        ]
        networks, names = [classifier.model for classifier in opened], opened[0].class_names
    else:
        print("No --weights: saving a tiny network with random parameters.")
        networks, names = tiny(args.sizes), jaxprune.data.Scenes.class_names
    if args.sizes:
        model = dynamic.create("cascade", networks=networks)
        model.set_dial(dial(model, args))
        saved = f"a cascade of {len(networks)} sizes, {len(model.dial)} steps on the dial"
    else:
        model, saved = jaxprune.reduction.apply(networks[0], Plan.from_text(args.plan), rngs=nnx.Rngs(0)), args.plan
    checkpoints.save_model(model, args.model, class_names=names)
    print(f"{args.model}: {saved}")


def tiny(sizes):
    """One network with random parameters, at its own size or at several."""
    model = jaxprune.models.create("vit", **TINY, rngs=nnx.Rngs(0))
    if not sizes:
        return [model]
    with tempfile.TemporaryDirectory() as folder:
        checkpoints.save_model(model, Path(folder) / "tiny.safetensors")
        return [checkpoints.load_model(Path(folder) / "tiny.safetensors", img_size=size) for size in sizes]


def dial(cascade, args):
    """Thresholds from the most exact, with which only the last network answers, to the fastest that is certified."""
    images, call = pictures(cascade.preprocessing, args.photos), jitted(cascade)
    padded = np.concatenate([images, images[: -len(images) % args.batch]])
    logits = [np.asarray(call(padded[at : at + args.batch])) for at in range(0, len(padded), args.batch)]
    logits = np.concatenate(logits, 1)[:, : len(images)]
    errors = logits.argmax(-1) != logits[-1].argmax(-1)
    steps = certified_path(dynamic.confidence(logits), errors, np.array(cascade.costs()), alpha=args.alpha)
    exact = [1e8] * (len(logits) - 1) + [-1e8]
    return [exact, *(step.thresholds for step in steps)]


def pictures(preprocessing, paths):
    """Photographs as they enter a network, uint8; without any, the built-in scenes."""
    if paths:
        return np.stack([read_image(path, preprocessing) for path in paths])
    scenes = jaxprune.data.Scenes(split="test", num_examples=SCENES, image_size=preprocessing.img_size, seed=0)
    return np.stack([scenes[number]["image"] for number in range(SCENES)])


class Classifier:
    """A file of `save_model` behind a queue: every program is compiled before the first request."""

    def __init__(self, args):
        self.class_names = checkpoints.load_card(args.model).class_names
        model = checkpoints.load_model(args.model)
        if not isinstance(model, dynamic.Segmented):  # a network with one exit, its last
            model = dynamic.create("cascade", networks=[model])
        exact = [1e8] * (len(model.segments()) - 1) + [-1e8]
        self.preprocessing = model.preprocessing
        self.engine = dynamic.Engine(
            model, () if model.dial else exact, batch_size=args.batch, remainder=args.remainder
        )
        self.server = dynamic.Server(self.engine, capacity=args.capacity, deadline=args.deadline)

    def answer(self, prediction):
        """What a client gets."""
        shares = softmax(prediction.logits)
        best = int(shares.argmax())
        name = self.class_names[best] if self.class_names else str(best)
        share, seconds = round(float(shares[best]), 4), round(prediction.seconds, 4)
        return {"class": name, "probability": share, "exit": prediction.exit, "seconds": seconds}

    def submit(self, image, **options):
        """The future of a decoded picture's prediction."""
        return self.server.submit(np.asarray(prepare(image, self.preprocessing)), **options)


def classify(args):
    """Prints the class of every photograph."""
    classifier = Classifier(args)
    with classifier.server:
        futures = [
            classifier.server.submit(read_image(path, classifier.preprocessing), wait=600) for path in args.images
        ]
        for path, future in zip(args.images, futures, strict=True):
            answer = classifier.answer(future.result())
            print(f"{path}: {answer['class']} ({answer['probability']:.0%})")


def measure(args):
    """Prints images per second through the queue and without it, in turns."""
    classifier, seconds = Classifier(args), {"engine": [], "server": []}
    images = pictures(classifier.preprocessing, args.images)
    calls = {"engine": classifier.engine.under(classifier.engine.thresholds), "server": classifier.server}
    with classifier.server:
        for _ in range(args.rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call(images)
                seconds[name].append(time.perf_counter() - start)
    for name, times in seconds.items():
        print(f"{name}: {len(images) / np.median(times):.1f} images/s")
    ratios = np.divide(seconds["server"], seconds["engine"])
    print(f"overhead of the queue: {np.median(ratios) - 1:.1%} ({ratios.min() - 1:.1%} to {ratios.max() - 1:.1%})")


def handler(classifier):
    """The requests of HTTP clients, each in a thread of its own."""

    class Handler(http.server.BaseHTTPRequestHandler):
        timeout = 30  # seconds for a client that sends nothing

        def do_GET(self):
            if self.path != "/metrics":
                return self.reply(404, {"error": "There are /metrics, /classify and /dial."})
            metrics = classifier.server.metrics()._asdict()
            return self.reply(200, {**metrics, "thresholds": classifier.engine.thresholds.tolist()})

        def do_POST(self):
            try:
                length = int(self.headers.get("Content-Length", -1))
                if not 0 < length <= LARGEST:
                    return self.reply(413, {"error": f"A request has 1 to {LARGEST:,} bytes."})
                data = self.rfile.read(length)
                if self.path == "/dial":
                    classifier.engine.turn(float(data))
                    return self.reply(200, {"thresholds": classifier.engine.thresholds.tolist()})
                if self.path != "/classify":
                    return self.reply(404, {"error": "There are /metrics, /classify and /dial."})
                future = classifier.submit(decode(data, upright=classifier.preprocessing.exif))
                return self.reply(200, classifier.answer(future.result()))
            except dynamic.Refused as error:
                return self.reply(503, {"error": str(error)}, {"Retry-After": "1"})
            except dynamic.Expired as error:
                return self.reply(504, {"error": str(error)})
            except (UserError, Broken, ValueError) as error:
                return self.reply(400, {"error": str(error)})

        def reply(self, status, answer, headers=()):
            data = (json.dumps(answer) + "\n").encode()
            try:
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **dict(headers)}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:  # the client is gone
                self.close_connection = True

        def log_message(self, *_):
            pass

    return Handler


def over_http(args):
    """Serves until Ctrl-C or SIGTERM, and then answers what was accepted."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    classifier = Classifier(args)
    with http.server.ThreadingHTTPServer((args.host, args.port), handler(classifier)) as web:
        web.daemon_threads = False  # the end waits for their answers
        print(f"Serving {args.model} at http://{args.host}:{web.server_port}.", flush=True)
        try:
            web.serve_forever()
        except KeyboardInterrupt:
            print("Answering what was accepted.", flush=True)
    classifier.server.close()
    print(f"Served {classifier.server.metrics().served} images.")


@command
def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    programs = {"save": save, "classify": classify, "measure": measure, "http": over_http}
    parser.add_argument("what", choices=programs)
    parser.add_argument("model", help="the file to save to or to load")
    parser.add_argument("images", nargs="*", help="photographs to classify, or to measure with")
    parser.add_argument("--weights", default="", help="a file of published weights")
    parser.add_argument("--name", default="deit_small_patch16_224", help="timm's name of the network")
    parser.add_argument("--plan", default="tome:keep_rate=0.7", help="a plan as text, without --sizes")
    parser.add_argument("--sizes", type=int, nargs="*", help="save a cascade of these image sizes, ascending")
    parser.add_argument("--photos", nargs="*", help="photographs that choose and test the steps of its dial")
    parser.add_argument("--alpha", type=float, default=0.05, help="largest share of changed classes on the dial")
    parser.add_argument("--batch", type=int, default=8, help="images that are computed together, at most")
    parser.add_argument("--remainder", default="pad", choices=("pad", "split", "hold"), help="see dynamic.Engine")
    parser.add_argument("--capacity", type=int, default=256, help="requests that may wait")
    parser.add_argument("--deadline", type=float, help="seconds for an answer")
    parser.add_argument("--rounds", type=int, default=5, help="turns of a measurement")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="0: any free one, which is printed")
    args = parser.parse_args(arguments)
    programs[args.what](args)


if __name__ == "__main__":
    main()
