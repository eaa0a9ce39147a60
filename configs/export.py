"""Exports a network, dense or under a plan, to files for other programs, with its normalisation inside.

python -m jaxprune.main --config=configs/export.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/export.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.plan=topk:keep_rate=0.7 --config.formats="('stablehlo','onnx')" --config.images=photos/

`model.stablehlo` runs in plain JAX (examples/serve_stablehlo.py) on any of its platforms, `model.onnx` in ONNX Runtime
(examples/serve_onnx.py; writing it needs `pip install "jaxprune[export]"`). Both read resized and cropped pixels, (b,
height, width, 3), in batches of any size, and return the logits and the patches that each step of the plan keeps.
Outputs and preprocessing are described in `model.stablehlo.json` and in the metadata of `model.onnx`. Before a file
gets its final name, it is read back and compared with the network on `images`.
"""

from jaxprune.commands import finetune
from jaxprune.commands.shared.defaults import featuring
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = featuring(
        "export",
        formats=("stablehlo",),  # or "onnx", or both
        inputs="uint8",  # pixels from 0 to 255, also with "float32"; "normalized" leaves the normalisation out
        images="",  # a folder or a picture for the comparison; empty: built-in scenes
        num_images=16,  # number of images taken from a folder
        plan="",  # empty: the network as it is
        keep_rate=0.7,  # for a plan without an amount
        reduction_loc=(3, 6, 9),  # for a plan without blocks
    )
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plan="topk", reduction_loc=(1,), images="scenes")
    return config
