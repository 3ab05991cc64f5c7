"""What printed graphs (`fx_graph_runnable.py`) need to run: inputs, and the compiler for a module of ATen calls.

compiled = compile_graph(Repro(), inputs)      # as the compiler of graphs got it
main(Repro(), inputs)                          # runs both, prints how far they are apart
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from pycompiler.debug.straight import load
from pycompiler.graphs import compile_aten
from pycompiler.ir.fake import fake_of, new_fake_mode


class Unprintable:
    """Stands for something that has no printed form; it says so where it is used."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"this part of the graph has no printed form: {self.text}")


def tensor(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, requires_grad: bool = False
) -> torch.Tensor:
    """Random values: normal ones, or zeros and ones (which are indices too)."""
    repeats = [n > 1 and s == 0 for n, s in zip(size, stride, strict=True)]
    distinct = [1 if r else n for n, r in zip(size, repeats, strict=True)]
    made = torch.empty_strided(tuple(distinct), tuple(stride), dtype=dtype, device=device)
    if made.numel():
        made.copy_(_random(distinct, dtype))
    made = made.expand(tuple(size)) if any(repeats) else made
    return made.requires_grad_() if requires_grad else made


def _random(size: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(size, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    return torch.randint(0, 2, tuple(size))


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def like(value: Any) -> Any:
    """A random tensor that lies as `value` does; what is no tensor stays."""
    if not isinstance(value, torch.Tensor):
        return value
    return tensor(value.shape, value.stride(), value.dtype, str(value.device), value.requires_grad)


def saved(program: str, name: str) -> list[Any]:
    """The values in file `name` beside `program`."""
    made: list[Any] = torch.load(Path(program).parent / name, weights_only=True)
    return made


def put(module: torch.nn.Module, path: str, value: Any) -> None:
    """Sets `module.a.b = value`, with modules on the way."""
    *folders, name = path.split(".")
    for folder in folders:
        if not hasattr(module, folder):
            setattr(module, folder, torch.nn.Module())
        module = getattr(module, folder)
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


class _Values(fx.Interpreter):
    """Runs on fakes, and notes the value of each node; numbers become literals of the nodes that use them."""

    def __init__(self, gm: fx.GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm)
        self.mode = mode

    def run_node(self, n: fx.Node) -> Any:
        made = super().run_node(n)
        n.meta["val"] = made
        return made

    def fetch_attr(self, target: str) -> Any:
        value = super().fetch_attr(target)
        return fake_of(self.mode, value) if isinstance(value, torch.Tensor) else value


def traced(module: torch.nn.Module, inputs: Sequence[Any]) -> tuple[fx.GraphModule, list[Any]]:
    """The module's graph with `meta["val"]`, and its fake inputs."""
    gm = module if isinstance(module, fx.GraphModule) else load(module)
    mode = new_fake_mode()
    fakes = [fake_of(mode, x) if isinstance(x, torch.Tensor) else x for x in inputs]
    with mode, torch.no_grad():
        _Values(gm, mode).run(*fakes)
    numbers = {n: n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), (bool, int, float))}
    for node in gm.graph.nodes if numbers else ():
        node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), lambda n: numbers.get(n, n))
    gm.recompile()
    return gm, fakes


def compile_graph(module: torch.nn.Module, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    """What the compiler of graphs makes of a module of ATen calls."""
    return compile_aten(*traced(module, inputs))


def main(module: torch.nn.Module, inputs: Sequence[Any]) -> int:
    """Runs the graph compiled and by ATen's operators; 1 where they differ by more than rounding."""
    compiled = compile_graph(module, inputs)
    unset = any("aten.empty" in str(n.target) for n in load(module).graph.nodes)
    if unset:
        print("the graph reads memory that nobody has written (aten.empty): results may differ")
    results = []
    for run in (module, compiled):
        torch.manual_seed(0)
        with torch.no_grad():
            results.append(tree_flatten(run(*copy.deepcopy(inputs)))[0])
    wrong = 0
    for k, (want, seen) in enumerate(zip(*results, strict=True)):
        if not isinstance(want, torch.Tensor):
            print(f"output {k}: {want!r}, compiled {seen!r}")
            wrong += want != seen
            continue
        try:
            torch.testing.assert_close(seen, want, equal_nan=True)
            print(f"output {k}: {tuple(want.shape)} {want.dtype} {want.device}: equal")
        except AssertionError as error:
            print(f"output {k}: {tuple(want.shape)} {want.dtype} {want.device}: DIFFERENT\n{error}")
            wrong += 1
    return int(wrong > 0 and not unset)
