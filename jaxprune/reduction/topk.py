"""Top-K: keep the patches that the CLS token attends to most (Haurum et al., 2023, Sec. 3)."""

from jaxprune.reduction.base import Reducer
from jaxprune.reduction.rows import best, keep_rows


class TopK(Reducer):
    """Ranks patches by the head-averaged attention of the CLS token and keeps the best, best first."""

    where = "after"
    needs = frozenset({"cls_attn"})

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        scores = attended.cls_attn.mean(1)[:, self.stage.num_prefix_tokens :]
        return keep_rows(tokens, best(scores, self.stage.num_keep), self.stage.num_prefix_tokens)
