"""Regressions found by hostile compositions: modules, hooks, autograd and Python's machinery in one program, beside
eager."""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import pycompiler
from tests.harness.compare import assert_same, observe

Compile = Callable[[Any], Any]


def sides(program: Callable[[Compile, list[Any]], None]) -> list[str]:
    """`program` appends its observations to a list; the strings must be the same compiled and eager."""
    seen: list[list[str]] = []
    for compile in (lambda f: f, pycompiler.compile):
        torch.manual_seed(0)
        log: list[Any] = []
        program(compile, log)
        seen.append([str(item) for item in log])
    assert seen[1] == seen[0]
    return seen[0]


def outcome(fn: Callable[..., Any], *args: Any) -> Any:
    try:
        return fn(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("everywhere", [False, True])
@pytest.mark.parametrize("fails", ["raise", "shape", "index"])
def test_hooks_that_are_always_called_run_after_errors(fails: str, everywhere: bool) -> None:
    """torch's call of a module skips these hooks when it believes that it is being compiled."""

    class Fails(nn.Module):
        def forward(self, x: torch.Tensor, k: torch.Tensor, bad: bool) -> torch.Tensor:
            if fails == "raise" and bad:
                raise ValueError("bad")
            return x @ torch.ones(3 + (fails == "shape" and bad), 2) + torch.arange(4)[k]

    def program(compile: Compile, log: list[Any]) -> None:
        module = Fails()
        compiled = compile(module)

        def hook(module: nn.Module, args: Any, result: Any) -> None:
            log.append(result is None)

        for round in range(2):
            if round:
                owner = nn.modules.module.register_module_forward_hook if everywhere else module.register_forward_hook
                handle = owner(hook, always_call=True)
            for bad in (False, True, False):
                k = torch.tensor([9 if bad and fails == "index" else 1])
                log.append(outcome(compiled, torch.ones(2, 3), k, bad))
        handle.remove()

    assert sides(program).count("True") == 1


class _Unread(torch.autograd.Function):
    """Saves a tensor that its backward does not read."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.save_for_backward(x)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * 2 + b * 3


@pytest.mark.parametrize("dynamic", [False, True])
def test_what_saves_numbers_alone_goes_backward_twice(dynamic: bool) -> None:
    """As in eager, a Function that does not read its saved tensors: the saved sizes of a backward are no tensors."""
    compiled = pycompiler.compile(lambda x: _Unread.apply(x), dynamic=dynamic)
    for n in (3, 4):
        x = torch.ones(n, requires_grad=True)
        a, _ = compiled(x)
        for round in (1, 2):
            a.sum().backward()
            assert x.grad is not None
            assert torch.equal(x.grad, torch.full((n,), 2.0 * round))


@pytest.mark.parametrize("pool", ["avg_pool1d", "max_pool1d"])
def test_rows_of_one_element_with_strides_of_channels_last(pool: str) -> None:
    """Quirk of torch: kernels that keep a memory format take an input for channels-last by the strides of size-1
    dimensions alone."""

    def program(x: torch.Tensor) -> torch.Tensor:
        at = torch.tensor([2, 0, 1])
        return getattr(nn.functional, pool)(torch.index_put(x[..., ::3], (at,), x[..., ::3]), 2, 1, 1)

    x = torch.arange(12.0).view(3, 2, 2)
    expected = program(x)
    for dynamic in (False, True):
        got = pycompiler.compile(program, dynamic=dynamic)(x)
        assert torch.equal(got, expected)
        assert got.stride() == expected.stride()


def _beside_what_reads_it(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = (x + 1)[..., :-1]
    return part.mT, part.sin()


def _every_second(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = (x * 2)[:, ::2]
    return part.mT, part.exp()


def _windows(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    part = (x * 2).unfold(1, 3, 1)
    return part, part.sin()


def _of_a_size_that_is_one(x: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return x[..., x.shape[0] // 3 :].mT @ (z * 2), z.exp()


@pytest.mark.parametrize("program", [_beside_what_reads_it, _every_second, _windows, _of_a_size_that_is_one])
def test_layouts_of_symbolic_sizes(program: Any) -> None:
    """A saved tensor has the layout that its backward assumes, gaps included; a symbolic size that is 1 is broadcast."""
    compiled = pycompiler.compile(program, dynamic=True)
    for b, s in ((10, 8), (7, 12), (11, 5)):
        values = [torch.linspace(-1, 1, b * s * 4, dtype=torch.float64).view(b, s, 4), torch.linspace(0, 1, s).double()]
        sides = []
        for f in (program, compiled):
            args = [v.clone().requires_grad_() for v in values]
            made = f(*args)
            total = sum((t * torch.arange(t.numel()).view(t.shape)).sum() for t in made)
            sides.append((made, [t.stride() for t in made], torch.autograd.grad(total, args, allow_unused=True)))
        torch.testing.assert_close(sides[1], sides[0], rtol=1e-9, atol=1e-9)


class _Asks:
    """An object whose truth test breaks the graph."""

    def __bool__(self) -> bool:
        pycompiler.graph_break()
        return False


def _keeps_a_list_over_a_loop(w: torch.Tensor, v: torch.Tensor) -> Any:
    asks, told = _Asks(), []
    for _ in v:
        n = 0
        while n < 2:
            n += 1
            held = [(asks or asks), asks]  # unread, but its elements must stay alive  # noqa: F841
            told.append(n)
        v = v * 2
    return v, told


def _writes_data_and_raises(w: torch.Tensor, v: torch.Tensor) -> Any:
    w.data[0] = 5
    raise ValueError("after the write")


def _writes_data_twice_and_raises(w: torch.Tensor, v: torch.Tensor) -> Any:
    part = w.data.add_(1)
    part[:2] = 7
    raise ValueError("after the writes")


def _writes_data_before_a_break(w: torch.Tensor, v: torch.Tensor) -> Any:
    w.data[0] = 5
    pycompiler.graph_break()
    return w.tolist()


def _hooks_what_it_made_a_leaf(w: torch.Tensor, v: torch.Tensor) -> Any:
    v.add_(1)
    v.requires_grad_()
    v.register_hook(lambda g: g * 2)


def _views_what_is_frozen_yet(w: torch.Tensor, v: torch.Tensor) -> Any:
    part = v[:2]
    v.requires_grad_()
    pycompiler.graph_break()
    for _ in range(2):
        (part.norm() + (v * v).sum()).backward()
    return part.requires_grad, part.is_leaf


def _writes_one_of_several(w: torch.Tensor, v: torch.Tensor) -> Any:
    v.unbind()[0].copy_(w.mean())
    return v * 2


def _writes_one_of_several_that_were_made(w: torch.Tensor, v: torch.Tensor) -> Any:
    part, other = (v * 2).split([1, 2])
    pycompiler.graph_break()
    part.mul_(w[:1])
    return part, other


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [
    _keeps_a_list_over_a_loop, _writes_data_and_raises, _writes_data_twice_and_raises, _writes_data_before_a_break, _hooks_what_it_made_a_leaf,
    _views_what_is_frozen_yet, _writes_one_of_several, _writes_one_of_several_that_were_made,
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:The .grad attribute")
def test_found_by_programs_that_train(program: Any, backend: str) -> None:
    seen = []
    for run in (program, pycompiler.compile(program, backend=backend)):
        w, v = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.tensor([1.0, -2.0, 0.5])
        result = outcome(run, w, v)
        if v.requires_grad and v.is_leaf:
            (v * 3).sum().backward()
        seen.append(str((result, w, w.grad, v, v.grad)).replace("Compiled_graph", "Mul"))
    assert seen[0] == seen[1]


class _Plain:
    def __init__(self) -> None:
        self.total, self.more = 0, 1


class _Cached:
    @functools.cached_property
    def total(self) -> int:
        return 1


def _new_ones(o: Any) -> Any:
    o.late, o.extra = 1, 2
    del o.late
    o.late = 3
    return list(vars(o))


def _ones_that_were_there(o: Any) -> Any:
    o.total, o.extra = 1, 2
    del o.total
    o.total = 3
    return list(vars(o).items())


def _of_its_dict(o: Any) -> Any:
    attributes = vars(o)
    attributes["a"], attributes["b"] = 1, 2
    del attributes["a"]
    attributes["a"] = 3
    return list(attributes)


def _again_and_again(o: Any) -> Any:
    for i in range(40):
        o.a, o.b = i, i
        del o.a, o.b
    o.b, o.a = 1, 2
    return list(vars(o))


def _cached(o: Any) -> Any:
    found, o.extra = o.total, 2
    del o.total
    return found, o.total, list(vars(o))


def _made(o: Any) -> Any:
    o = _Plain()
    o.extra = 2
    del o.total
    o.total = 3
    return o.__dict__


@pytest.mark.parametrize("program", [_new_ones, _ones_that_were_there, _of_its_dict, _again_and_again, _cached, _made])
def test_attributes_that_are_deleted_and_stored_again_come_last(program: Any) -> None:
    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        sides = []
        for run in (program, compiled):
            o = _Cached() if program is _cached else _Plain()
            sides.append((run(o), list(vars(o).items())))
        assert str(sides[0]) == str(sides[1])


class _Meta(type):
    def __len__(cls) -> Any:
        return cls.size  # type: ignore[attr-defined]


class _Sure(type):
    def __bool__(cls) -> Any:
        return cls.size  # type: ignore[attr-defined]


def test_lengths_and_truths_that_a_metaclass_gives_are_checked() -> None:
    def program(x: torch.Tensor, size: Any) -> Any:
        class Sized(metaclass=_Meta):
            pass

        class True_(metaclass=_Sure):
            pass

        Sized.size = True_.size = size  # type: ignore[attr-defined]
        return x * 2 if True_ else x * len(Sized), bool(Sized)

    compiled = pycompiler.compile(program, backend="eager")
    for size in (True, False, 2, -1, "a"):
        assert_same(*(observe(f, (torch.ones(2), size)) for f in (compiled, program)))

    def sized(x: torch.Tensor, size: Any) -> Any:
        class Sized(metaclass=_Meta):
            pass

        Sized.size = size  # type: ignore[attr-defined]
        return x * len(Sized)

    compiled = pycompiler.compile(sized, backend="eager")
    for size in (3, 0, -1, "a"):
        assert_same(*(observe(f, (torch.ones(2), size)) for f in (compiled, sized)))


class _Pair(collections.namedtuple("_Pair", "a b")):  # noqa: SLOT002
    pass


def test_subclasses_of_named_tuples_are_made() -> None:
    def program(x: torch.Tensor) -> Any:
        return _Pair(x, 1).a * 2, _Pair(b=3, a=x)

    made, pair = pycompiler.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert made.tolist() == [2, 2] and type(pair) is _Pair and pair.b == 3


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_lengths_of_packed_sequences_are_known_in_inference_mode(backend: str) -> None:
    lstm = nn.LSTM(3, 4, batch_first=True)

    def program(x: torch.Tensor) -> Any:
        with torch.inference_mode():
            packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2], batch_first=True)
            return nn.utils.rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)

    x = torch.randn(2, 3, 3)
    torch.testing.assert_close(pycompiler.compile(program, backend=backend, fullgraph=True)(x), program(x))


class _Answers:
    """torch looks up `__torch_function__` on an operand, which calls a `__getattr__`."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        raise AttributeError(name)

    def __rmul__(self, t: torch.Tensor) -> torch.Tensor:
        return t * 2


def test_torch_asks_an_operand_that_is_no_tensor() -> None:
    def program(x: torch.Tensor, answers: Any) -> Any:
        return (x + 1) * answers

    sides = []
    for run in (program, pycompiler.compile(program, backend="eager")):
        answers = _Answers()
        sides.append((run(torch.ones(2), answers).tolist(), answers.asked))
    assert sides[0] == sides[1] and sides[0][1]


@pytest.mark.parametrize("write", ["append", "count", "store", "insert"])
def test_recurrent_layers_behind_containers_that_let_go_of_nothing(write: str) -> None:
    """The layers query weak references to their weights, which live: the container writes dropped numbers only."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.rows = nn.LSTM(3, 4, batch_first=True), [0]
            self.counts, self.table = collections.Counter(), {"calls": 0}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if write == "append":
                self.rows.append(1)
            elif write == "count":
                self.counts["calls"] += 1
            elif write == "store":
                self.table["calls"] += 1
            else:
                self.rows.insert(0, 2)
            return self.lstm(x)[0]

    model = Model()
    compiled = pycompiler.compile(model, backend="eager", fullgraph=True)
    x = torch.randn(2, 3, 3)
    for k in range(1, 4):
        torch.testing.assert_close(compiled(x), model.lstm(x)[0])
        assert (len(model.rows) - 1, model.counts["calls"], model.table["calls"]) == {
            "append": (k, 0, 0), "insert": (k, 0, 0), "count": (0, k, 0), "store": (0, 0, k),
        }[write]  # fmt: skip
