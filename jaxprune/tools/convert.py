"""Converts published weights or a jaxprune run to `.safetensors`, with timm's names or others that PyTorch code loads.

    jaxprune-convert --input=mae_pretrain_vit_base.pth --output=mae_base.safetensors
    jaxprune-convert --input=runs/quickstart/finetune --output=quickstart.safetensors
    jaxprune-convert --input=runs/quickstart/finetune --output=model.safetensors --names=hugging_face

The input is a run directory or a file: .pth, .pt, .bin, .ckpt, .pyth (read without running the pickle in it),
.safetensors or .npz, with the names of timm, DeiT, MAE, DINO or Hugging Face. Reading is strict: a tensor that is
missing, left over or of another shape ends in an error that names it.
"""

from jaxprune import search_path

if __name__ == "__main__":
    search_path.leave_out_working_directory()  # before a module in it can be imported

import argparse

from jaxprune.errors import command
from jaxprune.open import convert
from jaxprune.weights.write_names import NAMES, TIMM


@command
def main() -> None:
    """Runs the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", required=True, help="weights file or run directory")
    parser.add_argument("--output", required=True, help="the .safetensors file to write")
    parser.add_argument(
        "--model", help="the required model, such as vit_base_patch16_224; by default inferred from the weights"
    )
    parser.add_argument("--key", help="entry of a PyTorch file with the weights, such as teacher")
    parser.add_argument("--ignored", action="append", default=[], help="pattern of tensors to leave out; repeatable")
    parser.add_argument(
        "--names", default=TIMM, help=f"naming of the output: {', '.join(NAMES)} (big_vision as .npz); default {TIMM}"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output")
    args = parser.parse_args()
    network = convert(
        args.input,
        args.output,
        model=args.model,
        key=args.key,
        ignored=args.ignored,
        names=args.names,
        overwrite=args.overwrite,
    )
    print(f"{args.output}: the weights of a {type(network).__name__}")


if __name__ == "__main__":
    main()
