"""Runs a network in PyTorch, one forward pass for each line on standard input, to be timed by `papr.py`.

Needs torch and timm (for VideoMAE: transformers), but not jaxprune:

python scripts/benchmarks/torch_process.py swin_small_patch4_window7_224 4 224

Weights are random, which does not affect the speed. It prints one line after every forward pass.
"""

import sys

import torch  # pyright: ignore[reportMissingImports]


def videomae(name):
    """Returns VideoMAE's ViT-B and a text that names the library."""
    import transformers  # pyright: ignore[reportMissingImports]

    if name != "videomae_base_patch16_224":
        sys.exit(f"{name} is not compared: the only network for clips here is videomae_base_patch16_224")
    config = transformers.VideoMAEConfig(num_labels=400)
    return transformers.VideoMAEForVideoClassification(config), f"transformers {transformers.__version__}"


def timm_network(name):
    """Returns a network of timm and a text that names the library."""
    import timm  # pyright: ignore[reportMissingImports]

    return timm.create_model(name, pretrained=False), f"timm {timm.__version__}"


def main(name, batch, side):
    clips = name.startswith("videomae")
    model, library = videomae(name) if clips else timm_network(name)
    model.eval()
    size = (int(batch), *((16,) if clips else ()), 3, int(side), int(side))
    images = torch.randn(*size)
    print(f"PyTorch {torch.__version__}, {library}, {torch.get_num_threads()} threads", flush=True)
    with torch.inference_mode():
        for _ in sys.stdin:
            model(images)
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
