"""Exports a network, dense or under a plan, to files for other programs, with its normalisation inside.

python -m jaxprune.main --config=configs/export.py --config.run=runs/quickstart/finetune
python -m jaxprune.main --config=configs/export.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.plan=topk:keep_rate=0.7 --config.formats="('stablehlo','onnx')" --config.images=photos/

`model.stablehlo` runs in plain JAX (examples/serve_stablehlo.py) on any of its platforms, `model.onnx` in ONNX Runtime
(examples/serve_onnx.py; writing it needs `pip install "jaxprune[export]"`). Both read resized and cropped pixels, (b,
height, width, 3), in batches of any size, and return the logits and the patches that each step of the plan keeps.
Outputs and preprocessing are described in `model.stablehlo.json` and in the metadata of `model.onnx`. Before a file
gets its final name, it is read back and compared with the network on `images`. A network that spends by image is
written as one folder per format, with one file per segment and its thresholds (examples/serve_cascade.py).
"""

from jaxprune.commands import export, finetune
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = export.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), plan="topk", reduction_loc=(1,), images="scenes")
    return config
