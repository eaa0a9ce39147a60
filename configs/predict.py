"""The class of one image, with the confidence and a picture.

python -m jaxprune.main --config=configs/predict.py --config.run=runs/quickstart/finetune --config.image=photo.jpg
"""

from jaxprune.config import parse_arg
from jaxprune.tasks.setup.defaults import inspection


def get_config(arg=None):
    parse_arg(arg)
    return inspection("predict", image="")
