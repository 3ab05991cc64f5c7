"""Backwards in stages: gradients of one bucket after the other, as `DistributedDataParallel` needs them.

No process group is needed: the tests set the module whose forward DDP would be running.  `tests/torch_compat/test_ddp_buckets.py`
has the real one.
"""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import pycompiler
from pycompiler import regions
from pycompiler.autograd import stages
from tests.harness.compare import assert_same

BACKENDS = ("aot_eager", "native")
WIDTH, LAYERS = 6, 4


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bucket is full with the weight and the bias of one layer."""
    ddp = types.SimpleNamespace(bucket_bytes_cap_list=[4 * WIDTH * WIDTH + 1])
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", ddp)
    monkeypatch.setattr(pycompiler.config, "share_regions", False)


@pytest.fixture(autouse=True)
def split_backwards(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The number of stages of each backward that was split."""
    counts: list[int] = []
    split = stages.split

    def counted(*args: Any) -> list[stages.Stage]:
        made = split(*args)
        counts.append(len(made))
        return made

    monkeypatch.setattr("pycompiler.autograd.runtime.split", counted)
    yield counts


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(m for _ in range(LAYERS) for m in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def given() -> torch.Tensor:
    return torch.randn(3, WIDTH, generator=torch.Generator().manual_seed(1))


def compiled_model(backend: str) -> tuple[nn.Sequential, Any]:
    made = model()
    return made, pycompiler.compile(made, backend=backend, fullgraph=True)


def layer_of(name: str) -> int:
    return int(name.split(".")[0]) // 2


def arrivals(made: nn.Module, run: Callable[[], Any]) -> list[set[int]]:
    """For each gradient, in order: the layers that have gradients then."""
    seen: list[set[int]] = []
    named = dict(made.named_parameters())

    def arrived(_: torch.Tensor) -> None:
        seen.append({layer_of(n) for n, p in named.items() if p.grad is not None})

    hooks = [p.register_post_accumulate_grad_hook(arrived) for p in named.values()]
    run()
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_come_layer_by_layer(backend: str, split_backwards: list[int]) -> None:
    plain, (made, compiled) = model(), compiled_model(backend)
    expected = arrivals(plain, lambda: plain(given()).sum().backward())
    assert expected == [set(range(k, LAYERS)) for k in reversed(range(LAYERS)) for _ in range(2)]
    assert arrivals(made, lambda: compiled(given()).sum().backward()) == expected
    assert split_backwards == [LAYERS]
    assert_same([p.grad for p in made.parameters()], [p.grad for p in plain.parameters()])
    assert pycompiler.counters(compiled)["compiles"] == 1


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("how", ["knob", "outside"])
def test_gradients_come_together(
    backend: str, how: str, split_backwards: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The knob is off, or no forward of DDP runs."""
    if how == "outside":
        monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    made = model()
    compiled = pycompiler.compile(made, backend=backend, fullgraph=True)
    with pycompiler.config.patch(optimize_ddp=how != "knob"):
        y = compiled(given())
        y.sum().backward()
    assert split_backwards == []
    assert [n for n, _ in y.grad_fn.next_functions if n is not None and "stage" in n.name()] == []


def test_graphs_are_shared_with_equal_buckets_only(split_backwards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pycompiler.config, "share_regions", True)
    built, kept = regions.STATISTICS["built"], []
    for limit in (1 << 20, 4 * WIDTH * WIDTH + 1, 1 << 20):
        DistributedDataParallel._active_ddp_module.bucket_bytes_cap_list = [limit]  # type: ignore[union-attr]
        made, compiled = compiled_model("native")
        compiled(given()).sum().backward()
        kept.append(compiled)
    assert (split_backwards, regions.STATISTICS["built"] - built) == ([LAYERS], 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_optimizer_in_the_backward(backend: str, split_backwards: list[int]) -> None:
    """A hook updates a parameter as soon as its gradient is there: no later stage may read the parameter."""

    def steps(made: nn.Module, run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        def update(p: torch.Tensor) -> None:
            assert p.grad is not None
            with torch.no_grad():
                p.add_(p.grad, alpha=-0.5)
            p.grad = None

        for p in made.parameters():
            p.register_post_accumulate_grad_hook(update)
        x = given().requires_grad_()
        for _ in range(3):
            run(x).square().sum().backward()
        return [*made.parameters(), x.grad]  # type: ignore[list-item]

    plain, (made, compiled) = model(), compiled_model(backend)
    assert_same(steps(made, compiled), steps(plain, plain))
    assert split_backwards == [LAYERS + 1]  # the last gives the gradient of the argument


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_write_between_stages_is_an_error(backend: str, split_backwards: list[int]) -> None:
    plain, (made, compiled) = model(), compiled_model(backend)
    for module, run in ((plain, plain), (made, compiled)):
        named = dict(module.named_parameters())

        def write(_: torch.Tensor, other: torch.Tensor = named["2.weight"]) -> None:
            with torch.no_grad():
                other.mul_(2)

        named["6.weight"].register_post_accumulate_grad_hook(write)
        y = run(given()).sum()
        with pytest.raises(RuntimeError, match=r"modified by an inplace operation.*is at version \d; expected"):
            y.backward()
        assert named["6.weight"].grad is not None and named["0.weight"].grad is None
    assert split_backwards == [LAYERS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_graphs_that_are_retained(backend: str, split_backwards: list[int]) -> None:
    plain, (made, compiled) = model(), compiled_model(backend)
    found = []
    for module, run in ((plain, plain), (made, compiled)):
        y = run(given()).sum()
        last = [*module.parameters()][-2:]
        some = torch.autograd.grad(y, last, retain_graph=True)  # later stages do not run
        y.backward(retain_graph=True)
        y.backward()
        with pytest.raises(RuntimeError, match="a second time"):
            y.backward()
        found.append([*some, *(p.grad for p in module.parameters())])
    assert_same(found[1], found[0])
    assert split_backwards == [LAYERS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_and_batches(backend: str, split_backwards: list[int]) -> None:
    plain, (made, compiled) = model(), compiled_model(backend)
    found = []
    for module, run in ((plain, plain), (made, compiled)):
        leaves = [*module.parameters()]
        x = given().requires_grad_()
        first = torch.autograd.grad(run(x).square().sum(), [x, *leaves], create_graph=True)
        sum(g.square().sum() for g in first).backward()  # type: ignore[union-attr]
        y = run(x)
        batch = torch.arange(2.0 * y.numel()).reshape(2, *y.shape)
        batched = torch.autograd.grad(y, leaves, batch, is_grads_batched=True)
        found.append([*first, x.grad, *(p.grad for p in leaves), *batched])
    assert_same(found[1], found[0], tolerance=1e-5)
    assert split_backwards == [LAYERS + 1]


class Several(nn.Module):
    """Results of which only some may get a gradient, a tied weight, an input read by every layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.scale = nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x @ self.layers[-1].weight
        for layer in self.layers:
            h = torch.relu(layer(h) * self.scale) + x
        return h.exp(), h.sin(), (h @ self.layers[0].weight.t()).cos()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("chosen", [(0,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_gradients_of_some_results(backend: str, chosen: tuple[int, ...], split_backwards: list[int]) -> None:
    plain, made = Several(), Several()
    compiled = pycompiler.compile(made, backend=backend, fullgraph=True)
    found = []
    for module, run in ((plain, plain), (made, compiled)):
        x = (given() / 4).requires_grad_()
        results = run(x)
        sum(results[k].sum() for k in chosen).backward()  # type: ignore[union-attr]
        found.append([*results, x.grad, *(p.grad for p in module.parameters())])
    assert_same(found[1], found[0], tolerance=1e-6)
    assert split_backwards and all(n > 1 for n in split_backwards)


@pytest.mark.parametrize("backend", BACKENDS)
def test_autocast_around_the_backward(backend: str, split_backwards: list[int]) -> None:
    """Every stage has its casts in its graph."""
    made, compiled = compiled_model(backend)
    found = []
    for enabled in (False, True):
        y = compiled(given())
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y.backward(torch.ones_like(y))
        found.append([p.grad for p in made.parameters()])
        made.zero_grad()
    assert_same(found[1], found[0])
    assert split_backwards == [LAYERS]


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_are_symbols(backend: str, split_backwards: list[int]) -> None:
    plain, made = model(), model()
    compiled = pycompiler.compile(made, backend=backend, fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, WIDTH)
        for run in (plain, compiled):
            (run(x) * x.shape[0]).sum().backward()
        assert_same([p.grad for p in made.parameters()], [p.grad for p in plain.parameters()], tolerance=1e-6)
    assert pycompiler.counters(compiled)["compiles"] == 1
    assert split_backwards == [LAYERS]


def test_a_compile_in_the_background(split_backwards: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that asked for the compile decides.  DDP's forward has ended when a worker compiles."""
    compiled = pycompiler.compile(model(), background=True)
    compiled(given())
    monkeypatch.setattr(DistributedDataParallel, "_active_ddp_module", None)
    assert pycompiler.wait_for_compiles(60)
    compiled(given()).sum().backward()
    assert pycompiler.counters(compiled)["hits"] == 1
    assert split_backwards == [LAYERS]


def test_memory_of_a_backward_that_ends_early(split_backwards: list[int]) -> None:
    """A token that no node takes frees the saved tensors."""
    made, compiled = compiled_model("aot_eager")
    x = given()
    kept = weakref.ref(x)
    y = compiled(x).sum()
    torch.autograd.grad(y, [*made.parameters()][-1:])
    del x, y
    assert kept() is None
    assert split_backwards == [LAYERS]


def test_a_saved_file(tmp_path: Any, split_backwards: list[int]) -> None:
    plain, (made, compiled) = model(), compiled_model("native")
    compiled(given()).sum().backward()
    pycompiler.save(compiled, tmp_path / "model")
    other = model()
    loaded = pycompiler.load(tmp_path / "model", other)
    expected = arrivals(plain, lambda: plain(given()).sum().backward())
    assert arrivals(other, lambda: loaded(given()).sum().backward()) == expected
    assert_same([p.grad for p in other.parameters()], [p.grad for p in plain.parameters()])
    assert split_backwards == [LAYERS]
