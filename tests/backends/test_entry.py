"""`torch.compile(..., backend="pycompiler")`: this compiler after torch's capture."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pycompiler import graphs
from pycompiler.backends.entry import compile_fx

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def fresh(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    torch._dynamo.reset()
    before = graphs.STATISTICS["aten_fallbacks"]
    yield
    assert graphs.STATISTICS["aten_fallbacks"] == before
    assert [r.getMessage() for r in caplog.records if "eagerly" in r.getMessage()] == []
    torch._dynamo.reset()


class Spy:
    """`compile_fx` that records its compiled callables for each graph."""

    def __init__(self) -> None:
        self.made: list[Any] = []

    def __call__(self, gm: Any, inputs: Any, **kwargs: Any) -> Any:
        self.made.append(compile_fx(gm, inputs, **kwargs))
        return self.made[-1]

    def counts(self) -> list[dict[str, int]]:
        return [made.__func__.counters() for made in self.made]

    def compiled(self) -> list[int]:
        """The number of compiles of each graph; no call may have run eagerly."""
        assert all(counted["eager_calls"] == 0 for counted in self.counts())
        return [counted["compiles"] for counted in self.counts()]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.BatchNorm1d(8), nn.Linear(8, 2))


X = torch.linspace(-1, 1, 32).reshape(4, 8)


def test_training_and_inference() -> None:
    model, spy = net(), Spy()
    twin = copy.deepcopy(model)
    made = torch.compile(model, backend=spy, dynamic=False)
    for _ in range(2):
        have, want = made(X).square().mean(), twin(X).square().mean()
        have.backward()
        want.backward()
        torch.testing.assert_close(have, want)
    for (name, p), q in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, msg=name)
    torch.testing.assert_close(model[2].running_var, twin[2].running_var)
    model.eval()
    twin.eval()
    with torch.no_grad():
        torch.testing.assert_close(made(X), twin(X))
    assert spy.compiled() == [1, 1]


def test_mutation_and_views() -> None:
    def fn(x: Any, y: Any) -> Any:
        y.add_(1)
        return x[1:].t(), x.sum() * y

    spy = Spy()
    made = torch.compile(fn, backend=spy, dynamic=False)
    a, b = torch.ones(4), torch.ones(4)
    for have, want in zip(made(X, a), fn(X, b), strict=True):
        torch.testing.assert_close(have, want)
    assert torch.equal(a, b)
    assert spy.counts()[0]["eager_calls"] == 0


def test_constants_and_numbers_among_the_inputs() -> None:
    spy = Spy()
    made = torch.compile(lambda x, n, f: x * n + f, backend=spy, dynamic=False)
    torch.testing.assert_close(made(X, 3, 0.5), X * 3 + 0.5)
    torch.testing.assert_close(made(X, 4, 0.25), X * 4 + 0.25)


def test_sizes_that_are_symbols_of_torchs() -> None:
    spy = Spy()
    made = torch.compile(lambda x, n: x * x.shape[0] + n, backend=spy, dynamic=True)
    for n in (3, 5, 7):
        torch.testing.assert_close(made(torch.ones(n), n + 3), torch.ones(n) * n + n + 3)
    assert spy.compiled() == [1]


def test_lengths() -> None:
    """A number at first, then a symbol: two graphs of torch.compile, and one compile of each."""
    model, spy = net().eval(), Spy()
    twin = copy.deepcopy(model)
    made = torch.compile(model, backend=spy)
    for n in range(4, 17):
        x = torch.randn(n, 8)
        have, want = made(x), twin(x)
        torch.testing.assert_close(have, want)
        have.sum().backward()
        want.sum().backward()
    for p, q in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-5)
    assert spy.compiled() == [1, 1]


def test_checkpoints_draw_again_what_they_drew() -> None:
    """In torch's graphs the checkpoint operator relies on the compiler; run eagerly, its recomputation has another
    dropout."""

    def fn(x: Any) -> Any:
        def block(t: Any) -> Any:
            return nn.functional.dropout(t.sin().exp(), 0.5) @ t

        return checkpoint(block, x, use_reentrant=False) + checkpoint(block, x * 2, use_reentrant=False).sum()

    def gradient(f: Any) -> Any:
        x = torch.linspace(-1, 1, 16, dtype=torch.float64).reshape(4, 4).requires_grad_()
        torch.manual_seed(3)
        f(x).square().sum().backward()
        return x.grad

    spy = Spy()
    torch.testing.assert_close(gradient(torch.compile(fn, backend=spy)), gradient(fn))
    assert spy.compiled() == [1]


def test_operators_that_take_functions() -> None:
    def fn(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda t: t.sin(), lambda t: t * 2, (x @ x.mT,))

    spy = Spy()
    made = torch.compile(fn, backend=spy, dynamic=False)
    for x in (X, -X - 1):
        torch.testing.assert_close(made(x), fn(x))
    assert spy.compiled() == [1]


def test_backwards_are_no_frames_of_torchs() -> None:
    """The backward runs where torch.compile evaluates every frame: it must not compile frames of pycompiler."""

    def fn(x: Any) -> Any:
        y = (x * 2).exp()
        y.sum().backward()
        return x.grad

    spy = Spy()
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    torch.testing.assert_close(torch.compile(fn, backend=spy)(x), fn(y))
    assert len(spy.made) == 1, "torch.compile took functions of ours for the program's"


def test_graph_breaks_of_torchs_capture() -> None:
    def fn(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    spy = Spy()
    torch.testing.assert_close(torch.compile(fn, backend=spy, dynamic=False)(X), X.sin().cos())
    assert spy.compiled() == [1, 1]


def test_mode_and_options() -> None:
    for arguments in ({"mode": "reduce-overhead"}, {"options": {"deterministic": True, "epilogue_fusion": True}}):
        spy = Spy()
        torch.testing.assert_close(torch.compile(torch.sin, backend=spy, **arguments)(X), X.sin())
        assert spy.compiled() == [1]
        torch._dynamo.reset()


def test_found_through_the_entry_point(tmp_path: Path) -> None:
    """The process never imports pycompiler; the distribution's metadata equals pyproject.toml."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    [(name, target)] = groups["torch_dynamo_backends"].items()
    assert name == "pycompiler"
    info = tmp_path / "pycompiler_under_test-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pycompiler-under-test\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\n{name} = {target}\n")
    program = """
import sys, torch
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
x = torch.ones(2, 4)
assert "pycompiler" in torch._dynamo.list_backends()
out = torch.compile(model, backend="pycompiler")(x)
out.sum().backward()
torch.testing.assert_close(out, model(x))
assert "pycompiler.backends.entry" in sys.modules
print("done")
"""
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    out = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert out.stdout.strip() == "done", out.stderr
    assert "eagerly" not in out.stderr
