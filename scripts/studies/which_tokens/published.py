"""Published figures of "Which Tokens to Use?" (Haurum et al., 2023), for comparison."""

import csv
from pathlib import Path

# Supplement, Table 6: top-1 or mAP in percent of DeiT-T and DeiT-B, fine-tuned by data set, method and keep rate.
_TABLE_6 = Path(__file__).parent / "table6.csv"


def table_6(backbone: str, data: str) -> dict[str, dict[str, float]]:
    """Returns {method: {keep rate: percent}} of Table 6; {} for what it does not have, such as the DeiT-S.

    >>> table_6("deit_base_patch16_224", "nabirds")["topk"]["0.25"]
    74.71

    Args:
      backbone: such as "deit_tiny_patch16_224"; its row without reduction is "dense".
      data: "imagenet", "nabirds", "coco" or "nus_wide".
    """
    with _TABLE_6.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row.pop("backbone"), row.pop("data")) == (backbone, data)]
    return {row.pop("method"): {rate: float(value) for rate, value in row.items() if value} for row in rows}


DEIT_TINY_AT_HALF = {
    method: by_rate["0.5"]
    for method, by_rate in table_6("deit_tiny_patch16_224", "imagenet").items()
    if method != "dense"
}
