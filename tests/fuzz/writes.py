"""Random programs that write memory under many names, and read what a capture knows of it.

    python -m tests.fuzz.writes --count 5000 --seed 0        (from the root)

Names are tensors, views, aliases, arrays of NumPy and inner functions.  Each program is called twice, compiled and eager.
Results, arguments, sharing of memory and, without NumPy, version counters must be the same.
"""

from __future__ import annotations

import argparse
import linecache
import logging
import random
import re
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.func import grad, vmap
from torch.utils.checkpoint import checkpoint

import pycompiler

PRELUDE = """
class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, t):
        return t * 2
    @staticmethod
    def backward(ctx, g):
        return g * 2

def adds(t):
    t.add_(1)
    return t * 2

def scales(t):
    return t * torch.tensor([1.0, 2.0, 3.0])[0].item()

def program(x, w, a, j, step):
    r = []
    k, s = torch.tensor([1, 3, 2]), torch.tensor([1.0, 2.0, 4.0])
    b, v, p, m, n, g, z = x[j], x[1:], w.detach(), w.numpy(), x.detach(), x * 1, x
"""
# `{t}`: a tensor.  `{o}`: another one of its dtype.  `{c}`: a small int.
CHANGES = (
    "{t}.add_({c})", "{t}.data.add_({c})", "{t}.detach().add_({c})", "{t}[0] = {c}", "{t}.view(-1)[1:].add_({c})",
    "{t}.data = {o}.clone()", "{t}.data = {o}", "{t}.set_({o}.clone())", "torch.add({o}, {c}, out={t})",
    "torch._foreach_add_([{t}], {c})", "{t}.copy_({o})", "{t}.zero_()", "{t} = {t} + {c}", "{t} = {t}.view(-1)",
    "{t} = {t}.detach()", "{t}.data[1] = {c}", "{t} = {t}[:]", "{t}.fill_({c})", "{t}.mul_({o})",
    "{t}.unsqueeze_(0).squeeze_(0)", "np.add({t}.numpy(), {c}, out={t}.numpy())", "{t}.numpy()[0] = {c}",
    "torch.from_numpy(a).add_({c})", "a[0] += {c}", "a *= 2", "a[1:] = {c}", "m = {t}.numpy()", "m[0] = {c}", "m += {c}",
    "{t}.data = torch.from_numpy(m)", "{t} = torch.from_numpy(m)", "n = {t}.detach()", "n[1:] = {c}", "n.data = {o}",
    "b = {t}[j]", "b.add_({c})", "v = {t}[1:]", "v.add_({c})", "v.data.mul_(2)", "p = {o}.detach()", "p.add_({c})",
    "g = Double.apply({t})", "g = checkpoint(scales, {t}, use_reentrant=False)", "adds({t})", "step.add_(1)",
    "step.data.add_(1)", "step[()] = 5",
    "with torch.no_grad(): {t}.add_({c})", "with torch.inference_mode(): z = x + {c}",
)  # fmt: skip
READS = (
    "{t}.tolist() if {t}.dtype == torch.int64 else 0", "{t}[0].item()", "x + 1 if {t}[0].item() > {c} else x - 1",
    "float(a[0])", "x * a[0]", "x * float(a[1])", "{t} * 1", "{t}.sum()", "{t}._version", "{t}.is_leaf", "{t}.data", "{t} is x",
    "checkpoint(lambda q: q * a[0], x, use_reentrant=False)", "checkpoint(lambda q: q * {t}[0], x, use_reentrant=False)",
    "checkpoint(lambda q: q * {t}[0].item(), x, use_reentrant=False)", "checkpoint(scales, x, use_reentrant=False)",
    "checkpoint(lambda q: q * m[0], x, use_reentrant=False)", "vmap(lambda q: q * {t}[0])(x)",
    "vmap(lambda q: q * float(a[0]))(x)", "vmap(lambda q: q * m[0])(x)", "grad(lambda q: (q * {t}[0]).sum())(x)",
    "torch.cond(s[0] > 0, lambda q: q * {t}[0], lambda q: q - 1, (x,))", "adds({t})", "torch.nn.Parameter({t} * 1.0) * 2",
    "step.item()", "x if step.item() > 2 else x * 3", "x[j]", "x[k % 2]", "b * 1", "v * 1", "x", "b", "v", "p", "n", "n.sum()",
    "g", "m", "m.sum()", "m[0]", "x * m[1]", "x + 1 if m[0] > {c} else x - 1", "float(m[1])", "torch.as_tensor(m) * 1",
    "np.asarray(a).sum()", "z.is_inference()", "torch.arange(4).repeat_interleave(2)[k[0] % 4].item()",
    "torch.split(x.repeat(4), (k % 5).sum().item())",
)  # fmt: skip
OTHERS = {
    "k": ("torch.tensor([2, 2, 1])",),
    "s": ("x", "w", "torch.tensor([3.0, 1.0, 2.0])"),
    "x": ("w", "s"),
    "w": ("x", "s"),
}


def program(seed: int) -> str:
    rng, lines = random.Random(seed), [PRELUDE]
    for _ in range(rng.randint(3, 8)):
        name = rng.choice("kksssxw")
        line = rng.choice(CHANGES) if rng.random() < 0.5 else f"r.append({rng.choice(READS)})"
        lines.append("    " + line.format(t=name, o=rng.choice(OTHERS[name]), c=rng.choice((1, 2, 3))) + "\n")
    return "".join([*lines, "    return r\n"])


def arguments(call: int) -> tuple[Any, ...]:
    """Arguments of a call.  The second call has other numbers."""
    x, w, step = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([5.0, 6.0, 7.0]) + 3 * call, torch.tensor(1.0 + 2 * call)
    return x, w, np.array([1.0 + 8 * call, 2.0, 3.0]), torch.tensor(2), step


def same(a: Any, b: Any) -> bool:
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a.detach() == b.detach()).all())
    if isinstance(a, (np.ndarray, np.generic)):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return a is b or bool(a == b)


def outcome(run: Callable[..., Any], call: int, versions: bool) -> list[Any]:
    """The result and the arguments after a write of each result, which shows what shares memory; and the versions."""
    given = arguments(call)
    try:
        made = run(*given)
    except Exception as error:
        return [type(error).__name__, given]
    for tensor in made:
        if isinstance(tensor, torch.Tensor) and not (tensor.requires_grad or tensor.is_inference()):
            tensor.data.add_(1)
    return [made, given, [t._version for t in given if isinstance(t, torch.Tensor)] if versions else None]


def difference(seed: int, backend: str) -> str | None:
    """What differs, or None."""
    text, name = program(seed), f"<writes {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    scope: dict[str, Any] = {"torch": torch, "np": np, "checkpoint": checkpoint, "vmap": vmap, "grad": grad}
    exec(compile(text, name, "exec"), scope)
    counted = re.search(r"numpy\(\)|\bm\b", text.removeprefix(PRELUDE)) is None
    if not counted and "_version" in text:
        return None  # writes of arrays count versions only in compiled functions
    pycompiler.reset()
    compiled = pycompiler.compile(scope["program"], backend=backend)
    for call in range(2):
        ours, eager = (outcome(run, call, counted) for run in (compiled, scope["program"]))
        if not same(ours, eager):
            return f"seed {seed}, call {call}\n{text}\nours  {ours}\neager {eager}"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--backend", default="eager")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    pycompiler.config.raise_internal_errors = True
    bad = 0
    for seed in range(chosen.seed, chosen.seed + chosen.count):
        if (found := difference(seed, chosen.backend)) is not None:
            bad += 1
            print(found)
    print(f"{chosen.count} programs, {bad} differ")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
