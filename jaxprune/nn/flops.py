"""What layers cost in multiply-accumulates of a forward pass over one image; only shapes are read."""

from typing import Any


def linear_flops(layer: Any, rows: int) -> int:
    """Returns the cost of a `Linear` on `rows` tokens; its bias does not count."""
    inputs, outputs = layer.kernel.shape
    return rows * inputs * outputs


def block_flops(block: Any, rows: int, *, queries: int | None = None, mlp_rows: int | None = None) -> int:
    """Returns the cost of a transformer block: 12·n·d² + 2·n²·d for n rows of width d and an MLP four times as wide.

    Args:
      block: a dense `Block`, or a reducing one without what its reducer computes.
      rows: tokens that come in, prefix counted.
      queries: rows that attention is computed for; all by default.
      mlp_rows: rows that reach the MLP; those of the queries by default.
    """
    queries = rows if queries is None else queries
    mlp_rows = queries if mlp_rows is None else mlp_rows
    width = block.attn.proj.kernel.shape[0]
    attention = linear_flops(block.attn.qkv, rows) + 2 * queries * rows * width + linear_flops(block.attn.proj, queries)
    return attention + linear_flops(block.mlp.fc1, mlp_rows) + linear_flops(block.mlp.fc2, mlp_rows)
