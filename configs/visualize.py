"""Draws reconstructions of a pre-trained model: original, masked, reconstructed, and with thrown patches marked.

Of a segmentation network or a detector, it draws held-out images with their labels and predictions, or objects and
detections.

python -m jaxprune.main --config=configs/visualize.py --config.run=runs/quickstart/pretrain [--config.image=photo.jpg]
"""

from jaxprune.commands import pretrain, visualize
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = visualize.defaults()
    if args.smoke:
        config.update(train=pretrain.smoke(pretrain.defaults()), num_images=2)
    return config
