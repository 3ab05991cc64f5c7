"""Differential fuzzing of sizes: one compile, called with other sizes.

    python -m tests.fuzz.shapes --seed 1 --count 500 [--aten]

In: a seed.  Out: nothing, or the program and the sizes where the program differs from eager.  A program is straight Python
over three tensors whose dimensions are symbols: views, slices, reshapes, broadcasts, reductions, products, cat, pad,
softmax, norms.  A statement is kept if eager runs it at all of the sizes.  The program is compiled at the first sizes; all
other sizes for which its assumptions hold are compared: values, strides, gradients.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F

from tests import symbolic_sizes

CALLS = 6
LARGEST = 20_000  # elements of a value
GREATEST = 1e4
INPUTS = {"x": ("b", "s", 4), "y": ("s", "t"), "z": ("b", "s")}

UNARY = (
    "{v}.sin()",
    "{v}.relu()",
    "{v}.tanh() * 2",
    "{v}.exp().clamp(max=5)",
    "{v} + 1",
    "{v}.abs().sqrt()",
    "F.gelu({v})",
)
VIEWS = (
    "{v}.transpose({d}, {e})", "{v}.flatten()", "{v}.reshape({v}.shape[0], -1)", "{v}.reshape(-1, {v}.shape[-1])",
    "{v}.unsqueeze({d})", "{v}.contiguous()", "{v}.permute(*range({r})[::-1])", "{v}.transpose({d}, {e}).contiguous()",
    "{v}.flip({d})", "{v}.unflatten(-1, (2, -1))", "{v}.movedim({d}, {e})", "{v}.t() if {r} == 2 else {v}.mT",
    "{v}.transpose(0, -1).reshape(-1)", "{v}.chunk(2, {d})[0]", "{v}.squeeze({d})", "{v}.split(2, {d})[0]",
)  # fmt: skip
SLICES = (
    "{v}.narrow({d}, 1, {v}.shape[{d}] - 1)", "{v}.narrow({d}, 0, {v}.shape[{d}] // 2)", "{v}.select({d}, 0)",
    "{v}.select({d}, -1)", "{v}[1:]", "{v}[..., :-1]", "{v}[..., ::2]", "{v}[:2]", "{v}[-2:]", "{v}[..., 1:] - {v}[..., :-1]",
    "{v}[: {v}.shape[0] // 2 * 2].unflatten(0, (-1, 2))", "{v}.unfold({d}, 2, 1)", "{v}.diagonal(0, {d}, {e})",
    "{v}[:, None]", "{v}[..., None, :]", "{v}[3:]", "{v}[..., 2:]", "{v}[: -{v}.shape[-1] // 2]", "{v}[..., {v}.shape[0] // 3 :]",
)  # fmt: skip
FOLDS = (
    "{v}.sum({d})", "{v}.sum({d}, keepdim=True)", "{v}.mean({d}, keepdim=True)", "{v}.amax({d})", "{v}.sum()",
    "{v}.mean()", "{v}.var({d})", "{v}.std({d}, correction=0)", "{v}.logsumexp({d})", "{v}.amin({d}, keepdim=True)",
    "{v}.softmax({d})", "{v}.log_softmax({d})", "F.layer_norm({v}, {v}.shape[-1:])", "{v}.cumsum({d})", "{v}.norm(dim={d})",
    "{v}.max({d})[0]", "F.rms_norm({v}, ({v}.shape[-1],))", "{v}.sum(({d}, {e}))", "{v}.prod({d}, keepdim=True)",
    "F.normalize({v}, dim={d})", "{v}.sort({d})[0]", "{v} / {v}.shape[{d}]", "{v} * {v}.shape[{d}] ** -0.5",
)  # fmt: skip
JOINS = (
    "torch.cat([{v}, {v} * 2], {d})", "torch.stack([{v}, {v} + 1], {d})", "F.pad({v}, (1, 2))", "F.pad({v}, (0, 1), value=2.0)",
    "{v}.repeat_interleave(2, {d})", "{v}.expand(3, *[-1] * {r})", "{v}.roll(1, {d})", "{v}.tril()", "{v}.triu(1)",
    "{v} + torch.arange({v}.shape[-1])", "{v}.masked_fill({v} > 0.3, 0.5)", "torch.where({v} > 0, {v}, {v} * 0.1)",
    "F.pad({v}, ({v}.shape[-1] // 3, -2))", "F.pad({v}, (-1, {v}.shape[-1] - 4))", "F.pad({v}, (-{v}.shape[0] // 2, 5))",
    "{v}.new_zeros({v}.shape[0]).unsqueeze(-1) + {v}.flatten(1).sum(1, keepdim=True)", "{v}.repeat(2, *[1] * ({r} - 1))",
)  # fmt: skip
BINARY = (
    "{v} + {w}", "{v} * {w}", "{v} - {w}.mean()", "torch.maximum({v}, {w})", "{v} @ {w}", "{v} @ {w}.mT", "{v}.mT @ {w}",
    "torch.cat([{v}, {w}], {d})", "{v}[..., None] * {w}[..., None, :]", "torch.where({v} > {w}, {v}, {w})", "F.mse_loss({v}, {w})",
    "{v}.unsqueeze(-1) + {w}.unsqueeze(-2)",
)  # fmt: skip
FAMILIES = (UNARY, VIEWS, VIEWS, SLICES, FOLDS, JOINS, BINARY, BINARY)

Sizes = dict[str, int]
Function = Callable[..., Any]


class Program:
    """Lines of source; `function` runs them."""

    def __init__(self, lines: Sequence[str], outputs: Sequence[str]) -> None:
        self.lines, self.outputs = list(lines), list(outputs)

    @property
    def source(self) -> str:
        body = [f"    {line}" for line in self.lines]
        return "\n".join([f"def f({', '.join(INPUTS)}):", *body, f"    return ({', '.join(self.outputs)},)"])

    @property
    def function(self) -> Function:
        space = {"torch": torch, "F": F}
        exec(self.source, space)
        return space["f"]  # type: ignore[return-value]


def inputs(sizes: Sizes, seed: int) -> list[torch.Tensor]:
    torch.manual_seed(seed)
    return [torch.randn([sizes.get(str(n), n) for n in dims]).requires_grad_() for dims in INPUTS.values()]  # type: ignore[misc]


def dims() -> dict[tuple[int, int], str]:
    found = enumerate(INPUTS.values())
    return {(k, d): n for k, dims in found for d, n in enumerate(dims) if isinstance(n, str)}


def generate(seed: int) -> tuple[Program, list[Sizes]]:
    choose = random.Random(seed)
    top = choose.choice((6, 12, 24))
    sizes = [{n: choose.randint(2, top) for n in "bst"} for _ in range(CALLS)]
    envs: list[dict[str, Any]] = [dict(zip(INPUTS, inputs(s, seed), strict=True)) for s in sizes]
    lines: list[str] = []
    for _ in range(60):
        if len(lines) >= 3 + seed % 6:
            break
        pool = list(envs[0])
        v, w = choose.choice([*pool, pool[-1], pool[-1]]), choose.choice(pool)
        rank = envs[0][v].dim()
        d, e = (choose.randrange(rank) if rank else 0 for _ in range(2))
        text = choose.choice(choose.choice(FAMILIES)).format(v=v, w=w, d=d, e=e, r=rank)
        name = f"v{len(lines)}"
        values = [attempt(text, env) for env in envs]
        if any(t is None for t in values) or len({t.dim() for t in values if t is not None}) > 1:
            continue
        for env, value in zip(envs, values, strict=True):
            env[name] = value
        lines.append(f"{name} = {text}")
    made = [name for name in envs[0] if name.startswith("v")]
    outputs = list(dict.fromkeys([*made[-2:], *choose.sample(made, min(1, len(made)))]))
    return Program(lines, outputs), sizes


def attempt(text: str, env: dict[str, Any]) -> torch.Tensor | None:
    try:
        with torch.no_grad(), warnings.catch_warnings(action="ignore"):
            value = eval(text, {"torch": torch, "F": F}, env)
    except (RuntimeError, IndexError, TypeError, ValueError, ZeroDivisionError):
        return None
    if not isinstance(value, torch.Tensor) or value.numel() > LARGEST or not value.is_floating_point():
        return None
    return value if bool(value.isfinite().all()) and bool((value.detach().abs() < GREATEST).all()) else None


def run(seed: int, compiler: Any = symbolic_sizes.as_native) -> int:
    """The number of calls that one compile served."""
    program, sizes = generate(seed)
    if not program.outputs:
        return 0
    try:
        with warnings.catch_warnings(action="ignore"):
            return symbolic_sizes.check(program.function, [inputs(s, seed) for s in sizes], dims(), compiler)
    except Exception as error:
        error.add_note(f"seed {seed}, sizes {sizes}:\n{program.source}")
        raise


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--aten", action="store_true", help="run the ATen graphs uncompiled")
    options = parser.parse_args()
    failed, served, start = 0, 0, time.perf_counter()
    for seed in range(options.seed, options.seed + options.count):
        try:
            served += run(seed, symbolic_sizes.as_aten if options.aten else symbolic_sizes.as_native)
        except Exception as error:
            failed += 1
            print(
                f"seed {seed}: {type(error).__name__}: {str(error)[:400]}",
                *getattr(error, "__notes__", ()),
                sep="\n",
                flush=True,
            )
        done = seed + 1 - options.seed
        if done % 20 == 0:
            print(f"{done} programs, to seed {seed}, {failed} differ, {time.perf_counter() - start:.0f} s", flush=True)
    calls = options.count * CALLS
    print(
        f"{options.count} programs, {served} of {calls} calls by one compile, {failed} differ, {time.perf_counter() - start:.0f} s"
    )
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
