"""A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query causal attention, SwiGLU.

With `experts` each feed-forward becomes a mixture of experts as in Mixtral: every token goes to the best
two. With a `group` the layers are cut over its ranks (tensor parallelism): heads and hidden columns are
divided, and two all-reduces a layer put the parts together. With a cache it decodes token by token.

Written with operations that torch 1.13 has, so that the same model runs on a distribution's CPU package
and on a GPU cluster.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class RMSNorm(nn.Module):
    """x / rms(x) * weight, computed in fp32."""

    def __init__(self, dim, eps=1e-5):
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + self.eps)
        return (y * self.weight).type_as(x)


def rotary_tables(head_dim, length, theta=10000.0):
    """cos and sin of position times frequency, each (length, head_dim / 2)."""
    frequency = 1.0 / theta ** (torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(length).float(), frequency)
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """Rotary position embedding of x (batch, heads, length, head_dim), pairs (i, i + head_dim/2)."""
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, a * sin + b * cos), dim=-1).type_as(x)


def whole(x, group):
    """Sum of the parts that the ranks of a group hold."""
    if group is not None:
        torch.distributed.all_reduce(x, group=group)
    return x


class Attention(nn.Module):
    """Causal self-attention; kv_heads <= heads share keys and values."""

    def __init__(self, dim, heads, kv_heads, parts=1, group=None):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads // parts, kv_heads // parts, dim // heads
        self.group = group
        self.wq = nn.Linear(dim, self.heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, self.kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(self.heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin, mask, cache=None, start=0):
        batch, length, _ = x.shape

        def split(y, heads):
            return y.view(batch, length, heads, self.head_dim).transpose(1, 2)

        q = rotate(split(self.wq(x), self.heads), cos, sin)
        k = rotate(split(self.wk(x), self.kv_heads), cos, sin)
        v = split(self.wv(x), self.kv_heads)
        if cache is not None:
            keys, values = cache
            keys[:, :, start : start + length], values[:, :, start : start + length] = k, v
            k, v = keys[:, :, : start + length], values[:, :, : start + length]
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        weight = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim) + mask
        y = F.softmax(weight.float(), dim=-1).type_as(v) @ v
        return whole(self.wo(y.transpose(1, 2).reshape(batch, length, -1)), self.group)


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, dim, hidden, group=None):
        super().__init__()
        self.group = group
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x):
        return whole(self.w2(F.silu(self.w1(x)) * self.w3(x)), self.group)


class MixtureOfExperts(nn.Module):
    """Every token goes to the two experts that the router likes best, weighted by its softmax."""

    TOP = 2

    def __init__(self, dim, hidden, experts):
        super().__init__()
        self.router = nn.Linear(dim, experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(dim, hidden) for _ in range(experts))
        # Load-balancing loss of the last forward pass, as in Switch Transformer:
        # experts x sum(share of tokens x mean probability).
        self.balance = None

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        probability = F.softmax(self.router(flat).float(), dim=-1)
        weight, chosen = probability.topk(self.TOP, dim=-1)
        weight = (weight / weight.sum(dim=-1, keepdim=True)).type_as(flat)
        out = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            # An expert without tokens still takes part, or data parallelism would wait for its gradient.
            picked = expert(flat[rows]) * weight[rows, place, None]
            out = out.index_add(0, rows, picked.type_as(out))
        count = len(self.experts)
        share = F.one_hot(chosen, count).float().sum(dim=1).mean(dim=0) / self.TOP
        self.balance = count * (share * probability.mean(dim=0)).sum()
        return out.view_as(x)


class Block(nn.Module):
    """Attention and feed-forward, each behind an RMSNorm and a residual."""

    def __init__(self, dim, heads, kv_heads, hidden, experts=0, parts=1, group=None):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads, parts, group)
        if experts:
            self.ffn = MixtureOfExperts(dim, hidden, experts)
        else:
            self.ffn = FeedForward(dim, hidden // parts, group)

    def forward(self, x, cos, sin, mask, cache=None, start=0):
        x = x + self.attention(self.attention_norm(x), cos, sin, mask, cache, start)
        return x + self.ffn(self.ffn_norm(x))


class Llama(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(
        self, vocabulary, dim, layers, heads, kv_heads, hidden, length, experts=0, parts=1, group=None
    ):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(
            Block(dim, heads, kv_heads, hidden, experts, parts, group) for _ in range(layers)
        )
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        cos, sin = rotary_tables(dim // heads, length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def cache(self, batch):
        """Room for the keys and values of `batch` sequences of full length, a pair a layer."""
        first = self.blocks[0].attention
        shape = (batch, first.kv_heads, self.cos.shape[0], first.head_dim)
        weight = self.output.weight
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.blocks]

    def forward(self, tokens, cache=None, start=0):
        end = start + tokens.shape[1]
        x = self.embedding(tokens)
        place = (self.cos[start:end], self.sin[start:end], self.mask[start:end, :end])
        for number, block in enumerate(self.blocks):
            x = block(x, *place, None if cache is None else cache[number], start)
        return self.output(self.norm(x))

    def balance(self):
        """Load-balancing losses of the last forward pass, all layers together; 0 without experts."""
        return sum(b.ffn.balance for b in self.blocks if isinstance(b.ffn, MixtureOfExperts))

    def flops_per_token(self, length):
        """Floating-point operations of one training step, a token: 6 (N - input embedding) + 6 L d s.

        N counts what a token passes through, of the experts the best two; attention is causal, so half of the
        12 L d s that is often quoted.
        """
        active = sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()
        for block in self.blocks:
            if isinstance(block.ffn, MixtureOfExperts):
                idle = len(block.ffn.experts) - block.ffn.TOP
                active -= idle * sum(p.numel() for p in block.ffn.experts[0].parameters())
        dim = self.embedding.weight.shape[1]
        return 6 * active + 6 * len(self.blocks) * dim * length


FLOPS_FORMULA = "6 (N - input embedding) + 6 L d s a token, N active"
