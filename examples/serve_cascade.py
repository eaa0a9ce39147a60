"""Classifies pictures with a folder written by `jaxprune.export.cascade`; needs onnxruntime or jax, NumPy and Pillow.

python examples/serve_cascade.py exported/ photos/ --position=0.5    # of the dial: 0 is the most exact, 1 the fastest
"""

import argparse
import json
from pathlib import Path

import numpy as np
from pictures import batches, report


def program(path):
    """A function from pixels, uint8 (b, height, width, 3), to logits."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        return lambda images: session.run(None, {"images": images})[0]
    import jax
    from jax import export

    call = jax.jit(export.deserialize(bytearray(path.read_bytes())).call)  # compiled once for each batch size
    return lambda images: np.asarray(call(images)[0])


class Loader:
    """An exported cascade: an image goes on until an exit is sure of it."""

    def __init__(self, folder, position=0.0):
        self.about = json.loads((Path(folder) / "cascade.json").read_text())
        self.programs = [program(Path(folder) / segment["file"]) for segment in self.about["segments"]]
        dial = self.about["dial"]
        self.thresholds = dial[round(position * (len(dial) - 1))]

    def __call__(self, images):
        """Returns the logits, and the exits where the images left."""
        exits, rows, logits = np.zeros(len(images), int), np.arange(len(images)), None
        for exit, (call, threshold) in enumerate(zip(self.programs, self.thresholds, strict=True)):
            values = np.concatenate([self.padded(call, images[part]) for part in self.parts(rows)])
            logits = np.zeros((len(images), values.shape[1]), np.float32) if logits is None else logits
            logits[rows], exits[rows] = values, exit
            shares = np.exp(values - values.max(1, keepdims=True))
            rows = rows[shares.max(1) / shares.sum(1) < threshold]
            if not len(rows):
                break
        return logits, exits

    def parts(self, rows):
        size = self.about["buckets"][-1]
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def padded(self, call, images):
        bucket = min(size for size in self.about["buckets"] if size >= len(images))
        return call(np.concatenate([images, images[:1].repeat(bucket - len(images), 0)]))[: len(images)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("images", type=Path, help="a folder of pictures, a picture, or an .npy file")
    parser.add_argument("--position", type=float, default=0.0)
    arguments = parser.parse_args()
    network = Loader(arguments.folder, arguments.position)
    for names, images in batches(arguments.images, network.about, network.about["buckets"][-1]):
        logits, exits = network(images)
        report([f"{name}, exit {exit}" for name, exit in zip(names, exits, strict=True)], logits, (), network.about)


if __name__ == "__main__":
    main()
