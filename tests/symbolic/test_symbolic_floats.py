"""Floats that change: from the second value on they are inputs of the graph, and all results match eager."""

from __future__ import annotations

import copy
import math
import re
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from tests.harness.compare import assert_same, observe

backends = pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
VALUES = (0.1, 0.2, -1.75, 1e-310, math.inf, -0.0, math.nan, 3.0)


@pytest.fixture(autouse=True)
def automatic() -> Iterator[None]:
    with pycompiler.config.patch(automatic_dynamic_shapes=True):
        yield


def agree(fn: Callable[..., Any], x: torch.Tensor, values: tuple[float, ...], compiles: int, backend: str) -> None:
    """Compare each call with eager."""
    compiled = pycompiler.compile(fn, backend=backend)
    for value in values:
        assert_same(compiled(x.clone(), value), fn(x.clone(), value), exact=True)
    assert compiled.counters()["compiles"] == compiles


PROGRAMS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "times": lambda x, f: x * f,
    "between": lambda x, f: (f - x, x - f, f / x, x > f, torch.where(x > 0, x, f), x.masked_fill(x > 0, f)),
    "made": lambda x, f: (torch.full((3,), f), x.new_full((2,), -f), x.clone().fill_(f)),
    "clamped": lambda x, f: (x.clamp(max=f), x.clamp(min=-f)),
    "written": lambda x, f: x.mul_(1.0 - f),
    "returned": lambda x, f: (x + 1, f, f * 2.0 - 1.0, [abs(f), -f]),
    "of integers": lambda x, f: (x.to(torch.int64) * f, x.to(torch.int64) + f, x.to(torch.int64) > f),
    "remainders": lambda x, f: (x % f, x.fmod(f), x // f),
}


@backends
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_one_graph_takes_every_float(name: str, dtype: torch.dtype, backend: str) -> None:
    agree(PROGRAMS[name], torch.tensor([0.3, -1.7, 2.5, 0.0, 60.0], dtype=dtype), VALUES, 2, backend)


@backends
def test_a_quotient(backend: str) -> None:
    compiled, x = pycompiler.compile(lambda x, f: x / f, backend=backend), torch.randn(100)
    for value in VALUES:
        torch.testing.assert_close(compiled(x, value), x / value, equal_nan=True)
    assert compiled.counters()["compiles"] == 2


@backends
def test_an_optimizers_step(backend: str) -> None:
    def step(p: torch.Tensor, g: torch.Tensor, group: dict[str, float]) -> None:
        p.mul_(1 - group["lr"] * group["decay"])
        p.add_(g, alpha=-group["lr"])

    compiled = pycompiler.compile(step, backend=backend)
    ours, theirs, gradient = torch.ones(7), torch.ones(7), torch.randn(7)
    for k in range(6):
        group = {"lr": 0.1 / (k + 1), "decay": 0.25}
        compiled(ours, gradient, group)
        step(theirs, gradient, group)
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)
    assert compiled.counters()["compiles"] == 2


@backends
def test_gradients_know_the_float(backend: str) -> None:
    class Scaled(torch.nn.Module):
        scale = 0.5

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x * self.scale).tanh() * (self.scale + 1.0)

    model = Scaled()
    compiled = pycompiler.compile(model.forward, backend=backend)
    for scale in (0.5, 0.25, -3.0, 1e-3):
        model.scale = scale
        x, y = (torch.linspace(-1, 1, 5).requires_grad_() for _ in range(2))
        compiled(x).sum().backward()
        model(y).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, y.grad)
        assert x.grad.abs().max() > 0 or scale == 0
    assert compiled.counters()["compiles"] == 2


def test_questions_make_it_a_constant() -> None:
    def choose(x: torch.Tensor, f: float) -> torch.Tensor:
        return x + 1 if f > 0.5 else x - int(f * 10)

    agree(choose, torch.ones(3), (0.1, 0.7, 0.7, 0.1), 2, "native")
    agree(lambda x, f: (x, f"{f:.2f}"), torch.ones(3), (0.1, 0.7), 2, "native")
    agree(lambda x, f: (x * math.sqrt(f), f in {0.7: 1}), torch.ones(3), (0.25, 0.7), 2, "native")


@pytest.mark.parametrize("fn", [lambda x, f: x / (2.0 / f), lambda x, f: x * f**-1, lambda x, f: x * (5.0 % f)])
def test_what_raises_for_some_floats_is_asked(fn: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
    def guarded(x: torch.Tensor, f: float) -> torch.Tensor:
        try:
            return fn(x, f)
        except ZeroDivisionError:
            return x - 7

    compiled = pycompiler.compile(guarded)
    for value in (0.5, 0.25, 0.0, 2.0):
        torch.testing.assert_close(compiled(torch.ones(2), value), guarded(torch.ones(2), value))


def test_a_float_is_no_int_and_no_subclass() -> None:
    class Mine(float):
        pass

    compiled = pycompiler.compile(lambda x, f: (x.to(torch.int64) * f, f))
    for value in (0.5, 0.25, 3, True, Mine(0.75), 2.0):
        got, back = compiled(torch.ones(2), value)
        assert_same(got, torch.ones(2, dtype=torch.int64) * value, exact=True)
        assert back is value or type(back) is type(value) is float


CONVERTED: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "full": lambda x, f: torch.full((2,), f, dtype=x.dtype),
    "fill": lambda x, f: x.fill_(f),
    "item": lambda x, f: x.clone().__setitem__(0, f),
    "masked_fill": lambda x, f: x.masked_fill(x > 0, f),
    "where": lambda x, f: torch.where(x > 0, x, f),
    "clamp": lambda x, f: x.clamp(max=f),
    "alpha": lambda x, f: torch.add(x, x, alpha=-f),
    "lerp": lambda x, f: torch.lerp(x, x, f),
    "addcmul": lambda x, f: torch.addcmul(x, x, x, value=f),
    "slope": torch.nn.functional.leaky_relu,
    "computed": lambda x, f: x.masked_fill(x > 0, 1.0 - 2.0 * f),
}


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CONVERTED)
def test_floats_that_a_dtype_does_not_hold_raise(name: str, dtype: torch.dtype, backend: str) -> None:
    """One graph serves all floats that the dtype holds. Any other float is refused as in eager, in whichever call it comes."""
    fn, x = CONVERTED[name], torch.tensor([0.5, -1.5, 0.0], dtype=dtype)

    for values in ((0.5, 3.0, 100.0, 1e39, math.inf, -7e4, math.nan), (1e39, 0.5, 3.0, -1e39)):
        compiled = pycompiler.compile(fn, backend=backend)
        for value in values:
            assert_same(*(observe(f, (x.clone(), value)) for f in (compiled, fn)), exact=True)


def test_a_number_that_one_call_is_refused_is_no_rule_for_others() -> None:
    fn = pycompiler.compile(lambda x: (x.clamp(max=1e300), x))
    with pytest.raises(RuntimeError, match="without overflow"):
        fn(torch.ones(2))
    assert pycompiler.compile(lambda x: x.clamp(max=0.5), fullgraph=True)(torch.ones(2)).tolist() == [0.5, 0.5]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    "make", ["torch.full((2,), n, dtype=d)", "torch.full_like(x, n, dtype=d)", "x.new_full((2,), n, dtype=d)"]
)
def test_integers_that_a_dtype_does_not_hold(make: str, backend: str) -> None:
    for n in (70000, 2**31, 2**62):
        scope = {"torch": torch, "n": n, "d": torch.float16}
        exec(f"def fn(x):\n    return {make}", scope)
        with pytest.raises(RuntimeError, match="without overflow"):
            pycompiler.compile(scope["fn"], backend=backend)(torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize(
    ("n", "dtype"), [(300, torch.uint8), (70000, torch.uint16), (2**40, torch.int32), (2**63, None)]
)
def test_integers_that_integers_do_not_hold(n: int, dtype: torch.dtype | None, backend: str) -> None:
    """Capture reports the error at the program's line, and no backend meets such integers."""
    for make in (
        lambda x, n: torch.full((2,), n, dtype=dtype),
        lambda x, n: torch.full_like(x, n, dtype=dtype or torch.int64),
        lambda x, n: torch.zeros(2, dtype=dtype or torch.int64).fill_(n),
    ):
        compiled = pycompiler.compile(make, backend=backend, dynamic=False)
        assert torch.equal(compiled(torch.ones(2), 3), make(torch.ones(2), 3))
        with pycompiler.config.patch(raise_internal_errors=True), pytest.raises(RuntimeError) as raised:
            compiled(torch.ones(2), n)
        assert type(raised.value) is RuntimeError and "without overflow" in str(raised.value)
        assert make.__code__.co_firstlineno in [f.lineno for f in traceback.extract_tb(raised.tb)]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_floats_that_integers_do_not_hold(backend: str) -> None:
    def fn(x: torch.Tensor, f: float) -> torch.Tensor:
        return torch.full((2,), f, dtype=torch.int64) + x

    compiled, x = pycompiler.compile(fn, backend=backend), torch.ones(2, dtype=torch.int64)
    for f in (2.5, -3.75, 7.25):
        assert torch.equal(compiled(x, f), fn(x, f))
    for f in (math.nan, math.inf, 1e30):
        with pytest.raises(RuntimeError) as expected:
            fn(x, f)
        with pytest.raises(RuntimeError, match=re.escape(str(expected.value).splitlines()[0])):
            compiled(x, f)


def test_floats_that_are_to_be_constants() -> None:
    with pycompiler.config.patch(specialize_float=True):
        agree(lambda x, s: x * s, torch.ones(3), (0.5, 0.7, 0.9), 3, "native")


def chosen(x: torch.Tensor, f: float) -> torch.Tensor:
    if 0.1 < f <= 0.5:
        return x + f
    if f == 0.75:
        return x * 3
    if not f <= 0.9:
        return x - f
    return x / 2


# Comparisons and the number of entries for all values: one entry for the first value, one for each side of the compared number,
# one for that number itself, and one for NaN.
ASKED: dict[str, tuple[Callable[[torch.Tensor, float], torch.Tensor], int]] = {
    "above": (lambda x, f: x * (1 - f) if f > 0.0 else x, 4),
    "other than one": (lambda x, f: x / f if f != 1.0 else x, 6),
    "turned": (lambda x, f: x * f if 1 > f else x, 4),
    "none": (lambda x, f: x * f if f else x - 1, 5),
    "limited": (lambda x, f: x * min(max(f, -0.5), 0.5), 5),
    "intervals": (chosen, 8),
    "inverse": (lambda x, f: x * (1.0 / f) if f else x, 5),
    "root": (lambda x, f: x / (f**0.5) if f > 0 else x, 4),
    "square": (lambda x, f: x * f**2 if 0 < f < 100 else x, 5),
}


@backends
@pytest.mark.parametrize("name", ASKED)
def test_comparisons_with_constants_leave_it_open(name: str, backend: str) -> None:
    fn, entries = ASKED[name]
    x = torch.linspace(-1, 1, 6, dtype=torch.float64)
    compiled = pycompiler.compile(fn, backend=backend, recompile_limit=16)
    special = (0.0, -0.0, 1.0, 0.75, 0.5, 0.1, 5e-324, -0.3, 1e308, math.inf, -math.inf, math.nan)
    for value in (*(k / 16 for k in range(1, 30)), *special, *(k / 20 for k in range(1, 30))):
        want = fn(x, value)
        torch.testing.assert_close(compiled(x, value), want, rtol=1e-12, atol=0, equal_nan=True)
    assert compiled.counters()["compiles"] <= entries


def test_a_base_below_zero_has_a_complex_power() -> None:
    for fn in (lambda x, f: x * abs(f**0.5), lambda x, f: x * abs((-2.0) ** f)):
        compiled = pycompiler.compile(fn, backend="eager")
        for value in (0.5, 0.25, -0.5, -1.5, 2.0):
            assert_same(compiled(torch.ones(2), value), fn(torch.ones(2), value), exact=True)


DIVIDED: dict[str, tuple[Callable[[torch.Tensor, float], torch.Tensor], int]] = {
    "inverse": (lambda x, n: x * (1.0 / n), 6),
    "mean": (lambda x, n: x.lerp(x + 1, 1.0 / n), 6),
    "correction": (lambda x, n: x * ((n - 1.0) / n), 6),
    "product": (lambda x, n: x * ((2.0 / n) * (3.0 / n)), 6),
    "half": (lambda x, n: x.half() * (1.0 / n), 8),
}


@backends
@pytest.mark.parametrize("name", DIVIDED)
def test_what_a_dtype_holds_is_known_of_quotients(name: str, backend: str) -> None:
    """A divisor is assumed to be no nearer to zero than the one seen; a nearer one compiles again."""
    fn, entries = DIVIDED[name]
    x = torch.linspace(-1, 1, 6)
    compiled = pycompiler.compile(fn, backend=backend, recompile_limit=16)
    for value in (*map(float, range(1, 20)), 1e-5, 1e-30, 1e300, -3.0, -7.0, math.inf, *map(float, range(20, 30))):
        try:
            want = fn(x, value)
        except RuntimeError:  # 1e30 overflows float16
            with pytest.raises(RuntimeError):
                compiled(x, value)
            continue
        torch.testing.assert_close(compiled(x, value), want, rtol=1e-3, atol=0, equal_nan=True)
        if value == 19.0:
            assert compiled.counters()["compiles"] == 2
    assert compiled.counters()["compiles"] <= entries


@pytest.mark.parametrize("wide", [False, True], ids=["float32", "bfloat16 on float32"])
def test_batch_norm_of_all_batches_seen(wide: bool) -> None:
    """The momentum is computed from the count of batches and changes in each step. The layer
    before has no bias, because the gradients of a bias would be zero and show only rounding."""
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6, bias=False), torch.nn.BatchNorm1d(6, momentum=None), torch.nn.ReLU()
    )
    eager = copy.deepcopy(model)
    compiled = pycompiler.compile(model)
    seen = []
    for step in range(10):
        x = torch.randn(5, 4)
        for module in (compiled, eager):
            with torch.autocast("cpu", torch.bfloat16, enabled=wide):
                module(x).float().square().sum().backward()
        seen.append(pycompiler.counters(compiled)["compiles"])
        for one, other in zip(model.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, atol=2e-2 if wide else 1e-5, rtol=1e-3)
        for one, other in zip(model.buffers(), eager.buffers(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-2 if wide else 1e-5, rtol=1e-4)
            assert one._version == other._version, step
    assert seen[2:] == [seen[1]] * 8 and seen[1] == seen[0] + 1  # the entry that takes the momentum as a number
    torch.testing.assert_close(compiled.eval()(x), eager.eval()(x))


@pytest.mark.parametrize("name", ["running_mean", "running_var"])
@pytest.mark.parametrize(
    "other", [None, torch.ones(6, dtype=torch.float64), torch.ones(6).requires_grad_(), torch.ones(1, 6), torch.ones(5)]
)
def test_batch_norm_refuses_statistics_as_eager_does(name: str, other: torch.Tensor | None) -> None:
    seen = []
    for make in (lambda m: m, pycompiler.compile):
        model = torch.nn.BatchNorm1d(6, momentum=None)
        run = make(model)
        run(torch.ones(3, 6))
        setattr(model, name, other if other is None else other.detach().clone().requires_grad_(other.requires_grad))
        with pytest.raises((RuntimeError, ValueError)) as caught:
            run(torch.ones(3, 6))
        seen.append((caught.type, str(caught.value), repr(getattr(model, name))))
    assert seen[0] == seen[1]


def test_batch_norm_with_a_momentum_that_changes() -> None:
    def fn(x: torch.Tensor, mean: torch.Tensor, var: torch.Tensor, momentum: float, training: bool) -> torch.Tensor:
        return F.batch_norm(x, mean, var, training=training, momentum=momentum)

    compiled = pycompiler.compile(fn, fullgraph=True)
    for training in (True, False):
        for momentum in (0.1, 0.3, 0.7, 0.9):
            x, stats = torch.randn(4, 3, 2, dtype=torch.float64), [torch.zeros(3).double(), torch.ones(3).double()]
            wanted = [s.clone() for s in stats]
            result = compiled(x, *stats, momentum, training)
            torch.testing.assert_close(result, fn(x, *wanted, momentum, training))
            torch.testing.assert_close(stats, wanted)
    assert compiled.counters()["compiles"] <= 3
    with pytest.raises((ValueError, pycompiler.errors.Unsupported), match="more than 1 value per channel"):
        compiled(torch.randn(1, 3, dtype=torch.float64), *stats, 0.4, True)


@pytest.mark.parametrize(
    "program", [lambda x, n: (x * (n + 0.5), n // 2.0), lambda x, n: (x + n // 2.0, (n // 2.0) * 3)]
)
def test_a_float_of_a_number_that_became_a_constant(program: Any) -> None:
    """Such a frame must not fall back to eager."""
    compiled, x = pycompiler.compile(program), torch.ones(2)
    for n in (0, 1, 2, 257, -3, 7, -3):
        assert_same(compiled(x, n), program(x, n), exact=True)
    assert compiled.counters()["eager_calls"] == 0


# Other backends -------------------------------------------------------------------------------------------------------


def of_torch(name: str) -> Callable[..., Any]:
    from torch._dynamo.backends.registry import lookup_backend

    found: Callable[..., Any] = lookup_backend(name)
    return found


def step(x: torch.Tensor, f: float) -> torch.Tensor:
    rows, columns = x.shape
    return x.mul(0.5 * f).div_(max(1, rows / columns) ** 0.5 + f**2).clamp(max=f)


@pytest.mark.parametrize("name", ["eager", "aot_eager"])
def test_a_backend_made_for_torch_compile_is_called_twice(name: str) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graphs.append(gm)
        assert all(isinstance(e, torch.Tensor) for e in examples)
        return of_torch(name)(gm, examples)

    compiled = pycompiler.compile(step, backend=backend)
    x = torch.linspace(-1, 2, 12).view(4, 3).requires_grad_()
    for value in (0.1, 0.2, 1.75, 1e-3, 3.0):
        got, want = compiled(x, value), step(x, value)
        assert_same(got, want, exact=True)
        assert_same(torch.autograd.grad(got.sum(), x)[0], torch.autograd.grad(want.sum(), x)[0], exact=True)
    assert compiled.counters()["compiles"] == len(graphs) == 2
    assert "item" in [n.target for n in graphs[1].graph.nodes]


def test_a_backend_that_refuses_such_floats_gets_constants() -> None:
    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        if any(n.target == "item" for n in gm.graph.nodes):
            raise NotImplementedError("numbers in tensors")
        return gm.forward

    agree(lambda x, f: x * f, torch.ones(3), (0.1, 0.2, 0.3), 3, backend)  # type: ignore[arg-type]


def test_errors_of_a_backend_reach_the_program() -> None:
    calls: list[int] = []

    def backend(gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ZeroDivisionError("no")
        return gm.forward

    compiled = pycompiler.compile(lambda x, f: x * f, backend=backend)
    compiled(torch.ones(3), 0.1)
    with pytest.raises(ZeroDivisionError):
        compiled(torch.ones(3), 0.2)


def negative_bases(x: torch.Tensor) -> list[torch.Tensor]:
    running = -2.0
    running **= x  # type: ignore[operator]
    return [(-2.0) ** x, (-2) ** x * 3, (-0.0) ** x, pow(-1, x) - x, (-math.inf) ** x, 2**x, running]  # type: ignore[list-item]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native", lambda gm, examples: gm.forward])
def test_powers_of_negative_constants(backend: Any) -> None:
    x = torch.tensor([1.0, -2.0, 2.0, 0.0], requires_grad=True)
    compiled = pycompiler.compile(negative_bases, backend=backend, fullgraph=True)
    for want, got in zip(negative_bases(x), compiled(x), strict=True):
        assert_same(got.detach(), want.detach(), exact=True)
    want, got = (torch.autograd.grad(f(x)[5].sum() + f(x)[1].detach().sum(), x)[0] for f in (negative_bases, compiled))
    torch.testing.assert_close(got, want)


@backends
def test_complex_numbers_are_not_written_to_floats(backend: str) -> None:
    """A complex number after a compiled call must raise: its imaginary part must not be dropped."""

    def add(x: torch.Tensor, k: Any) -> torch.Tensor:
        return x.add_(k)

    compiled = pycompiler.compile(add, backend=backend)
    assert_same(compiled(torch.ones(3), 2.0), torch.full((3,), 3.0), exact=True)
    for k in (1j, 2j):
        x = torch.ones(3)
        with pytest.raises(RuntimeError, match="can't be cast"):
            compiled(x, k)
        assert_same(x, torch.ones(3), exact=True)
    z = torch.ones(3, dtype=torch.complex64)
    assert torch.equal(compiled(z.clone(), 1j), z + 1j)


class Kept:
    best, worst = 1e9, -1.0


def keeps(x: torch.Tensor, kept: Any, v: Any) -> Any:
    kept.best, kept.worst = min(kept.best, v), max(v, kept.worst)
    return x * kept.best + max(0.0, v), min(v, 0.0, kept.worst), max(-0.0, v), min([v, 2.5, kept.best])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_the_least_float_by_now(backend: str) -> None:
    """Zeros have signs, NaN is not less than any float, and an int is not a float."""

    def exact(value: Any) -> Any:
        if isinstance(value, tuple):
            return [exact(v) for v in value]
        if isinstance(value, torch.Tensor):
            return exact(tuple(value.tolist()))
        return type(value), value.hex() if isinstance(value, float) else value

    compiled = pycompiler.compile(keeps, backend=backend, fullgraph=True)
    ours, theirs = Kept(), Kept()
    for v in (5.0, 4.5, -0.0, 0.0, 2.0, math.inf, -1.0, 3.5, math.nan, -math.inf, 7.0):
        got, wanted = (
            run(torch.tensor([1.0, -2.0, 0.0]), kept, v) for run, kept in ((compiled, ours), (keeps, theirs))
        )
        assert exact(got) == exact(wanted), v
        assert exact((ours.best, ours.worst)) == exact((theirs.best, theirs.worst)), v
    assert compiled.counters()["compiles"] <= 5

    def program(x: torch.Tensor, kept: Any, v: Any) -> Any:
        kept.best = min(kept.best, v)
        return x + 1

    few, kept = pycompiler.compile(program, backend=backend), Kept()
    for v in (5.5, 4.5, 6.5, 3.5, 2.25, 2.75):
        few(torch.ones(2), kept, v)
    assert (few.counters()["compiles"], kept.best) == (3, 2.25)  # one compile before the object has the attribute
    kept.best = 9
    for v in (True, 7, 8.5, 6.5):
        few(torch.ones(2), kept, v)
        assert kept.best is True


HOSTILE = (0.3, 0.4, 0.5, -1.0, math.nan, math.inf, -math.inf, 0.0, 1e300, -1e300, 0.6)
TAKE_A_NUMBER: dict[str, Callable[[torch.Tensor, float], torch.Tensor]] = {
    "smooth_l1_loss": lambda x, v: F.smooth_l1_loss(x, x * 2, beta=v),
    "huber_loss": lambda x, v: F.huber_loss(x, x * 2, delta=v),
    "softshrink": lambda x, v: F.softshrink(x, v),
    "hardshrink": lambda x, v: F.hardshrink(x, v),
    "logit": lambda x, v: x.logit(v),
    "vector_norm": lambda x, v: torch.linalg.vector_norm(x, v),
    "vector_norm of a dimension": lambda x, v: torch.linalg.vector_norm(x, ord=v, dim=1),
    "norm": lambda x, v: x.norm(v),
    "linspace": lambda x, v: torch.linspace(0, v, 3) + x[0, 0],
    "logspace": lambda x, v: torch.logspace(0, v, 3) + x[0, 0],
    "leaky_relu": lambda x, v: F.leaky_relu(x - 1, v),
    "hardtanh": lambda x, v: F.hardtanh(x, -1, v),
    "add": lambda x, v: torch.add(x, x, alpha=v),
    "addmm": lambda x, v: torch.addmm(x[:, :3], x, x.t(), beta=v),
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "clamp": lambda x, v: x.clamp(v, 1),
    "margin": lambda x, v: F.triplet_margin_loss(x, x * 2, x * 3, margin=v),
    "dropout": lambda x, v: F.dropout(x, v, False),
    "label smoothing": lambda x, v: F.cross_entropy(x, torch.tensor([0, 1, 2]), label_smoothing=v),
}


@pytest.mark.parametrize("constant", [True, False])
@pytest.mark.parametrize("name", TAKE_A_NUMBER)
def test_numbers_that_operators_refuse_or_round(name: str, constant: bool) -> None:
    """`constant`: each number gets its own graph. Otherwise the number changes between calls."""
    program, x = TAKE_A_NUMBER[name], torch.arange(1.0, 13).reshape(3, 4) / 7
    compiled = pycompiler.compile(program, recompile_limit=30)

    for v in HOSTILE:
        if constant:
            found = observe(pycompiler.compile(lambda x, v=v: program(x, v)), (x,))
        else:
            found = observe(compiled, (x, v))
        expected = observe(program, (x, v))
        assert_same((found.result, found.error, x), (expected.result, expected.error, x))
