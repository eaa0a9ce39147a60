"""Published figures of "Which Tokens to Use?" (Haurum et al., 2023), for comparison."""

# Supplement, Table 6b: top-1 in percent on ImageNet of DeiT-T fine-tuned at keep rate .5.
DEIT_TINY_AT_HALF = {
    "l1": 62.27,
    "l2": 62.91,
    "linf": 61.92,
    "topk": 68.55,
    "evit": 68.69,
    "dynamicvit": 67.40,
    "ats": 68.61,
    "tome": 69.72,
    "kmedoids": 65.82,
    "dpc_knn": 69.68,
    "sit": 67.98,
    "patch_merger": 64.80,
    "sinkhorn": 53.49,
}
