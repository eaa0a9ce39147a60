"""A network, dense or under a plan, as files for other programs, its normalisation inside.

python -m jaxprune.main --config=configs/export.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/export.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.plan=topk:keep_rate=0.7 --config.formats="('stablehlo','onnx')" --config.images=photos/

`model.stablehlo` runs in plain JAX (examples/serve_stablehlo.py), on any of its platforms, `model.onnx` in ONNX Runtime
(examples/serve_onnx.py; `pip install "jaxprune[export]"` to write it). Both read pixels, (b, height, width, 3), resized
and cropped, in batches of any size, and return the logits and the patches that each step of the plan keeps. What they
are, and how images are prepared, is in `model.stablehlo.json` and in the metadata of `model.onnx`. Each file is read
again and compared with the network on `images` before it gets its name.
"""

from jaxprune.config import parse_arg
from jaxprune.tasks import finetune
from jaxprune.tasks.setup.defaults import featuring


def get_config(arg=None):
    args = parse_arg(arg)
    config = featuring(
        "export",
        formats=("stablehlo",),  # or "onnx", or both
        inputs="uint8",  # pixels from 0 to 255; "float32" the same; "normalized" leaves the normalisation out
        images="",  # a folder or a picture to compare on; empty: built-in scenes
        num_images=16,  # of a folder
        plan="",  # empty: the network as it is
        keep_rate=0.7,  # of a plan that names no amount
        reduction_loc=(3, 6, 9),  # of a plan that names no blocks
    )
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plan="topk", reduction_loc=(1,), images="scenes")
    return config
