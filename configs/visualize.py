"""What a pre-trained model fills in: original, masked, reconstructed, thrown cells marked.

python -m jaxprune.main --config=configs/visualize.py --config.run=runs/quickstart/pretrain [--config.image=photo.jpg]
"""

from jaxprune.config import parse_arg
from jaxprune.tasks.setup.defaults import inspection


def get_config(arg=None):
    parse_arg(arg)
    return inspection("visualize", image="", num_images=8)
