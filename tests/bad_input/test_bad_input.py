"""Odd programs and odd arguments: each behaves as in eager, or raises an error with a remedy.

One row per case, in the form of `tests/bad_input/table.py`: first the rows here, then odder ones
(`tests/bad_input/more.py`), then calls that must fail, with parts of their errors (`tests/bad_input/errors.py`).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import copy
import dataclasses
import enum
import functools
import itertools
import logging
import math
import pickle
import threading
import types
import weakref
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from torch import nn

import pycompiler
from pycompiler.capture.semantics import operators
from tests.bad_input import more  # noqa: F401
from tests.bad_input.errors import WRONG
from tests.bad_input.table import ROWS, Made, check, row, simple, x

# kinds of callables --------------------------------------------------------------------------------------------
simple("builtin function", torch.sin, x())
simple("builtin of Python", len, [1, 2, 3])
simple("builtin class", int, "12")
simple("builtin that raises", int, "twelve")
simple("math function", math.sqrt, 2.0)
simple("method descriptor", torch.Tensor.add, x(), x())
simple("wrapper descriptor", object.__repr__, 3)
simple("partial", functools.partial(torch.add, alpha=3), x(), x())
simple("partial of partial", functools.partial(functools.partial(torch.clamp, min=1.0), max=2.0), x())
simple("partialmethod", functools.partialmethod(lambda self, a, b: a + b, 1).__get__(3), 4)
simple("lru_cache", functools.lru_cache(lambda n: n * 2), 21)
simple("lambda", lambda t: t * 2, x())


@functools.singledispatch
def dispatched(value: Any) -> str:
    return "object"


@dispatched.register
def _(value: torch.Tensor) -> str:
    return f"tensor {tuple(value.shape)}"


simple("singledispatch", dispatched, x())


class Plain:
    factor = 2

    def __call__(self, t: Any) -> Any:
        return t * self.factor

    def method(self, t: Any) -> Any:
        return t + self.factor

    @staticmethod
    def static(t: Any) -> Any:
        return t - 1

    @classmethod
    def of_class(cls, t: Any) -> Any:
        return t * cls.factor

    @property
    def twice(self) -> int:
        return self.factor * 2


row("callable object")(lambda: (Plain(), (x(),)))
row("bound method")(lambda: (Plain().method, (x(),)))
row("function of a class")(lambda: (Plain.method, (Plain(), x())))
row("static method")(lambda: (Plain.static, (x(),)))
row("class method")(lambda: (Plain.of_class, (x(),)))
row("class as a function")(lambda: (lambda t: Plain()(t), (x(),)))
row("nested function")(lambda: (lambda t: (lambda u: u + t)(t), (x(),)))


@row("function made by exec")
def _() -> Made:
    space: dict[str, Any] = {"torch": torch}
    exec("def made(t, n=2):\n    return torch.relu(t) * n", space)
    return space["made"], (x(),)


@row("function made by exec without builtins")
def _() -> Made:
    space: dict[str, Any] = {"__builtins__": {}}
    exec("def made(t):\n    return t * 2 + 1", space)
    return space["made"], (x(),)


@row("function of a code object whose file does not exist")
def _() -> Made:
    space: dict[str, Any] = {}
    exec(compile("def made(t):\n    return t.nope()", "/no/such/file.py", "exec"), space)
    return space["made"], (x(),)


@row("function of 5,000 lines")
def _() -> Made:
    space: dict[str, Any] = {}
    lines = "\n".join(f"    n = n + {i % 7}" for i in range(5000))
    exec(f"def made(t, n):\n{lines}\n    return t + n", space)
    return space["made"], (x(), 0)


@row("function of 300 arguments")
def _() -> Made:
    space: dict[str, Any] = {}
    names = [f"a{i}" for i in range(300)]
    exec(f"def made({', '.join(names)}):\n    return {' + '.join(names)}", space)
    return space["made"], tuple(torch.full((2,), float(i)) for i in range(300))


@row("300 keyword arguments")
def _() -> Made:
    def made(**kwargs: Any) -> Any:
        return sum(kwargs.values())

    return lambda t: made(**{f"k{i}": t + i for i in range(300)}), (x(),)


# generators and coroutines -------------------------------------------------------------------------------------
def generator(t: Any) -> Any:
    for i in range(3):
        yield t + i


async def coroutine(t: Any) -> Any:
    await asyncio.sleep(0)
    return t + 1


async def async_generator(t: Any) -> Any:
    yield t
    yield t + 1


simple("generator function", generator, x())
simple("generator consumed inside", lambda t: sum(generator(t)), x())
simple("generator expression returned", lambda t: list(t + i for i in range(3)), x())
simple("coroutine function", coroutine, x())
simple("async generator function", async_generator, x())
simple("asyncio.run inside", lambda t: asyncio.run(coroutine(t)), x())


@row("generator as an argument")
def _() -> Made:
    def fn(values: Any) -> Any:
        return sum(values)

    return lambda t: fn(t + i for i in range(3)), (x(),)


@row("generator closed half way")
def _() -> Made:
    def fn(t: Any) -> Any:
        made = generator(t)
        first = next(made)
        made.close()
        return first, list(made)

    return fn, (x(),)


# tensors that are not plain ------------------------------------------------------------------------------------
class Tagged(torch.Tensor):
    """A subclass without overrides."""


class Loud(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, kinds, args, kwargs or {})
        return result + 100 if func is torch.Tensor.mul else result


def double(t: Any) -> Any:
    return t * 2


def quantized() -> Any:
    return torch.quantize_per_tensor(x(), 0.1, 10, torch.quint8)


row("sparse COO tensor")(lambda: (double, (torch.eye(3).to_sparse(),)))
row("sparse CSR tensor")(lambda: (double, (torch.eye(3).to_sparse_csr(),)))
row("sparse times dense")(lambda: (lambda s, t: s @ t, (torch.eye(3).to_sparse(), torch.ones(3, 3))))
row("quantized tensor")(lambda: (lambda q: q.dequantize() * 2, (quantized(),)))
row("quantized tensor made inside")(
    lambda: (lambda t: torch.quantize_per_tensor(t, 0.1, 10, torch.quint8).dequantize() + t, (x(),))
)
row("meta tensor")(lambda: (double, (torch.ones(3, device="meta"),)))
row("nested tensor")(lambda: (double, (torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),)))
row("tensor subclass")(lambda: (double, (x().as_subclass(Tagged),)))
row("subclass with __torch_function__")(lambda: (double, (x().as_subclass(Loud),)))
row("complex tensor")(lambda: (lambda c: (c * 2).abs(), (torch.complex(x(), x()),)))
row("conjugated tensor")(lambda: (lambda c: c.conj() * 2, (torch.complex(x(), x()).conj(),)))
row("zero-dimensional tensor")(lambda: (double, (torch.tensor(3.0),)))
row("empty tensor")(lambda: (double, (torch.empty(0, 4),)))
row("expanded tensor")(lambda: (double, (torch.ones(1, 3).expand(4, 3),)))
row("overlapping tensor")(lambda: (lambda t: t.sum(0), (torch.arange(6.0).as_strided((3, 3), (1, 1)),)))
row("bool tensor minus")(lambda: (lambda a: a - a, (torch.tensor([True, False]),)))
row("float8 tensor")(lambda: (lambda a: a.float() + 1, (x().to(torch.float8_e4m3fn),)))
row("inference tensor")(lambda: (double, (infer(),)))
row("tensor with a grad_fn")(lambda: (double, (x().requires_grad_() * 1,)))
row("tensor with NaN and infinities")(lambda: (double, (torch.tensor([float("nan"), float("inf"), -0.0]),)))
row("numpy array")(lambda: (lambda a: a * 2, (numpy.arange(3.0),)))
row("numpy scalar")(lambda: (lambda t, s: t * s, (x(), numpy.float32(2))))
row("the same tensor twice")(lambda: ((lambda t: (lambda a, b: a.add_(1) + b)(t, t)), (x(),)))


def infer() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(4.0)


# objects that defeat protocols ---------------------------------------------------------------------------------
class Fight(Exception):
    pass


class NoEq:
    def __eq__(self, other: object) -> bool:
        raise Fight("eq")

    __hash__ = object.__hash__


class NoHash:
    def __hash__(self) -> int:
        raise Fight("hash")


class NoBool:
    def __bool__(self) -> bool:
        raise Fight("bool")


class NoLen:
    def __len__(self) -> int:
        return -1


class NoRepr:
    def __repr__(self) -> str:
        raise Fight("repr")


class NoGetattr:
    def __getattr__(self, name: str) -> Any:
        raise Fight(name)


class NoGetattribute:
    def __getattribute__(self, name: str) -> Any:
        raise Fight(name)


class LyingClass:
    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return torch.Tensor


class BadIter:
    def __iter__(self) -> Any:
        return 3


class BadIndex:
    def __index__(self) -> int:
        raise Fight("index")


for cls in (NoEq, NoHash, NoBool, NoLen, NoRepr, NoGetattr, NoGetattribute, LyingClass, BadIter, BadIndex):
    row(f"{cls.__name__} carried along")(lambda cls=cls: (lambda t, o: (t + 1, o), (x(), cls())))
row("__eq__ raises")(lambda: (lambda t, o: t + 1 if o == 3 else t, (x(), NoEq())))
row("__hash__ raises")(lambda: (lambda t, o: {o: t}, (x(), NoHash())))
row("__bool__ raises")(lambda: (lambda t, o: t + 1 if o else t, (x(), NoBool())))
row("__len__ is negative")(lambda: (lambda t, o: t + len(o), (x(), NoLen())))
row("__repr__ raises")(lambda: (lambda t, o: f"{o!r}", (x(), NoRepr())))
row("__getattr__ raises")(lambda: (lambda t, o: t + o.value, (x(), NoGetattr())))
row("__getattribute__ raises")(lambda: (lambda t, o: t + o.value, (x(), NoGetattribute())))
row("__iter__ gives no iterator")(lambda: (lambda t, o: [t for _ in o], (x(), BadIter())))
row("__index__ raises")(lambda: (lambda t, o: t[o], (x(), BadIndex())))
row("__class__ lies")(lambda: (lambda t, o: isinstance(o, torch.Tensor), (x(), LyingClass())))
row("objects with bad equality as dict keys")(lambda: (lambda t, d: t + len(d), (x(), {NoEq(): 1})))


class BadMeta(type):
    def __eq__(cls, other: object) -> bool:
        raise Fight("meta eq")

    def __hash__(cls) -> int:
        raise Fight("meta hash")


class BadClass(metaclass=BadMeta):
    n = 3


row("metaclass with bad equality")(lambda: (lambda t, o: t + o.n, (x(), BadClass())))
row("class with bad equality as argument")(lambda: (lambda t, c: t + c.n, (x(), BadClass)))


# Python's corners ----------------------------------------------------------------------------------------------
def recursive(t: Any, n: int) -> Any:
    return t if n == 0 else recursive(t + 1, n - 1)


def endless(t: Any) -> Any:
    return endless(t + 1)


simple("recursion of 20", recursive, x(), 20)
simple("recursion of 200", recursive, x(), 200)
simple("global that does not exist", lambda t: t + no_such_name, x())  # type: ignore[name-defined] # noqa: F821
simple("attribute that does not exist", lambda t: t.no_such_attribute, x())
simple("shapes that do not fit", lambda a, b: a @ b, torch.ones(2, 3), torch.ones(2, 3))
simple("dtype that does not fit", lambda a: torch.nn.functional.embedding(a, a), x())
simple("index out of range", lambda t: t[10], x())
simple("division of numbers by zero", lambda t, n: t / (1 // n), x(), 0)
simple("assert that fails", lambda t: t + check_positive(-1), x())
simple("tensor as a condition", lambda t: t + 1 if t.sum() > 0 else t - 1, x())
simple("tensor of many elements as a condition", lambda t: t + 1 if t > 0 else t, x())
simple("huge integer", lambda t, n: t * (n % 7), x(), 10**40)
simple("integer too big for a tensor", lambda t, n: t * n, torch.arange(3), 2**70)
simple("string argument", lambda t, s: t * len(s), x(), "abc" * 1000)
simple("bytes and bytearray", lambda t, b: t + len(b), x(), bytearray(b"abc"))
simple("NaN as an argument", lambda t, f: t * f, x(), float("nan"))
simple("complex number", lambda t, c: t * c, x(), 1 + 2j)
simple("ellipsis and None in an index", lambda t: t[..., None, :2], x())
simple("range, slice and set", lambda t, r, s: t[s] + sum(r), x(), range(3), slice(0, 2))
simple("walrus, star, unpack", lambda t: [*(y := [t, t + 1]), *y], x())
simple("deep list", lambda v: v, functools.reduce(lambda a, _: [a], range(50), [1]))
simple("yield from inside", lambda t: list((lambda u: (yield from generator(u)))(t)), x())
simple("dict order", lambda d: list(d), {"b": 1, "a": 2})
simple("locals()", lambda t: sorted(locals()), x())
simple("id and type", lambda t: type(t).__name__, x())
simple("star arguments of tensors", lambda *a, **k: sum(a), x(), x())


def check_positive(n: int) -> int:
    assert n > 0, f"{n} is not positive"
    return n


@row("list that contains itself")
def _() -> Made:
    cycle: list[Any] = [1]
    cycle.append(cycle)
    return lambda t: t + len(cycle) + cycle[1][1][0], (x(),)


@row("dict that contains itself")
def _() -> Made:
    def fn(t: Any, d: Any) -> Any:
        return t + len(d["me"]["me"])

    d: dict[str, Any] = {}
    d["me"] = d
    return lambda t: fn(t, d), (x(),)


@row("frame and traceback objects")
def _() -> Made:
    def fn(t: Any) -> Any:
        try:
            raise ValueError("here")
        except ValueError as e:
            return t + 1, str(e), e.__traceback__ is not None

    return fn, (x(),)


@row("exception with tensors")
def _() -> Made:
    class Carrying(Exception):
        pass

    def fn(t: Any) -> Any:
        try:
            raise Carrying(t + 1)
        except Carrying as e:
            return e.args[0] * 2

    return fn, (x(),)


@row("finally and return")
def _() -> Made:
    def fn(t: Any, log: list[str]) -> Any:
        try:
            return t + 1
        finally:
            log.append("done")

    return fn, (x(), [])


@row("exception after a mutation")
def _() -> Made:
    def fn(t: Any, log: list[int]) -> Any:
        t.add_(1)
        log.append(len(log))
        raise RuntimeError(f"after {len(log)}")

    return fn, (x(), [])


@row("StopIteration out of a function")
def _() -> Made:
    def fn(t: Any) -> Any:
        return next(iter(()))

    return fn, (x(),)


@row("KeyboardInterrupt and SystemExit")
def _() -> Made:
    def fn(t: Any) -> Any:
        raise SystemExit(int(t.numel()))

    return fn, (x(),)


@row("context manager that swallows")
def _() -> Made:
    def fn(t: Any) -> Any:
        with contextlib.suppress(ZeroDivisionError):
            t = t + 1 // 0
        return t + 1

    return fn, (x(),)


@row("global statement")
def _() -> Made:
    space: dict[str, Any] = {"count": 0}
    exec("def made(t):\n    global count\n    count += 1\n    return t + count", space)
    return space["made"], (x(),)


@row("nonlocal counter")
def _() -> Made:
    count = 0

    def fn(t: Any) -> Any:
        nonlocal count
        count += 1
        return t + count

    return fn, (x(),)


@row("empty cell")
def _() -> Made:
    def outer() -> Any:
        def fn(t: Any) -> Any:
            return t + later

        if False:
            later = 1
        return fn

    return outer(), (x(),)


@row("mutable default")
def _() -> Made:
    def fn(t: Any, seen: list[int] = []) -> Any:  # noqa: B006
        seen.append(1)
        return t + len(seen)

    return types.FunctionType(fn.__code__, fn.__globals__, "fn", ([],), fn.__closure__), (x(),)


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Pair(NamedTuple):
    a: Any
    b: Any


@dataclasses.dataclass
class Data:
    a: Any
    b: int = 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int


row("enum")(lambda: (lambda t, c: t + c.value if c is Colour.RED else t, (x(), Colour.RED)))
row("namedtuple")(lambda: (lambda p: Pair(p.b, p.a + 1), (Pair(x(), x() * 2),)))
row("dataclass")(lambda: (lambda d: Data(d.a * d.b), (Data(x()),)))
row("mutated dataclass")(lambda: (lambda d: setattr(d, "b", d.b + 1) or d.a, (Data(x()),)))
row("frozen dataclass assigned")(lambda: (lambda t, d: setattr(d, "a", 3), (x(), Frozen(1))))
row("deque, Counter, OrderedDict")(
    lambda: (lambda t, d, c: t + len(d) + sum(c.values()), (x(), collections.deque([1, 2]), collections.Counter("aab")))
)
row("weak reference")(lambda: (lambda t, r: t + (r() is not None), (x(), weakref.ref(Colour))))
row("lock")(lambda: (lambda t, lock: locked(t, lock), (x(), threading.Lock())))
row("iterator as an argument")(lambda: (lambda t, i: t + next(i), (x(), itertools.count(3))))
row("file-like object")(lambda: (lambda t, f: t + f.write("abc"), (x(), __import__("io").StringIO())))
row("module object")(lambda: (lambda t, m: m.relu(t), (x(), torch.nn.functional)))
row("type object")(lambda: (lambda t, c: c(t), (torch.ones(2, 4), functools.partial(nn.functional.softmax, dim=1))))
row("pickled tensor inside")(lambda: (lambda t: pickle.loads(pickle.dumps(t + 1)), (x(),)))
row("deepcopy inside")(lambda: (lambda t, d: copy.deepcopy(d)["a"] + t, (x(), {"a": x()})))
row("numpy inside")(lambda: (lambda t: torch.from_numpy(numpy.sort(t.numpy())[::-1].copy()), (x(),)))
row("item and tolist")(lambda: (lambda t: (t.sum().item(), t.tolist()), (x(),)))
row("nonzero")(lambda: (lambda t: t.nonzero(), (x(),)))
row("print and repr of a tensor")(lambda: (lambda t: repr(t + 1), (x(),)))
row("data_ptr")(lambda: (lambda t: t.data_ptr() != 0, (x(),)))
row("grad of an argument")(lambda: (lambda t: t.grad, (x().requires_grad_(),)))
row("backward inside")(lambda: (backward_inside, (x().requires_grad_(),)))
row("resize in place")(lambda: (lambda t: t.clone().resize_(2, 2), (x(),)))
row("set_ data")(lambda: (lambda t, u: setattr(t, "data", u) or t * 2, (x(), x() + 1)))
row("requires_grad_ inside")(lambda: (lambda t: (t * 2).requires_grad_(), (x(),)))
row("no_grad inside")(lambda: (no_grad_inside, (x().requires_grad_(),)))
row("torch.compile's own name as attribute")(lambda: (lambda t: t + hasattr(torch, "compile"), (x(),)))
row("hook on a tensor")(lambda: (hooked, (x().requires_grad_(),)))
row("thread inside")(lambda: (threaded, (x(),)))
row("compiled inside of compiled")(lambda: (lambda t: pycompiler.compile(double, backend="eager")(t) + 1, (x(),)))
row("explain inside")(lambda: (lambda t: pycompiler.explain(double)(t).graph_count, (x(),)))
row("torch.jit.script function")(lambda: (torch.jit.script(scripted), (x(),)))
row("custom autograd.Function")(lambda: (lambda t: Custom.apply(t) * 2, (x().requires_grad_(),)))
row("module that is not initialised")(lambda: (Uninitialised(), (x(),)))
row("module without forward")(lambda: (nn.Module(), (x(),)))
row("module with a forward that takes nothing")(lambda: (TakesNothing(), (x(),)))
row("lazy module")(lambda: (seeded(nn.LazyLinear), (torch.ones(2, 3),)))
row("module that changes itself")(lambda: (Counting(), (x(),)))
row("wrong shape into a Linear")(lambda: (nn.Linear(3, 3), (x(),)))


def locked(t: Any, lock: Any) -> Any:
    with lock:
        return t + 1


def backward_inside(t: Any) -> Any:
    (t * t).sum().backward()
    return t.grad * 1


def no_grad_inside(t: Any) -> Any:
    with torch.no_grad():
        t.mul_(2)
    return t * 3


def hooked(t: Any) -> Any:
    seen: list[Any] = []
    y = t * 2
    y.register_hook(seen.append)
    y.sum().backward()
    return len(seen), t.grad * 1


def threaded(t: Any) -> Any:
    out: list[Any] = []
    thread = threading.Thread(target=lambda: out.append(t * 2))
    thread.start()
    thread.join()
    return out[0] + 1


def scripted(t: torch.Tensor) -> torch.Tensor:
    return t * 2 + 1


class Custom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return t.sin()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * 7


class Uninitialised(nn.Module):
    def __init__(self) -> None:
        pass

    def forward(self, t: Any) -> Any:
        return t


class TakesNothing(nn.Module):
    def forward(self) -> None:
        return None


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, t: Any) -> Any:
        self.calls += 1
        return t + self.calls


def seeded(cls: Any) -> Any:
    return cls(2)


def test_the_table_is_long() -> None:
    assert len(ROWS) >= 250
    assert len(WRONG) >= 30


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", ROWS)
@pytest.mark.captures_nothing(
    "no Python frame to capture: classes and functions of C, generators, coroutines",
    "builtin class",
    "builtin that raises",
    "generator function",
    "coroutine function",
    "async generator function",
)
def test_as_eager(id: str) -> None:
    with pycompiler.config.patch(raise_internal_errors=True):
        check(ROWS[id], "eager")


@pytest.mark.captures_nothing("the compile fails, by a fault that the test puts in")
def test_internal_errors_say_where_and_run_eagerly(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise RuntimeError("Fight")

    monkeypatch.setattr(operators, "binary", fails)
    with pycompiler.config.patch(raise_internal_errors=False), caplog.at_level(logging.WARNING, "pycompiler"):
        logging.getLogger("pycompiler").propagate = True
        assert pycompiler.compile(lambda t: t + 1, backend="eager")(x()).equal(x() + 1)
    for word in ("runs eagerly", "Fight", "function ", "<lambda>", "test_bad_input.py:"):
        assert word in caplog.text, caplog.text


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", [i for i in ROWS if "tensor" in i or "module" in i])
def test_as_eager_without_codegen(id: str) -> None:
    check(ROWS[id], "aot_eager")


def test_endless_recursion_raises_as_eager() -> None:
    with pytest.raises(RecursionError):
        pycompiler.compile(endless, backend="eager")(x())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("id", WRONG)
@pytest.mark.captures_nothing(
    "raises before a compile", "unknown policy", "frozen callable without an entry", "compiled function pickled"
)
def test_clear_errors(id: str) -> None:
    call, error, words = WRONG[id]
    with pytest.raises(error) as caught:
        call()
    text = str(caught.value)
    assert [w for w in words if w not in text] == [], text


def test_views_by_strides_that_leave_their_memory() -> None:
    """A view may reach memory of its storage beyond its base, but not beyond the storage, whether it is read or not."""

    def unread(x: torch.Tensor) -> torch.Tensor:
        x.as_strided((3,), (1,), 6)
        return x + 1

    def of_a_result(x: torch.Tensor) -> torch.Tensor:
        (x + 1).as_strided((5,), (1,))
        return x + 1

    for fn in (unread, of_a_result):
        with pytest.raises(RuntimeError, match="out of bounds") as expected:
            fn(torch.ones(8)[4:])
        with pytest.raises(RuntimeError) as found:
            pycompiler.compile(fn)(torch.ones(8)[4:])
        assert str(found.value) == str(expected.value)
    x = torch.arange(8.0)[4:6]
    assert torch.equal(
        pycompiler.compile(lambda x: x.as_strided((6,), (1,), 1) * 2, fullgraph=True)(x), torch.arange(1.0, 7) * 2
    )
