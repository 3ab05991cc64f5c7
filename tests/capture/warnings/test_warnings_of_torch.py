"""Warnings of torch's functions, in Python and in C++: shown at each call as in eager, and never during a compile."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import pycompiler
from tests.capture.harness import compile_recorded

X, ROW, BYTES = torch.ones(2, 3), torch.ones(3), torch.ones(3, dtype=torch.uint8)
PAIRS = np.ones((3, 2), np.float32)
SOFT, LOSS = torch.nn.Softmax(), torch.nn.MSELoss()
CONV = torch.nn.Conv1d(1, 1, 2, padding="same")


class Warns(torch.nn.Module):
    def __init__(self, level: int) -> None:
        super().__init__()
        self.level = level

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        warnings.warn("in a module", stacklevel=self.level)
        return x + 1


WARNS = [Warns(level) for level in (1, 2, 3, 4)]
LEAF = torch.ones(3, requires_grad=True)


COMPLEX = torch.ones(2, 3, dtype=torch.complex64)


def set_to(x: torch.Tensor, value: Any) -> Any:
    x[0] = value
    return x


def of_results() -> Any:
    y = LEAF * 2
    return y.grad, y.detach()


PROGRAMS: list[Callable[[], Any]] = [
    lambda: X.reshape(2, 3, 1).T + 1,
    lambda: torch.ones(()).T + 1,
    lambda: torch.tensor(X) + X.new_tensor(X),
    lambda: F.mse_loss(ROW, X),
    lambda: LOSS(ROW, X),
    lambda: F.softmax(X) + F.log_softmax(X, None),
    lambda: SOFT(X),
    lambda: F.upsample(X.reshape(1, 1, 2, 3), scale_factor=2),
    lambda: torch.cross(X, X),
    lambda: torch.ones(1).std() + torch.ones(1, 4).var(0).sum(),
    lambda: torch.ones(3, dtype=torch.complex64).to(torch.float32) + 1,
    lambda: torch.where(BYTES, ROW, 0.0),
    lambda: F.dropout3d(X.reshape(1, 2, 3), 0.0),
    lambda: F.kl_div(X, X),
    lambda: F.mse_loss(X, X, size_average=True),
    lambda: torch.nn.L1Loss(reduce=True)(X, ROW),
    lambda: torch.range(0, 3),
    lambda: CONV(torch.ones(1, 1, 4)).detach(),
    lambda: ROW.add(2, ROW),
    lambda: ROW.index_reduce(0, torch.tensor([0, 1, 2]), ROW, "prod"),
    lambda: torch.searchsorted(torch.ones(3, 2), X.t()),
    lambda: torch.istft(torch.ones(3, 3, dtype=torch.complex64), 4),
    lambda: [*map(lambda t: F.softmax(t), [X, X])][0],
    lambda: [*map(F.softmax, [X, X])][0],
    lambda: torch.func.grad(lambda x: F.mse_loss(x, ROW))(X),
    *[lambda m=m: m(X) for m in WARNS],
    of_results,
    lambda: torch.ones(2).std(correction=2) + torch.var_mean(torch.ones(3, 2), 1, correction=2)[0].sum(),
    lambda: torch.ones(1).std(True) + torch.ones(1, 3).var(0, True).sum() + torch.std(COMPLEX[0, :1]),
    lambda: COMPLEX.short() + COMPLEX.byte() + COMPLEX.char(),
    lambda: COMPLEX.sum(dtype=torch.float32) + COMPLEX.cumsum(0, dtype=torch.float32),
    lambda: COMPLEX.mean(dtype=torch.float32) + torch.softmax(COMPLEX, 0, dtype=torch.float32),
    lambda: torch.as_tensor(COMPLEX, dtype=torch.float32) + torch.tensor(COMPLEX, dtype=torch.float32),
    lambda: torch.zeros(2, 3).fill_(COMPLEX[0, 0]),
    lambda: set_to(torch.zeros(2, 3), COMPLEX[0]),
    lambda: ROW.where(BYTES, 0.0),
    lambda: ROW.scatter(0, torch.tensor([0, 1]), ROW + 1, reduce="add"),
    lambda: torch.searchsorted(torch.arange(6.0)[::2], ROW),
    lambda: torch.bucketize(torch.arange(6.0)[::2], ROW),
    lambda: torch.linalg.vector_norm(COMPLEX[:1], 0, dim=0),
    lambda: torch.stft(torch.ones(8), 4, return_complex=False),
]  # fmt: skip


Shown = list[tuple[str, str, str, int]]


def shown(fn: Callable[..., Any], *args: Any, action: Any = "always") -> tuple[Any, Shown]:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter(action)
        try:
            result = str(fn(*args))
        except Warning as e:
            result = repr(e)
    return result, [(w.category.__name__, str(w.message), w.filename, w.lineno) for w in seen]


@pytest.fixture(autouse=True)
def always() -> Iterator[None]:
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_each_is_eagers(number: int, backend: str) -> None:
    fn = PROGRAMS[number]
    want = shown(fn)
    assert want[1]
    compiled = compile_recorded(fn, backend)
    assert [shown(compiled.fn) for _ in range(3)] == [want] * 3
    assert compiled.breaks == []
    assert shown(compiled.fn, action="error") == shown(fn, action="error")
    assert shown(compiled.fn, action="ignore")[1] == []


def warning_hook(level: int) -> Callable[..., None]:
    def hook(*args: Any) -> None:
        warnings.warn("in a hook", stacklevel=level)

    return hook


@pytest.mark.parametrize("level", [1, 2, 3, 4])
def test_in_a_hook_of_a_module(level: int) -> None:
    module = torch.nn.Linear(3, 3)
    module.register_forward_pre_hook(warning_hook(level))
    module.register_forward_hook(warning_hook(level))

    def fn() -> Any:
        return module(X)

    compiled = compile_recorded(fn)
    assert [shown(compiled.fn) for _ in range(2)] == [shown(fn)] * 2
    assert compiled.breaks == []


DEPRECATED: list[Callable[[], Any]] = [
    lambda: X + bool(NotImplemented),
    lambda: X + np.dtype("a2").itemsize,
    lambda: (X + 1, X.volatile),
    lambda: (X + 1, torch.has_mps),
    lambda: X + torch.as_tensor(np.cross(PAIRS, PAIRS)),
    lambda: X + torch.as_tensor(np.vstack([ROW.numpy()])),
    lambda: X + torch.as_tensor(getattr(np, "row_stack", np.vstack)([ROW.numpy()])),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("number", range(len(DEPRECATED)))
def test_what_is_deprecated(number: int) -> None:
    """The warning names the program's line, appears in each call, and never during the compile."""
    fn = DEPRECATED[number]
    try:
        fn()
    except (TypeError, ValueError) as e:
        pytest.skip(f"no longer deprecated, but gone: {e}")
    want = shown(fn)
    compiled = pycompiler.compile(fn, backend="eager")
    assert [shown(compiled) for _ in range(3)] == [want] * 3


def of_existing(x: torch.Tensor) -> Any:
    return x.grad is None, x + 1


def test_the_gradient_of_what_is_no_leaf() -> None:
    inner = LEAF * 2
    compiled = compile_recorded(of_existing)
    for x in (inner, LEAF, inner, LEAF):
        assert shown(compiled.fn, x) == shown(of_existing, x)
    assert compiled.breaks == ["unsupported-attribute"]


def silenced(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        y = F.softmax(x)
    return F.softmax(y)


def recorded(x: torch.Tensor) -> Any:
    with warnings.catch_warnings(record=True) as seen:
        y = F.softmax(x)
    return y, [str(w.message) for w in seen]


def raised(x: torch.Tensor) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return F.softmax(x)
    except UserWarning as e:
        return x + 1, str(e)


@pytest.mark.parametrize("fn", [silenced, recorded, raised])
def test_filters_of_the_frame(fn: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(fn, backend="eager")
    for _ in range(3):
        assert shown(compiled, X) == shown(fn, X)
    assert (pycompiler.explain(silenced)(X).graph_break_count) == 0


def test_one_that_names_a_size() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.mse_loss(x, ROW)

    compiled = pycompiler.compile(fn, backend="eager")
    for n in (4, 5, 6, 4):
        assert shown(compiled, torch.ones(n, 3)) == shown(fn, torch.ones(n, 3))


def test_one_whose_text_has_no_size_is_for_all() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.softmax(x)

    compiled = compile_recorded(fn)
    for n in (4, 5, 6, 7):
        assert shown(compiled.fn, torch.ones(n, 3)) == shown(fn, torch.ones(n, 3))
    assert len(compiled.records) == 2


QUIET: list[Callable[[], Any]] = [
    lambda: torch.ones(1).std(unbiased=False) + torch.ones(1).var(correction=0) + torch.ones(3).std(correction=2),
    lambda: COMPLEX.bool() | COMPLEX.sum(dtype=torch.bool),
    lambda: ROW.where(ROW > 0, BYTES) + torch.searchsorted(ROW, X),
    lambda: ROW.scatter(0, torch.tensor([0, 1]), ROW),
]


@pytest.mark.parametrize("number", range(len(QUIET)))
def test_none_where_eager_is_quiet(number: int) -> None:
    fn = QUIET[number]
    compiled = compile_recorded(fn)
    assert [shown(compiled.fn) for _ in range(3)] == [shown(fn)] * 3 == [(shown(fn)[0], [])] * 3


def test_few_of_a_size_that_changes() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x.std(0, correction=3), x.var(0)

    compiled = pycompiler.compile(fn, backend="eager")
    for n in (5, 6, 7, 3, 2, 4, 1, 0, 9):
        assert shown(compiled, torch.ones(n, 3)) == shown(fn, torch.ones(n, 3)), n


def test_the_filter_that_comes_first_decides() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.softmax(x)

    def told(called: Callable[..., Any], *actions: Any) -> Any:
        with warnings.catch_warnings(record=True) as seen:
            warnings.resetwarnings()
            for action, text, category in reversed(actions):
                warnings.filterwarnings(action, text, category)
            try:
                called(X)
            except Warning as e:
                return repr(e)
        return [str(w.message) for w in seen]

    compiled = pycompiler.compile(fn, backend="eager")
    behind = (
        [("always", "", Warning), ("error", "", UserWarning)],
        [("ignore", "", UserWarning), ("error", "", Warning)],
    )
    before = [("error", "Implicit", UserWarning), ("always", "", Warning)], [("error", "", Warning)]
    other = [("ignore", "nothing", UserWarning), ("error", "", Warning)], [("error", "nothing", UserWarning)]
    told(compiled)
    for filters, eagerly in (*((f, 0) for f in behind), *((f, 1) for f in (*before, *other))):
        calls = compiled.counters()["eager_calls"]
        assert told(compiled, *filters) == told(fn, *filters)
        assert compiled.counters()["eager_calls"] == calls + eagerly


def test_a_checkpoint_says_where_eager_says() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(torch.sin, x)

    x = torch.ones(3, requires_grad=True)
    compiled = pycompiler.compile(fn, backend="eager")
    assert [shown(compiled, x) for _ in range(2)] == [shown(fn, x)] * 2


PROCESS = """
import sys, warnings
import torch, torch.nn.functional as F
import pycompiler

def inner(x):
    y = F.softmax(x)
    print("between", file=sys.stderr)
    warnings.warn("mine", stacklevel=1)
    return y + x.std()

def program(x):
    return inner(x) + x[:, :1].T.std(), x.reshape(1, 1, -1).T.sum(), torch.ones(2, dtype=torch.complex64).to(torch.float32)

x = torch.ones(1, 1)
if sys.argv[1] == "before":  # eager has warned of what it warns of once
    program(x)
called = program if sys.argv[2] == "eager" else pycompiler.compile(program)
for action in (None, None, "always", "always", "error", "default", "default"):
    if action is not None:
        warnings.simplefilter(action)
    try:
        called(x)
    except Warning as e:
        print(repr(e), file=sys.stderr)
torch.set_warn_always(True)
warnings.simplefilter("always")
called(x)
called(x)
"""


@pytest.mark.parametrize("before", ["before", "not before"])
def test_what_torch_warns_of_once_a_process(before: str) -> None:
    def told(how: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", PROCESS, before, how], capture_output=True, text=True, check=True, timeout=300
        )
        # a plan calls kernels without Python, and they print for themselves where torch always warns
        return "".join(line for line in done.stderr.splitlines(True) if not line.startswith("[W"))

    want = told("eager")
    assert "reverse their shape" in want and "degrees of freedom" in want
    assert told("compiled") == want


def test_a_check_of_a_size_is_deprecated() -> None:
    def checked(x: torch.Tensor, n: int) -> torch.Tensor:
        torch._check_is_size(n)
        return x * n

    compiled = pycompiler.compile(checked, backend="eager", fullgraph=True)
    for n in (3, 4, 5, 5):
        assert shown(checked, torch.ones(2), n) == shown(compiled, torch.ones(2), n)
    assert compiled.counters()["compiles"] == 2


def test_an_attribute_that_tensors_have_no_more() -> None:
    def asked(x: torch.Tensor) -> Any:
        try:
            return x.names, x + 1
        except AttributeError as error:
            return str(error), x + 1

    compiled = pycompiler.compile(asked, backend="eager", fullgraph=not hasattr(torch.Tensor, "names"))
    for n in (2, 3, 4):
        assert repr(compiled(torch.ones(n))) == repr(asked(torch.ones(n)))
