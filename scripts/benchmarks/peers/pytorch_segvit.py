"""SegViT in PyTorch, on timm's ViT: the cascade of decoders of `jaxprune.dense.segvit`, to time it beside that."""

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

STAGES = 3


def heads(x, count):
    """(b, n, d) -> (b, heads, n, d / heads)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


class SelfAttention(nn.Module):
    """Attention between the queries."""

    def __init__(self, dim, count):
        super().__init__()
        self.qkv, self.proj, self.count = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim), count

    def forward(self, x):
        q, k, v = (heads(part, self.count) for part in self.qkv(x).chunk(3, dim=-1))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class CrossAttention(nn.Module):
    """Attention of queries to tokens, whose scaled scores, averaged over the heads, are mask logits."""

    def __init__(self, dim, count):
        super().__init__()
        self.q, self.k, self.v, self.proj = (nn.Linear(dim, dim) for _ in range(4))
        self.count = count

    def forward(self, queries, tokens):
        q = heads(self.q(queries), self.count)
        k, v = (heads(layer(tokens), self.count) for layer in (self.k, self.v))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)), scores.mean(1)


class Layer(nn.Module):
    """Self-attention, attention to the tokens, an MLP with ReLU; norms after the sums."""

    def __init__(self, dim, count):
        super().__init__()
        self.self_attn, self.cross_attn = SelfAttention(dim, count), CrossAttention(dim, count)
        self.fc1, self.fc2 = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.norm1, self.norm2, self.norm3 = (nn.LayerNorm(dim) for _ in range(3))

    def forward(self, queries, tokens):
        queries = self.norm1(queries + self.self_attn(queries))
        gathered, scores = self.cross_attn(queries, tokens)
        queries = self.norm2(queries + gathered)
        return self.norm3(queries + self.fc2(F.relu(self.fc1(queries)))), scores


class Decoder(nn.Module):
    """Layers in which class queries attend to projected tokens."""

    def __init__(self, width, dim, count, layers):
        super().__init__()
        self.input_proj, self.proj_norm = nn.Linear(width, dim), nn.LayerNorm(dim)
        self.layers = nn.ModuleList(Layer(dim, count) for _ in range(layers))

    def forward(self, queries, tokens):
        x = self.proj_norm(self.input_proj(tokens))
        for layer in self.layers:
            queries, scores = layer(queries, x)
        return queries, scores


class SegViT(nn.Module):
    """The score of each class at every pixel.

    Args:
      encoder: timm's ViT, without a head and without the norm before it.
      features, count, layers: width, heads and layers of the decoders.
    """

    def __init__(self, encoder, num_classes, features, count=12, layers=3):
        super().__init__()
        depth = len(encoder.blocks)
        self.indices = [depth // 2 - 1, depth * 2 // 3 - 1, depth - 1]
        self.encoder = encoder
        self.decoders = nn.ModuleList(Decoder(encoder.embed_dim, features, count, layers) for _ in range(STAGES))
        self.queries = nn.Parameter(torch.randn(num_classes, features) * 0.02)
        self.class_embed = nn.Linear(features, num_classes + 1)

    def forward(self, images):
        maps = self.encoder.forward_intermediates(images, indices=self.indices, norm=False, intermediates_only=True)
        queries, masks = self.queries.expand(len(images), -1, -1), 0.0
        for decoder, tokens in zip(self.decoders, reversed(maps), strict=True):
            queries, scores = decoder(queries, tokens.flatten(2).transpose(1, 2))
            masks = masks + scores
        present = self.class_embed(queries).softmax(-1)[..., :-1]
        masks = F.interpolate(masks.unflatten(-1, maps[0].shape[2:]), images.shape[2:], mode="bilinear")
        return torch.einsum("bqc,bqhw->bchw", present, masks.sigmoid())
