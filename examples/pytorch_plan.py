"""Runs timm's vision transformer in PyTorch under a plan of this library: Top-K, ToMe, EViT, or several of them.

    python examples/pytorch_plan.py deit.safetensors --name=deit_small_patch16_224 --plan=topk:keep_rate=0.7

This needs torch, timm and NumPy, but neither JAX nor this library. The weights are a file that
`checkpoints.save_pretrained` or `jaxprune-convert` wrote, or any other that timm reads. With `--images=images.npy`
(normalised, (b, height, width, 3)), the logits are written to `--out`, to be compared with those of this library;
without it, random images are classified and timed.

`Planned(network, plan)` is the part to copy: an `nn.Module` around timm's network, which is not modified.
"""

import argparse
import re
import time

import numpy as np
import timm  # pyright: ignore[reportMissingImports]
import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

METHODS = ("topk", "tome", "evit")
AMOUNTS = {"keep_rate": float, "num_keep": int, "r": int}


def read_plan(text, patches, depth):
    """Returns {block: (method, number of rows after it)}, prefix not counted, for a plan as this library writes it.

    `topk@3:keep_rate=0.7+tome@6:r=8` has one step for each block; `topk:keep_rate=0.7` keeps int(patches · 0.7),
    int(patches · 0.7²) and int(patches · 0.7³) at blocks 3, 6 and 9; `tome:r=8` removes 8 rows at every block, and
    `tome@0-7:r=8` at the first eight.
    """
    steps, arriving = [], patches
    for part in text.split("+"):
        match = re.fullmatch(r"\s*(\w+)(?:@(\d+)(?:-(\d+))?)?:(keep_rate|num_keep|r)=([\d.]+)\s*", part)
        if match is None or match[1] not in METHODS:
            raise SystemExit(f"{part!r}: write METHOD[@BLOCK]:keep_rate=|num_keep=|r=, with one of {METHODS}.")
        method, first, last, name = match[1], match[2], match[3] or match[2], match[4]
        amount = AMOUNTS[name](match[5])
        if first is not None:
            steps += [(block, method, name, amount) for block in range(int(first), int(last) + 1)]
        elif name == "r":
            steps += [(block, method, name, amount) for block in range(depth)]
        else:
            steps += [(3 * s, method, name, amount**s if name == "keep_rate" else amount) for s in (1, 2, 3)]
    plan = {}
    for layer, method, name, amount in steps:
        target = arriving - amount if name == "r" else int(patches * amount) if name == "keep_rate" else amount
        left = max(min(target, arriving), 1)
        if method == "tome":
            left = max(left, arriving - arriving // 2)  # rows merge in pairs
        if left < arriving:
            plan[layer] = method, left
            arriving = left + (method == "evit")  # the fused row
    return plan


class Planned(nn.Module):
    """A plain timm ViT whose blocks drop or merge tokens between attention and MLP; prefix tokens are kept.

    Attention stays fused: a ranking needs one extra row of it, and the sizes of merged tokens are passed as its mask.

    Args:
      network: timm's `VisionTransformer`, with a CLS token if tokens are ranked by its attention.
      plan: {block: (method, number of rows after it)}, see `read_plan`.
    """

    def __init__(self, network, plan):
        super().__init__()
        self.network, self.plan = network, dict(plan)
        if any(method != "tome" for method, _ in self.plan.values()) and network.cls_token is None:
            raise ValueError("Top-K and EViT rank by the attention of a CLS token, and this network has none.")

    def forward(self, images):
        network = self.network
        x = network.norm_pre(network.patch_drop(network._pos_embed(network.patch_embed(images))))
        size = None  # number of patches in each token, once some have merged
        for layer, block in enumerate(network.blocks):
            q, k, v = self.heads(block.attn, block.norm1(x))
            bias = None if size is None else size.log()[:, None, None, :].expand(-1, q.shape[1], q.shape[2], -1)
            gathered = F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)
            x = x + block.ls1(block.attn.proj(block.attn.norm(gathered)))
            if layer in self.plan:
                x, size = self.reduce(*self.plan[layer], x, size, q, k)
            x = x + block.ls2(block.mlp(block.norm2(x)))
        return network.forward_head(network.norm(x))

    @staticmethod
    def heads(attn, x):
        b, n, d = x.shape
        q, k, v = attn.qkv(x).reshape(b, n, 3, attn.num_heads, d // attn.num_heads).permute(2, 0, 3, 1, 4)
        return attn.q_norm(q), attn.k_norm(k), v

    def reduce(self, method, left, x, size, q, k):
        """Returns tokens and sizes with `left` rows after the prefix (EViT: plus the fused one)."""
        prefix = self.network.num_prefix_tokens
        if method == "tome":
            size = x.new_ones(x.shape[:2]) if size is None else size
            return merge(x, size, k.mean(1), x.shape[1] - prefix - left, prefix)
        logits = q[:, :, :1] @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        if size is not None:
            logits = logits + size.log()[:, None, None, :]
        scores = logits.softmax(-1).mean(1)[:, 0, prefix:]
        order = scores.argsort(dim=-1, descending=True, stable=True)
        kept = [
            torch.cat([part[:, :prefix], rows(part[:, prefix:], order[:, :left])], 1) for part in with_size(x, size)
        ]
        if method == "evit":
            lost = order[:, left:]
            fused = (rows(x[:, prefix:], lost) * scores.gather(1, lost)[..., None]).sum(1, keepdim=True)
            kept[0] = torch.cat([kept[0], fused], 1)
            if size is not None:
                kept[1] = torch.cat([kept[1], size[:, prefix:].gather(1, lost).sum(1, keepdim=True)[..., None]], 1)
        return kept[0], None if size is None else kept[1][..., 0]


def with_size(x, size):
    """Returns the tokens, and their sizes as a column if there are any."""
    return (x,) if size is None else (x, size[..., None])


def rows(x, ids):
    """Returns the rows `ids` of each image."""
    return x.gather(1, ids[..., None].expand(-1, -1, x.shape[-1]))


def merge(x, size, metric, r, prefix):
    """Bipartite soft matching (ToMe): merges the r even tokens that are most similar to an odd one with that token."""
    first, second = slice(prefix % 2, None, 2), slice(1 - prefix % 2, None, 2)
    metric = F.normalize(metric[:, prefix:], dim=-1)
    similar, partner = (metric[:, first] @ metric[:, second].transpose(-1, -2)).max(-1)
    order = similar.argsort(dim=-1, descending=True, stable=True)
    go, stay = order[:, :r], order[:, r:]
    if prefix:
        stay = stay.sort(-1).values
    weighted = torch.cat([x * size[..., None], size[..., None]], -1)
    a, b = weighted[:, prefix:][:, first], weighted[:, prefix:][:, second]
    to = partner.gather(1, go)[..., None].expand(-1, -1, a.shape[-1])
    merged = torch.cat([weighted[:, :prefix], rows(a, stay), b.scatter_add(1, to, rows(a, go))], 1)
    return merged[..., :-1] / merged[..., -1:], merged[..., -1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("weights", help="a file that timm reads")
    parser.add_argument("--name", default="deit_small_patch16_224", help="timm's name of the network")
    parser.add_argument("--num-classes", type=int, default=1000)
    parser.add_argument("--plan", default="topk:keep_rate=0.7")
    parser.add_argument("--images", help="an .npy file of normalised images, (b, height, width, 3)")
    parser.add_argument("--out", default="logits.npy", help="where the logits of --images are written")
    args = parser.parse_args()
    network = timm.create_model(args.name, num_classes=args.num_classes, checkpoint_path=args.weights).eval()
    plan = read_plan(args.plan, network.patch_embed.num_patches, len(network.blocks))
    print(", ".join(f"block {layer}: {method}, {left} tokens left" for layer, (method, left) in plan.items()))
    height, width = network.patch_embed.img_size
    images = np.load(args.images) if args.images else np.random.default_rng(0).normal(size=(8, height, width, 3))
    images = torch.from_numpy(images.astype(np.float32)).permute(0, 3, 1, 2).contiguous()
    planned = Planned(network, plan).eval()
    with torch.inference_mode():
        logits = planned(images)
        if args.images:
            np.save(args.out, logits.numpy())
            print(f"logits written to {args.out}")
            return
        for name, run in (("dense", network), (args.plan, planned)):
            run(images)
            start = time.perf_counter()
            run(images)
            print(f"{name}: {1000 * (time.perf_counter() - start):.0f} ms for {len(images)} images")


if __name__ == "__main__":
    main()
