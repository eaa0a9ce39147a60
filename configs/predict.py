"""Predicts the class of one image or video, with its confidence and a picture.

python -m jaxprune.main --config=configs/predict.py --config.run=runs/quickstart/finetune --config.image=photo.jpg
python -m jaxprune.main --config=configs/predict.py --config.model.weights=FILE --config.model.name=NAME \\
    --config.model.class_names=FILE --config.image=photo.jpg     # a published file, with its classes one per line

A run of `segment` gives the class of each pixel, by the windows, mirrors and scales of its test, and a run of `detect`
boxes and masks. `--config.plan=tome:keep_rate=0.5` reduces the network first.

A network that reads clips takes a video: `--config.image=film.mp4`. With `--config.data.num_clips=5
--config.data.num_crops=3` the probabilities are averaged over these views.
"""

from jaxprune.commands import finetune, predict
from jaxprune.config import parse_arg


def get_config(arg=None):
    args = parse_arg(arg)
    config = predict.defaults()
    if args.smoke:
        config.update(train=finetune.smoke(finetune.defaults()), image="scenes")
    return config
