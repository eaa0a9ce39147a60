"""Top-K: keep the patches that the CLS token attends to most (Haurum et al., 2023, Sec. 3)."""

from jaxprune.reduction.parts.base import Reducer
from jaxprune.reduction.parts.keep_rows import best, cls_scores, keep_rows, unchanged


class TopK(Reducer):
    """Ranks patches by the head-averaged attention of the CLS token and keeps the best, best first."""

    where = "after"
    drops = True
    needs = frozenset({"cls_attn"})

    def __call__(self, tokens, attended, *, train=False, key=None) -> tuple:
        prefix, num_keep = self.step.num_prefix_tokens, self.step.num_keep
        if num_keep == self.step.tokens_in:
            return unchanged(tokens, prefix)
        return keep_rows(tokens, best(cls_scores(attended, prefix), num_keep), prefix)
