"""A training step of a small GPT with two causes of graph breaks: a print of a value, and a branch on the loss.

`python -m pycompiler report bench/gpt_with_causes.py` makes the page; `--without` runs the same steps without both lines.
The page's first cards should name both lines, and its costs the difference of the two runs, which are printed.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from models.gpt import GPT, Config  # noqa: E402
from torch import Tensor  # noqa: E402

import pycompiler  # noqa: E402

STEPS = 60
torch.manual_seed(0)
torch.set_num_threads(1)
model = GPT(Config(layers=3, width=64, length=32))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


@pycompiler.compile
def train(tokens: Tensor) -> Tensor:
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    print("largest logit", logits.max().item())
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    if loss > 100:
        loss = loss / 2
    loss.backward()
    optimizer.step()
    return loss


@pycompiler.compile
def train_without(tokens: Tensor) -> Tensor:
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    return loss


def main() -> None:
    step = train_without if "--without" in sys.argv else train
    spent = []
    for _ in range(STEPS):
        tokens = torch.randint(0, 256, (8, 33))
        start = time.perf_counter()
        step(tokens)
        spent.append(time.perf_counter() - start)
    print(f"{1e3 * statistics.median(spent):.3f} ms a step", file=sys.stderr)


if __name__ == "__main__":
    main()
