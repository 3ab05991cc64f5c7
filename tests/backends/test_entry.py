"""torch.compile(..., backend="pycompiler"): our compiler behind torch's capture."""

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

from pycompiler import graphs
from pycompiler.backends.entry import compile_fx, own_fakes
from pycompiler.ir.fake import new_fake_mode

ROOT = Path(__file__).resolve().parent.parent.parent
pytestmark = pytest.mark.peer


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    before = graphs.STATISTICS["aten_fallbacks"]
    yield
    assert graphs.STATISTICS["aten_fallbacks"] == before
    torch._dynamo.reset()


class Spy:
    """compile_fx, with the inputs of each call kept."""

    def __init__(self) -> None:
        self.graphs: list[Any] = []
        self.eager = 0

    def __call__(self, gm: Any, inputs: Any, **kwargs: Any) -> Any:
        made = compile_fx(gm, inputs, **kwargs)
        self.graphs.append(inputs)
        self.eager += made == gm.forward
        return made


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
    assert (len(spy.graphs), spy.eager) == (2, 0)


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
    assert spy.eager == 0


def test_constants_and_numbers_among_the_inputs() -> None:
    spy = Spy()
    made = torch.compile(lambda x, n, f: x * n + f, backend=spy, dynamic=False)
    torch.testing.assert_close(made(X, 3, 0.5), X * 3 + 0.5)
    torch.testing.assert_close(made(X, 4, 0.25), X * 4 + 0.25)


def test_symbolic_sizes_run_eagerly_with_a_line(caplog: Any) -> None:
    spy = Spy()
    made = torch.compile(lambda x: x * x.shape[0], backend=spy, dynamic=True)
    with caplog.at_level("WARNING", "pycompiler"):
        for n in (3, 5, 7):
            torch.testing.assert_close(made(torch.ones(n)), torch.ones(n) * n)
    assert spy.eager == len(spy.graphs) == 1


def test_graph_breaks_of_torchs_capture() -> None:
    def fn(x: Any) -> Any:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    spy = Spy()
    torch.testing.assert_close(torch.compile(fn, backend=spy, dynamic=False)(X), X.sin().cos())
    assert (len(spy.graphs), spy.eager) == (2, 0)


def test_mode_and_options() -> None:
    for arguments in ({"mode": "reduce-overhead"}, {"options": {"deterministic": True, "epilogue_fusion": True}}):
        spy = Spy()
        torch.testing.assert_close(torch.compile(torch.sin, backend=spy, **arguments)(X), X.sin())
        assert spy.eager == 0
        torch._dynamo.reset()


@pytest.mark.parametrize("grad", [False, True])
def test_fakes_of_another_mode(grad: bool) -> None:
    theirs, mode = new_fake_mode(), new_fake_mode()
    with theirs:
        leaf = torch.empty(3, 4, requires_grad=grad)
        values = [leaf, leaf.t(), torch.empty(10)[2:6], leaf, 7, (leaf * 2) if grad else leaf[1]]
    ours = own_fakes(values)
    assert ours[0] is ours[3]
    assert ours[4] == 7
    for have, want in zip(ours, values, strict=True):
        if isinstance(want, torch.Tensor):
            assert have.fake_mode not in (theirs, mode)
            assert (have.shape, have.stride(), have.storage_offset()) == (
                want.shape, want.stride(), want.storage_offset()
            )  # fmt: skip
            assert (have.requires_grad, have.is_leaf) == (want.requires_grad, want.is_leaf)


def test_found_through_the_entry_point(tmp_path: Path) -> None:
    """A process that never imports pycompiler; the distribution's metadata says what pyproject.toml says."""
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
