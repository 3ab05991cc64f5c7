"""Modes and global state: a mode that is active during a call has the same effect on compiled code as on eager code."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

import pycompiler
from tests.harness.compare import assert_same

Fn = Callable[..., Any]
Compile = Callable[[Fn], Fn]

torch.manual_seed(0)
X = torch.randn(4, 8)
W = torch.randn(8, 8, requires_grad=True)
COMPLEX = torch.randn(4, 8, dtype=torch.complex64)
HEADS = torch.randn(1, 2, 4, 8)


class Operators(TorchDispatchMode):
    """A dispatch mode that lists its operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


class Twice(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


def layers(x: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ W) @ W


def squares(x: torch.Tensor) -> torch.Tensor:
    return (x * x).sin()


def leaf(x: torch.Tensor) -> torch.Tensor:
    return x.detach().clone().requires_grad_()


def gradient(result: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    result.sum().backward()
    assert x.grad is not None
    return x.grad


@contextlib.contextmanager
def changed(set_: Callable[[Any], Any], before: Any, now: Any) -> Iterator[None]:
    set_(now)
    try:
        yield
    finally:
        set_(before)


# Each row returns its observations, given `compile`, which compiles its argument or returns the argument unchanged.
# Most rows call the compiled function once before they enter the mode: the entry must not be used inside the mode.
def flops(compile: Compile) -> Any:
    f = compile(layers)
    f(X).sum().backward()
    with FlopCounterMode(display=False) as mode:
        f(X).sum().backward()
    return mode.get_total_flops()


def flops_at_first(compile: Compile) -> Any:
    with FlopCounterMode(display=False) as mode:
        compile(layers)(X).sum().backward()
    return mode.get_total_flops()


def operators(compile: Compile) -> Any:
    f = compile(layers)
    f(X)
    with Operators() as mode:
        f(X).sum().backward()
    return sorted(mode.seen)


def operators_of_backward(compile: Compile) -> Any:
    loss = compile(layers)(X).sum()
    W.grad = None
    with Operators() as mode:
        loss.backward()
    return sorted(mode.seen), W.grad


def mode_inside(compile: Compile) -> Any:
    def f(x: torch.Tensor) -> Any:
        y = x @ W
        with FlopCounterMode(display=False) as mode:
            z = y @ W
        return z, mode.get_total_flops()

    return compile(f)(X)


def function_mode(compile: Compile) -> Any:
    f = compile(layers)
    before = f(X)
    with Twice():
        within = f(X)
    return before, within, f(X)


def function_mode_inside(compile: Compile) -> Any:
    def f(x: torch.Tensor) -> Any:
        with Twice():
            y = torch.relu(x)
        return y + torch.relu(x)

    return compile(f)(X)


def fake_mode(compile: Compile) -> Any:
    f = compile(squares)
    f(X)
    with FakeTensorMode() as mode:
        return type(f(mode.from_tensor(X))).__name__


def traced(compile: Compile) -> Any:
    f = compile(squares)
    f(X)
    return [str(n.target) for n in make_fx(f)(X).graph.nodes], torch.jit.trace(f, (X,))(X * 2)


def forward_mode(compile: Compile) -> Any:
    f = compile(squares)
    f(X)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        return forward_ad.unpack_dual(f(dual)).tangent


def transforms(compile: Compile) -> Any:
    f = compile(squares)
    f(X)
    jacobian = torch.func.jacrev(f)(X[0])
    return jacobian, torch.func.jvp(f, (X,), (X,)), torch.vmap(f)(X), torch.func.grad(lambda x: f(x).sum())(X)


def random_under_vmap(compile: Compile) -> Any:
    f = compile(lambda x: x + torch.rand(3))
    f(torch.zeros(3))
    torch.manual_seed(0)
    return torch.vmap(f, randomness="different")(torch.zeros(4, 3))


def negated(compile: Compile) -> Any:
    f = compile(lambda x: x + 1)
    base = torch.arange(6.0)
    compile(lambda x: x.add_(1))(torch._neg_view(base))
    x = leaf(X)
    return f(X), f(torch._neg_view(X)), base, gradient(compile(squares)(torch._neg_view(x)), x)


def conjugated(compile: Compile) -> Any:
    imag = compile(lambda z: z.conj().imag)(COMPLEX)
    parts = compile(lambda z: z.real + z.imag)
    return compile(lambda x: x * 2)(COMPLEX.conj().imag), imag.is_neg(), imag + 0, parts(COMPLEX), parts(COMPLEX.conj())


def anomaly(compile: Compile) -> Any:
    f = compile(lambda x: (torch.sqrt(x) * 0, torch.is_anomaly_enabled()))
    x = torch.zeros(3, requires_grad=True)
    before = f(x)[1]
    with torch.autograd.set_detect_anomaly(True):
        y, within = f(x)
        with pytest.raises(RuntimeError) as raised:
            y.sum().backward()
    return before, within, str(raised.value)


def hooks(compile: Compile) -> Any:
    f, x = compile(squares), leaf(X)
    f(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, lambda t: t):
        y = f(x)
    return gradient(y, x)


def hooks_of_torch(compile: Compile) -> Any:
    f, x, z = compile(squares), leaf(X), leaf(X)
    with torch.autograd.graph.save_on_cpu():
        y = f(x)
    return gradient(y, x), gradient(checkpoint(f, z, use_reentrant=False), z)


def attention(compile: Compile) -> Any:
    f = compile(lambda q: scaled_dot_product_attention(q, q, q))
    found = [f(HEADS)]
    with sdpa_kernel(SDPBackend.MATH):
        found.append(f(HEADS))
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION), pytest.raises(RuntimeError):  # not available on the CPU
        f(HEADS)
    return found


def uninitialized(compile: Compile) -> Any:
    f = compile(lambda: (torch.empty(3), torch.empty(2, dtype=torch.int32), torch.empty(2, dtype=torch.bool)))
    f()
    with changed(torch.use_deterministic_algorithms, False, True):
        filled = f()
        with changed(lambda v: setattr(torch.utils.deterministic, "fill_uninitialized_memory", v), True, False):
            shapes = [t.shape for t in f()]
    return filled, shapes


def inference(compile: Compile) -> Any:
    f = compile(lambda x: x * 2)
    plain = f(X)
    with torch.inference_mode():
        made = f(X)
    return [t.is_inference() for t in (plain, made, f(made), f(X))]


def below_autograd(compile: Compile) -> Any:
    f = compile(layers)
    f(X)
    with torch._C._AutoDispatchBelowAutograd():
        within = f(X).requires_grad
    return within, f(X).requires_grad


def what_is_read(compile: Compile) -> Any:
    reads: list[tuple[Callable[[], Any], Callable[[Any], Any], Any, Any]] = [
        (torch.get_num_threads, torch.set_num_threads, torch.get_num_threads(), 2),
        (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest", "high"),
        (torch.get_default_dtype, torch.set_default_dtype, torch.float32, torch.float64),
        (torch.is_anomaly_enabled, torch.set_anomaly_enabled, False, True),
        (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode, 0, 1),
        (torch.is_warn_always_enabled, torch.set_warn_always, False, True),
        (lambda: torch.ones(2).device.type, torch.set_default_device, None, "meta"),
        (lambda: torch.backends.cudnn.benchmark, torch._C._set_cudnn_benchmark, False, True),
    ]
    found = []
    for read, set_, before, now in reads:
        f = compile(lambda x, read=read: (x + 1, read()))
        first = f(X)[1]
        with changed(set_, before, now):
            found.append((first, f(X)[1], f(X)[1]))
    return found


ROWS = (flops, flops_at_first, operators, operators_of_backward, mode_inside, function_mode, function_mode_inside,
        fake_mode, traced, forward_mode, transforms, random_under_vmap, negated, conjugated, anomaly, hooks,
        hooks_of_torch, attention, uninitialized, inference, below_autograd, what_is_read)  # fmt: skip


@pytest.fixture
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    from pycompiler import _native

    _native.force_tensor_level(request.param)
    try:
        yield
    finally:
        _native.force_tensor_level("offsets")


def same(row: Callable[[Compile], Any], backend: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of anomaly detection and of tracing
        W.grad = None
        expected = row(lambda f: f)
        W.grad = None
        got = row(lambda f: pycompiler.compile(f, backend=backend))
    assert_same(got, expected)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
@pytest.mark.captures_nothing(
    "a call under a dispatch mode runs eagerly",
    "flops_at_first-eager",
    "flops_at_first-aot_eager",
    "flops_at_first-native",
)
def test_as_in_eager(row: Callable[[Compile], Any], backend: str) -> None:
    same(row, backend)


@pytest.mark.parametrize("level", ["c_abi", "slow"], indirect=True)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.__name__)
@pytest.mark.captures_nothing(
    "a call under a dispatch mode runs eagerly", "flops_at_first-c_abi", "flops_at_first-slow"
)
def test_as_in_eager_however_the_state_is_read(row: Callable[[Compile], Any], level: None) -> None:
    same(row, "eager")


def test_the_entry_is_taken_again_afterwards() -> None:
    f = pycompiler.compile(squares, backend="eager")
    f(X)
    with Operators():
        f(X)
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        f(X)
    with torch.autograd.graph.save_on_cpu():
        f(X)
    f(X)
    counters = pycompiler.counters(f)
    assert (counters["compiles"], counters["hits"], counters["eager_calls"]) == (1, 2, 2), counters


def test_no_recompilation_is_needed_where_a_call_runs_eagerly() -> None:
    f = pycompiler.compile(squares, backend="eager")
    f(X)
    f.set_mode("error")
    with Operators() as mode:
        f(X)
    assert mode.seen == ["aten.mul.Tensor", "aten.sin.default"]
