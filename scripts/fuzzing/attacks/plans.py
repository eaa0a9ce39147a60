"""Plans as text that were damaged: a plan that can be applied and is read again as it is written, or one short line."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from flax import nnx

from attacks import Case
from jaxprune import models, reduction
from jaxprune.reduction import Plan

SIZES = {"img_size": 32, "patch_size": 4, "embed_dim": 16, "depth": 12, "num_heads": 2, "num_classes": 3}
PLANS = (
    "topk@3:keep_rate=0.7+tome@6:r=8",
    "tome:r=8,inflection=-1",
    "evit@3:keep_rate=0.5+topk@6:num_keep=5",
    "sinkhorn:keep_rate=0.5,reduction_loc=(3,6,9)",
    "ats:num_keep=(10,5,2)",
    "dpc_knn@2:num_keep=9,k=5,equal_weights=true",
    "kmedoids@1:keep_rate=0.5,position=kept,iterations=3",
    "sinkhorn@3:num_keep=5,eps=2,iterations=3",
    "from_scores@input:num_keep=49",
    "pitome@3:keep_rate=0.7",
    "atc@4:keep_rate=0.5",
    "mctf@3:r=4",
)
PIECES = (
    *(
        "@",
        "+",
        ":",
        "=",
        "(",
        ")",
        ",",
        "nan",
        "inf",
        "-1",
        "1e309",
        "none",
        "true",
        "topk",
        "tome",
        "input",
        "r",
        "0",
    ),
    *("layer=3,", "method=x,", "steps=1,", "self=1,", "seed=abc,", "eps=none,", "k=x,", "9" * 30, "9" * 5000, "((((("),
    *("²", "٣", "\x00", "\x1b[2J", " ", "\n", "rngs=1,", "step=2,", "position", "keep_rate", "num_keep", "1_0", "é"),
)


WORDS = (
    *(
        "0",
        "1",
        "2",
        "5",
        "9",
        "12",
        "13",
        "50",
        "-1",
        "-2",
        "0.5",
        "1.0",
        "0.999",
        "1e-9",
        "1e9",
        "nan",
        "inf",
        "-0.0",
    ),
    *("none", "true", "false", "topk", "tome", "random", "ats", "input", "r", "num_keep", "keep_rate", "()", "(1,2)"),
)


def with_another_word(text: str, rng: random.Random) -> str:
    """Returns a text with one of its names or numbers replaced: more of these are plans."""
    word = rng.choice(list(re.finditer(r"-?[\w.]+", text)))
    return text[: word.start()] + rng.choice(WORDS) + text[word.end() :]


def mutated(text: str, rng: random.Random) -> str:
    """Returns a text with one to four letters or pieces removed, doubled or put in."""
    for _ in range(rng.randint(1, 4)):
        place, end = sorted((rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)))
        change = rng.random()
        if change < 0.3:
            text = text[:place] + text[place + 1 :]
        elif change < 0.75:
            text = text[:place] + rng.choice(PIECES) + text[place:]
        elif change < 0.85:
            text = text[:place] + text[end:]
        else:
            text = text[:place] + chr(rng.randrange(1, 0x3000)) + text[place:]
    return text


def plans(folder: Path, count: int, seed: int = 0) -> Iterator[Case]:
    """Yields mutated plans; those that are plans are applied, once each."""
    model = nnx.eval_shape(lambda: models.create("vit", **SIZES, rngs=nnx.Rngs(0)))
    rng, tried = random.Random(seed), set()

    def read(text: str) -> bool:
        plan = Plan.from_text(text)
        if plan not in tried:
            tried.add(plan)
            nnx.eval_shape(lambda: reduction.apply(model, plan, rngs=nnx.Rngs(0)))
        return Plan.from_text(plan.text) == plan

    for number in range(count):
        change = mutated if number % 2 else with_another_word
        text = change(rng.choice(PLANS), rng)
        yield Case(text, lambda text=text: read(text))
