"""Classifies pictures with a file written by `jaxprune.export.onnx`; needs onnxruntime, NumPy and Pillow.

python examples/serve_onnx.py model.onnx photos/
python examples/serve_onnx.py model.onnx images.npy     # uint8 (n, height, width, 3), already resized
"""

import argparse
import json
from pathlib import Path

import onnxruntime
from pictures import batches, report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("images", type=Path, help="a folder of pictures, a picture, or an .npy file")
    parser.add_argument("--batch", type=int, default=8)
    arguments = parser.parse_args()
    network = onnxruntime.InferenceSession(str(arguments.model), providers=onnxruntime.get_available_providers())
    about = json.loads(network.get_modelmeta().custom_metadata_map["jaxprune"])
    for names, images in batches(arguments.images, about, arguments.batch):
        logits, *kept = network.run(None, {"images": images})
        report(names, logits, kept, about)


if __name__ == "__main__":
    main()
