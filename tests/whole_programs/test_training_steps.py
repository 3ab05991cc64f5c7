"""A whole training step as one graph: `zero_grad`, forward, `backward()`, clipping, `step()` of optimizers and
schedulers.

Compared with eager over several steps: results, parameters, gradients (None or not, strides), states of the
optimizer and the scheduler.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import lr_scheduler

import pycompiler
from tests.harness.compare import assert_same

Step = Callable[[torch.Tensor, torch.Tensor], Any]
State = dict[str, Any]


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.set_num_threads(1)
    yield
    pycompiler.reset()


def mlp() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))


def state(own: State) -> Any:
    model = own["model"]
    return {
        "parameters": dict(model.named_parameters()),
        "buffers": dict(model.named_buffers()),
        "gradients": {k: p.grad for k, p in model.named_parameters()},
        **{k: own[k].state_dict() for k in ("optimizer", "scheduler") if k in own},
    }


def trained(
    make: Callable[[], tuple[State, Step]],
    *,
    backend: str = "aot_eager",
    steps: int = 5,
    whole: bool = True,
    compiles: int = 2,
) -> None:
    (eager, step), (own, other) = make(), make()
    compiled = pycompiler.compile(other, backend=backend, fullgraph=whole)
    for i in range(steps):
        generator = torch.Generator().manual_seed(i)
        x, y = torch.randn(5, 4, generator=generator), torch.randint(0, 3, (5,), generator=generator)
        found = []
        for run in (step, compiled):
            torch.manual_seed(i)
            found.append(run(x, y))
        assert_same([found[1], state(own)], [found[0], state(eager)], tolerance=1e-4, absolute=1e-5)
    assert compiled.counters()["compiles"] == compiles
    assert compiled.counters()["eager_calls"] == 0


def of(
    body: Callable[[nn.Module, Any], Step],
    model: Callable[[], nn.Module] = mlp,
    optimizer: Callable[..., Any] = torch.optim.SGD,
    **options: Any,
) -> Callable[[], tuple[State, Step]]:
    def make() -> tuple[State, Step]:
        net = model()
        given = {"lr": 0.05, **options}
        opt = optimizer([p for p in net.parameters() if p.requires_grad], **given)
        return {"model": net, "optimizer": opt}, body(net, opt)

    return make


def plain(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    return step


OPTIMIZERS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    "of lists": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "Adam": (torch.optim.Adam, {}),
    "Adam fused": (torch.optim.Adam, {"fused": True}),
    "AdamW fused": (torch.optim.AdamW, {"fused": True, "amsgrad": True}),
    "SGD fused": (torch.optim.SGD, {"fused": True, "momentum": 0.9}),
    "Adagrad fused": (torch.optim.Adagrad, {"fused": True}),
    "AdamW": (torch.optim.AdamW, {"weight_decay": 0.1, "amsgrad": True}),
    "RMSprop": (torch.optim.RMSprop, {"centered": True, "momentum": 0.9, "lr": 0.01}),
    "Adagrad": (torch.optim.Adagrad, {}),
    "Adamax": (torch.optim.Adamax, {}),
    "NAdam": (torch.optim.NAdam, {}),
    "Adadelta": (torch.optim.Adadelta, {}),
    "Rprop": (torch.optim.Rprop, {}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_of_each_optimizer(name: str) -> None:
    optimizer, options = OPTIMIZERS[name]
    trained(of(plain, optimizer=optimizer, **options), steps=4)


@pytest.mark.parametrize("name", ["momentum", "AdamW"])
def test_native(name: str) -> None:
    optimizer, options = OPTIMIZERS[name]
    trained(of(plain, optimizer=optimizer, **options), backend="native", steps=10)


def test_one_graph_is_told() -> None:
    for before in (0, 1):
        own, step = of(plain, optimizer=torch.optim.AdamW)()
        x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
        for _ in range(before):
            step(x, y)
        report = pycompiler.explain(step)(x, y)
        assert (report.graph_count, report.graph_break_count) == (1, 0)


@pytest.mark.parametrize("name", ["AdamW", "momentum"])
def test_after_torch_compile(name: str) -> None:
    """`torch.compile` disables parts of torch.optim when it is first called."""
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert hasattr(torch.optim.SGD._init_group, "_torchdynamo_disable")
    optimizer, options = OPTIMIZERS[name]
    trained(of(plain, optimizer=optimizer, **options))


# forms of steps ---------------------------------------------------------------------------------------------------------
def kept_zeros(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def zeroed_after(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        optimizer.step()
        model.zero_grad()
        return loss

    return step


def accumulated(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        total = torch.zeros(())
        for k in range(3):
            loss = F.cross_entropy(model(x * k), y) / 3
            loss.backward()
            total = total + loss.detach()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total, norm

    return step


def cast(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def scaled(model: nn.Module, optimizer: Any) -> Step:
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def closed(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    return step


def averaged(model: nn.Module, optimizer: Any) -> Step:
    mean = [p.detach().clone() for p in model.parameters()]

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for a, b in zip(mean, model.parameters(), strict=True):
                a.lerp_(b, 0.1)
        return loss.detach(), [a.clone() for a in mean]

    return step


def penalised(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        x = x.clone().requires_grad_()
        out = model(x)
        (g,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = F.cross_entropy(out, y) + (g * g).sum()
        loss.backward()
        optimizer.step()
        return loss, x.grad is None

    return step


def read_and_set(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        norms = [p.grad.norm() for p in model.parameters() if p.grad is not None]
        for p in model.parameters():
            if p.grad is not None:
                p.grad = p.grad.clamp(-0.01, 0.01)
        optimizer.step()
        return norms

    return step


def deleted(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        first = next(model.parameters()).grad
        for p in model.parameters():
            del p.grad
        return loss.detach(), first, [p.grad is None for p in model.parameters()]

    return step


def twice(model: nn.Module, optimizer: Any) -> Step:
    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        losses = []
        for k in range(2):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x + k), y)
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    return step


class Trainer:
    def __init__(self, model: nn.Module, optimizer: Any) -> None:
        self.model, self.optimizer, self.steps = model, optimizer, 0

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.model(x), y)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        return {"loss": loss.detach(), "steps": self.steps}


FORMS = [kept_zeros, zeroed_after, accumulated, cast, scaled, closed, averaged, penalised, read_and_set, deleted, twice]


@pytest.mark.parametrize("form", FORMS, ids=lambda f: f.__name__)
def test_forms(form: Callable[..., Any]) -> None:
    trained(of(form, momentum=0.9))


def test_a_method_of_a_trainer() -> None:
    trained(of(lambda model, optimizer: Trainer(model, optimizer).step))


# models -----------------------------------------------------------------------------------------------------------------
def normed() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def frozen() -> nn.Module:
    model = normed()
    model[0].weight.requires_grad_(False)
    return model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.a, self.b, self.c, self.unused = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x).relu()))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.inner, self.out = nn.LSTM(4, 5, batch_first=True), nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x[:, None].expand(-1, 3, -1))[0][:, -1])


def images() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Unflatten(1, (1, 2, 2)), nn.Conv2d(1, 4, 2, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(4, 3)).to(memory_format=torch.channels_last)


@pytest.mark.parametrize("model", [normed, frozen, Tied, Recurrent, images], ids=lambda m: m.__name__)
def test_models(model: Callable[[], nn.Module]) -> None:
    trained(of(plain, model=model, momentum=0.9))


# schedulers -------------------------------------------------------------------------------------------------------------
SCHEDULERS: dict[str, Callable[[Any], Any]] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.95**n),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 3),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5]),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 6),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=12),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, total_iters=3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


def scheduled(make: Callable[[Any], Any], body: Callable[..., Step]) -> Callable[[], tuple[State, Step]]:
    def build() -> tuple[State, Step]:
        model = mlp()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        scheduler = make(optimizer)
        return {"model": model, "optimizer": optimizer, "scheduler": scheduler}, body(model, optimizer, scheduler)

    return build


def with_scheduler(model: nn.Module, optimizer: Any, scheduler: Any) -> Step:
    inner = kept_zeros(model, optimizer)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        loss = inner(x, y)
        scheduler.step()
        return loss

    return step


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers(name: str) -> None:
    trained(scheduled(SCHEDULERS[name], with_scheduler), steps=9)


def test_a_scheduler_that_looks_at_the_loss() -> None:
    def body(model: nn.Module, optimizer: Any, scheduler: Any) -> Step:
        inner = kept_zeros(model, optimizer)

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            loss = inner(x, y)
            scheduler.step(loss)
            return loss

        return step

    trained(scheduled(lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=1), body), steps=8)


def test_what_a_scheduler_changed_is_looked_at() -> None:
    def body(model: nn.Module, optimizer: Any, scheduler: Any) -> Step:
        inner = with_scheduler(model, optimizer, scheduler)

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            first = inner(x, y)
            rates = [scheduler.get_last_lr()[0], optimizer.param_groups[0]["lr"], scheduler.last_epoch]
            optimizer.param_groups[0]["lr"] *= 0.5
            return first, inner(x, y), rates, vars(scheduler)["_step_count"]

        return step

    trained(scheduled(SCHEDULERS["ExponentialLR"], body), steps=6, compiles=2)


def test_a_scheduler_that_knows_not_all_groups_raises_where_it_is_called() -> None:
    """Later statements have not run, and the error has the line of the call."""

    def step(model: nn.Module, optimizer: Any, scheduler: Any, x: torch.Tensor) -> Any:
        model(x).sum().backward()
        optimizer.step()
        scheduler.step()
        with torch.no_grad():
            model.bias.zero_()
        return x + 1

    found: list[Any] = []
    for call in (step, pycompiler.compile(step, backend="eager")):
        torch.manual_seed(0)
        model, seen = nn.Linear(3, 3), []
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        parts = [lr_scheduler.ConstantLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.9)]
        scheduler = lr_scheduler.SequentialLR(optimizer, parts, [2])
        for i in range(4):
            if i == 1:  # before a milestone, where all rates are set
                optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
            try:
                seen.append(call(model, optimizer, scheduler, torch.rand(2, 3)).shape)
            except ValueError as error:
                seen.append(
                    (str(error), [e.lineno for e in traceback.extract_tb(error.__traceback__) if e.name == "step"])
                )
            seen.append((model.bias.tolist(), [g["lr"] for g in optimizer.param_groups], scheduler.last_epoch))
        found.append(seen)
    assert found[1] == found[0] and "zip()" in str(found[0])


def test_a_scheduler_that_is_patched_or_not_torchs_is_inlined() -> None:
    calls: list[int] = []

    class Own(lr_scheduler.StepLR):
        def get_lr(self) -> Any:
            calls.append(1)
            return super().get_lr()

    def body(model: nn.Module, optimizer: Any, scheduler: Any) -> Step:
        inner = with_scheduler(model, optimizer, scheduler)

        def step(x: torch.Tensor, y: torch.Tensor) -> Any:
            before = len(calls)
            return inner(x, y), len(calls) - before

        return step

    make = scheduled(lambda o: Own(o, 100), body)
    own, step = make()
    compiled = pycompiler.compile(step, backend="aot_eager")
    x, y = torch.randn(5, 4), torch.zeros(5, dtype=torch.long)
    assert [compiled(x, y)[1] for _ in range(4)] == [1] * 4


# backward() -------------------------------------------------------------------------------------------------------------
def weighted(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * x + b).backward(torch.ones(3) * 2)
    return a.grad, b.grad


def retained(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    y = (a * x * b).sum()
    y.backward(retain_graph=True)
    y.backward()
    return a.grad + 1, y.detach()


def chosen(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * x * b).sum().backward(inputs=[a])
    return a.grad, b.grad is None


def several(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    torch.autograd.backward([(a * x).sum(), b * a], [None, x])
    return a.grad, b.grad


def the_same_gradient(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    ((a + b) * x).sum().backward()
    assert a.grad is not None and b.grad is not None
    a.grad.mul_(2)
    return a.grad, b.grad


def of_a_leaf(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    a.backward(x)
    assert a.grad is not None
    a.grad.add_(1)
    return a.grad, x


def kept_before(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * b).sum().backward()
    old = a.grad
    a.grad = None
    (a * x).sum().backward()
    return old, a.grad, old is a.grad


def set_by_hand(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    a.grad = x.clone()
    (a * b).sum().backward()
    same = a.grad
    b.grad = same
    return a.grad, b.grad is a.grad


def by_hand(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * x).sum().backward()
    assert a.grad is not None
    a.data -= 0.1 * a.grad
    a.grad = None
    return a.detach() * 2


def with_a_leaf_of_its_own(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    h = x.detach().clone().requires_grad_()
    (h * a).sum().backward()
    return h.grad, a.grad


def result_of_it(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    y = (a * x + b).pow(2)
    y.sum().backward()
    return y, y * 2, y.detach()


def another_branch(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * x).pow(2).sum().backward()
    return (b * x).sum()


ONE_GRAPH = [weighted, retained, chosen, several, the_same_gradient, of_a_leaf, kept_before, set_by_hand, by_hand,
             with_a_leaf_of_its_own, result_of_it, another_branch]  # fmt: skip


def no_gradient(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    x.sum().backward()


def no_number(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * x).backward()


def once_more(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    y = (a * x).pow(2).sum()
    y.backward()
    y.backward()


def with_a_graph(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    (a * a * x).sum().backward(create_graph=True)
    assert a.grad is not None
    return (a.grad * b).sum()


def wrong_gradient(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    a.grad = x[:2]


def nothing_kept(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
    y = (a + b).sum()
    y.backward()
    return y


BREAKS = [no_gradient, no_number, once_more, with_a_graph, wrong_gradient, nothing_kept]


def observed(fn: Callable[..., Any], calls: int) -> Any:
    a, b, x = (
        torch.linspace(-1, 1, 3).requires_grad_(),
        torch.arange(3.0).requires_grad_(),
        torch.tensor([2.0, 3.0, 5.0]),
    )
    seen: list[Any] = []
    kept: Any = None
    for _ in range(calls):
        try:
            out = fn(a, b, x)
        except (RuntimeError, TypeError) as e:
            seen.append((type(e), str(e).partition("\n")[0]))
            out = ()
        out = out if isinstance(out, tuple) else (out,)
        seen.append(
            [(v.detach().clone(), v.requires_grad, v.is_leaf) if isinstance(v, torch.Tensor) else v for v in out]
        )
        seen.append([None if t.grad is None else (t.grad.detach().clone(), t.grad.stride()) for t in (a, b)])
        seen.append(kept is a.grad)
        kept = a.grad
        for v in out:
            if isinstance(v, torch.Tensor) and v.grad_fn is not None:
                try:
                    v.sum().backward()
                except RuntimeError as e:
                    seen.append(str(e))
        seen.append([None if t.grad is None else t.grad.detach().clone() for t in (a, b)])
    return seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [*ONE_GRAPH, *BREAKS], ids=lambda f: f.__name__)
def test_backward(program: Callable[..., Any], backend: str) -> None:
    compiled = pycompiler.compile(program, backend=backend)
    wanted, got = observed(program, 3), observed(compiled, 3)
    assert_same(got, wanted)


@pytest.mark.parametrize("program", ONE_GRAPH, ids=lambda f: f.__name__)
def test_backward_is_one_graph(program: Callable[..., Any]) -> None:
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    assert_same(observed(compiled, 4), observed(program, 4))
    assert compiled.counters()["compiles"] <= 2


def test_hooks_of_parameters_are_called() -> None:
    def program(w: torch.Tensor, x: torch.Tensor) -> Any:
        (w * x).sum().backward()
        return w.grad * 1

    seen: list[Any] = []
    compiled = pycompiler.compile(program, backend="aot_eager")
    for hook in (lambda w: None, lambda w: w.register_hook(lambda g: g * 2),
                 lambda w: w.register_post_accumulate_grad_hook(lambda p: seen.append(p.grad.sum().item()))):  # fmt: skip
        found = []
        for run in (program, compiled):
            w = torch.ones(3, requires_grad=True)
            hook(w)
            found.append((run(w, torch.arange(3.0)).tolist(), [*seen]))
            seen.clear()
        assert found[0] == found[1]


def test_one_tensor_under_two_names() -> None:
    def program(a: torch.Tensor, b: torch.Tensor, x: torch.Tensor) -> Any:
        (a * x).sum().backward()
        return b.grad is None, (b * 1).detach()

    compiled = pycompiler.compile(program, backend="aot_eager")
    x = torch.arange(3.0)
    for alike in (False, True, False):
        found = []
        for run in (program, compiled):
            a = torch.ones(3, requires_grad=True)
            b = a if alike else torch.ones(3, requires_grad=True)
            found.append(run(a, b, x)[0])
        assert found[0] == found[1] is not alike


def test_under_no_grad_and_from_outside() -> None:
    def program(w: torch.Tensor, x: torch.Tensor) -> Any:
        y = (w * x).sum()
        with torch.no_grad():
            y.backward()
        return w.grad

    def of_outside(y: torch.Tensor, w: torch.Tensor) -> Any:
        (y * 2).sum().backward()
        return w.grad

    x = torch.arange(3.0)
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    w = torch.ones(3, requires_grad=True)
    assert torch.equal(compiled(w, x), x) and torch.equal(compiled(w, x), x * 2)
    other = pycompiler.compile(of_outside, backend="aot_eager")
    w = torch.ones(3, requires_grad=True)
    assert torch.equal(other(w * x, w), x * 2)


def test_a_function_mode_and_sparse_gradients_break() -> None:
    table = nn.Embedding(5, 3, sparse=True)

    def program(i: torch.Tensor) -> Any:
        table.weight.grad = None
        table(i).sum().backward()
        return table.weight.grad.to_dense()

    i = torch.tensor([0, 2, 2])
    assert torch.equal(pycompiler.compile(program, backend="aot_eager")(i), program(i))


def test_the_number_of_the_loss() -> None:
    def body(model: nn.Module, optimizer: Any) -> Step:
        inner = kept_zeros(model, optimizer)
        return lambda x, y: inner(x, y).item()

    trained(of(body), whole=False)


def test_hooks_of_optimizers() -> None:
    def body(model: nn.Module, optimizer: Any) -> Step:
        told = torch.zeros(())
        optimizer.register_step_pre_hook(lambda *_: told.add_(1) and None)
        optimizer.register_step_post_hook(lambda *_: told.mul_(2) and None)
        inner = kept_zeros(model, optimizer)
        return lambda x, y: (inner(x, y), told.clone())

    trained(of(body), whole=False)


def test_a_loop_of_an_optimizer_that_calls_the_closure() -> None:
    trained(of(closed, optimizer=torch.optim.LBFGS, max_iter=3, lr=0.01), whole=False, steps=1, compiles=1)


@pytest.mark.parametrize("backend", ["native", "eager", "aot_eager"])
def test_modules_of_another_dtype_keep_their_parameters(backend: str) -> None:
    """The program sees no fake tensor: `Module.to` would replace fake parameters, and the optimizer would hold the old
    ones."""

    def step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
        made = x * 2
        model.to(torch.float64)
        optimizer.zero_grad(set_to_none=False)
        loss = model(x.double()).pow(2).sum()
        loss.backward()
        optimizer.step()
        model.float()
        return (
            loss.detach(),
            isinstance(made, FakeTensor),
            isinstance(made, (int, FakeTensor)),
            isinstance(x, FakeTensor),
        )

    found: list[Any] = []
    for call in (step, pycompiler.compile(step, backend=backend)):
        torch.manual_seed(0)
        model, seen = nn.Linear(3, 2), []
        before = list(model.parameters())
        optimizer = torch.optim.SGD(before, lr=0.1)
        for i in range(3):
            loss, *told = call(model, optimizer, torch.ones(2, 3) + i)
            kept = [p is q for p, q in zip(model.parameters(), before, strict=True)]
            assert all(p.grad is not None and p.grad.dtype is p.dtype is torch.float32 for p in before)
            seen.append((told, kept, [round(n, 5) for p in before for n in (*p.flatten().tolist(), loss.item())]))
        found.append(seen)
    assert found[1] == found[0] and all(found[0][0][1])


def test_copies_that_break_are_no_compile_for_each_object() -> None:
    """The memo of a copy is a new dict in each call; the states that an optimizer loads are copied whole."""

    def step(model: nn.Module, optimizer: Any, x: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = model(x).pow(2).sum()
        loss.backward()
        optimizer.step()
        optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
        return loss.detach()

    found: list[Any] = []
    compiled = pycompiler.compile(step, backend="eager")
    for call in (step, compiled):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        found.append([call(model, optimizer, torch.ones(2, 3)).item() for _ in range(2)])
        compiles = pycompiler.counters(compiled)["compiles"]
        found[-1] += [call(model, optimizer, torch.ones(2, 3)).item() for _ in range(4)]
        found[-1] += [p.tolist() for p in model.parameters()]
    assert found[1] == found[0]
    assert pycompiler.counters(compiled)["compiles"] == compiles
