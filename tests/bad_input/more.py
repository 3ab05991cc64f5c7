"""Further odd objects, programs, tensors and modules."""

from __future__ import annotations

import contextvars
import copy
import functools
import operator
import re
import types
import warnings
from typing import Any

import numpy
import torch
from torch import nn

import pycompiler
from tests.bad_input.table import Made, row, simple, x


class Fight(Exception):
    pass


class Plain:
    factor = 2

    def method(self, t: Any) -> Any:
        return t + self.factor


def double(t: Any) -> Any:
    return t * 2


# more objects that defeat protocols --------------------------------------------------------------------------
class EqTensor:
    def __eq__(self, other: object) -> Any:
        return torch.tensor([True, False])

    __hash__ = object.__hash__


class NewHash:
    def __init__(self) -> None:
        self.calls = 0

    def __hash__(self) -> int:
        self.calls += 1
        return self.calls


class BoolInt:
    def __bool__(self) -> Any:
        return 1


class HugeLen:
    def __len__(self) -> int:
        return 2**80


class NoContains:
    def __contains__(self, item: object) -> bool:
        raise Fight("contains")


class NoFormat:
    def __format__(self, spec: str) -> str:
        raise Fight(f"format {spec}")


class NoEnter:
    def __enter__(self) -> Any:
        raise Fight("enter")

    def __exit__(self, *exc: object) -> None:
        raise Fight("exit")


class Swallows:
    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> bool:
        return True


class NoSet:
    def __setattr__(self, name: str, value: object) -> None:
        raise Fight(f"set {name}")


class Descriptor:
    def __get__(self, instance: Any, owner: Any) -> Any:
        raise Fight("get")

    def __set__(self, instance: Any, value: Any) -> None:
        raise Fight("set")


class WithDescriptor:
    value = Descriptor()


class EndlessGetattr:
    def __getattr__(self, name: str) -> Any:
        return getattr(self, name + "x")


class ClassRaises:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        raise Fight("class")


class NoInstanceCheck(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise Fight("instancecheck")


class Checked(metaclass=NoInstanceCheck):
    pass


class OddStr(str):
    def __eq__(self, other: object) -> bool:
        raise Fight("str eq")

    __hash__ = str.__hash__


class OddInt(int):
    def __mul__(self, other: Any) -> Any:
        return "times"

    __rmul__ = __mul__


class OddList(list):
    def __getitem__(self, i: Any) -> Any:
        return 42

    def __len__(self) -> int:
        return 7


class Missing(dict):
    def __missing__(self, key: Any) -> Any:
        return 5


class NoDel:
    def __del__(self) -> None:
        raise Fight("del")


class Turns:
    """Gives another answer at each call."""

    def __init__(self) -> None:
        self.n = 0

    def __bool__(self) -> bool:
        self.n += 1
        return self.n % 2 == 0


row("__eq__ gives a tensor")(lambda: (lambda t, o: t + 1 if o == 3 else t, (x(), EqTensor())))
row("__hash__ changes")(lambda: (lambda t, o: (t, o in {o: 1}), (x(), NewHash())))
row("__bool__ gives an int")(lambda: (lambda t, o: t + 1 if o else t, (x(), BoolInt())))
row("__bool__ changes")(lambda: (lambda t, o: t + 1 if o else t, (x(), Turns())))
row("__len__ is huge")(lambda: (lambda t, o: t + len(o), (x(), HugeLen())))
row("__contains__ raises")(lambda: (lambda t, o: t + (3 in o), (x(), NoContains())))
row("__format__ raises")(lambda: (lambda t, o: f"{o:>3}", (x(), NoFormat())))
row("__enter__ raises")(lambda: (entered, (x(), NoEnter())))
row("__exit__ swallows")(lambda: (entered, (x(), Swallows())))
row("__setattr__ raises")(lambda: (lambda t, o: setattr(o, "a", t), (x(), NoSet())))
row("descriptor __get__ raises")(lambda: (lambda t, o: t + o.value, (x(), WithDescriptor())))
row("descriptor __set__ raises")(lambda: (lambda t, o: setattr(o, "value", t), (x(), WithDescriptor())))
row("endless __getattr__")(lambda: (lambda t, o: type(error_of(lambda: o.a)), (x(), EndlessGetattr())))
row("__class__ raises")(lambda: (lambda t, o: isinstance(o, Plain), (x(), ClassRaises())))
row("__instancecheck__ raises")(lambda: (lambda t, o: isinstance(o, Checked), (x(), 3)))
row("string with its own __eq__")(lambda: (lambda t, s: t + (s == "a"), (x(), OddStr("a"))))
row("string with its own __eq__ as a key")(lambda: (lambda t, d: t + d["a"], (x(), {OddStr("a"): 1})))
row("int with its own __mul__")(lambda: (lambda t, i: i * 2, (x(), OddInt(3))))
row("list with its own __getitem__")(lambda: (lambda t, v: t + v[0] + len(v), (x(), OddList([1]))))
row("dict with __missing__")(lambda: (lambda t, d: t + d["no"], (x(), Missing())))
row("__del__ raises")(lambda: (lambda t, o: t + 1, (x(), 3)))
row("module mocked")(lambda: (lambda t, m: t + m.value, (x(), types.SimpleNamespace(value=2))))


def entered(t: Any, o: Any) -> Any:
    with o:
        t = t + 1
        raise KeyError("inside")
    return t


def error_of(call: Any) -> Any:
    try:
        return call()
    except BaseException as e:
        return e


# more of Python's corners --------------------------------------------------------------------------------------
def changes_while_iterating(t: Any, d: Any) -> Any:
    for key in d:
        d[key + "x"] = t
    return t


def grows_while_iterating(t: Any, v: Any) -> Any:
    for item in v:
        if len(v) < 6:
            v.append(item + 1)
    return t + sum(v)


def reentrant(t: Any) -> Any:
    def gen() -> Any:
        yield next(me)

    me = gen()
    return next(me)


def except_star(t: Any) -> Any:
    try:
        raise ExceptionGroup("many", [ValueError("a"), KeyError("b")])
    except* ValueError as e:
        t = t + len(e.exceptions)
    except* KeyError:
        t = t * 2
    return t


def raise_from(t: Any) -> Any:
    try:
        t.nope()
    except AttributeError as e:
        raise RuntimeError("second") from e


def context_kept(t: Any) -> Any:
    try:
        raise_from(t)
    except RuntimeError as e:
        return t + 1, type(e.__cause__).__name__, str(e.__cause__), e.__context__ is e.__cause__


def return_in_finally(t: Any) -> Any:
    try:
        raise ValueError
    finally:
        return t + 1  # noqa: B012


def match_shape(t: Any, v: Any) -> Any:
    match v:
        case {"kind": str(k), **rest}:
            return t + len(k) + len(rest)
        case [int(a), *others]:
            return t * a + len(others)
        case _:
            return t


def deletes(t: Any) -> Any:
    u = t + 1
    del u
    return u  # noqa: F821


def class_inside(t: Any) -> Any:
    class Local:
        n = 3

        def call(self, v: Any) -> Any:
            return v * self.n + len(__class__.__name__)  # type: ignore[name-defined]

    return Local().call(t)


def frames(t: Any) -> Any:
    import inspect

    return t + 1, inspect.currentframe().f_code.co_name  # type: ignore[union-attr]


def context_variable(t: Any) -> Any:
    token = VARIABLE.set(VARIABLE.get() + 1)
    try:
        return t + VARIABLE.get()
    finally:
        VARIABLE.reset(token)


VARIABLE: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=1)

simple("dict changed while it is iterated", changes_while_iterating, x(), {"a": 1})
simple("list grows while it is iterated", grows_while_iterating, x(), [1, 2])
simple("generator entered again", reentrant, x())
simple("except*", except_star, x())
simple("raise from", raise_from, x())
simple("cause and context of an exception", context_kept, x())
simple("return in finally", return_in_finally, x())
simple("match on a dict", match_shape, x(), {"kind": "abc", "n": 1})
simple("match on a list", match_shape, x(), [3, 4, 5])
simple("deleted local", deletes, x())
simple("class with __class__ cell inside", class_inside, x())
simple("currentframe", frames, x())
simple("context variable", context_variable, x())
simple("eval", lambda t: eval("t + 1", {"t": t}), x())
simple("exec inside", lambda t: exec("t.add_(1)", {"t": t}) or t, x())
simple("bare raise without an exception", lambda t: bare_raise(), x())
simple("complex numbers compared", lambda t, c: t + (c < 1), x(), 1j)
simple("shift by 10,000", lambda t, n: t + ((1 << n) % 7), x(), 10_000)
simple("negative shift", lambda t, n: t + (1 << n), x(), -1)
simple("float overflow", lambda t, f: t * f**f, x(), 1e300)
simple("float division by zero", lambda t, f: t / (1.0 / f), x(), 0.0)
simple("str to int that is too long", lambda t, s: t + int(s), x(), "9" * 5000)
simple("unhashable key", lambda t: {[1]: t}, x())
simple("too many arguments", lambda t: (lambda a: a)(t, t), x())
simple("an argument twice", lambda t: (lambda a, b=1: a)(t, **{"a": t}), x())
simple("positional-only given by name", lambda t: (lambda a, /: a)(a=t), x())
simple("unpacking too few", lambda t: [a for a, b, c in [(t, t)]], x())
simple("star in the middle", lambda t: (lambda a, *b, c: (a, b, c))(t, 1, 2, c=3), x())
simple("walrus in a comprehension", lambda t: [y := t + i for i in range(3)][-1] + y, x())
simple("sorted with a key of tensors", lambda ts: sorted(ts, key=lambda v: v.sum()), [x() + 1, x()])
simple("max of tensors", lambda a, b: max(a, b), torch.tensor(1.0), torch.tensor(2.0))
simple("sum of strings", lambda t: sum(["a", "b"]), x())
simple("zip strict", lambda t: list(zip([t], [], strict=True)), x())
simple("bytes with NUL", lambda t, b: t + b.index(0), x(), b"ab\0c")
simple("surrogates in a string", lambda t, s: t + len(s), x(), "\ud800")
simple("unicode names", eval("lambda \u00e4\u00f6: \u00e4\u00f6 + 1"), x())
simple("slice with strings", lambda t: t["a":"b"], x())  # type: ignore[misc]
simple("boolean index of the wrong length", lambda t: t[torch.tensor([True, False])], x())
simple("a negative fraction in unsigned integers", lambda n: torch.full((n,), -0.25, dtype=torch.uint8), 3)
simple("a negative whole float like unsigned ones", lambda t: (t, torch.full_like(t, -1.0, dtype=torch.uint16)), x())
simple("not a number in integers", lambda t, v: t.new_full((2,), v, dtype=torch.int32), x(), float("nan"))
simple("prelu of integers", lambda t: torch.nn.functional.prelu(t, t.flatten()[:1]), torch.arange(8).view(2, 2, 2))
simple("a list of too long a range", lambda t, n: (t * 2, list(range(n))), x(), 2**70)
simple("a tuple of too long a range, backwards", lambda t, n: (t * 2, tuple(range(n, 0, -1))), x(), 2**70)
simple("float index", lambda t: t[1.5], x())
simple("assignment to an expanded view", lambda t: t.expand(3, 4).add_(1), torch.ones(1, 4))
simple("in-place on a leaf", lambda t: t.add_(1), x().requires_grad_())
simple("maximum of nothing", lambda t: t[:0].max(), x())
simple("tensor of strings", lambda t: torch.tensor(["a"]), x())
simple("unsigned 16 bits", lambda t: t + t, torch.tensor([1, 2], dtype=torch.uint16))
simple("tensor of 40 dimensions", lambda t: t + 1, torch.ones([1] * 40))
simple("tensor of 65 dimensions", lambda t: t.reshape([1] * 65).dim(), torch.ones(1))
simple("huge expanded tensor", lambda t: t.expand(2**40)[:2] + 1, torch.ones(1))
simple("allocation that cannot be", lambda t: t.new_empty(2**60), x())
simple("negative size", lambda t: t.new_empty(-1), x())
simple("wrong generator", lambda t: torch.rand(2, generator=3), x())
simple("operator getter", operator.itemgetter(1), [x(), x() + 1])
simple("attribute getter", operator.attrgetter("shape"), x())
simple("method caller", operator.methodcaller("add", 1), x())
simple("numpy ufunc", numpy.sin, numpy.arange(3.0))
simple("bound method of a builtin", [3, 1, 2].index, 1)
simple("method of a regular expression", re.compile("b").sub, "x", "abc")
simple("print", print, "a row of tests/bad_input/test_bad_input.py")
simple("type with three arguments", lambda t: type("Made", (), {"n": 2}).n * t, x())
simple("warnings become errors", lambda t: warned(t), x())
simple("a thousand arguments", lambda *a: sum(a), *[torch.ones(1)] * 1000)
simple("dict of 500 tensors", lambda d: sum(d.values()), {i: torch.ones(1) for i in range(500)})
simple("list of 300 levels", lambda v: len(v), functools.reduce(lambda a, _: [a], range(300), [1]))
simple("recursion of 60 with a branch on data", lambda t, n: countdown(t, n), x(), 60)


def warned(t: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.warn("as an error", stacklevel=1)
    return t


def bare_raise() -> None:
    raise  # noqa: PLE0704


def countdown(t: Any, n: int) -> Any:
    if t.sum() > 1e9:
        return t
    return t if n == 0 else countdown(t + 1, n - 1)


# more tensors and modules --------------------------------------------------------------------------------------
class Wrapper(torch.Tensor):
    """Computes through __torch_dispatch__."""

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [a.inner if isinstance(a, Wrapper) else a for a in args]
        return func(*plain, **(kwargs or {})) + 1000


class ForwardInstance(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.forward = lambda t: t * 5  # type: ignore[method-assign]


class CallOverridden(nn.Module):
    def __call__(self, t: Any) -> Any:
        return t * 6

    def forward(self, t: Any) -> Any:
        return t * 7


class StaticForward(nn.Module):
    @staticmethod
    def forward(t: Any) -> Any:  # type: ignore[override]
        return t * 8


def hooked_to_raise() -> nn.Module:
    module = nn.Linear(4, 2)

    def hook(*args: Any) -> None:
        raise Fight("hook")

    module.register_forward_hook(hook)
    return module


def without_weight() -> nn.Module:
    module = nn.Linear(4, 2)
    del module.weight
    return module


def with_attribute() -> torch.Tensor:
    t = x()
    t.note = "written on the tensor"  # type: ignore[attr-defined]
    return t


def freed() -> torch.Tensor:
    t = x()
    t.untyped_storage().resize_(0)
    return t


def jagged() -> torch.Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)


def constant(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for p in module.parameters():
            p.fill_(0.5)
    return module


row("subclass with __torch_dispatch__")(lambda: (lambda t: (t * 2).abs(), (Wrapper(x()),)))
row("nested tensor, jagged")(lambda: (lambda t: (t * 2).values(), (jagged(),)))
row("sparse CSC tensor")(lambda: (double, (torch.eye(3).to_sparse_csc(),)))
row("sparse BSR tensor")(lambda: (double, (torch.eye(4).to_sparse_bsr((2, 2)),)))
row("mkldnn tensor")(lambda: (lambda t: (t.to_mkldnn() + 0).to_dense(), (x(),)))
row("quantized tensor per channel")(
    lambda: (lambda q: q.dequantize() * 2,
             (torch.quantize_per_channel(torch.ones(2, 3), torch.tensor([0.1, 0.2]), torch.zeros(2), 0, torch.qint8),))
)  # fmt: skip
row("tensor with an attribute")(lambda: (lambda t: (t * 2, t.note), (with_attribute(),)))
row("tensor whose storage was freed")(lambda: (lambda t: freed().untyped_storage().size(), (x(),)))
row("tensor and its view")(lambda: (lambda t: (lambda a, b: (a.add_(1), b * 1))(t, t[1:]), (x(),)))
row("parameter as an argument")(lambda: (lambda p: p * 2, (nn.Parameter(x()),)))
row("negated tensor")(lambda: (double, (torch._neg_view(x()),)))
row("vmap inside, on a tensor")(lambda: (lambda t: torch.vmap(lambda a: a * 2)(t), (x(),)))
row("grad inside, on a tensor")(lambda: (lambda t: torch.func.grad(lambda a: (a * a).sum())(t), (x(),)))
row("module whose forward is in the instance")(lambda: (ForwardInstance(), (x(),)))
row("module with its own __call__")(lambda: (CallOverridden(), (x(),)))
row("module with a static forward")(lambda: (StaticForward(), (x(),)))
row("module whose hook raises")(lambda: (hooked_to_raise(), (x(),)))
row("module without its weight")(lambda: (without_weight(), (x(),)))
row("module list called")(lambda: (nn.ModuleList([nn.ReLU()]), (x(),)))
row("module list out of range")(lambda: (lambda t, m: m[3](t), (x(), nn.ModuleList([nn.ReLU()]))))
row("sequential module of nothing")(lambda: (nn.Sequential(), (x(),)))
row("module with a parametrization")(
    lambda: (nn.utils.parametrizations.weight_norm(constant(nn.Linear(4, 2))), (torch.ones(1, 4),))
)
row("module on the meta device")(lambda: (nn.Linear(4, 2, device="meta"), (torch.ones(1, 4, device="meta"),)))
row("module of another dtype")(lambda: (constant(nn.Linear(4, 2)).double(), (torch.ones(1, 4),)))
row("copy of a compiled function")(
    lambda: (lambda t: copy.deepcopy(pycompiler.compile(double, backend="eager"))(t), (x(),))
)
row("compiled method of an argument")(
    lambda: (lambda t, o: pycompiler.compile(o.method, backend="eager")(t), (x(), Plain()))
)
row("compiled inside of itself")(lambda: (lambda t: pycompiler.compile(pycompiler.compile(double))(t), (x(),)))
row("disabled inside of compiled")(lambda: (lambda t: pycompiler.disable(double)(t) + 1, (x(),)))
row("reset inside of compiled")(lambda: (lambda t: pycompiler.reset() or t + 1, (x(),)))


@row("function whose code was replaced")
def _() -> Made:
    def fn(t: Any) -> Any:
        return t + 1

    fn.__code__ = (lambda t: t * 3).__code__
    return fn, (x(),)


@row("function with odd names")
def _() -> Made:
    def fn(t: Any) -> Any:
        return t + 1

    fn.__name__, fn.__qualname__, fn.__module__ = "a\nb", "\u6f22 {0} %s", None  # type: ignore[assignment]
    return fn, (x(),)


@row("function that compiles and drops another each time")
def _() -> Made:
    def fn(t: Any) -> Any:
        return pycompiler.compile(lambda u: u * 2, backend="eager")(t) + 1

    return fn, (x(),)
