"""Equal graphs are compiled once (`pycompiler/regions.py`); any input of the compile distinguishes them."""

from __future__ import annotations

import gc
import traceback
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pycompiler
from pycompiler import config, graphs, regions
from pycompiler.pipeline import own_backends
from pycompiler.wrapping import compiled_of


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm, self.inner, self.outer = nn.LayerNorm(width), nn.Linear(width, 16), nn.Linear(16, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.outer(F.gelu(self.inner(self.norm(x))))


@pytest.fixture(autouse=True)
def nothing_before() -> Iterator[None]:
    regions._regions.clear()
    regions.STATISTICS.update(shared=0, built=0)
    yield


def counts() -> tuple[int, int]:
    return regions.STATISTICS["built"], regions.STATISTICS["shared"]


def test_blocks_of_a_model_are_compiled_once_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def compile(module: Any, inputs: Any, name: str = "graph") -> Any:
        made.append(len(module.graph.nodes))
        return graphs.compile_aten(module, inputs, name)

    monkeypatch.setattr(own_backends, "compile_aten", compile)
    torch.manual_seed(0)
    blocks = [Block() for _ in range(6)]
    compiled = [pycompiler.compile(b, fullgraph=True) for b in blocks]
    for block, fn in zip(blocks, compiled, strict=True):
        x = torch.randn(4, 8)
        y = fn(x)
        grads = torch.autograd.grad(y.square().sum(), list(block.parameters()))
        wanted = block(x)
        torch.testing.assert_close(y, wanted)
        torch.testing.assert_close(grads, torch.autograd.grad(wanted.square().sum(), list(block.parameters())))
    assert counts() == (1, 5) and len(made) == 2
    assert len({id(compiled_of(fn).entries[0].target) for fn in compiled}) == 6  # each has entries of its own


def test_frames_that_a_break_leads_to_share_as_well() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList(Block() for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self.blocks:
                x = block(x)
                pycompiler.graph_break()
            return x

    model, x = Model(), torch.randn(4, 8)
    with torch.no_grad():
        torch.testing.assert_close(pycompiler.compile(model)(x), model(x))
    assert counts() == (1, 1)  # the first block of the call and the later ones, whose inputs have other sources


def test_a_region_lives_as_long_as_somebody_calls_it() -> None:
    first, second = Block(), Block()
    a, b = pycompiler.compile(first), pycompiler.compile(second)
    with torch.no_grad():
        a(torch.ones(4, 8)), b(torch.ones(4, 8))
    gone = [weakref.ref(first), *map(weakref.ref, first.parameters())]
    pycompiler.reset(a)
    del a, first
    gc.collect()
    assert [r() for r in gone] == [None] * len(gone)  # the other does not hold them
    assert len(regions._regions) == 1
    pycompiler.reset(b)
    gc.collect()
    assert not regions._regions
    with torch.no_grad():
        b(torch.ones(4, 8))
    assert counts() == (2, 1)


def run(fn: Callable[..., Any], *args: Any) -> Any:
    return pycompiler.compile(fn)(*args)


def make(text: str) -> Callable[..., Any]:
    scope: dict[str, Any] = {"torch": torch, "F": F}
    exec(compile(f"def fn(x, y):\n    {text}", "<same place>", "exec"), scope)
    return scope["fn"]  # type: ignore[no-any-return]


one, two = torch.arange(6.0).view(2, 3), torch.arange(6.0).view(2, 3) + 1
PAIRS: dict[str, tuple[str, str]] = {
    "constants": ("return x * 2.0 + y", "return x * 3.0 + y"),
    "int and float": ("return x.to(torch.int64) * 2 + y", "return x.to(torch.int64) * 2.0 + y"),
    "bool and int": ("return torch.full((2,), True), x + y", "return torch.full((2,), 1), x + y"),
    "zeros": ("return x.new_full((2,), 0.0) + y.sum()", "return x.new_full((2,), -0.0) - y.sum()"),
    "operators": ("return torch.sin(x) + y", "return torch.cos(x) + y"),
    "operands": ("x, y = x + 1, y + 1; return x - y", "x, y = x + 1, y + 1; return y - x"),
    "order of outputs": ("return x + 1, y + 2", "return y + 2, x + 1"),
    "which is written": ("x.add_(1); return x + y", "y.add_(1); return x + y"),
    "how often": ("return (x + y).relu()", "return (x + y).relu().relu() * 1"),
    "keywords": ("return x.sum(0, keepdim=True) + y", "return x.sum(0, keepdim=False) + y"),
    "dtypes": ("return (x + y).to(torch.float64)", "return (x + y).to(torch.float16)"),
    "view of": ("return (x + y)[0]", "return (x + y)[1]"),
    "returns its input": ("return x, x + y", "return x.clone(), x + y"),
    "detached": ("return x.detach() * y", "return x * y.detach()"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_programs_that_differ_are_compiled_each(name: str) -> None:
    fns = [make(text) for text in PAIRS[name]]
    inputs = [t.clone().requires_grad_(name == "detached") for t in (one, two)]
    held = [pycompiler.compile(fn) for fn in fns]
    for fn, made in zip(fns, held, strict=True):
        got, wanted = made(*(t.clone() for t in inputs)), fn(*(t.clone() for t in inputs))
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
        for g, w in zip(*(r if isinstance(r, tuple) else (r,) for r in (got, wanted)), strict=True):
            assert (g.dtype, g.stride(), g.requires_grad) == (w.dtype, w.stride(), w.requires_grad)
            assert torch.equal(torch.signbit(g), torch.signbit(w))
    assert counts() == (2, 0)


SAME = "return (x * 2.0).relu() + y"
INPUTS: dict[str, tuple[tuple[Any, Any], tuple[Any, Any]]] = {
    "sizes": ((one, two), (torch.ones(3, 2), torch.ones(3, 2))),
    "strides": ((one, two), (torch.ones(3, 2).t(), two)),
    "dtype": ((one, two), (one.double(), two)),
    "gradients": ((one, two), (one.clone().requires_grad_(), two)),
    "of which": ((one.clone().requires_grad_(), two), (one, two.clone().requires_grad_())),
    "leaves": ((one.clone().requires_grad_(), two), (one.clone().requires_grad_().clone(), two)),
    "one twice": ((one, two), (one, one)),
    "offset": ((one[0], two[0]), (one[1], two[1])),
    "number": ((one, 2), (one, 3)),
    "conjugate": ((one.to(torch.complex64), two), (one.to(torch.complex64).conj(), two)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_inputs_that_differ_are_compiled_each(name: str) -> None:
    text = "return x * y + 1" if name == "conjugate" else SAME
    fns = [make(text), make(text)]
    held = [pycompiler.compile(fn) for fn in fns]
    for fn, made, inputs in zip(fns, held, INPUTS[name], strict=True):
        got, wanted = made(*inputs), fn(*inputs)
        torch.testing.assert_close(got, wanted)
        assert (got.grad_fn is None, got.stride()) == (wanted.grad_fn is None, wanted.stride())
    assert counts()[1] == 0


def test_inputs_that_share_memory_are_told_from_those_that_do_not() -> None:
    text = "x.add_(1); return y * 2"
    held = [pycompiler.compile(make(text)) for _ in range(2)]
    for shares, made in zip((True, False), held, strict=True):
        x = torch.ones(4)
        y = x[:2] if shares else torch.ones(2)
        assert torch.equal(made(x[1:3], y), torch.tensor([2.0, 4.0] if shares else [2.0, 2.0]))


STATES: dict[str, Callable[[], Any]] = {
    "gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "precision": lambda: config.patch(emulate_precision_casts=not config.emulate_precision_casts),
    "partition": lambda: config.patch(partition="save_all"),
    "flags": lambda: config.patch(cxx_flags="-O1"),
    "matmuls": lambda: torch.backends.mkldnn.flags(enabled=False),
}


@pytest.mark.parametrize("name", STATES)
def test_states_and_knobs_that_differ_are_compiled_each(name: str) -> None:
    text = "return (x @ y.t()).softmax(-1)"
    fns = [make(text), make(text)]
    x, y = torch.randn(2, 3, requires_grad=True), torch.randn(4, 3)
    first, second = (pycompiler.compile(fn) for fn in fns)
    first(x, y)
    with STATES[name]():
        got, wanted = second(x, y), fns[1](x, y)
    assert (got.dtype, got.requires_grad) == (wanted.dtype, wanted.requires_grad)
    torch.testing.assert_close(got, wanted)
    assert counts() == (2, 0)


def test_the_knob_compiles_each_for_itself() -> None:
    with config.patch(share_regions=False):
        held = [pycompiler.compile(make(SAME)) for _ in range(2)]
        assert [torch.equal(f(one, two), (one * 2).relu() + two) for f in held] == [True, True]
    assert counts() == (0, 0)


def test_what_an_error_tells_is_the_line_of_its_own_program() -> None:
    def one(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.relu()[i] + 1

    def other(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return x.relu()[i] + 1

    x, fine, wrong = torch.ones(3, 4), torch.tensor([1]), torch.tensor([7])
    for fn in (one, other):
        made = pycompiler.compile(fn)
        made(x, fine)
        with pytest.raises(IndexError) as caught:
            made(x, wrong)
        assert (
            line := traceback.extract_tb(caught.value.__traceback__)[-1].lineno
        ) == fn.__code__.co_firstlineno + 1, line
    assert counts() == (2, 0)


def test_assumptions_about_sizes_hold_of_each_that_shares() -> None:
    """An assumption of a later stage about symbols becomes a guard of every frame, not of the first alone."""

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.unfold(0, 3, 2).softmax(-1) + x.shape[0]

    texts, held = [], [pycompiler.compile(types_copy(program), dynamic=True) for _ in range(2)]
    for made in held:
        for n in (17, 4, 3, 30):
            x = torch.randn(n)
            torch.testing.assert_close(made(x), program(x))
        texts.append([str(g) for e in compiled_of(made).entries for g in e.guards if g.kind == "sizes"])
    assert texts[0] == texts[1] and ">= 5" in texts[0][0], texts
    built, shared = counts()
    assert shared == built > 0
    assert any(r.assumptions.relations for r in regions._regions.values())


def types_copy(fn: Any) -> Any:
    return type(fn)(fn.__code__, fn.__globals__, fn.__name__)


def test_images_of_changing_sizes() -> None:
    def model() -> nn.Sequential:
        return nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1))

    models = [model() for _ in range(3)]
    held = [pycompiler.compile(m, dynamic=True) for m in models]
    for m, made in zip(models, held, strict=True):
        for size in (17, 24, 9, 31):
            x, again = torch.randn(2, 3, size, size + 4, requires_grad=True), None
            y, again = made(x), x.detach().clone().requires_grad_()
            y.square().sum().backward()
            wanted = m(again)
            wanted.square().sum().backward()
            torch.testing.assert_close(y, wanted)
            torch.testing.assert_close(x.grad, again.grad)
    built, shared = counts()
    assert shared == 2 * built > 0


def test_a_program_s_own_operator_is_looked_at_each_time() -> None:
    with torch.library._scoped_library("regions_test", "FRAGMENT") as lib:
        lib.define("twice(Tensor x) -> Tensor")
        lib.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
        fns = [make("return torch.ops.regions_test.twice(x) + y") for _ in range(2)]
        held = [pycompiler.compile(fn) for fn in fns]
        for made in held:
            assert torch.equal(made(one, two), one * 2 + two)
    assert counts()[1] == 0


def test_what_could_not_be_compiled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(module: Any, inputs: Any, name: str = "graph") -> Any:
        return module.forward

    with monkeypatch.context() as patch:
        patch.setattr(own_backends, "compile_aten", fails)
        first = pycompiler.compile(make(SAME))
        assert torch.equal(first(one, two), make(SAME)(one, two))
    second = pycompiler.compile(make(SAME))
    assert torch.equal(second(one, two), make(SAME)(one, two))
    assert counts()[1] == 0


def test_a_backward_that_could_not_be_compiled_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    x = one.clone().requires_grad_()
    first, second, third = (pycompiler.compile(make(SAME)) for _ in range(3))
    y = first(x, two)
    second(x, two)
    assert counts() == (1, 1)
    with monkeypatch.context() as patch:
        patch.setattr(graphs, "planned", lambda *args: (_ for _ in ()).throw(graphs.NoCompiler("none")))
        y.sum().backward()
    third(x, two).sum().backward()
    assert counts() == (2, 1)
    assert torch.equal(x.grad, 2 * (x > 0) * 2.0)


def test_regions_are_saved(tmp_path: Path) -> None:
    blocks = [Block() for _ in range(2)]
    held = [pycompiler.compile(b) for b in blocks]
    x = torch.randn(4, 8)
    for made in held:
        made(x).sum().backward()
    assert counts() == (1, 1)
    assert pycompiler.save(held[1], tmp_path / "block").left_out == ()
    loaded = pycompiler.load(tmp_path / "block", blocks[1])
    assert torch.equal(loaded(x), held[1](x)) and pycompiler.counters(loaded)["compiles"] == 0


def test_operators_that_were_replaced_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + x

    x = torch.randn(3)
    torch.testing.assert_close(pycompiler.compile(program)(x), program(x))
    for name, fn in (("__add__", lambda a, b: a * 7), ("__add__", lambda a, b: a * 8)):
        monkeypatch.setattr(torch.Tensor, name, fn)
        torch.testing.assert_close(pycompiler.compile(program)(x), program(x))
    monkeypatch.undo()
    torch.testing.assert_close(pycompiler.compile(program)(x), program(x))


def test_a_region_that_outlives_the_module_is_forgotten_quietly(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> None:
        pass

    region = regions.Region("key", None)
    region.keep(run)
    assert regions._regions["key"] is region
    with monkeypatch.context() as m:
        m.setattr(regions, "_regions", None)
        region.forget()
    assert "key" not in regions._regions
