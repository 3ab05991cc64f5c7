"""Objects → records → objects: callables that autograd created, also with symbolic sizes, in all their uses."""

from __future__ import annotations

import marshal
from collections.abc import Callable
from typing import Any, ClassVar, Dict, List, Optional, Tuple, Union  # noqa: UP035

import pytest
import torch
from torch import Tensor

import pycompiler
from pycompiler.artefacts.data import Unsavable
from pycompiler.artefacts.decode import Decoder, read_names
from pycompiler.artefacts.encode import Encoder
from pycompiler.capture.interpreter import calls
from pycompiler.ir.persistent_names import content, name_of, naming, resolve
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbols import Relation, Symbols, expr_of
from pycompiler.wrapping import compiled_of
from tests import symbolic_sizes


def root(x: Tensor) -> Tensor:
    return x


def again(value: Any) -> Any:
    """The object that another process would read from the records."""
    encoder = Encoder(root)
    with naming():
        top = encoder.value(value)
    names, records, top, libraries = marshal.loads(
        marshal.dumps((encoder.names, encoder.records, top, encoder.libraries))
    )
    objects = read_names([(tuple(n), text) for n, text in names])
    decoder = Decoder(root, compiled_of(pycompiler.compile(root))._pycompiler_family, objects, libraries)
    decoder.all(records)
    return decoder.value(top)


def gelus(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    y = torch.nn.functional.gelu(x @ w)
    return y.sum(-1), (y * x.mean()).softmax(-1)


def views(x: Tensor, w: Tensor) -> Any:
    y = (x @ w).reshape(-1, 2)
    return y.t(), y[1:], x.shape[0] * 2


@pytest.mark.parametrize("fn", [gelus, views])
@pytest.mark.parametrize("before", [False, True], ids=["backward pending", "backward compiled"])
@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_symbolic_sizes(fn: Callable[..., Any], before: bool) -> None:
    def arguments(b: int, s: int) -> list[Tensor]:
        torch.manual_seed(b)
        return [torch.randn(b, s, requires_grad=True), torch.randn(s, 4, requires_grad=True)]

    made = symbolic_sizes.compiled(fn, arguments(5, 6), {(0, 0): "b", (0, 1): "s", (1, 0): "s"})
    if before:
        args = arguments(5, 6)
        symbolic_sizes.gradients(symbolic_sizes.as_tuple(made(*args)), args)
    loaded = symbolic_sizes.Compiled(again(made.run), made.symbols, made.dims)
    met = 0
    for args in (arguments(5, 6), arguments(7, 9), arguments(3, 4)):
        if not made.fits(*args):
            continue
        met += 1
        ours, theirs = symbolic_sizes.copies(args), symbolic_sizes.copies(args)
        got, want = symbolic_sizes.as_tuple(loaded(*ours)), symbolic_sizes.as_tuple(fn(*theirs))
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g, w)
        for k in (0, 1):  # gradients of one output only: another backward for each
            found = [torch.autograd.grad(out[k].sum(), x, allow_unused=True, retain_graph=True)
                     for out, x in ((got, ours), (want, theirs))]  # fmt: skip
            for g, w in zip(*found, strict=True):
                torch.testing.assert_close(g, w)
    assert met >= 2


@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_symbolic_numbers() -> None:
    symbols = Symbols()
    s = symbols.new(8)
    bool(s * 3 > 20)
    assert symbols.relations
    relation, pair, number, expr = again((symbols.relations[0], (s * 4, s // 2), s, Expr.sym("n") * 3 + 1))
    assert isinstance(relation, Relation) and str(relation) == str(symbols.relations[0])
    assert str(expr_of(pair[0])) == "4*s0" and pair[1].node.env is number.node.env
    assert number.node.env.relations == symbols.relations and expr == Expr.sym("n") * 3 + 1


class Twice(list):  # type: ignore[type-arg]
    pass


SHARED = ["a", 2]
VALUES: dict[str, Any] = {
    "plain": [None, True, 1, -(2**70), 1.5, float("inf"), 2j, "text", b"bytes", ..., NotImplemented],
    "containers": ([1, {"a": (2, {3}), 4: frozenset({5})}], range(1, 9, 2), slice(1, None, 2)),
    "torch": (torch.float16, torch.device("cpu"), torch.strided, torch.channels_last, torch.Size([2, 3])),
    "operators": (
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add,
        torch.relu,
        torch.Tensor.add,
        torch.nn.functional.gelu,
    ),
    "classes": (torch.nn.Linear, dict, Twice, type(iter({})), type(reversed({}.values()))),
    "annotations": [
        Optional["torch.classes.nothing"],
        Union[int, "str"],
        List[int],
        list[str],
        int | None,  # type: ignore[name-defined]  # noqa: UP006, UP007, UP045
        Callable[[int], str],
        ClassVar,
        Dict[str, Tuple[int, ...]],  # noqa: UP006
    ],  # fmt: skip
    "enumerations in C++": (torch._C._TorchFunctionState.ENABLED, torch._C._functorch.TransformType.Vmap),
    "modules": (torch, torch.nn.functional, torch.ops.aten, vars(torch.nn.functional)),
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_values(kind: str) -> None:
    assert again(VALUES[kind]) == VALUES[kind]


@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_identity_is_kept_inside() -> None:
    circle: list[Any] = [SHARED, SHARED]
    circle.append({"self": circle})
    made = again(circle)
    assert made[0] is made[1] and made[2]["self"] is made and made[0] == SHARED and made[0] is not SHARED


@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_negative_zero_and_nan() -> None:
    zero, nan = again([-0.0, float("nan")])
    assert str(zero) == "-0.0" and nan != nan


@pytest.mark.captures_nothing("records are written and read; nothing is called")
def test_tensors() -> None:
    x = torch.arange(12.0).reshape(3, 4).t()
    made = again([x, torch.empty(0, 3), torch.tensor(True), torch.tensor([1 + 2j]).to(torch.complex128)])
    assert torch.equal(made[0], x) and made[0].stride() == x.stride()
    assert made[1].shape == (0, 3) and made[2].item() is True and made[3].item() == 1 + 2j


@pytest.mark.parametrize(
    "value", [torch.nn.Module.forward, torch.no_grad, property.fget, len, torch.relu, symbolic_sizes.check]
)
def test_names_lead_back(value: Any) -> None:
    name = name_of(value)
    assert name is not None and resolve(name) is value and content(value) is not None


def test_nothing_is_read_out_of_closures() -> None:
    """The runner of a compiled graph is data: functions that have names, and their arguments."""
    with pytest.raises(Unsavable, match="register"):
        again(calls.builtin(len))

    def f(x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        y.mul_(2)
        x.add_(1)
        return (x * y * w).relu()

    compiled = pycompiler.compile(f)
    args = [torch.ones(3, 3), torch.ones(3, 3), torch.ones(3, 3, requires_grad=True)]
    compiled(*args)
    (entry,) = compiled_of(compiled).entries
    loaded = again(compiled_of(compiled)._pycompiler_family.made[entry].graph)
    for memory in (torch.ones(3, 3), args[0].clone()):
        wanted, found = ([memory.clone(), memory.clone(), args[2]] for _ in range(2))
        wanted[1], found[1] = wanted[0], found[0]  # inputs that share memory: the graph runs as captured
        torch.testing.assert_close(loaded.target(*found)[-1], f(*wanted))
        torch.testing.assert_close(found[0], wanted[0])
