"""Runs a timm network, one forward pass for each line on standard input, to be timed by `benchmark_hierarchical.py`.

Needs torch and timm, but not jaxprune: python scripts/timm_process.py swin_small_patch4_window7_224 4 224
Weights are random, which does not affect the speed. It prints one line after every forward pass.
"""

import sys

import timm  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]


def main(name, batch, side):
    model = timm.create_model(name, pretrained=False).eval()
    images = torch.randn(int(batch), 3, int(side), int(side))
    print(f"PyTorch {torch.__version__}, timm {timm.__version__}, {torch.get_num_threads()} threads", flush=True)
    with torch.inference_mode():
        for _ in sys.stdin:
            model(images)
            print("done", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
