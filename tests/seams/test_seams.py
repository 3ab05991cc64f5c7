"""Programs that once differed from eager, at every seam of the compiler; and tests that the harness detects faults."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import pycompiler
import seams
from pycompiler import lowering, scheduling
from pycompiler.ir.interpret_schedule import ScheduleFault, interpret_schedule
from pycompiler.ir.kernel import Schedule
from pycompiler.ir.target import of_program
from seams import first_difference

pytestmark = pytest.mark.whole  # each row is a rule of its own

ROOT = Path(__file__).resolve().parents[2]


def r(*shape: int, grad: bool = True) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_(grad)


def softmax_in_place(x: Tensor, y: Tensor) -> Tensor:
    x.add_(y.softmax(-1))
    return x * 2


def masked_in_place(x: Tensor) -> Tensor:
    y = x * 2
    x.copy_(torch.cat([y[:1], y[1:]]) * y)
    return x.sum()


Case = tuple[Callable[..., Any], list[Any]]
PROGRAMS: dict[str, Case] = {
    # a masked load of a value that its nest holds in a variable or in a row array
    "cat of slices": (lambda y: torch.cat([y[:1], y[1:]]) * y, [r(5)]),
    "repeat of a stepped slice": (lambda x: x[:, ::2].repeat(1, 2), [r(3, 4)]),
    "select_scatter": (lambda x, y: x.expand(3, 4).select_scatter(y, 0, 1).sum(0), [r(4), r(4)]),
    "pad after softmax": (lambda x: F.pad(x.softmax(-1)[:, 1:], (1, 0)) * x.softmax(-1), [r(4, 9)]),
    "masked in place": (masked_in_place, [r(5, grad=False)]),
    # one row: an accumulation over a nest without inner dimensions reads a value of the same pass
    "gather of a normed row": (
        lambda y, i: F.layer_norm(y, (8,)).gather(1, i),
        [r(1, 8), torch.tensor([[3, 1, 0, 7]])],
    ),
    # strides of dimensions with one element
    "stepped column": (lambda x, y: (x[:, 0::3] - 2 * y)[:, 0::3], [r(5, 2), r(5, 1)]),
    "view of one row": (lambda v: v[3::2].flatten().view(-1, 4), [r(11)]),
    # autograd's zero tensors, which have no memory
    "sign of a quantile": (lambda x: x.quantile(0.5, -1).sgn(), [r(6, 6)]),
    "folds over nothing": (lambda x: (x[:0].sum(0), x[:0].cumsum(0), x[:, :0].prod(1)), [r(4, 3)]),
    "sixths": (lambda x: (F.hardsigmoid(x), F.hardswish(x)), [torch.linspace(-4, 4, 50).double().requires_grad_()]),
    # a recomputed softmax may differ in the last bit from the softmax whose maximum was taken
    "rounding of a maximum": (
        lambda x: F.softmin(x, -1).aminmax(dim=1)[1],
        [torch.linspace(-2, 2, 384).sin().reshape(8, 6, 8).requires_grad_()],
    ),
    # every role and place
    "softmax": (lambda x: x.softmax(-1), [r(33, 70)]),
    "softmax of columns": (lambda x: x.view(4, 50, 7).softmax(1), [r(200, 7)]),
    "layer norm": (
        lambda x, w, b: F.gelu(F.layer_norm(x, (70,), w, b)).sum(0) * x.mean(),
        [r(33, 70), r(70), r(70)],
    ),
    "variance": (lambda x: x.var(0) + x.std(), [r(9, 17)]),
    "extremes": (lambda x: (x.argmax(1), x.max(0), x.amin()), [r(9, 17)]),
    "cross entropy": (lambda x, t: F.cross_entropy(x, t), [r(9, 17), torch.arange(9)]),
    "embedding": (lambda w, t: F.embedding(t, w).sum(0), [r(9, 17), torch.arange(9)]),
    "batch norm": (lambda x: F.batch_norm(x, None, None, training=True), [r(6, 3, 4, 4)]),
    "convolution": (lambda x, w: F.conv2d(x, w).relu().sum((0, 2, 3)), [r(2, 3, 8, 8), r(4, 3, 3, 3)]),
    "in place": (softmax_in_place, [r(9, 17, grad=False), r(9, 17)]),
    "reuse of memory": (lambda x: ((x @ x).relu() @ x).tanh() @ (x @ x).exp().sum(0), [r(16, 16)]),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_seam_computes_what_eager_does(name: str) -> None:
    fn, args = PROGRAMS[name]
    found = first_difference(fn, args)
    assert found is None, found


# ---- faults that the harness must detect ---------------------------------------------------------------------------


def test_a_wrong_stage_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    right = scheduling.schedule

    def wrong(program: Any) -> Schedule:
        schedule = right(program)
        for group in schedule.kernels:
            group.nests[0].stages.reverse()
        return schedule

    monkeypatch.setattr(scheduling, "schedule", wrong)
    found = first_difference(lambda x: (x - x.amax(-1, keepdim=True)).exp(), [r(3, 5)])
    assert found is not None
    assert (found.seam, found.what) == ("schedule", "error")


def test_a_wrong_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(seams.SEAMS, "program", lambda gm, _: lambda *inputs: tuple(o + 1 for o in gm.forward(*inputs)))
    found = first_difference(lambda x: x * 2, [r(3, grad=False)])
    assert found is not None
    assert (found.seam, found.what) == ("program", "output 0")


def scheduled(fn: Callable[..., Tensor], *args: Tensor) -> Schedule:
    graph = torch.fx.experimental.proxy_tensor.make_fx(fn, tracing_mode="fake")(*args)
    program = lowering.lower(graph)
    return scheduling.schedule(program, of_program(program))


def two_passes(x: Tensor) -> Tensor:
    return torch.exp(x - torch.amax(torch.exp(x), -1, keepdim=True))


def faults(schedule: Schedule, *inputs: Tensor, share: bool = False) -> str:
    with pytest.raises(ScheduleFault) as found:
        interpret_schedule(schedule, inputs, share=share)
    return str(found.value)


X = r(3, 5, grad=False)


def test_a_fold_is_complete_after_its_pass_only() -> None:
    schedule = scheduled(two_passes, X)
    assert torch.equal(interpret_schedule(schedule, [X])[0], two_passes(X))
    for stage in schedule.kernels[0].stages():
        stage.level = 0
    assert "before its fold is complete" in faults(schedule, X)


def held_across_passes(x: Tensor) -> Tensor:
    y = torch.exp(x).sin()
    return y - torch.amax(y, -1, keepdim=True)


def test_a_register_lives_in_its_pass_only() -> None:
    schedule = scheduled(held_across_passes, X)
    stage = next(s for s in schedule.kernels[0].stages() if "scratch" in s.place.values())
    stage.place = dict.fromkeys(stage.place, "register")
    assert "only lives in pass 0" in faults(schedule, X)


def sorted_twice(x: Tensor) -> Tensor:
    a = torch.sort(torch.sin(x), 0)[0]
    return torch.sort(torch.relu(a), 0)[0] * a


def test_memory_that_was_freed_is_not_read() -> None:
    schedule = scheduled(sorted_twice, X)
    assert torch.equal(interpret_schedule(schedule, [X], share=True)[0], sorted_twice(X))
    schedule.frees = [
        [name for frees in schedule.frees for name in frees if name in made] for made in made_by(schedule)
    ]
    assert "freed" in faults(schedule, X, share=True)


def made_by(schedule: Schedule) -> list[list[str]]:
    """Buffers that each step creates."""
    return [step.writes if step in schedule.kernels else [b.name for b in step.out if b] for step in schedule.steps]


def test_memory_that_another_buffer_has_taken_is_not_read() -> None:
    schedule = scheduled(sorted_twice, X)
    first, second = (b.name for s in schedule.steps if s not in schedule.kernels for b in s.out[:1])
    schedule.storage[second] = first
    schedule.frees = [[] for _ in schedule.steps]
    assert f"its memory holds {second}" in faults(schedule, X, share=True)


def test_an_old_value_is_not_read_where_another_point_stores() -> None:
    def reverses(x: Tensor) -> Tensor:
        torch.ops.aten.copy_(x, torch.flip(torch.sin(x), [0]))
        return x

    schedule = scheduled(reverses, X.clone())
    assert not schedule.stores
    value = schedule.kernels[0].writes[0]
    schedule.stores = schedule.kernels[0].stores = {value: "in0"}
    schedule.storage[value] = "in0"
    schedule.steps, schedule.frees = schedule.steps[:1], [[]]
    assert "in no certain order" in faults(schedule, X.clone())


def test_parts_that_nothing_writes_are_not_read() -> None:
    schedule = scheduled(lambda x: torch.cat([x, x + 1]), X)
    schedule.kernels[0].nests.pop()
    assert "nothing has written" in faults(schedule, X)


def test_by_command_with_triton(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    (tmp_path / "program.py").write_text(
        "import torch\nfn = lambda x: torch.cat([x[:1], x[1:]]) * x.sum()\nargs = [torch.ones(5, requires_grad=True)]\n"
    )
    command = [sys.executable, "-m", "tests.seams", str(tmp_path / "program.py"), "--triton"]
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "no difference"), done.stdout + done.stderr[-2000:]


@pytest.mark.parametrize("seam", [s for s in seams.SEAMS if s != "triton"])
def test_every_seam_takes_floats_that_change(seam: str) -> None:
    def program(x: torch.Tensor, f: float, g: float) -> tuple[Any, ...]:
        return (x * f + g).tanh() @ x.new_full((3, 2), f * g - 1.0), torch.addmm(x, x, x, alpha=f), f + g

    compiled = pycompiler.compile(program, backend=seams.backend_of(seam), dynamic=True)
    x = torch.randn(3, 3)
    for f, g in ((0.5, 2.0), (-1.5, 0.25), (0.0, 1e3)):
        got, want = compiled(x, f, g), program(x, f, g)
        torch.testing.assert_close(got[:2], want[:2], rtol=1e-4, atol=1e-4)
        assert got[2] == want[2]
