"""Classifies pictures with a file written by `jaxprune.export.stablehlo`; needs jax, flatbuffers, NumPy and Pillow.

python examples/serve_stablehlo.py model.stablehlo photos/
python examples/serve_stablehlo.py model.stablehlo images.npy     # uint8 (n, height, width, 3), already resized
"""

import argparse
import json
from pathlib import Path

import jax
from jax import export
from pictures import batches, report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, help="a folder of pictures, a picture, or an .npy file")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    about = json.loads(Path(f"{arguments.model}.json").read_text())
    # Compiled once for each batch size.
    network = jax.jit(export.deserialize(bytearray(arguments.model.read_bytes())).call)
    for names, images in batches(arguments.images, about, arguments.batch):
        logits, *kept = network(images)
        report(names, logits, kept, about)


if __name__ == "__main__":
    main()
