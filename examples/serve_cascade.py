"""Classifies pictures with a folder written by `jaxprune.export.cascade`; needs onnxruntime or jax, NumPy and Pillow.

python examples/serve_cascade.py exported/ photos/ --position=0.5    # of the dial: 0 is the most exact, 1 the fastest
"""

import argparse
import json
from pathlib import Path

import numpy as np
from pictures import batches, report


def program(path):
    """A function from {name: array} to a list of arrays: the logits, and what later segments need."""
    if path.suffix == ".onnx":
        import onnxruntime

        session = onnxruntime.InferenceSession(str(path), providers=onnxruntime.get_available_providers())
        return lambda arrays: session.run(None, arrays)
    import jax
    from jax import export

    call = jax.jit(export.deserialize(bytearray(path.read_bytes())).call)  # compiled once for each batch size
    return lambda arrays: [np.asarray(array) for array in call(*arrays.values())]


class Loader:
    """An exported cascade: an image goes on until an exit is sure of it."""

    def __init__(self, folder, position=0.0):
        self.about = json.loads((Path(folder) / "cascade.json").read_text())
        self.programs = [program(Path(folder) / segment["file"]) for segment in self.about["segments"]]
        dial = self.about["dial"]
        self.thresholds = dial[round(position * (len(dial) - 1))]

    def __call__(self, images):
        """Returns the logits, and the exits where the images left."""
        exits, rows, arrays, answers = np.zeros(len(images), int), np.arange(len(images)), {"images": images}, None
        steps = zip(self.about["segments"], self.programs, self.thresholds, strict=True)
        for exit, (segment, call, threshold) in enumerate(steps):
            for part in self.parts(rows):
                outputs = self.padded(call, {name: arrays[name][part] for name in segment["inputs"]})
                for name, values in zip(segment["outputs"], outputs, strict=True):
                    arrays.setdefault(name, np.zeros((len(images), *values.shape[1:]), values.dtype))[part] = values
            logits = arrays[segment["outputs"][0]][rows]
            answers = np.zeros((len(images), logits.shape[1]), np.float32) if answers is None else answers
            answers[rows], exits[rows] = logits, exit
            shares = np.exp(logits - logits.max(1, keepdims=True))
            rows = rows[shares.max(1) / shares.sum(1) < threshold]
            if not len(rows):
                break
        return answers, exits

    def parts(self, rows):
        size = self.about["buckets"][-1]
        return [rows[start : start + size] for start in range(0, len(rows), size)]

    def padded(self, call, arrays):
        count = len(next(iter(arrays.values())))
        bucket = min(size for size in self.about["buckets"] if size >= count)
        rows = np.arange(bucket) * (np.arange(bucket) < count)  # filled up with the first
        return [output[:count] for output in call({name: array[rows] for name, array in arrays.items()})]


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
