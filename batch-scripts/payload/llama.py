"""A Llama-shaped decoder: RMSNorm, rotary positions, grouped-query causal attention, SwiGLU.

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


class Attention(nn.Module):
    """Causal self-attention; kv_heads <= heads share keys and values."""

    def __init__(self, dim, heads, kv_heads):
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, dim // heads
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x, cos, sin, mask):
        batch, length, _ = x.shape

        def split(y, heads):
            return y.view(batch, length, heads, self.head_dim).transpose(1, 2)

        q = rotate(split(self.wq(x), self.heads), cos, sin)
        k = rotate(split(self.wk(x), self.kv_heads), cos, sin)
        v = split(self.wv(x), self.kv_heads)
        groups = self.heads // self.kv_heads
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
        weight = (q @ k.transpose(-2, -1)) / math.sqrt(self.head_dim) + mask
        y = F.softmax(weight.float(), dim=-1).type_as(v) @ v
        return self.wo(y.transpose(1, 2).reshape(batch, length, -1))


class Block(nn.Module):
    """Attention and SwiGLU feed-forward, each behind an RMSNorm and a residual."""

    def __init__(self, dim, heads, kv_heads, hidden):
        super().__init__()
        self.attention_norm, self.ffn_norm = RMSNorm(dim), RMSNorm(dim)
        self.attention = Attention(dim, heads, kv_heads)
        self.w1 = nn.Linear(dim, hidden, bias=False)
        self.w2 = nn.Linear(hidden, dim, bias=False)
        self.w3 = nn.Linear(dim, hidden, bias=False)

    def forward(self, x, cos, sin, mask):
        x = x + self.attention(self.attention_norm(x), cos, sin, mask)
        y = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(y)) * self.w3(y))


class Llama(nn.Module):
    """Token ids (batch, length) to logits (batch, length, vocabulary)."""

    def __init__(self, vocabulary, dim, layers, heads, kv_heads, hidden, length):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads, kv_heads, hidden) for _ in range(layers))
        self.norm = RMSNorm(dim)
        self.output = nn.Linear(dim, vocabulary, bias=False)
        cos, sin = rotary_tables(dim // heads, length)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1), persistent=False)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        length = tokens.shape[1]
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x, self.cos[:length], self.sin[:length], self.mask[:length, :length])
        return self.output(self.norm(x))
