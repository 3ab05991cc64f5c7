"""torch.optim inside and under `compile`: parameters and state match eager; the arithmetic of a step is one graph."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from tests.harness.compare import assert_same_calls

pytestmark = pytest.mark.usefixtures("fresh")

OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "Adam": lambda ps: torch.optim.Adam(ps, lr=1e-2),
    "Adam of lists": lambda ps: torch.optim.Adam(ps, lr=1e-2, foreach=True),
    "Adamax of lists": lambda ps: torch.optim.Adamax(ps, lr=1e-2, foreach=True),
    "NAdam of lists": lambda ps: torch.optim.NAdam(ps, lr=1e-2, foreach=True),
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2, weight_decay=0.1, amsgrad=True),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2),
    "SGD momentum": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, nesterov=True, weight_decay=0.01),
    "RMSprop": lambda ps: torch.optim.RMSprop(ps, lr=1e-2, centered=True),
    "Adagrad": lambda ps: torch.optim.Adagrad(ps, lr=1e-2),
    "NAdam": lambda ps: torch.optim.NAdam(ps, lr=1e-2),
    "RAdam": lambda ps: torch.optim.RAdam(ps, lr=1e-2),
    "RAdam of lists": lambda ps: torch.optim.RAdam(ps, lr=1e-2, foreach=True, weight_decay=0.1, maximize=True),
    "ASGD": lambda ps: torch.optim.ASGD(ps, lr=1e-2, t0=2, weight_decay=0.1),
    "ASGD of lists": lambda ps: torch.optim.ASGD(ps, lr=1e-2, t0=2, foreach=True),
    "Adafactor": lambda ps: torch.optim.Adafactor(ps, lr=1e-2),
    "Adafactor of lists": lambda ps: torch.optim.Adafactor(ps, lr=1e-2, foreach=True, weight_decay=0.1),
}


if torch.__version__ < "2.15":
    del OPTIMIZERS["Adafactor of lists"]  # raises in eager


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.rand(shape, generator=generator)) for shape in [(4, 5), (5,), (3, 2, 2)]]


def train(make: Callable[..., Any], compiled: Callable[[Any], Any] | None) -> tuple[list[Any], Any]:
    """Five steps, with the learning rate halved before the last one."""
    ps = parameters()
    optimizer = make(ps)
    step = optimizer.step if compiled is None else compiled(optimizer)
    for k in range(5):
        for j, p in enumerate(ps):
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * k + j))
        if k == 4:
            optimizer.param_groups[0]["lr"] /= 2
        step()
    return [p.detach() for p in ps], optimizer.state_dict()["state"]


@pytest.mark.parametrize("how", ["step", "function"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_five_steps(name: str, how: str) -> None:
    def compiled(optimizer: Any) -> Any:
        return pycompiler.compile(optimizer.step if how == "step" else lambda: optimizer.step())

    ours, our_state = train(OPTIMIZERS[name], compiled)
    theirs, their_state = train(OPTIMIZERS[name], None)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_state, their_state)


def compiles_of(make: Callable[..., Any]) -> int:
    """Compiles of a step: without state, with state. RAdam changes its formula at the sixth step, ASGD where averages start."""
    return 3 if isinstance(make(parameters()), torch.optim.RAdam) else 2


@pytest.mark.parametrize(
    ("backend", "scheduler"), [("eager", None), ("native", "ExponentialLR"), ("aot_eager", "OneCycleLR")]
)
@pytest.mark.parametrize("name", [n for n in OPTIMIZERS if n.partition(" ")[0] in ("RAdam", "ASGD", "Adafactor")])
def test_steps_that_a_number_decides_are_one_graph(name: str, scheduler: str | None, backend: str) -> None:
    results, states, compiles = [], [], 0
    for compiled in (False, True):
        ps = parameters()
        optimizer = OPTIMIZERS[name](ps)
        rate: Any = {
            "ExponentialLR": lambda: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
            "OneCycleLR": lambda: torch.optim.lr_scheduler.OneCycleLR(
                optimizer, 0.1, total_steps=20, cycle_momentum=False
            ),
        }.get(scheduler or "", lambda: None)()
        step = pycompiler.compile(optimizer.step, fullgraph=True, backend=backend) if compiled else optimizer.step
        for k in range(12):
            for j, p in enumerate(ps):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * k + j))
            if k == 9:  # like the second step again
                for state in optimizer.state.values():
                    state["step"].fill_(1)
            step()
            if rate is not None:
                rate.step()
        results.append([p.detach() for p in ps])
        states.append(optimizer.state_dict()["state"])
        if compiled:
            compiles = pycompiler.counters(step)["compiles"]
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(states[1], states[0])
    assert compiles <= compiles_of(OPTIMIZERS[name]) + (scheduler is not None) + (name == "ASGD")


@pytest.mark.parametrize("cls", ["SGD", "Adadelta", "Rprop", "Muon", "Adam", "RAdam", "ASGD"])
def test_rates_in_tensors(cls: str) -> None:
    """A learning rate in a tensor, written by a scheduler."""

    def trained(compiled: bool) -> tuple[Any, ...]:
        ps = [nn.Parameter(torch.full(shape, 0.5)) for shape in [(4, 5), (3, 3)]]
        optimizer = getattr(torch.optim, cls)(ps, lr=torch.tensor(0.01))
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        step = pycompiler.compile(optimizer.step, fullgraph=True) if compiled else optimizer.step
        for k in range(5):
            for j, p in enumerate(ps):
                p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(10 * k + j))
            step()
            scheduler.step()
        count = pycompiler.counters(step)["compiles"] if compiled else 0
        return [p.detach() for p in ps], optimizer.state_dict()["state"], count

    (mine, my_state, compiles), (theirs, their_state, _) = trained(True), trained(False)
    torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(my_state, their_state, rtol=1e-5, atol=1e-6)
    assert compiles <= 2


def test_steps_of_loaded_states_and_of_many_parameters() -> None:
    def trained(compiled: bool) -> tuple[list[Any], int]:
        ps = [nn.Parameter(torch.full((3,), float(i))) for i in range(20)]
        optimizer = torch.optim.RAdam(ps, lr=0.1)
        step = pycompiler.compile(optimizer.step, fullgraph=True) if compiled else optimizer.step
        for k in range(16):
            for i, p in enumerate(ps):
                p.grad = torch.full((3,), float(i + k))
            if k == 8:
                optimizer.load_state_dict(saved)
            if k == 10:  # one parameter diverges
                optimizer.state[ps[7]]["step"].fill_(0)
            step()
            if k == 2:
                saved = copy.deepcopy(optimizer.state_dict())
        return [p.detach() for p in ps], pycompiler.counters(step)["compiles"] if compiled else 0

    theirs, (mine, compiles) = trained(False)[0], trained(True)
    torch.testing.assert_close(mine, theirs)
    assert compiles == 4  # without state, all at the first step, all later, one at the first


def test_the_arithmetic_is_one_graph() -> None:
    ps = parameters()
    for p in ps:
        p.grad = torch.ones_like(p)
    optimizer = torch.optim.Adam(ps)
    counts = [len(g.graph.nodes) for g in pycompiler.explain(lambda: optimizer.step())().graphs]
    assert max(counts) > 3 * 8
    assert sum(n > 8 for n in counts) == 1


def test_saved_parameters_are_noticed() -> None:
    p = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([p], lr=0.1)
    loss = (p * p).sum()
    p.grad = torch.ones(3)
    pycompiler.compile(lambda: optimizer.step())()
    assert p.detach().allclose(torch.full((3,), 0.9))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize(
    "name", sorted({"Adam", "AdamW", "Adam of lists", "Adafactor", "Adafactor of lists"} & {*OPTIMIZERS})
)
def test_steps_without_end(name: str) -> None:
    """Python's power of -inf and 0.5 is inf, while the square root of -inf is NaN."""

    def steps(compiled: bool) -> list[torch.Tensor]:
        ps = parameters()
        optimizer = OPTIMIZERS[name](ps)
        step = pycompiler.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        for number in (None, None, -float("inf"), 3.0):
            for p in ps:
                p.grad = torch.full_like(p, 0.3)
                if number is not None:
                    optimizer.state[p]["step"].fill_(number)
            step()
        return [p.detach() for p in ps]

    for want, got in zip(steps(False), steps(True), strict=True):
        assert not want.isnan().any()
        torch.testing.assert_close(got, want)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_adafactor_of_small_dtypes(dtype: torch.dtype, backend: str) -> None:
    """Kernels compute in single precision and round once, except in a remainder after whole vectors; here is no remainder."""

    def step(params: Any, optimizer: Any, x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (params[0] @ x + params[1]).sin().float().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    found = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, backend=backend, fullgraph=True)):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(64, 4, dtype=dtype)), torch.nn.Parameter(torch.randn(64, dtype=dtype))]
        optimizer, run = torch.optim.Adafactor(params, lr=0.01, weight_decay=0.1), wrap(step)
        found.append([[run(params, optimizer, torch.randn(4, dtype=dtype)) for _ in range(20)], params])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)


def test_tensors_are_grouped_by_device_and_dtype() -> None:
    def grouped(x: torch.Tensor, asked: bool) -> Any:
        first, second = [x, x.double(), x * 2], [x[:1], x[:2], x[:3]]
        found = torch._C._group_tensors_by_device_and_dtype([first, [], second], asked)
        return {str(kind): row for kind, row in found.items()}

    for asked in (True, False):
        compiled = pycompiler.compile(grouped, backend="eager", fullgraph=True)
        assert_same_calls(compiled, grouped, lambda asked=asked: (torch.ones(4), asked), exact=True)
