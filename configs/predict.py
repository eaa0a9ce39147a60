"""The class of one image, with the confidence and a picture.

python -m jaxprune.main --config=configs/predict.py --config.run=runs/quickstart/finetune --config.image=photo.jpg
"""

from jaxprune import config as c


def get_config(arg=None):
    c.parse_arg(arg)
    return c.inspect_run("predict", image="")
