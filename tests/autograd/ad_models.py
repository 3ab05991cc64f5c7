"""Small models shared by the tests of this folder."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.pool = nn.MaxPool2d(2)
        self.down = nn.Conv2d(6, 8, 3, stride=2)
        self.norm2 = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norm(self.conv(x)), inplace=True)
        y = F.relu(self.norm2(self.down(self.pool(y))) + 0.5)
        return self.head(y.mean((2, 3)))


class Block(nn.Module):
    """A GPT block with causal attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = 2, 6, 16
        q, k, v = self.qkv(self.ln1(x)).split(width, dim=2)
        q = q.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        k = k.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        v = v.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        y = y.transpose(1, 2).contiguous().view(batch, length, width)
        x = x + F.dropout(self.proj(y), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.ln2(x)), approximate="tanh")), self.dropout)


class GPT(nn.Module):
    def __init__(self, dropout: float = 0.0, layers: int = 2) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(11, 16), nn.Embedding(6, 16)
        self.blocks = nn.ModuleList([Block(16, 2, dropout) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(16), nn.Linear(16, 11, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.token(ids) + self.position(torch.arange(6, device=self.position.weight.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return logits, F.cross_entropy(logits.view(-1, 11), targets.view(-1))
