"""`__torch_function__`: tensor subclasses, other classes that define it, and function modes, compared with eager call by call."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor

import pycompiler
from tests.harness.compare import assert_same

X = torch.randn(3, 4)
BACKENDS = ("eager", "aot_eager", "native")


class Loud(torch.Tensor):
    """A subclass whose products are larger by 100."""

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, kinds, args, kwargs or {})
        return result + 100 if func is torch.Tensor.mul else result


class Louder(Loud):
    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = torch.Tensor.__torch_function__.__func__(cls, func, (cls,), args, kwargs or {})  # type: ignore[attr-defined]
        return result - 7 if func is torch.Tensor.mul else result


class Scaled(torch.Tensor):
    """A subclass with an attribute that results inherit."""

    scale: float

    def __new__(cls, data: torch.Tensor, scale: float = 1.0) -> Scaled:
        made = data.as_subclass(cls)
        made.scale = scale
        return made

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, kinds, args, kwargs or {})
        if isinstance(result, Scaled):
            result.scale = next(a.scale for a in args if isinstance(a, Scaled)) + 1
        return result


class Noted(torch.Tensor):
    """A subclass created by the class call, which makes an alias; its `__init__` sets an attribute."""

    def __init__(self, data: torch.Tensor) -> None:
        super().__init__()
        self.dims = data.dim()


class Shifted(torch.Tensor):
    """A subclass that calls the tensor constructor itself, with a computed tensor."""

    def __new__(cls, data: torch.Tensor, by: float = 1.0) -> Shifted:
        return super().__new__(cls, data + by)  # type: ignore[no-any-return]


class Tagged(torch.Tensor):
    """A subclass that overrides methods but not `__torch_function__`."""

    name = "tagged"

    def twice(self) -> Any:
        return self * 2

    def sum(self) -> Any:  # type: ignore[override]
        return torch.Tensor.sum(self) * 10

    def __add__(self, other: Any) -> Any:  # type: ignore[override]
        return torch.Tensor.add(self, other) * 100

    def __neg__(self) -> Any:
        return torch.Tensor.neg(self) * 7

    def __rmul__(self, other: Any) -> Any:  # type: ignore[override]
        return torch.Tensor.mul(self, other) * 11

    @property
    def half(self) -> Any:
        return self / 2


class Weight(torch.nn.Parameter):
    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, kinds, args, kwargs or {})
        return result * 3 if func is torch.nn.functional.linear else result


class Box:
    """A class that is not a tensor."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t = t

    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        return Box(func(*[a.t if isinstance(a, Box) else a for a in args], **(kwargs or {})))


class Twice(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


class Log(TorchFunctionMode):
    """A mode that lists functions, types, and the number of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append((func, types, len(args), kwargs))
        return func(*args, **(kwargs or {}))


def assert_same_tensors(got: Any, wanted: Any) -> None:
    """Compare tensors of subclasses without calls of their `__torch_function__`."""
    with torch._C.DisableTorchFunction():
        assert_same(got, wanted)


# programs: (function, arguments) ------------------------------------------------------------------------------------------
def constructed(t: Any) -> Any:
    y = t * 2
    tagged, noted = Tagged(y), Noted(y)
    noted.mul_(3)
    return (
        y,
        tagged,
        noted,
        noted.dims,
        Loud(y) * 2,
        Shifted(y, 2.0),
        torch.Tensor(noted),
        tagged is y,
        type(Loud(tagged)),
    )


def double(t: Any) -> Any:
    return t * 2


def scaled(t: Any) -> Any:
    return (t + 1).sin() * t.shape[0], t.scale


def made_inside(t: Any) -> Any:
    return Scaled(t, 2.0).cos()


def methods(t: Any) -> Any:
    return t.twice(), t.sum(), t + 1, -t, t.name, 3 * t, t.half


def boxes(t: Any) -> Any:
    return torch.add(Box(t), 1), t + Box(t)


def in_place(t: Any) -> Any:
    t = t.clone()
    t.add_(1)
    t += 1
    t[0] = 3
    t.mul_(2)
    u = t
    u -= 1
    return t * 2, u is t


def both(t: Any, u: Any) -> Any:
    return t + u, u * t, torch.cat([t, u]), torch.where(t > 0, t, u)


def index(t: Any, i: Any) -> Any:
    return t[i]


def unpacked(t: Any) -> Any:
    a, b, c = t
    return a, b, c, len(t), t.T, t.size(), [r for r in t][0]


def switched_off(t: Any) -> Any:
    with torch._C.DisableTorchFunctionSubclass():
        y = t * 2
    return y, t * 2


def attributes(t: Any) -> Any:
    y = t.cos()
    y.note = "a"
    return y, y.note


def mode(t: Any) -> Any:
    with Twice():
        y = torch.relu(t)
    return y + torch.relu(t)


def nested_modes(t: Any) -> Any:
    with Log() as log, Twice():
        y = torch.relu(t)
    return y, log.seen


def what_is_seen(t: Any) -> Any:
    with Log() as log:
        y = torch.nn.functional.relu(t) + 1
        z = (1 - y) ** 2
        n = z.shape[0]
        z = z[0]
        z = torch.cat([z, z], dim=0)
        w = torch.zeros(n, dtype=torch.float64)
        k = len(z)
        z = torch.nn.functional.layer_norm(z, (8,)).norm()
        with torch.no_grad():
            z = z * 2
        z -= 1
        m = torch.max(t, dim=1).values
    return z, log.seen, w, k, m


def operators_by_other_names(t: Any) -> Any:
    with Log() as log:
        y = torch.ops.aten.relu(t) + torch.ops.aten.add.Tensor(t, 1)
        z = torch.Tensor.norm(y) + torch.Tensor.add(y, 1)
        rows = [r for r in torch.Tensor.__iter__(z)]
        a, b = torch.split(y, 2, dim=1)
        c = (
            y.unflatten(1, (2, 2)),
            torch.nn.functional.max_pool2d(y[None], 2),
            abs(y),
            y @ y.T,
            y == 0,
            y.data,
            not y.dim(),
        )
    return rows, a, b, c, log.seen


def functions_compare(t: Any) -> Any:
    with Log() as log:
        t.shape
        t.sum()
    first, second = log.seen
    shape = torch.Tensor.shape.__get__  # type: ignore[attr-defined]
    return first[0] == shape, second[0] is torch.Tensor.sum, first[0] in {shape: 1}


def mode_and_transform(t: Any) -> Any:
    with Twice():
        return torch.vmap(lambda row: torch.relu(row) + 1)(t)


def mode_and_subclass(t: Any) -> Any:
    with Log() as log:
        y = t * 2
    return y, log.seen


WHOLE: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (double, lambda: (X.as_subclass(Loud),)),
    (scaled, lambda: (Scaled(X, 3.0),)),
    (made_inside, lambda: (X,)),
    (constructed, lambda: (X,)),
    (constructed, lambda: (X.clone().requires_grad_(),)),
    (constructed, lambda: (X.double(),)),
    (methods, lambda: (X.as_subclass(Tagged),)),
    (boxes, lambda: (X,)),
    (in_place, lambda: (X.as_subclass(Loud),)),
    (both, lambda: (X, X.as_subclass(Loud))),
    (double, lambda: (X.as_subclass(Louder),)),
    (both, lambda: (X.as_subclass(Loud), X.as_subclass(Louder))),
    (index, lambda: (X, torch.tensor([0, 1]).as_subclass(Loud))),
    (unpacked, lambda: (X.as_subclass(Loud),)),
    (switched_off, lambda: (X.as_subclass(Loud),)),
    (attributes, lambda: (X,)),
    (attributes, lambda: (X.as_subclass(Tagged),)),
    (mode, lambda: (X,)),
    (nested_modes, lambda: (X,)),
    (what_is_seen, lambda: (X,)),
    (functions_compare, lambda: (X,)),
    (operators_by_other_names, lambda: (X,)),
    (operators_by_other_names, lambda: (X.as_subclass(Loud),)),
    (mode_and_subclass, lambda: (X.as_subclass(Loud),)),
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("fn", "make"), WHOLE, ids=[f"{i}-{fn.__name__}" for i, (fn, _) in enumerate(WHOLE)])
def test_captured_whole(fn: Any, make: Any, backend: str) -> None:
    compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same_tensors(compiled(*make()), fn(*make()))
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_wrappers_of_a_descriptor_are_equal_and_not_one() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func is torch.Tensor.grad.__get__:  # each access creates a new one
                return "one"
            return "equal" if func in {torch.Tensor.T.__get__} else func(*args, **(kwargs or {}))

    def look(x: Any) -> Any:
        get = torch.Tensor.grad.__get__
        with Mode():
            return x.grad, x.T, get is get, get == torch.Tensor.grad.__get__, torch.relu is torch.relu

    assert pycompiler.compile(look, fullgraph=True)(X) == look(X) == (None, "equal", True, True, True)


def test_who_takes_part_is_looked_for_among_the_arguments_alone() -> None:
    """`has_torch_function` checks its arguments, not the elements of sequences; operators check the elements too."""
    unary, variadic = torch.overrides.has_torch_function_unary, torch.overrides.has_torch_function_variadic

    def asked(a: Any, b: Any) -> Any:
        has = torch.overrides.has_torch_function
        return a + 1, has((a, b)), has(([a, b],)), unary(b), unary([b]), variadic(a, b), variadic(a, (b,))

    def of_lists(a: Any, b: Any) -> Any:
        return torch.einsum("ij,kj->ik", [a, b]), torch.meshgrid([a[0], b[0]], indexing="ij"), torch.atleast_1d([a, b])

    for b in (X.as_subclass(Loud), X):
        assert pycompiler.compile(asked, fullgraph=True)(X, b)[1:] == asked(X, b)[1:]
        got = torch.utils._pytree.tree_leaves(pycompiler.compile(of_lists, fullgraph=True)(X, b))
        for one, want in zip(got, torch.utils._pytree.tree_leaves(of_lists(X, b)), strict=True):
            assert type(one) is type(want) and torch.allclose(one, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_under_a_mode_and_of_a_subclass(backend: str) -> None:
    compiled = pycompiler.compile(mode_and_transform, backend=backend)
    assert_same_tensors(compiled(X), mode_and_transform(X))

    def mapped(t: Any) -> Any:
        return torch.vmap(lambda row: row * 2)(t)

    assert_same_tensors(pycompiler.compile(mapped, backend=backend)(X.as_subclass(Loud)), mapped(X.as_subclass(Loud)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_through_subclasses(backend: str) -> None:
    def gradient(fn: Any, wrap: Any) -> torch.Tensor:
        x = X.clone().requires_grad_()
        result = fn(wrap(x))
        with torch._C.DisableTorchFunction():
            result.as_subclass(torch.Tensor).sum().backward()
        assert x.grad is not None
        return x.grad

    for fn, wrap in (
        (lambda t: (t * t).sin(), lambda x: x.as_subclass(Loud)),
        (lambda t: (t * t).sin(), lambda x: Scaled(x, 2.0)),
        (lambda t: Scaled(t, 2.0).cos(), lambda x: x),
    ):
        compiled = pycompiler.compile(fn, backend=backend, fullgraph=True)
        torch.testing.assert_close(gradient(compiled, wrap), gradient(fn, wrap))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_parameter_that_takes_part_in_calls(backend: str) -> None:
    layer = torch.nn.Linear(4, 4)
    layer.weight = Weight(layer.weight.data)
    compiled = pycompiler.compile(layer, backend=backend, fullgraph=True)
    found = []
    for module in (compiled, layer):
        layer.zero_grad()
        result = module(X)
        result.sum().backward()
        found.append((result.detach(), layer.weight.grad))
    torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_a_subclass_that_is_passed(backend: str) -> None:
    def fn(t: Any) -> Any:
        t.mul_(2)
        t.seen = 1
        return t.sum()

    mine, theirs = (X.clone().as_subclass(Scaled) for _ in range(2))
    mine.scale = theirs.scale = 1
    got, want = pycompiler.compile(fn, backend=backend, fullgraph=True)(mine), fn(theirs)
    assert_same_tensors([got, mine], [want, theirs])


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_break_under_a_mode(backend: str) -> None:
    def fn(t: Any) -> Any:
        with Twice():
            y = torch.relu(t)
            print(end="")
            z = torch.relu(y)
        return z + torch.relu(t)

    compiled = pycompiler.compile(fn, backend=backend)
    for _ in range(2):
        torch.testing.assert_close(compiled(X), fn(X))
        assert torch._C._len_torch_function_stack() == 0


def test_an_exception_under_a_mode_leaves_the_stack_as_it_was() -> None:
    def fn(t: Any) -> Any:
        try:
            with Twice():
                raise ValueError
        except ValueError:
            return torch.relu(t)

    torch.testing.assert_close(pycompiler.compile(fn, fullgraph=True)(X), fn(X))


def test_what_is_read_of_a_subclass_is_guarded() -> None:
    compiled = pycompiler.compile(lambda t: torch.sin(t) * t.scale, backend="eager", fullgraph=True)
    for scale in (2.0, 3.0, 2.0):
        assert_same_tensors(compiled(Scaled(X, scale)), torch.sin(Scaled(X, scale)) * scale)
    plain_value = compiled(Scaled(X, 2.0))
    before, Scaled.__torch_function__ = (
        Scaled.__torch_function__,
        classmethod(  # type: ignore[method-assign]
            lambda cls, func, kinds, args=(), kwargs=None: torch.ones(3, 4)
        ),
    )
    try:
        assert torch.equal(compiled(Scaled(X, 2.0)), torch.ones(3, 4) * 2)
    finally:
        Scaled.__torch_function__ = before  # type: ignore[method-assign]
    assert type(plain_value) is Scaled


# modes around the call ------------------------------------------------------------------------------------------------------
class Times(TorchFunctionMode):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * self.factor if func is torch.relu else result


def layers(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x) @ torch.ones(4, 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_modes_around_the_call_are_inlined(backend: str) -> None:
    compiled = pycompiler.compile(layers, backend=backend, fullgraph=True)
    compiled(X)
    with Log() as mine:
        got = [compiled(X) for _ in range(2)]
    with Log() as theirs:
        want = [layers(X) for _ in range(2)]
    torch.testing.assert_close(got, want)
    assert mine.seen == theirs.seen
    assert pycompiler.counters(compiled)["eager_calls"] == 0


def test_guards_tell_which_modes_are_on() -> None:
    compiled = pycompiler.compile(layers, backend="eager", fullgraph=True)

    class Halves(Times):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return super().__torch_function__(func, types, args, kwargs) / (2 if func is torch.relu else 1)

    stacks = [[], [Times(3)], [Times(5)], [Halves(3)], [Times(3), Halves(5)], [Halves(5), Times(3)], [Times(3)], []]
    for stack in [*stacks, *stacks]:
        with contextlib.ExitStack() as entered:
            for mode in stack:
                entered.enter_context(mode)
            got, want = compiled(X), layers(X)
        torch.testing.assert_close(got, want)
    assert pycompiler.counters(compiled)["compiles"] == 6
    mode = Times(3)
    with mode:
        compiled(X)
        mode.factor = 7
        got, want = compiled(X), layers(X)
    torch.testing.assert_close(got, want)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_mode_around_a_call_that_breaks_and_goes_backward(backend: str) -> None:
    def fn(x: Any) -> Any:
        y = torch.relu(x)
        print(end="")
        return torch.relu(y * 2)

    compiled = pycompiler.compile(fn, backend=backend)
    for mode in (Times(3), Times(4)):
        grads = []
        for f in (compiled, fn):
            x = X.clone().requires_grad_()
            with mode:
                f(x).sum().backward()
                assert torch._C._len_torch_function_stack() == 1
            assert x.grad is not None
            grads.append(x.grad)
        torch.testing.assert_close(*grads)


def test_modes_that_the_program_enters_and_leaves_itself() -> None:
    def enter(x: Any, mode: Any) -> Any:
        mode.__enter__()
        return torch.relu(x)

    def leave(x: Any, mode: Any) -> Any:
        y = torch.relu(x)
        mode.__exit__(None, None, None)
        return y, torch.relu(x)

    mode = Times(3)
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, backend="eager", fullgraph=True)):
        first = wrap(enter)(X, mode)
        assert torch._C._len_torch_function_stack() == 1
        second = wrap(leave)(X, mode)
        assert torch._C._len_torch_function_stack() == 0
        torch.testing.assert_close([first, *second], [X.relu() * 3, X.relu() * 3, X.relu()])


def test_a_default_device_below_a_mode() -> None:
    def fn(x: Any) -> Any:
        return torch.relu(x), torch.zeros(2).device.type

    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(2):
        with torch.device("meta"), Times(3):
            got, want = compiled(X), fn(X)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1] == "meta"
        with Times(3), torch.device("meta"):
            got, want = compiled(X), fn(X)
        torch.testing.assert_close(got[0], want[0])
        assert got[1] == want[1] == "meta"


def test_a_mode_sees_nothing_of_the_engine() -> None:
    program = """
import torch, pycompiler
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
class Log(TorchFunctionMode):
    seen = []
    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.__name__)
        return func(*args, **(kwargs or {}))
x = torch.ones(3, dtype=torch.float64)
with Log():
    for backend in ("eager", "native"):
        pycompiler.compile(lambda x: x.sin(), backend=backend, fullgraph=True)(x)
assert Log.seen == ["sin", "sin"], Log.seen
"""
    subprocess.run([sys.executable, "-c", program], check=True)


class Asked:
    """A class that is not a tensor, with `__torch_function__` and its own methods for some operators."""

    seen: list[str] = []

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen.append(func.__name__)
        return 5

    def __mul__(self, other: Any) -> Any:
        self.seen.append("mine")
        return 1

    def __eq__(self, other: Any) -> Any:
        self.seen.append("equal")
        return 2

    def __matmul__(self, other: Any) -> Any:
        self.seen.append("refused")
        return NotImplemented

    def __iadd__(self, other: Any) -> Any:
        self.seen.append("in place")
        return self


def added(o: Any, x: Any) -> Any:
    o += x
    return type(o)


@pytest.mark.parametrize(
    "fn",
    [
        lambda o, x: o * x, lambda o, x: x * o, lambda o, x: o == x, lambda o, x: x == o, lambda o, x: o @ x,
        lambda o, x: o - x, lambda o, x: o < x, added,
    ],
)  # fmt: skip
def test_a_left_operand_that_is_no_tensor_is_asked_by_its_own_method_first(fn: Any) -> None:
    made = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, backend="eager")):
        Asked.seen.clear()
        result = str(wrap(fn)(Asked(), X))
        made.append((result, list(Asked.seen)))
    assert made[0] == made[1]


redispatched: list[str] = []


class Again(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        redispatched.append(func.__name__)
        return torch.overrides.redispatch_function(func, kinds, args, kwargs or {})


class AgainMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        redispatched.append(func.__name__)
        with self:
            return torch.overrides.redispatch_function(func, kinds, args, kwargs or {})


def asks(a: Any, b: Any) -> Any:
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(asks, (a, b), a, b)
    return a + b


def asks_behind_a_break(a: Any, b: Any) -> Any:
    pycompiler.graph_break()
    if torch.overrides.has_torch_function((a, b)):
        return torch.overrides.handle_torch_function(asks_behind_a_break, (a, b), a, b)
    return a + b


def asks_under_a_mode(a: Any, b: Any) -> Any:
    with AgainMode():
        return asks(a, b)


@pytest.mark.skipif(not hasattr(torch.overrides, "redispatch_function"), reason="a newer torch has it")
@pytest.mark.parametrize("fn", [asks, asks_behind_a_break, asks_under_a_mode])
@pytest.mark.parametrize("cls", [Again, torch.Tensor])
def test_a_call_that_torch_skips(fn: Any, cls: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """`redispatch_function` makes the next `has_torch_function` False, once: an entry compiled for True must not be used then."""
    args = (X.as_subclass(cls), X.as_subclass(cls))

    def told(run: Any) -> Any:
        redispatched.clear()
        return run(*args), list(redispatched)

    want = told(fn)
    compiled = pycompiler.compile(fn)
    for _ in range(2):
        assert_same_tensors(told(compiled), want)
    monkeypatch.setitem(globals(), fn.__name__, compiled)  # the function passes on the compiled callable
    for _ in range(2):
        assert_same_tensors(told(compiled), want)


class Sized(torch.Tensor):
    """A subclass with torch's own `__torch_function__`."""

    def doubled(self) -> torch.Tensor:
        return self * 2


SEEN: list[Any] = []


class Told(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        SEEN.append(func)
        return super().__torch_function__(func, types, args, kwargs or {})


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("cls", [Sized, Told])
def test_sizes_that_change_are_symbols_of_subclasses_too(cls: Any, backend: str) -> None:
    def fn(x: Any) -> Any:
        y = torch.cat([x.sin(), x])
        return y + 1, y.reshape(-1), y.shape, x.numel()

    compiled = pycompiler.compile(fn, backend=backend)
    for n in (3, 4, 5, 6, 8):
        x = torch.arange(float(2 * n)).reshape(n, 2).as_subclass(cls)
        SEEN.clear()
        got, ours = compiled(x), [*SEEN]
        SEEN.clear()
        want = fn(x)
        assert ours == SEEN
        assert [*map(type, got)] == [*map(type, want)]
        assert got[2:] == want[2:]
        for a, b in zip(got[:2], want[:2], strict=True):
            assert torch.allclose(a.as_subclass(torch.Tensor), b.as_subclass(torch.Tensor))
    assert compiled.counters()["compiles"] == 2


class Plain(torch.Tensor):
    pass


LAID_OTHERWISE: dict[str, Callable[[Any], Any]] = {
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "t_": lambda x: x.t_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "swapdims_": lambda x: torch.Tensor.swapdims_(x, 0, 1),
    "squeeze_": lambda x: x.squeeze_(),
    "as_strided_": lambda x: torch.as_strided_(x, (2, 2), (1, 1)),
    "and written": lambda x: x.unsqueeze_(0).add_(1),
    "by its operator": lambda x: torch.ops.aten.t_.default(x),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("cls", (Plain, Loud))
@pytest.mark.parametrize("name", LAID_OTHERWISE)
def test_existing_ones_that_lie_otherwise_by_then(name: str, cls: Any, backend: str) -> None:
    def program(x: Any) -> Any:
        y = x * 2
        LAID_OTHERWISE[name](x)
        return y, x + 1

    compiled, seen = pycompiler.compile(program, backend=backend), []
    for run in (program, compiled, compiled):
        x = torch.arange(12.0).reshape(1, 12) if name == "squeeze_" else torch.arange(12.0).reshape(3, 4)
        x = x.as_subclass(cls)
        results = run(x)
        seen.append([(type(t), t.shape, t.stride(), t._version, t.tolist()) for t in (x, *results)])
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_beside_a_wrapper_raises(backend: str) -> None:
    """The result of the operator already has the tensor subclass, whether it is used or not."""
    wrapper: Any = TwoTensor(X, X)

    def drops(x: Any, y: Any) -> Any:
        x * y
        return x + 1

    def catches(x: Any, y: Any) -> Any:
        try:
            return x * y
        except RuntimeError as e:
            return str(e)

    def asks(x: Any, y: Any) -> Any:
        z = y.as_subclass(torch.Tensor)
        return type(z) is TwoTensor, (z * 2).a

    x = X.as_subclass(Plain)
    with pytest.raises(RuntimeError, match="already associated"):
        pycompiler.compile(drops, backend=backend)(x, wrapper)
    assert pycompiler.compile(catches, backend=backend)(x, wrapper) == catches(x, wrapper)
    assert pycompiler.compile(asks, backend=backend)(x, wrapper)[0] is asks(x, wrapper)[0] is True
