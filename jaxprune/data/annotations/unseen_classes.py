"""Object classes that a ranker trained on ImageNet-1k has never seen."""

# Classes of COCO and VOC that ImageNet-1k lacks, as listed in the LTRP paper, appendix B.
UNSEEN = {
    "coco": (
        "person", "traffic light", "fire hydrant", "stop sign", "giraffe", "frisbee", "surfboard", "fork", "sandwich",
        "carrot", "toothbrush", "sink", "potted plant",
    ),
    "voc": ("person",),
}  # fmt: skip
