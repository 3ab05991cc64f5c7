"""One compile for many lengths: `python bench/lengths.py [bert gpt gpt2 llama resnet18]`.

Each model of `examples/models` trains in float64 on batches of 13 lengths (images: 13 sizes). Loss and gradients
are compared with eager's at each length. float32 would not do: a `relu` of almost 0 may round either way, and
eager's own gradients of resnet18 differ from float64's by 6e-3. At most two compiles are allowed for forward and
backward: one with numbers and one with symbols.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "examples")]

import torch  # noqa: E402
from models import Case, build  # noqa: E402
from torch import Tensor  # noqa: E402

import pycompiler  # noqa: E402

LENGTHS = (16, 7, 24, 9, 33, 12, 5, 40, 21, 3, 64, 50, 2)
NAMES = ("bert", "gpt", "gpt2", "llama", "resnet18")
COMPILES = 2
CLOSE = 1e-6  # relative to a parameter's greatest gradient; transformers computes norms and losses in float32


def batch(case: Case, seed: int, length: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A batch cut to the length."""

    def cut(t: Any) -> Any:
        if not isinstance(t, Tensor) or t.dim() < 2:
            return t
        return t[:, :length].contiguous() if t.dim() == 2 else t[..., : 32 + length, : 32 + length].contiguous()

    def wide(t: Any) -> Any:
        return t.double() if isinstance(t, Tensor) and t.is_floating_point() else t

    args, kwargs = next(case.batches(seed))
    return tuple(wide(cut(t)) for t in args), {name: wide(cut(t)) for name, t in kwargs.items()}


def step(case: Case, model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """The loss and the gradients of all parameters."""
    case.model.zero_grad()
    torch.manual_seed(0)
    loss = case.loss(model(*args, **kwargs))
    loss.backward()
    return loss.detach(), [p.grad.clone() for p in case.model.parameters() if p.grad is not None]


def differs(got: list[Tensor], want: list[Tensor]) -> float:
    """The greatest difference, relative to the greatest value."""
    scale = max(float(w.abs().max()) for w in want)
    return max(float((g - w).abs().max()) / scale for g, w in zip(got, want, strict=True))


def run(name: str) -> bool:
    case = build(name)
    case.model.double()
    compiled = pycompiler.compile(case.model)
    worst, start = 0.0, time.perf_counter()
    state = {k: v.clone() for k, v in case.model.state_dict().items()}
    for seed, length in enumerate(LENGTHS):
        args, kwargs = batch(case, seed, length)
        results = []
        for model in (case.model, compiled):
            case.model.load_state_dict(state)  # batch norm updates its statistics
            results.append(step(case, model, args, kwargs))
        (want, wanted), (got, found) = results
        worst = max(worst, differs([got, *found], [want, *wanted]))
    compiles = pycompiler.counters(compiled)["compiles"]
    took = time.perf_counter() - start
    print(f"{name:10} {len(LENGTHS)} lengths: {compiles} compiles, differs by {worst:.1e}, {took:.0f} s", flush=True)
    return compiles <= COMPILES and worst <= CLOSE


def main() -> int:
    return int(not all([run(name) for name in sys.argv[1:] or NAMES]))


if __name__ == "__main__":
    sys.exit(main())
