"""Tensor subclasses (`torch_compat/tensor_subclasses.py`) that compiled functions create."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

import pycompiler
from tests.autograd.subclasses.test_subclasses import BACKENDS, Coded, check, leaves

X = torch.arange(12.0).reshape(3, 4)


def coded(x: torch.Tensor) -> Any:
    return Coded((x * 10).int(), 0.1)


def by_name(x: torch.Tensor) -> Any:
    return Coded((x * 10).int(), scale=0.1) * 2


def both(x: torch.Tensor) -> Any:
    made: Any = TwoTensor(x + 1, x * 2)
    return made * 3, made.a, made.shape == x.shape, type(made) is TwoTensor


def written(x: torch.Tensor) -> Any:
    made: Any = TwoTensor(x + 1, x * 2)
    made.add_(1)
    return made


def held(x: torch.Tensor) -> Any:
    return TwoTensor(x, x)


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", (coded, by_name, both, written, held))
def test_a_wrapper_that_is_made(program: Any, backend: str) -> None:
    check(program, X, backend=backend)


@pytest.mark.usefixtures("graphs_may_run_eagerly")
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_wrapper_that_is_made_holds_is_eagers(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        data = x * 2
        return TwoTensor(x, data), data

    x = X.clone()
    made, data = pycompiler.compile(program, fullgraph=True, backend=backend)(x)
    data.fill_(7)
    x.fill_(5)
    a, b = leaves(made)
    assert bool((a == 5).all()) and bool((b == 7).all())


class Slotted(Coded):
    """A subclass with slots, beside the dict of all tensors."""

    __slots__ = ("first", "times", "unset")

    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        self.first, self.times = codes, scale

    def __tensor_flatten__(self) -> Any:
        return ["first"], {"scale": self.times}

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Slotted:
        return Slotted(inner["first"], context["scale"])

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        decoded = [a.first.float() * a.times if isinstance(a, Slotted) else a for a in args]
        result = func(*decoded, **(kwargs or {}))
        return Slotted((result * 10).int(), 0.1) if func is torch.ops.aten.relu.default else result


def in_slots(x: torch.Tensor) -> Any:
    made: Any = Slotted((x * 10).int(), 0.1)
    return torch.relu(made), made * 2, made.times, made.first


def of_slots(x: Any) -> Any:
    return torch.relu(x), x * 3, x.first + 1, x.times


@pytest.mark.parametrize("backend", BACKENDS)
def test_wrappers_with_slots(backend: str) -> None:
    check(in_slots, X, backend=backend)
    compiled = pycompiler.compile(of_slots, backend=backend, fullgraph=True)
    for scale in (0.5, 0.5, 0.25):
        got, wanted = compiled(Slotted(X.int(), scale)), of_slots(Slotted(X.int(), scale))
        assert (
            type(got[0]) is Slotted and torch.equal(got[0].first, wanted[0].first) and got[0].times == wanted[0].times
        )
        assert torch.equal(got[1], wanted[1]) and torch.equal(got[2], wanted[2]) and got[3] == wanted[3]
    assert compiled.counters()["compiles"] == 2


MADE: list[int] = []


class Counting(Coded):
    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        super().__init__(codes, scale)
        MADE.append(1)


class Marking(Coded):
    def __init__(self, codes: torch.Tensor, scale: float) -> None:
        super().__init__(codes, scale)
        codes.mark = 5  # type: ignore[attr-defined]


@pytest.mark.parametrize("cls", (Counting, Marking))
def test_a_class_that_does_more_breaks_the_graph(cls: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        codes = x.int()
        return cls(codes, 0.5) * 2, getattr(codes, "mark", None)

    MADE.clear()
    compiled = pycompiler.compile(program, backend="eager")
    assert [compiled(X)[1] for _ in range(2)] == [program(X)[1]] * 2
    assert len(MADE) % 3 == 0


def test_a_list_that_a_wrapper_holds_is_of_its_call() -> None:
    def program(x: torch.Tensor) -> Any:
        return Coded(x.int(), [0.5])  # type: ignore[arg-type]

    compiled = pycompiler.compile(program, backend="eager")
    first, second = compiled(X), compiled(X)
    assert first.scale is not second.scale


def test_one_that_is_replaced_is_made_anew() -> None:
    class Scaled(Coded):
        pass

    def program(x: torch.Tensor) -> Any:
        return Scaled(x.int(), 0.5) * 2

    compiled = pycompiler.compile(program, backend="eager")
    first = compiled(X)

    def doubled(self: Any, codes: torch.Tensor, scale: float) -> None:
        self.codes, self.scale = codes, scale * 2

    Scaled.__init__ = doubled  # type: ignore[method-assign]
    assert not torch.equal(compiled(X), first) and torch.equal(compiled(X), program(X))


def test_a_wrapper_of_what_needs_a_gradient_breaks_the_graph() -> None:
    def program(x: torch.Tensor) -> Any:
        return TwoTensor(x * 2, x * 3).sum()

    report = pycompiler.explain(program)(X.clone().requires_grad_())
    assert report.break_reasons[0].kind == "tensor-subclass"


def test_arguments_that_are_refused_raise_eagers_error() -> None:
    def program(x: torch.Tensor) -> Any:
        try:
            return TwoTensor(x, x[0])
        except AssertionError:
            return x + 1

    assert torch.equal(pycompiler.compile(program, backend="eager")(X), X + 1)


Form = collections.namedtuple("Form", ["shape", "device", "inner"])


@dataclasses.dataclass(frozen=True)
class Frozen:
    shape: Any
    inner: Any = None


class Told(torch.Tensor):
    """A subclass with an inner tensor and an attribute."""

    a: torch.Tensor
    told: Any

    @staticmethod
    def __new__(cls, a: torch.Tensor, told: Any) -> Told:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, told: Any) -> None:
        self.a, self.told = a, told

    def __tensor_flatten__(self) -> Any:
        return ["a"], self.told

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> Told:
        return Told(inner["a"], context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        told = next(a.told for a in args if isinstance(a, Told))
        result = func(*pytree.tree_map_only(Told, lambda t: t.a, args), **(kwargs or {}))
        return pytree.tree_map_only(torch.Tensor, lambda t: Told(t, told), result)


def of_a_tuple(x: torch.Tensor) -> Any:
    made: Any = Told(x + 1, (1, (2, "a"), x.shape))
    return made * made, made.a


def of_a_namedtuple(x: torch.Tensor) -> Any:
    return Told(x, Form(x.shape, x.device, Form(x.shape, x.device, None))) * 2


def of_a_dataclass(x: torch.Tensor) -> Any:
    return Told(x, Frozen(x.shape, Frozen(inner=3, shape=(x.shape[0], "b")))) * 2


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", (of_a_tuple, of_a_namedtuple, of_a_dataclass))
def test_one_of_what_holds_constants(program: Any, backend: str) -> None:
    compiled = check(program, X, backend=backend)
    for x in (X, X[:2], X * 2):
        got, wanted = (pytree.tree_leaves(fn(x.clone()))[0] for fn in (compiled, program))
        assert got.told == wanted.told and type(got.told) is type(wanted.told)
        assert torch.equal(got.a, wanted.a)


def test_one_of_what_may_change_breaks_the_graph() -> None:
    @dataclasses.dataclass
    class Loose:
        n: int

    def program(x: torch.Tensor) -> Any:
        return Told(x, Loose(3))

    assert pycompiler.explain(program)(X).graph_break_count > 0
    first, second = (pycompiler.compile(program, backend="eager")(X).told for _ in range(2))
    assert first == second and first is not second


class AllInSlots(torch.Tensor):
    __slots__ = ("a", "b", "k")
    a: torch.Tensor
    b: torch.Tensor
    k: int

    @staticmethod
    def __new__(cls, a: torch.Tensor, b: torch.Tensor, k: int = 3) -> AllInSlots:
        return torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined, no-any-return]
            cls, a.shape, strides=a.stride(), dtype=a.dtype, device=a.device, requires_grad=a.requires_grad
        )

    def __init__(self, a: torch.Tensor, b: torch.Tensor, k: int = 3) -> None:
        self.a, self.b, self.k = a, b, k

    def __tensor_flatten__(self) -> Any:
        return ["a", "b"], (self.k,)

    @staticmethod
    def __tensor_unflatten__(inner: Any, context: Any, size: Any, stride: Any) -> AllInSlots:
        return AllInSlots(inner["a"], inner["b"], *context)

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        k = next(a.k for a in args if isinstance(a, AllInSlots))
        first = func(*pytree.tree_map_only(AllInSlots, lambda t: t.a, args), **(kwargs or {}))
        second = func(*pytree.tree_map_only(AllInSlots, lambda t: t.b, args), **(kwargs or {}))
        return AllInSlots(first, second, k) if isinstance(first, torch.Tensor) else first


def slotted(x: torch.Tensor) -> Any:
    made: Any = AllInSlots(x + 1, x * 2, k=7)
    return made * 2, made.a, made.b, made.relu().k


def slots_read(x: Any) -> Any:
    return x * x.k, x.b + 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_with_slots(backend: str) -> None:
    check(slotted, X, backend=backend)
    compiled = check(slots_read, AllInSlots(X, X + 1), backend=backend)
    for a, k in ((X, 3), (X, 5), (X * 2, 3)):
        got, wanted = (fn(AllInSlots(a, a - 1, k)) for fn in (compiled, slots_read))
        assert got[0].k == wanted[0].k
        for g, w in zip(leaves(got), leaves(wanted), strict=True):
            assert torch.equal(g, w)
    assert compiled.counters()["compiles"] == 2
    check(lambda x: (x * 2) * x, AllInSlots(X, X + 1).requires_grad_(), backend=backend, backward=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_of_one_with_slots(backend: str) -> None:
    compiled = pycompiler.compile(lambda x: (x * 2) * x, backend=backend, fullgraph=True)
    found = []
    for run in (lambda x: (x * 2) * x, compiled):
        x: Any = AllInSlots(X.clone(), X + 1).requires_grad_()
        result = run(x)
        result.backward(torch.ones_like(result))
        found.append(leaves([result.detach(), x.grad]))
    torch.testing.assert_close(found[1], found[0])


def test_an_empty_slot_breaks_the_graph() -> None:
    class Half(AllInSlots):
        __slots__ = ("late",)

    def program(x: Any) -> Any:
        return x * 2, getattr(x, "late", 5)

    half = Half(X, X)
    compiled = pycompiler.compile(program, backend="eager")
    assert compiled(half)[1] == 5
    half.late = 6
    assert compiled(half)[1] == 6
