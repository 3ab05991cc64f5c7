"""Programs compiled with symbolic sizes without capture: shared by tests of the back end.

In: a function of tensors, example tensors, and the dimensions that are symbols. Out: `Compiled`: a callable for
tensors of other sizes, and its assumptions about them.

    run = compiled(lambda x: x.sum(1), [torch.randn(4, 7)], {(0, 0): "b", (0, 1): "s"})
    run(torch.randn(5, 9))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from pycompiler import graphs
from pycompiler.autograd.compile import compile_joint
from pycompiler.autograd.recorder import same_places
from pycompiler.ir.generated_source import forward_of
from pycompiler.symbolic.symbols import Symbols
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

Dims = Mapping[tuple[int, int], str]  # (argument, dimension) -> name of its symbol


def as_aten(gm: fx.GraphModule, _: Any) -> Callable[..., Any]:
    return forward_of(gm)


def as_native(gm: fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    return graphs.compile_aten(gm, inputs)


class Compiled:
    """`fits` says whether the sizes of a call meet its assumptions."""

    def __init__(self, run: Callable[..., Any], symbols: Symbols, dims: Dims) -> None:
        self.run, self.symbols, self.dims = run, symbols, dims
        self.at = {name: at for at, name in reversed([*dims.items()])}  # the place of each symbol's value

    def sizes(self, args: Sequence[Any]) -> dict[str, int]:
        return {name: args[k].shape[d] for name, (k, d) in self.at.items()}

    def fits(self, *args: Any) -> bool:
        sizes = self.sizes(args)
        equal = all(args[k].shape[d] == sizes[name] for (k, d), name in self.dims.items())
        return equal and all(r.holds(sizes) for r in (*self.symbols.relations, *self.symbols.declared()))

    def __call__(self, *args: Any) -> Any:
        return self.run(*self.sizes(args).values(), *args)


def compiled(fn: Callable[..., Any], args: Sequence[Any], dims: Dims, compiler: Any = as_native) -> Compiled:
    symbols, mode = Symbols(), new_fake_mode(symbolic=True)
    names = list({name: at for at, name in reversed([*dims.items()])})
    at = {name: at for at, name in reversed([*dims.items()])}
    numbers = {name: symbols.new(args[at[name][0]].shape[at[name][1]], name=name) for name in names}
    fakes = []
    for k, t in enumerate(args):
        sizes = [numbers[dims[k, d]] if (k, d) in dims else n for d, n in enumerate(t.shape)]
        strides: list[Any] = [1] * len(sizes)
        for d in reversed(range(len(sizes) - 1)):
            strides[d] = strides[d + 1] * sizes[d + 1]
        assert t.is_contiguous()
        fakes.append(fake_of(mode, t, (sizes, strides)))
    gm = traced(fn, len(names), len(args))
    examples = [*numbers.values(), *fakes]
    for node, value in zip(gm.graph.find_nodes(op="placeholder"), examples, strict=True):
        node.meta["example_value"] = value
    run = compile_joint(gm, examples, fw_compiler=compiler, bw_compiler=compiler)
    return Compiled(run, symbols, dims)


def traced(fn: Callable[..., Any], numbers: int, tensors: int) -> fx.GraphModule:
    """The graph of `fn`, which takes numbers first and returns a tuple."""
    names = [f"n{i}" for i in range(numbers)] + [f"t{i}" for i in range(tensors)]
    space: dict[str, Any] = {"fn": fn}
    given = ", ".join(names[numbers:])
    exec(f"def whole({', '.join(names)}):\n    r = fn({given})\n    return r if isinstance(r, tuple) else (r,)", space)
    return fx.symbolic_trace(space["whole"])


def check(
    fn: Callable[..., Any],
    calls: Sequence[Sequence[Any]],
    dims: Dims,
    compiler: Any = as_native,
    tolerance: float = 3e-4,
) -> int:
    """Compiles for the first call and compares all fitting calls with eager: values, strides, gradients, arguments
    afterwards. Returns the number of fitting calls."""
    run, met = compiled(fn, calls[0], dims, compiler), 0
    for args in calls:
        if not run.fits(*args):
            continue
        met += 1
        sizes = run.sizes(args)
        ours, theirs = copies(args), copies(args)
        got, want = as_tuple(run(*ours)), as_tuple(fn(*theirs))
        for g, w in zip(got, want, strict=True):
            if not isinstance(w, Tensor):
                assert g == w, (sizes, g, w)
                continue
            torch.testing.assert_close(g, w, rtol=tolerance, atol=tolerance, msg=lambda m: f"{sizes}: {m}")  # noqa: B023
            # Strides of dimensions of one element come from capture, which is not part of this.
            assert same_places(g, w), (sizes, g.stride(), w.stride())
        for i, (g, w) in enumerate(zip(gradients(got, ours), gradients(want, theirs), strict=True)):
            assert (g is None) == (w is None), sizes
            if w is None or torch.allclose(g, w, rtol=5e-3, atol=5e-4, equal_nan=True):
                continue
            wide = [
                a.detach().double().requires_grad_() if isinstance(a, Tensor) and a.requires_grad else a for a in args
            ]
            true = gradients(as_tuple(fn(*wide)), wide)[i]
            assert true is not None and away(g, true) <= 4 * away(w, true), (
                f"gradient, {sizes}: {g} for {w}; in float64 {true}"
            )
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.detach(), b.detach(), rtol=tolerance, atol=tolerance)
    return met


def away(t: Tensor, true: Tensor) -> float:
    """The distance of float32 from float64 (a normalisation of two elements, for example, loses most digits)."""
    return float((t - true).abs().max())


def copies(args: Sequence[Any]) -> list[Any]:
    return [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in args]


def as_tuple(result: Any) -> tuple[Any, ...]:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def gradients(results: Sequence[Any], args: Sequence[Any]) -> list[Tensor | None]:
    outs = [t for t in results if isinstance(t, Tensor) and t.requires_grad]
    leaves = [t for t in args if isinstance(t, Tensor) and t.requires_grad]
    if not outs:
        return []
    weights = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape) for t in outs]
    return list(torch.autograd.grad(outs, leaves, weights, allow_unused=True))
