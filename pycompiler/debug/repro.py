"""Run-time code of printed graphs (`fx_graph_runnable.py`): inputs, and the compiler for a module of ATen calls.

compiled = compile_graph(Repro(), inputs)      # as the compiler of graphs got it
main(Repro(), inputs)                          # runs both, prints how far they are apart
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import getitem
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils._pytree import tree_flatten

from pycompiler import config
from pycompiler.api import compile as compile_function
from pycompiler.autograd.control_flow import Side, choice_of
from pycompiler.debug.fx_reader import load, nodes_in
from pycompiler.graphs import compile_aten
from pycompiler.operators.operator_facts import written_by
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode


class Unprintable:
    """Stands for a value without a printed form; raises when it is called."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"this part of the graph has no printed form: {self.text}")


def tensor(
    size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str, requires_grad: bool = False
) -> torch.Tensor:
    """Random values: normal floats, or zeros and ones (also valid indices).  `output_code.py` creates the same values."""
    made = torch.empty_strided(tuple(size), tuple(stride), dtype=dtype, device=device)
    items = (made.untyped_storage().nbytes() // made.itemsize,)  # elements may overlap
    made.as_strided(items, (1,)).copy_(_random(items, dtype))
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
    """A random tensor with the layout of `value`; other values unchanged."""
    if not isinstance(value, torch.Tensor):
        return value
    return tensor(value.shape, value.stride(), value.dtype, str(value.device), value.requires_grad)


def saved(program: str, name: str) -> list[Any]:
    """The values in file `name` beside `program`."""
    made: list[Any] = torch.load(Path(program).parent / name, weights_only=True)
    return made


def set_attribute(module: torch.nn.Module, path: str, value: Any) -> None:
    """Set `module.a.b = value`, creating modules on the way."""
    *folders, name = path.split(".")
    for folder in folders:
        if not hasattr(module, folder):
            setattr(module, folder, torch.nn.Module())
        module = getattr(module, folder)
    if isinstance(value, torch.Tensor):
        module.register_buffer(name, value)
    else:
        setattr(module, name, value)


def branch(number: int, sides: tuple[Side, ...], like: Sequence[Any], symbols: Sequence[str]) -> object:
    """Register the sides of `torch.ops.pycompiler.branch(..., number)` or `loop`, as long as the result is alive.

    `like`: shape, strides and dtype of each result; `symbols`: numbers that the sides take after their tensors.
    """
    return choice_of(number, sides, list(like), symbols)


def needs(operator: str) -> None:
    """Exit with a message if an operator of the program is not registered."""
    space, name = operator.split("::")
    if not hasattr(getattr(torch.ops, space), name):
        raise SystemExit(
            f"the graph calls the program's own operator {operator}: import the module that registers it here"
        )


def unchecked(*values: Any) -> None:
    """Replaces the check of unbacked symbols: the printed program is captured anew."""


class _Values(fx.Interpreter):
    """Runs on fake tensors, and records the value of each node; numbers become literals in the nodes that use them."""

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
    """A module of ATen calls, compiled by the compiler of graphs; captured first if sizes depend on data."""
    try:
        return compile_aten(*traced(module, inputs))
    except (DataDependentOutputException, DynamicOutputShapeException):
        knobs = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
        compiled: Callable[..., Sequence[Any]] = compile_function(module.forward, backend="native")
        return config.patch(knobs)(compiled)  # type: ignore[no-any-return]


def main(module: torch.nn.Module, inputs: Sequence[Any]) -> int:
    """Run the graph compiled and by ATen's operators; returns 1 if they differ by more than rounding."""
    compiled = compile_graph(module, inputs)
    want, seen = (_run(run, inputs) for run in (module, compiled))
    if isinstance(want, Exception) or isinstance(seen, Exception):
        print(f"the graph does not accept these random inputs: {_raised(want)}; compiled: {_raised(seen)}")
        return int(type(want) is not type(seen))
    unset = _unwritten_memory(load(module))
    found = [
        _differs(f"output {k}", *row) for k, row in enumerate(zip(want.results, seen.results, unset[0], strict=True))
    ]
    for k, row in enumerate(zip(want.inputs, seen.inputs, unset[1], strict=True)):
        if k in want.written | seen.written:
            found.append(_differs(f"input {k}, written", *row))
    return int(any(found))


@dataclass
class Ran:
    """The results of a call, its inputs afterwards, and which of them were written."""

    results: list[Any]
    inputs: list[Any]
    written: set[int]


def _run(run: Callable[..., Any], inputs: Sequence[Any]) -> Ran | Exception:
    torch.manual_seed(0)
    given = list(copy.deepcopy(inputs))
    try:
        with torch.no_grad():
            results = tree_flatten(run(*given))[0]
    except Exception as error:
        return error
    written = {k for k, (x, y) in enumerate(zip(inputs, given, strict=True)) if not _same(x, y)}
    return Ran(results, given, written)


def _same(x: Any, y: Any) -> bool:
    """Whether two inputs are bitwise equal."""
    if not isinstance(x, torch.Tensor):
        return True
    mine, other = (t.contiguous().view(-1).view(torch.uint8) if t.numel() else None for t in (x.detach(), y.detach()))
    return mine is other if mine is None or other is None else torch.equal(mine, other)


def _raised(result: Ran | Exception) -> str:
    return f"{type(result).__name__}: {result}" if isinstance(result, Exception) else "no error"


def _differs(what: str, want: Any, seen: Any, unset: bool) -> bool:
    if not isinstance(want, torch.Tensor):
        print(f"{what}: {want!r}, compiled {seen!r}")
        return bool(want != seen)
    name = f"{what}: {tuple(want.shape)} {want.dtype} {want.device}"
    if unset:
        print(f"{name}: not compared: some of its memory was never written")
        return False
    try:
        torch.testing.assert_close(seen, want, equal_nan=True)
    except AssertionError as error:
        print(f"{name}: DIFFERENT\n{error}")
        return True
    print(f"{name}: equal")
    return False


# Operators that leave memory unwritten, and which of their results has it (None: the only one).
UNSET: dict[str, int | None] = {
    "aten.empty": None, "aten.empty_strided": None, "aten.empty_like": None, "aten.new_empty": None,
    "aten.new_empty_strided": None, "pycompiler.mkldnn_rnn_layer": 3,
}  # fmt: skip
# Operators that do not read the values of their first argument.
OVERWRITES = frozenset({
    "aten.fill.Scalar", "aten.fill.Tensor", "aten.zero.default", "aten.copy.default", "aten.full_like.default",
    "aten.ones_like.default", "aten.zeros_like.default", "aten.bernoulli.p", "aten.rand_like.default",
    "aten.randn_like.default", "aten.randint_like.default",
})  # fmt: skip


def _unwritten_memory(gm: fx.GraphModule) -> tuple[list[bool], list[bool]]:
    """For each output, and for each input if it was written, whether its value depends on unwritten memory."""
    tainted = set[fx.Node]()
    for n in gm.graph.nodes:
        operator = str(n.target).rpartition(".")[0]
        source = n.args[0] if n.target is getitem else None
        if isinstance(source, fx.Node) and (part := UNSET.get(str(source.target).rpartition(".")[0])) is not None:
            unset = n.args[1] == part
        else:
            read = n.args[1:] if str(n.target) in OVERWRITES else (n.args, n.kwargs)
            unset = UNSET.get(operator, 0) is None or not tainted.isdisjoint(nodes_in(read))
        if unset and n.op != "output":
            tainted.update([n, *_written(n)])
    outputs, _ = tree_flatten(gm.graph.output_node().args[0])
    return [n in tainted for n in outputs], [n in tainted for n in gm.graph.nodes if n.op == "placeholder"]


def _written(n: fx.Node) -> Iterator[fx.Node]:
    """The tensors that an operator writes."""
    for given in written_by(n.target, n.args, n.kwargs):
        yield from nodes_in(given)
