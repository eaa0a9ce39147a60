"""The same networks in plain PyTorch, for side-by-side timing only (needs `pip install torch`)."""

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]


class Block(nn.Module):
    """Pre-norm transformer block with fused scaled-dot-product attention."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim, eps=1e-6), nn.LayerNorm(dim, eps=1e-6)
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    """A classifier with a CLS token."""

    def __init__(self, img=224, patch=16, dim=384, depth=12, heads=6, classes=1000):
        super().__init__()
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, (img // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, classes)

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.norm(self.blocks(x))[:, 0])


class ReducedViT(ViT):
    """A classifier that drops tokens by Top-K or merges them by ToMe inside some blocks; the CLS token is kept.

    Written to be as fast as is easily possible in PyTorch: attention stays fused, with one extra CLS row for Top-K and
    the log of the sizes as its mask for ToMe.
    """

    def __init__(self, method, num_keep, locations=(3, 6, 9), **sizes):
        super().__init__(**sizes)
        self.method, self.plan = method, dict(zip(locations, num_keep, strict=True))

    def forward(self, images):
        x = self.embed(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        size = None
        for layer, block in enumerate(self.blocks):
            b, n, d = x.shape
            qkv = block.qkv(block.norm1(x)).view(b, n, 3, block.heads, d // block.heads)
            q, k, v = qkv.permute(2, 0, 3, 1, 4)
            bias = None if size is None else size.log().to(q.dtype)[:, None, None, :].expand(b, block.heads, n, n)
            out = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
            x = x + block.proj(out.transpose(1, 2).reshape(b, n, d))
            if layer in self.plan and self.method == "topk":
                row = (q[:, :, :1] @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1).mean(1)[:, 0, 1:]
                best = row.topk(self.plan[layer]).indices + 1
                x = torch.cat([x[:, :1], x.gather(1, best[..., None].expand(-1, -1, d))], 1)
            elif layer in self.plan:
                size = torch.ones(b, n) if size is None else size
                merged, size = self.merge(x, size, k.mean(1), n - 1 - self.plan[layer])
                x = merged.to(q.dtype)
            x = x + block.fc2(F.gelu(block.fc1(block.norm2(x))))
        return self.head(self.norm(x)[:, 0])

    @staticmethod
    def merge(x, size, metric, r):
        """Bipartite soft matching: merges the r even tokens that are most similar to an odd one with that token."""
        metric = F.normalize(metric, dim=-1)
        scores = metric[:, ::2] @ metric[:, 1::2].transpose(-1, -2)
        scores[:, 0] = -torch.inf
        best, partner = scores.max(-1)
        order = best.argsort(-1, descending=True)
        stay, go = order[:, r:].sort(-1).values, order[:, :r]
        to = partner.gather(-1, go)
        weighted = torch.cat([x * size[..., None], size[..., None]], -1)
        a, b = weighted[:, ::2], weighted[:, 1::2]
        wide = lambda ids: ids[..., None].expand(-1, -1, a.shape[-1])
        b = b.scatter_add(1, wide(to), a.gather(1, wide(go)))
        merged = torch.cat([a.gather(1, wide(stay)), b], 1)
        return merged[..., :-1] / merged[..., -1:], merged[..., -1]


class MAE(nn.Module):
    """A masked autoencoder as published: patch embedding of all patches, full decoder, normalised pixels."""

    def __init__(self, img=224, patch=16, dim=384, depth=12, heads=6, ddim=512, ddepth=8, dheads=16, ratio=0.75):
        super().__init__()
        self.patch, self.p = patch, (img // patch) ** 2
        self.keep = int(self.p * (1 - ratio))
        self.embed = nn.Conv2d(3, dim, patch, patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.mask = nn.Parameter(torch.zeros(1, 1, ddim))
        self.register_buffer("pos", torch.randn(1, self.p + 1, dim))
        self.register_buffer("dpos", torch.randn(1, self.p + 1, ddim))
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.norm, self.dembed = nn.LayerNorm(dim, eps=1e-6), nn.Linear(dim, ddim)
        self.dblocks = nn.Sequential(*(Block(ddim, dheads) for _ in range(ddepth)))
        self.dnorm, self.pred = nn.LayerNorm(ddim, eps=1e-6), nn.Linear(ddim, patch * patch * 3)

    def patchify(self, images):
        b, c, height, width = images.shape
        h, w, s = height // self.patch, width // self.patch, self.patch
        return images.view(b, c, h, s, w, s).permute(0, 2, 4, 3, 5, 1).reshape(b, h * w, s * s * c)

    def forward(self, images):
        b = len(images)
        x = self.embed(images).flatten(2).transpose(1, 2) + self.pos[:, 1:]
        shuffle = torch.rand(b, self.p).argsort(1)
        restore = shuffle.argsort(1)
        x = x.gather(1, shuffle[:, : self.keep, None].expand(-1, -1, x.shape[-1]))
        x = torch.cat([(self.cls + self.pos[:, :1]).expand(b, -1, -1), x], 1)
        x = self.dembed(self.norm(self.blocks(x)))
        tokens = torch.cat([x[:, 1:], self.mask.expand(b, self.p - self.keep, -1)], 1)
        tokens = tokens.gather(1, restore[:, :, None].expand(-1, -1, x.shape[-1]))
        x = self.dblocks(torch.cat([x[:, :1], tokens], 1) + self.dpos)
        pred = self.pred(self.dnorm(x))[:, 1:]
        target = self.patchify(images)
        target = (target - target.mean(-1, keepdim=True)) / (target.var(-1, keepdim=True) + 1e-6).sqrt()
        masked = (restore >= self.keep).float()
        return (((pred - target) ** 2).mean(-1) * masked).sum() / masked.sum()


def on_device(build, autocast=None):
    """Returns a function that runs what `build` returns on the kind of device that JAX uses, and waits for it.

    Args:
      build: builds a network and returns a function that runs it, such as `lambda: inference(8)`.
      autocast: "bfloat16" computes under autocast, as one trains.
    """
    import jax

    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    with torch.device(device):
        run = build()

    def timed():
        with torch.device(device), torch.autocast(device, torch.bfloat16, enabled=str(autocast) == "bfloat16"):
            run()
        if device == "cuda":
            torch.cuda.synchronize()

    return timed


def sizes(name):
    """Returns the sizes of the network `name` in `jaxprune.models`, under the names used here."""
    from jaxprune import models

    arguments = models.arguments(name)
    names = {"img_size": "img", "patch_size": "patch", "embed_dim": "dim", "depth": "depth", "num_heads": "heads"}
    return {torch_name: arguments[argument] for argument, torch_name in names.items()}


def inference(batch, method="", num_keep=(), dtype=None, **sizes):
    """Returns a function that runs one forward pass of a classifier, dense or under a method, all of it in `dtype`."""
    model = ReducedViT(method, num_keep, **sizes) if method else ViT(**sizes)
    side, precision = sizes.get("img", 224), getattr(torch, str(dtype or "float32"))
    model, images = model.eval().to(precision), torch.randn(batch, 3, side, side).to(precision)

    @torch.inference_mode()
    def run():
        model(images)

    return run


def mae_step(batch, **sizes):
    """Returns a function that runs one optimizer step of MAE."""
    return _step(MAE(**sizes), batch, sizes, lambda model, images: model(images))


def classifier_step(batch, **sizes):
    """Returns a function that runs one optimizer step of a classifier."""
    labels = torch.arange(batch) % sizes.get("classes", 1000)
    return _step(ViT(**sizes), batch, sizes, lambda model, images: F.cross_entropy(model(images), labels))


def _step(model, batch, sizes, loss):
    images = torch.randn(batch, 3, sizes.get("img", 224), sizes.get("img", 224))
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.05, fused=True)

    def run():
        adamw.zero_grad(set_to_none=True)
        loss(model, images).backward()
        adamw.step()

    return run
