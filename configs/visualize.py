"""What a pre-trained model fills in: original, masked, reconstructed, thrown cells marked.

python -m jaxprune.main --config=configs/visualize.py --config.run=runs/quickstart/pretrain [--config.image=photo.jpg]
"""

from jaxprune import config as c


def get_config(arg=None):
    c.parse_arg(arg)
    return c.inspect_run("visualize", image="", num_images=8)
