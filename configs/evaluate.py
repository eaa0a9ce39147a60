"""Accuracy of a trained classifier, overall and by class.

python -m jaxprune.main --config=configs/evaluate.py --config.init=runs/quickstart/finetune
"""

from jaxprune import config as c


def get_config(arg=None):
    c.parse_arg(arg)
    return c.inspect_run("evaluate")
