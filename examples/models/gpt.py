"""A small byte-level GPT in plain PyTorch, and its data: the sources of the Python standard library.

In: bytes `(batch, length)` int64. Out: logits `(batch, length, 256)`, or the loss if targets are given.
Example: `GPT(Config())(torch.zeros(1, 8, dtype=torch.int64))`.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Config:
    """Sizes; `vocabulary` is 256 because a token is a byte."""

    layers: int = 4
    heads: int = 4
    width: int = 128
    length: int = 128
    vocabulary: int = 256
    dropout: float = 0.0


class Attention(nn.Module):
    """Causal self-attention over heads of width `width // heads`."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.heads
        self.dropout = config.dropout
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        p = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attention = Attention(config)
        self.norm2 = nn.LayerNorm(config.width)
        self.mlp = nn.Sequential(
            nn.Linear(config.width, 4 * config.width),
            nn.GELU(),
            nn.Linear(4 * config.width, config.width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, a norm and a head that shares the embedding's weight."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.tokens = nn.Embedding(config.vocabulary, config.width)
        self.positions = nn.Embedding(config.length, config.width)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        self.apply(self._initialise)

    def _initialise(self, module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
        if isinstance(module, nn.Linear) and module.bias is not None:
            nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if targets is None:
            return logits
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def standard_library(limit: int = 4_000_000) -> Tensor:
    """The bytes of the standard library's sources, in a fixed order: about `limit` of them, as uint8."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: list[bytes] = []
    total = 0
    for path in sorted(root.glob("*.py")) + sorted(root.glob("*/*.py")):
        if "site-packages" in path.parts or "test" in path.parts:
            continue
        parts.append(path.read_bytes())
        total += len(parts[-1])
        if total >= limit:
            break
    if total < 100_000:
        raise FileNotFoundError(f"{root} holds only {total} bytes of Python sources; the text is read from there")
    return torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8)


@torch.no_grad()
def generate(
    model: Callable[[Tensor], Tensor], prompt: bytes, count: int, length: int, *, device: torch.device, seed: int = 0
) -> bytes:
    """`prompt` and `count` sampled bytes.

    The model always sees `length` bytes, with spaces in front, so it is compiled once.
    """
    generator = torch.Generator().manual_seed(seed)
    tokens = list(prompt)
    for _ in range(count):
        seen = tokens[-length:]
        context = torch.tensor([[32] * (length - len(seen)) + seen], device=device)
        logits = model(context)[0, -1].float().cpu() / 0.7
        values, indices = logits.topk(20)
        choice = torch.multinomial(values.softmax(0), 1, generator=generator)
        tokens.append(int(indices[choice]))
    return bytes(tokens)
