"""Comparison of a compiled program with eager, by all that can be observed.

In: two values, or two programs and their arguments.  Out: nothing, or `Differs` (an AssertionError) that names the place.

    assert_same(compiled(x), fn(x))                      # floats may differ by rounding (torch.testing's tolerances)
    assert_same(compiled(x), fn(x), exact=True)          # the same bits; every NaN equals every NaN
    assert_same_calls(compiled, fn, lambda: (torch.ones(3),))   # results, errors, arguments, gradients, random state

Two values are the same if their types, values, attributes and sharing are: objects (and memory of tensors) that are one in
the first are one in the second.  Tensors have the same dtype, shape, strides, device, layout, history and gradient.
A NaN is never the same as a number, and in `exact` comparisons 0.0 is not -0.0.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import io
import math
import random
import types
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tests import proof

DYNAMO = ("_dynamo_", "_torch_dynamo_")  # attributes by which torch's own compiler marks tensors and errors
Tolerance = float | dict[torch.dtype, float] | None
_EMPTY = object()  # the contents of an empty cell


def contents(cell: types.CellType) -> Any:
    """What a closure cell holds, or `_EMPTY`."""
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


class Differs(AssertionError):
    """Two outcomes differ; the message says where."""


class Comparer:
    """Structural equality that also requires equal sharing: two values are one object in both outcomes or in neither.

    `exact`: floats have the same bits.  `tolerance`: relative and absolute, in place of torch.testing's for the dtype;
    a dict has a tolerance for each dtype.  `absolute`: the absolute tolerance, if it is another (it needs `tolerance`).
    Floats of Python are equal without a `tolerance`, which is one number for them.
    `strides`, `history`, `sharing`: whether strides, gradients and `requires_grad`, and shared objects are compared.
    """

    def __init__(
        self,
        exact: bool = False,
        *,
        tolerance: Tolerance = None,
        absolute: float | None = None,
        strides: bool = True,
        history: bool = True,
        sharing: bool = True,
    ) -> None:
        self.exact, self.tolerance, self.absolute = exact, tolerance, absolute
        self.strides, self.history, self.sharing = strides, history, sharing
        self.pairs: dict[int, int] = {}
        self.back: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.storages_back: dict[int, int] = {}
        self.keep: list[Any] = []

    def same(self, a: Any, b: Any, where: str) -> None:
        if type(a) is not type(b):
            raise Differs(f"{where}: type {type(a).__name__} eager, {type(b).__name__} compiled ({a!r} / {b!r})")
        if isinstance(a, types.BuiltinFunctionType) and not isinstance(
            a.__self__, (types.ModuleType, type, type(None))
        ):
            if a.__name__ != b.__name__:
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            self.same(a.__self__, b.__self__, f"{where}.__self__")
            return
        if isinstance(a, _SINGLE):
            if a is not b:
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            return
        if isinstance(a, np.generic):
            self.arrays(a, b, where)
            return
        if isinstance(a, float) and not self.exact and isinstance(self.tolerance, float):
            absolute = self.tolerance if self.absolute is None else self.absolute
            if not math.isclose(a, b, rel_tol=self.tolerance, abs_tol=absolute) and repr(a) != repr(b):
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            return
        if isinstance(a, (int, float, complex, str, bytes, type(None), torch.device, range, slice)):
            if repr(a) != repr(b):
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
            return
        if self.pair(a, b, where):
            return
        compared = False
        for kinds, compare in COMPARERS:
            if isinstance(a, kinds):
                compare(self, a, b, where)
                compared = True
        if not compared and type(a).__eq__ is not object.__eq__ and not hasattr(a, "__dict__") and not _all_slots(a):
            if a != b or (
                repr(a) != repr(b) and " at 0x" not in repr(a)
            ):  # bytearray, date, Decimal: their state is in C
                raise Differs(f"{where}: {a!r} eager, {b!r} compiled")
        self.attributes(a, b, where)

    def pair(self, a: Any, b: Any, where: str) -> bool:
        """Whether this pair was already compared. Sharing must be one to one, except for empty tuples, which CPython shares."""
        self.keep += [a, b]
        if isinstance(a, (tuple, frozenset, types.CodeType)):
            return False
        known, back = self.pairs.get(id(a)), self.back.get(id(b))
        if known is None and back is None:
            self.pairs[id(a)], self.back[id(b)] = id(b), id(a)
            return False
        if not self.sharing:
            return known == id(b)
        if known != id(b) or back != id(a):
            raise Differs(f"{where}: sharing differs: the same object in one run, different objects in the other")
        return True

    def attributes(self, a: Any, b: Any, where: str) -> None:
        for name in _all_slots(a):
            if hasattr(a, name) != hasattr(b, name):
                raise Differs(f"{where}.{name}: only in one of the runs")
            if hasattr(a, name):
                self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")
        ours, theirs = getattr(a, "__dict__", None), getattr(b, "__dict__", None)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            skip = ("__wrapped__", "_forward_hooks_with_kwargs") if isinstance(a, types.FunctionType) else ()
            ours, theirs = (
                {k: v for k, v in found.items() if k not in skip and not k.startswith(DYNAMO)}
                for found in (ours, theirs)
            )
            if list(ours) != list(theirs):
                raise Differs(f"{where}: attributes {[*ours]} eager, {[*theirs]} compiled")
            for name in ours:
                self.same(ours[name], theirs[name], f"{where}.{name}")

    def tensors(self, a: torch.Tensor, b: torch.Tensor, where: str) -> None:
        known = ("dtype", "shape", "device", "layout", *(("requires_grad", "is_leaf") if self.history else ()))
        for what in known:
            if getattr(a, what) != getattr(b, what):
                raise Differs(f"{where}.{what}: {getattr(a, what)} eager, {getattr(b, what)} compiled")
        strided = a.layout is torch.strided
        if strided and self.strides and a.stride() != b.stride() and a.numel() > 1:
            raise Differs(f"{where}.stride(): {a.stride()} eager, {b.stride()} compiled")
        if hasattr(a, "__tensor_flatten__"):
            (names, given), (others, same) = a.__tensor_flatten__(), b.__tensor_flatten__()  # type: ignore[attr-defined]
            self.same((names, given), (others, same), f"{where}.__tensor_flatten__()")
            for name in names:
                self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")
            if self.history and a.is_leaf:
                self.same(a.grad, b.grad, f"{where}.grad")
            return
        if a.is_quantized:
            x, y = a.detach().int_repr(), b.detach().int_repr()
            if a.qscheme() != b.qscheme() or not torch.equal(a.dequantize(), b.dequantize()):
                raise Differs(f"{where}: {a} eager, {b} compiled")
        else:
            x, y = (t.detach().resolve_conj().resolve_neg() for t in (a, b))
            x, y = (x, y) if strided else (x.to_dense(), y.to_dense())
        if x.device.type != "meta" and not self.numbers(x, y):
            raise Differs(f"{where}: {a} eager, {b} compiled")
        if strided and self.sharing and x.numel() and a.device.type != "meta":
            s, t = (v.detach().untyped_storage()._cdata for v in (a, b))
            if self.storages.setdefault(s, t) != t or self.storages_back.setdefault(t, s) != s:
                raise Differs(f"{where}: storage shared differently")
        if self.history and a.is_leaf:
            self.same(a.grad, b.grad, f"{where}.grad")

    def numbers(self, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Whether the elements are the same: the same bits, or close for floats."""
        if not (x.is_floating_point() or x.is_complex()):
            return torch.equal(x, y)
        if x.is_complex():
            return self.numbers(torch.view_as_real(x), torch.view_as_real(y))
        if x.dtype.itemsize == 1:  # float8 has no comparisons
            x, y = x.float(), y.float()
        if not self.exact:
            close = self.tolerance.get(x.dtype) if isinstance(self.tolerance, dict) else self.tolerance
            absolute = close if self.absolute is None else self.absolute
            try:
                torch.testing.assert_close(y, x, rtol=close, atol=absolute, equal_nan=True)
            except AssertionError:
                return False
            return True
        ours, theirs = x.isnan(), y.isnan()
        x, y = x.masked_fill(ours, 1), y.masked_fill(theirs, 1)
        return torch.equal(ours, theirs) and torch.equal(x, y) and torch.equal(x.signbit(), y.signbit())

    def sequences(self, a: Any, b: Any, where: str) -> None:
        if len(a) != len(b):
            raise Differs(f"{where}: length {len(a)} eager, {len(b)} compiled ({a!r} / {b!r})")
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            self.same(x, y, f"{where}[{i}]")

    def mappings(self, a: Any, b: Any, where: str) -> None:
        self.sequences(list(a), list(b), f"{where}.keys()")
        for k, v in zip(a, b, strict=True):
            self.same(a[k], b[v], f"{where}[{k!r}]")

    def arrays(self, a: Any, b: Any, where: str) -> None:
        if a.dtype != b.dtype or a.shape != b.shape or (self.strides and a.size > 1 and a.strides != b.strides):
            raise Differs(f"{where}: {a.dtype} {a.shape} {a.strides} eager, {b.dtype} {b.shape} {b.strides} compiled")
        if a.dtype.kind in "biufc":
            x, y = (torch.from_numpy(np.array(v, order="C")) for v in (a, b))
            same = self.numbers(x, y)
        else:
            same = a.tolist() == b.tolist()
        if not same:
            raise Differs(f"{where}: {a} eager, {b} compiled")

    def sets(self, a: Any, b: Any, where: str) -> None:
        if sorted(map(repr, a)) != sorted(map(repr, b)):
            raise Differs(f"{where}: {a!r} eager, {b!r} compiled")

    def functions(self, a: types.FunctionType, b: types.FunctionType, where: str) -> None:
        if a.__code__ != b.__code__ or a.__qualname__ != b.__qualname__:
            raise Differs(f"{where}: function {a.__qualname__} eager, {b.__qualname__} compiled")
        self.same(a.__defaults__, b.__defaults__, f"{where}.__defaults__")
        self.same(a.__kwdefaults__, b.__kwdefaults__, f"{where}.__kwdefaults__")
        self.same(a.__closure__, b.__closure__, f"{where}.__closure__")

    def cells(self, a: types.CellType, b: types.CellType, where: str) -> None:
        x, y = contents(a), contents(b)
        if x is _EMPTY or y is _EMPTY:
            if x is not y:
                raise Differs(f"{where}: cell empty in one of the runs")
            return
        self.same(x, y, f"{where}.cell_contents")

    def methods(self, a: types.MethodType, b: types.MethodType, where: str) -> None:
        self.same(a.__self__, b.__self__, f"{where}.__self__")
        self.same(a.__func__, b.__func__, f"{where}.__func__")

    def partials(self, a: functools.partial[Any], b: functools.partial[Any], where: str) -> None:
        for name in ("func", "args", "keywords"):
            self.same(getattr(a, name), getattr(b, name), f"{where}.{name}")

    def errors(self, a: BaseException, b: BaseException, where: str) -> None:
        self.same(a.args, b.args, f"{where}.args")
        self.same(a.__cause__, b.__cause__, f"{where}.__cause__")
        if a.__suppress_context__ != b.__suppress_context__ or type(a.__context__) is not type(b.__context__):
            raise Differs(f"{where}.__context__: {a.__context__!r} eager, {b.__context__!r} compiled")
        if isinstance(a, BaseExceptionGroup) and isinstance(b, BaseExceptionGroup):
            self.same(a.exceptions, b.exceptions, f"{where}.exceptions")


def _slots(cls: type) -> list[str]:
    found = cls.__dict__.get("__slots__", ())
    return [found] if isinstance(found, str) else [s for s in found if not s.startswith("__")]


def _all_slots(value: Any) -> list[str]:
    return [s for c in type(value).__mro__ for s in _slots(c)]


# types whose values are the same only if they are one object
_SINGLE = (type, types.ModuleType, types.BuiltinFunctionType, enum.Enum, torch.dtype, torch.layout, torch.memory_format)


COMPARERS: list[tuple[Any, Callable[[Comparer, Any, Any, str], None]]] = [
    (torch.Tensor, Comparer.tensors),
    ((dict, types.MappingProxyType), Comparer.mappings),
    ((list, tuple, collections.deque), Comparer.sequences),
    (collections.defaultdict, lambda c, a, b, w: c.same(a.default_factory, b.default_factory, f"{w}.default_factory")),
    (collections.deque, lambda c, a, b, w: c.same(a.maxlen, b.maxlen, f"{w}.maxlen")),
    (np.ndarray, Comparer.arrays),
    ((type({}.keys()), type({}.values()), type({}.items())), lambda c, a, b, w: c.sequences(list(a), list(b), w)),
    ((set, frozenset), Comparer.sets),
    (types.FunctionType, Comparer.functions),
    (types.CellType, Comparer.cells),
    (types.MethodType, Comparer.methods),
    (functools.partial, Comparer.partials),
    (BaseException, Comparer.errors),
    (weakref.ref, lambda c, a, b, w: c.same(a(), b(), f"{w}()")),
    (torch.Generator, lambda c, a, b, w: c.same(a.get_state(), b.get_state(), f"{w}.get_state()")),
]  # fmt: skip


def assert_same(got: Any, wanted: Any, *, what: str = "value", **options: Any) -> None:
    """Raise `Differs` unless the compiled program's value and eager's are the same.  `options`: of `Comparer`."""
    Comparer(**options).same(wanted, got, what)


# ---- outcomes of calls ------------------------------------------------------------------------------------------------
@dataclass
class Outcome:
    """All that one call leaves behind."""

    result: Any = None
    error: BaseException | None = None
    world: Any = None  # arguments and other objects that the call may change
    printed: str = ""
    rng: Any = None  # states of torch's and Python's generators
    grad_mode: bool = True

    def __str__(self) -> str:
        return f"raised {self.error!r}" if self.error is not None else f"returned {self.result!r}"


def observe(
    call: Callable[..., Any], args: Sequence[Any] = (), *, watch: Any = (), backward: bool = False, seed: int = 0
) -> Outcome:
    """Call with fixed random seeds, and record the result or the error, `args` and `watch` after the call, printed text, modes.

    `backward`: the sum of all results that require a gradient runs backward, so that gradients are compared, too.
    """
    outcome, out = Outcome(), io.StringIO()
    torch.manual_seed(seed)
    random.seed(seed)
    with contextlib.redirect_stdout(out), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome.result = call(*args)
            if isinstance(outcome.result, types.GeneratorType):
                outcome.result = list(outcome.result)
            if backward:
                run_backward(outcome.result)
        except (Exception, BaseExceptionGroup, GeneratorExit) as error:
            outcome.error = error
        outcome.grad_mode = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
    outcome.world = (args, watch)
    outcome.printed = out.getvalue()
    outcome.rng = (torch.random.get_rng_state(), random.getstate())
    return outcome


def run_backward(result: Any) -> None:
    """Backward of the sum of all tensors in `result` that require a gradient."""
    found = [t for t in tensors_in(result) if t.requires_grad]
    if found:
        torch.autograd.backward([t.abs().sum() if t.is_complex() else t.sum() for t in found])


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors in nested tuples, lists and dicts, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [t for v in value for t in tensors_in(v)] if isinstance(value, (list, tuple)) else []


def compare_outcomes(eager: Outcome, compiled: Outcome, comparer: Comparer) -> None:
    """Raise `Differs` unless two calls left the same behind."""
    if type(eager.error) is not type(compiled.error):
        raise Differs(f"eager {eager}, compiled {compiled}") from compiled.error
    comparer.same(eager.error, compiled.error, "exception")
    comparer.same(eager.result, compiled.result, "result")
    comparer.same(eager.world, compiled.world, "world")
    if eager.printed != compiled.printed:
        raise Differs(f"printed {eager.printed!r} eager, {compiled.printed!r} compiled")
    if not torch.equal(eager.rng[0], compiled.rng[0]) or eager.rng[1] != compiled.rng[1]:
        raise Differs("random state differs afterwards")
    if eager.grad_mode != compiled.grad_mode:
        raise Differs(f"grad mode {eager.grad_mode} eager, {compiled.grad_mode} compiled")


def assert_same_calls(
    compiled: Callable[..., Any],
    fn: Callable[..., Any],
    make: Callable[[], Sequence[Any]],
    *,
    calls: int = 2,
    backward: bool = False,
    hits: str | None = None,
    **options: Any,
) -> None:
    """Call both `calls` times on arguments from `make`, and raise `Differs` unless each pair of calls leaves the same behind.

    A test must capture `compiled`, and one of its calls must hit an entry. `hits`: the reason why none does, or why nothing is captured.
    `options`: of `Comparer`.  Modules among the arguments are compared by their parameters, buffers and gradients.
    """
    with proof.comparing(compiled, hits):
        for seed in range(calls):
            eager, ours = (observe(f, make(), backward=backward, seed=seed) for f in (fn, compiled))
            compare_outcomes(eager, ours, Comparer(**options))
