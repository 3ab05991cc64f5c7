"""Programs over changing sizes: one capture serves them all, with eager's results, sizes and numbers included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import pycompiler
from pycompiler import logs
from pycompiler.errors import ArgumentError, Unsupported, UserError
from pycompiler.wrapping import compiled_of
from tests.harness.compare import assert_same


def compiles(fn: Callable[..., Any], calls: list[tuple[Any, ...]], **options: Any) -> int:
    """The number of compiles for the calls; each result must match eager."""
    compiled = pycompiler.compile(fn, **{"backend": "eager", "dynamic": True, "fullgraph": True, **options})
    for args in calls:
        assert_same(compiled(*args), fn(*args))
    return pycompiler.counters(compiled)["compiles"]


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sizes": lambda t: (t + t.shape[0], t.size(1) * 2, t.numel(), t.shape, len(t), t.size()),
    "arithmetic": lambda t: (t * (t.shape[0] * 3 - 1), t.shape[1] // 2, t.shape[0] % 3, -t.shape[0], t.shape[0] ** 2),
    "floats": lambda t: (t / math.sqrt(t.shape[1]), 1 / t.shape[0], t.shape[1] ** 0.5, t.shape[0] / 2 + 1.5),
    "rounding": lambda t: (t[: math.floor(t.shape[0] / 2)], int(t.shape[1] * 0.5), math.ceil(t.shape[0] / 4)),
    "slices": lambda t: (t[1:], t[:, : t.shape[1] // 2], t[-2:], t[::2]),
    "reshapes": lambda t: (t.reshape(-1), t.view(t.shape[0] * t.shape[1]), t.view(1, t.numel()), t.t().reshape(-1)),
    "factories": lambda t: (torch.arange(t.shape[0]), torch.zeros(t.shape), torch.ones(t.shape[1], 3)),
    "broadcast": lambda t: t.unsqueeze(0).expand(t.shape[1], *t.shape) + torch.ones(t.shape[1], 1, 1),
    "cat": lambda t: torch.cat([t, t], 1) + torch.cat([t, t * 2], -1),
    "reductions": lambda t: (t.sum(), t.mean(1), t.softmax(0), t.var(0)),
    "matmul": lambda t: t @ t.t() @ torch.ones(t.shape[0], 4),
    "pad": lambda t: F.pad(t, (1, 2)),
    "conditions": lambda t: t * 2 if t.shape[0] * t.shape[1] > 3 and t.shape[0] != 1 else t,
    "min and max": lambda t: (t[: min(t.shape[0], 100)], max(t.shape[1], 1), abs(1 - t.shape[0])),
    "divmod": lambda t: (t + 1, *divmod(t.shape[0], 2)),
    "containers": lambda t: {"n": [t.shape[0], (t.shape[1] + 1, t)], "t": t + 1},
    "assertions": lambda t: t.view(t.shape[0], -1) if isinstance(t.shape[0], int) and t.shape[0] is not None else None,
    "scalars": lambda t: torch.full((2, 2), t.shape[0]) + t.new_ones(t.shape[0]).sum(),
    "chunks": lambda t: t.unflatten(1, (-1, 1)).flatten() + 1,
    "interpolate": lambda t: F.interpolate(t[None, None], scale_factor=2.0),
}


# Uses of sizes in models that need no value of a size.
OF_SIZES = """
(-1,) + t.size()[1:] + (t.size(-1),); t.size() + (3,); (3,) + t.shape; t.shape * 2; 2 * t.shape; t.shape[::-1]
list(t.shape) + [4]; tuple(t.shape); torch.Size([t.shape[0], 4]); torch.Size(t.shape); torch.Size((1,) + t.shape).numel()
t.shape == t.shape; t.shape == (1, 2); t.shape[-2:] != (1, 1); t.shape < (1, 2); t.shape[0] in (1,); t.shape[0] in t.shape
t.shape.numel(); sum(t.shape); max(t.shape); math.prod(t.shape); t.shape.index(t.shape[0]); t.shape[0] is None
torch.broadcast_shapes(t.shape, (1, 1)); [n * 2 for n in t.shape]; sorted([t.shape[0], 3]); (t.shape[0], 1)[0]
"""


@pytest.mark.parametrize("text", [e.strip() for line in OF_SIZES.strip().splitlines() for e in line.split(";")])
def test_arithmetic_of_whole_sizes_assumes_no_value(text: str) -> None:
    program = eval(f"lambda t: (t + 1, {text})", {"math": math, "torch": torch})
    assert compiles(program, [(x(4, 6),), (x(5, 8),), (x(9, 12),)]) == 1


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_capture_serves_all_sizes(name: str) -> None:
    assert compiles(PROGRAMS[name], [(x(6, 10),), (x(8, 14),), (x(12, 6),), (x(5, 8),)]) == 1


def test_a_branch_on_a_size_is_assumed() -> None:
    def program(t: torch.Tensor) -> torch.Tensor:
        return t + 1 if t.shape[0] > 8 else t.t() * 2

    assert compiles(program, [(x(4, 6),), (x(8, 3),), (x(9, 3),), (x(20, 2),), (x(2, 2),)]) == 2


def test_zero_and_one_are_numbers() -> None:
    assert compiles(lambda t: t * t.shape[0], [(x(4, 6),), (x(1, 6),), (x(1, 9),), (x(0, 6),), (x(5, 5),)]) == 3


def test_strides_that_follow_from_sizes_are_checked() -> None:
    calls = [(x(4, 6),), (x(6, 4).t(),), (x(5, 8).t(),), (x(8, 8),), (x(8, 12)[:, :6],), (x(9, 12)[:, :5],)]
    assert compiles(lambda t: t.reshape(-1) + 1, calls) == 3


def test_equal_sizes_become_one_symbol() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return a + b, (a @ b.t()).view(a.shape[0] * b.shape[0])

    assert compiles(program, [(x(4, 6), x(4, 6)), (x(3, 7), x(3, 7)), (x(5, 5), x(5, 5))]) == 1
    with pytest.raises(RuntimeError):
        compiles(program, [(x(4, 6), x(4, 6)), (x(4, 6), x(3, 6))])


def test_a_value_that_the_program_needs_is_a_number() -> None:
    def loop(t: torch.Tensor) -> torch.Tensor:
        for i in range(t.shape[0]):
            t = t + i
        return t * len([0] * t.shape[1])

    assert compiles(loop, [(x(3, 4),), (x(3, 4),), (x(4, 4),), (x(4, 5),)]) == 3
    # a string is built from the number of each call
    assert compiles(lambda t: (t + 1, f"{t.shape[0]}", {t.shape[1]: 2}), [(x(3, 4),), (x(4, 4),), (x(4, 5),)]) == 2
    assert compiles(lambda t: t + len(f"{t.shape[0]}"), [(x(3, 4),), (x(4, 4),), (x(5, 4),)]) == 3


def test_integer_arguments_are_symbols() -> None:
    def program(t: torch.Tensor, n: int, dims: list[int]) -> Any:
        return (t * n)[: n // 2], n + 1, t.view(dims[0], -1)

    calls = [(x(12, 2), 4, [3]), (x(12, 4), 7, [6]), (x(12, 2), 8, [4]), (x(24, 2), 12, [8])]
    assert compiles(program, calls) <= 2
    assert compiles(lambda t, n: t + n, [(x(3), 0), (x(3), 1), (x(3), -5), (x(3), 5), (x(3), 2**40)]) == 2


def test_numbers_that_begin_at_nothing() -> None:
    """A counting program: no compile after the second number, also where 0 and 1 have another meaning."""

    def scaled(t: torch.Tensor, n: int) -> torch.Tensor:
        return t * n + (t ** (n + 1)).sum()

    def zeros(t: torch.Tensor, n: int) -> torch.Tensor:
        return t.sum() + torch.zeros(n, 3)

    numbers = (0, 1, 2, 3, 7)
    assert compiles(scaled, [(x(3), n) for n in numbers], dynamic=None) == 2
    assert compiles(zeros, [(x(3), n) for n in numbers], dynamic=None) == 2
    assert compiles(lambda t, n: t * n, [(x(3), n) for n in (-1, -2, -3, 0, 1, 2)], dynamic=None) == 3
    assert compiles(lambda t, n: t.sum(n), [(x(3, 4), n) for n in (0, 1, 0, 1, -1)], dynamic=None) == 3
    assert compiles(lambda t, n: t[:n] if n else t, [(x(8), n) for n in (1, 0, 2, 3, 4)], dynamic=None) <= 4


def test_a_number_where_a_tensor_was() -> None:
    given = [x(2), 3, x(2), 4, 5]
    assert compiles(lambda t, n: t * n, [(x(2), n) for n in given], dynamic=None) == 2


def test_what_objects_hold_is_made_for_longer() -> None:
    module = torch.nn.Linear(8, 4)
    compiled = pycompiler.compile(module, backend="eager", dynamic=True)
    for n in (3, 5, 9):
        assert_same(compiled(x(n, 8)), module(x(n, 8)))
    assert pycompiler.counters(compiled)["compiles"] == 1
    (entry,) = compiled_of(compiled).entries
    assert any("Parameter[4, 8]" in str(g) for g in entry.guards)


def test_numbers_live_across_a_graph_break() -> None:
    def program(t: torch.Tensor) -> Any:
        n = t.shape[0] * 2
        y = t + n
        pycompiler.graph_break()
        return y * n, t.shape[1] + n

    compiled = pycompiler.compile(program, backend="eager", dynamic=True)
    for shape in ((3, 4), (5, 4), (7, 9)):
        assert_same(compiled(x(*shape)), program(x(*shape)))
    assert pycompiler.counters(compiled)["compiles"] == 2


def test_side_effects_store_numbers() -> None:
    def program(t: torch.Tensor, out: dict[str, Any]) -> torch.Tensor:
        out["n"] = t.shape[0] * 2 + 1
        out["half"] = t.shape[1] / 2
        return t + 1

    compiled = pycompiler.compile(program, backend="eager", dynamic=True, fullgraph=True)
    for shape in ((3, 4), (5, 6)):
        got: dict[str, Any] = {}
        want: dict[str, Any] = {}
        compiled(x(*shape), got)
        program(x(*shape), want)
        assert got == want and [*map(type, got.values())] == [int, float]
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_numbers_are_those_of_the_entry() -> None:
    def program(t: torch.Tensor, out: dict[str, Any]) -> Any:
        n = t.shape[0] * 2
        t.t_()
        out["m"] = t.shape[0], n
        return t + n, n, t.shape[1]

    compiled = pycompiler.compile(program, backend="eager", dynamic=True)
    for shape in ((3, 4), (5, 6), (7, 2)):
        got: dict[str, Any] = {}
        want: dict[str, Any] = {}
        assert_same(compiled(x(*shape), got), program(x(*shape), want))
        assert got == want


def test_the_graph_runs_with_real_numbers() -> None:
    graphs: list[Any] = []

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append((gm, inputs))
        return gm.forward

    def program(t: torch.Tensor) -> torch.Tensor:
        return t.reshape(t.shape[0] * t.shape[1] * 2, -1) * (t.shape[0] + 1)

    compiles(program, [(x(4, 6, 6),), (x(5, 3, 8),)], backend=backend)
    ((gm, inputs),) = graphs
    symbols = [i for i in inputs if isinstance(i, torch.SymInt)]
    assert [str(s) for s in symbols] == ["s0", "s1", "s2"] and isinstance(inputs[0], torch.Tensor)
    sources = [n.meta["source"].name for n in gm.graph.nodes if n.op == "placeholder"]
    assert sources == ["L['t']", "L['t'].size(0)", "L['t'].size(1)", "L['t'].size(2)"]
    t = x(2, 3, 4)
    assert_same(gm(t, 2, 3, 4)[0], program(t))


def test_what_fails_for_symbols_is_captured_with_numbers() -> None:
    @torch.library.custom_op("pycompiler_tests::picky", mutates_args=())
    def picky(t: torch.Tensor) -> torch.Tensor:
        return t + 1

    @picky.register_fake
    def _(t: torch.Tensor) -> torch.Tensor:
        if isinstance(t.shape[0], torch.SymInt):
            raise NotImplementedError("numbers only")
        return torch.empty_like(t)

    assert compiles(lambda t: torch.ops.pycompiler_tests.picky(t) * 2, [(x(3, 4),), (x(5, 4),), (x(5, 6),)]) == 3


def test_backends_that_take_numbers_only_get_them() -> None:
    calls = [(x(3, 4),), (x(5, 4),), (x(3, 4),)]
    assert compiles(lambda t: t.relu() * t.shape[0], calls, backend="aot_eager") <= 2


def test_errors_of_the_program_are_eagers() -> None:
    compiled = pycompiler.compile(lambda t: t.view(7, -1), backend="eager", dynamic=True)
    assert_same(compiled(x(14, 2)), x(14, 2).view(7, -1))
    with pytest.raises(RuntimeError, match="invalid for input of size"):
        compiled(x(3, 2))


# marks --------------------------------------------------------------------------------------------------------------
def marked(t: torch.Tensor, *dims: int, mark: Any = pycompiler.mark_dynamic, **bounds: int) -> torch.Tensor:
    for d in dims:
        mark(t, d, **bounds)
    return t


def test_a_marked_size_is_a_symbol() -> None:
    calls = [(marked(x(4, 6), 0),), (x(5, 6),), (x(9, 6),)]
    assert compiles(lambda t: t * t.shape[0], calls, dynamic=None) == 1
    assert compiles(lambda t: t * t.shape[0], [*calls, (x(9, 7),)], dynamic=None) == 2
    assert compiles(lambda t: t * t.shape[0], calls, dynamic=False) == 3


def test_bounds_of_a_mark_are_assumed() -> None:
    calls = [(marked(x(4, 6), 0, min=3, max=8),), (x(8, 6),), (x(3, 6),)]
    assert compiles(lambda t: t * 2, calls, dynamic=None) == 1
    assert compiles(lambda t: t * 2, [*calls, (x(9, 6),), (x(2, 6),)], dynamic=None) == 2  # 9 is a size that changed
    with pycompiler.config.patch(automatic_dynamic_shapes=False):
        assert compiles(lambda t: t * 2, [*calls, (x(9, 6),), (x(2, 6),)], dynamic=None) == 3
    assert compiles(lambda t: t + 1 if t.shape[0] <= 8 else t, calls, dynamic=None) == 1
    with pytest.raises(UserError, match=r"is 9, but marked to be from 3 to 8"):
        compiles(lambda t: t * 2, [(marked(x(9, 6), 0, min=3, max=8),)], dynamic=None)


def test_a_marked_size_that_is_a_number_is_an_error_with_its_line() -> None:
    def program(t: torch.Tensor) -> torch.Tensor:
        return t * len([0] * t.shape[0])

    with pytest.raises(
        UserError, match=r"L\['t'\].size\(0\) is marked dynamic, but must be one number(.|\n)*in program"
    ):
        compiles(program, [(marked(x(4, 6), 0),)], dynamic=None)
    with pytest.raises(UserError, match="sizes 0 and 1 are always numbers"):
        compiles(program, [(marked(x(1, 6), 0),)], dynamic=None)
    maybe = marked(x(4, 6), 0, mark=pycompiler.maybe_mark_dynamic)
    assert compiles(program, [(maybe,), (x(4, 6),), (x(1, 6),)], dynamic=None) == 2


def test_an_operator_that_refuses_a_marked_size_breaks_the_graph() -> None:
    calls, w = [(marked(x(3), 0),), (x(4),)], torch.ones(7)
    with pytest.raises(Unsupported, match=r"operator-failed.*matmul"):
        compiles(lambda t: t @ w, calls, dynamic=None)
    with pytest.raises(RuntimeError, match="same number of elements, but got 3 and 7"):
        pycompiler.compile(lambda t: t @ w)(*calls[0])


def test_a_static_mark_makes_a_number() -> None:
    def calls() -> list[tuple[torch.Tensor]]:
        return [(marked(x(n, m), 1, mark=pycompiler.mark_static),) for n, m in ((4, 6), (5, 6), (5, 7))]

    assert compiles(lambda t: t * t.shape[0], calls()) == 2
    t = x(4, 6)
    pycompiler.mark_static(t)
    assert compiles(lambda t: t * t.shape[0], [(t,), (x(4, 6),), (x(4, 7),)]) == 2


def test_wrong_marks_say_what_is_right() -> None:
    for wrong in (
        lambda: pycompiler.mark_dynamic(3, 0),  # type: ignore[arg-type]
        lambda: pycompiler.mark_dynamic(x(2, 3), 2),
        lambda: pycompiler.mark_dynamic(x(2, 3), "0"),
        lambda: pycompiler.mark_dynamic(x(2, 3), 0, min=5, max=4),
        lambda: pycompiler.mark_dynamic(x(2, 3), 0, min=-1),
    ):
        with pytest.raises(ArgumentError):
            wrong()
    with pytest.raises(ArgumentError, match="greater"):
        pycompiler.mark_unbacked(x(2, 3), 0, min=5, max=4)


def test_an_unbacked_size_is_a_symbol_where_it_can_be_one() -> None:
    def unbacked(n: int, **arguments: Any) -> torch.Tensor:
        t = x(n, 6)
        pycompiler.mark_unbacked(t, [0], **arguments)
        return t

    def by_torch(n: int) -> torch.Tensor:
        t = x(n, 6)
        t._dynamo_unbacked_indices, t._dynamo_unbacked_bounds = {0}, {0: (2, 9)}  # type: ignore[attr-defined]
        return t

    assert compiles(lambda t: t * t.shape[0], [(unbacked(4),), (x(5, 6),), (x(1, 6),)], dynamic=None) == 2
    assert compiles(lambda t: t * t.shape[0], [(by_torch(4),), (x(5, 6),)], dynamic=None) == 1
    assert compiles(lambda t: t + float(len(t)), [(unbacked(4),), (x(5, 6),)], dynamic=None) >= 1
    assert compiles(lambda t: t * 2, [(unbacked(1, min=1),)], dynamic=None) == 1
    for marked_ in (unbacked(4, max=3), by_torch(10)):
        with pytest.raises(UserError, match="marked to be from"):
            pycompiler.compile(lambda t: t * 2)(marked_)
    with pytest.raises(UserError, match="sizes 0 and 1"):
        pycompiler.compile(lambda t: t * 2)(unbacked(1, strict=True))


# automatic ----------------------------------------------------------------------------------------------------------
def test_a_size_that_changes_becomes_a_symbol() -> None:
    def program(t: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (t @ w).softmax(0) * t.shape[0]

    calls = [(x(n, 4), x(4, 4)) for n in (7, 3, 5, 9, 20, 2, 3, 7)]
    assert compiles(program, calls, dynamic=None) == 2
    assert compiles(program, calls[:3], dynamic=False) == 3


def test_an_integer_that_changes_becomes_a_symbol() -> None:
    calls = [(x(6), n) for n in (3, 5, 9, 7)]
    assert compiles(lambda t, n: t * n + 1, calls, dynamic=None) == 2


def test_strides_that_change_become_symbols() -> None:
    def calls(*widths: int) -> list[tuple[torch.Tensor]]:
        return [(x(4, w)[:, :5],) for w in widths]

    assert compiles(lambda t: t.relu() * 2, calls(9, 12, 20, 33, 8), dynamic=None) == 2
    assert (
        compiles(lambda t: t.relu() * 2, calls(9, 12, 20, 5), dynamic=True) == 1
    )  # size 5 is contiguous, and the result has the same layout
    assert compiles(lambda t: t.reshape(-1) + 1, [(x(n, n + 3)[::2, 1:],) for n in (6, 9, 12)], dynamic=None) == 2


def test_few_sizes_in_turns_take_two_compiles_and_numbers_one_each() -> None:
    sizes = [(x(3 + 2 * (i % 4), 4),) for i in range(24)]
    assert compiles(lambda t: (t @ t.t()).softmax(-1), sizes, dynamic=None) == 2
    assert compiles(lambda t: t * len([0] * t.shape[0]), sizes, dynamic=None) == 4


def test_what_modules_hold_stays_a_number() -> None:
    class Part(torch.nn.Module):
        def __init__(self, k: int) -> None:
            super().__init__()
            self.k = k
            self.register_buffer("scale", torch.ones(k))

        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return (t[:, : self.k] * self.scale).sum(1) + self.k

    def program(parts: list[Part], t: torch.Tensor) -> torch.Tensor:
        return parts[0](t) * parts[1](t)

    calls = [([Part(a), Part(b)], x(3, 8)) for a, b in ((3, 4), (5, 6), (2, 4))]
    assert compiles(program, calls, dynamic=None) == 3


def test_integers_can_be_kept_numbers() -> None:
    calls = [(x(6), n) for n in (3, 5, 9)]
    with pycompiler.config.patch(specialize_int=True):
        assert compiles(lambda t, n: t * n, calls, dynamic=None) == 3
        assert compiles(lambda t, n: t * n, calls) == 3


def test_a_recompile_says_what_became_a_symbol(caplog: pytest.LogCaptureFixture) -> None:
    logs.set_logs(recompiles=True)
    try:
        with caplog.at_level("DEBUG", logger="pycompiler"):
            compiles(lambda t, n: t * n, [(x(6), 3), (x(9), 5), (x(7), 4)], dynamic=None)
    finally:
        logs.reset_logs()
    said = [r.getMessage() for r in caplog.records if "are symbolic now" in r.getMessage()]
    assert len(said) == 1 and "L['t'].size(0) was 6, is 9; L['n'] was 3, is 5" in said[0]


class Held:
    n: Any = 2
    w = torch.ones(3)


def test_class_attributes_that_generated_code_reads_are_todays(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {"n": None}

    def program(t: torch.Tensor, held: Held) -> torch.Tensor:
        seen["n"] = held.n
        return t * held.w + held.n

    compiled = pycompiler.compile(program, backend="eager")
    for n in (2, 6, 2, 7):
        monkeypatch.setattr(Held, "n", n)
        monkeypatch.setattr(Held, "w", torch.full((3,), float(n)))
        assert_same(compiled(torch.ones(3), Held()), torch.full((3,), 2.0 * n))
        assert seen["n"] == n
    assert pycompiler.counters(compiled)["compiles"] <= 3


def test_numbers_across_a_graph_break_become_symbols() -> None:
    def program(t: torch.Tensor) -> Any:
        n = t.shape[0] * 2
        pycompiler.graph_break()
        return t * n

    compiled = pycompiler.compile(program, backend="eager")
    for n in (3, 5, 9, 7, 4):
        assert_same(compiled(x(n, 3)), program(x(n, 3)))
    assert pycompiler.counters(compiled)["compiles"] == 4


def test_numbers_that_guards_cannot_hold() -> None:
    """`11 - 2 * i - n` may exceed 64 bits: no guard may assume otherwise, and no ValueError may leave the call."""

    def program(x: Any, i: int, n: int) -> Any:
        return x - (11 - i * 2 - n)

    def huge(x: Any, i: int) -> Any:
        return x * 0 + (i - 2**62 - 2**61)

    def powers(x: Any, n: int) -> Any:
        for _ in range(6):
            n *= n
        y = x - n  # noqa: F841  # the result is unused, and the line raises
        return x

    compiled, other = pycompiler.compile(program), pycompiler.compile(huge)
    for i, n in ((8, 2), (4, 3), (10, 3), (11, 5), (2**62, 2), (-(2**60), 2)):
        assert torch.equal(compiled(torch.ones(2), i, n), program(torch.ones(2), i, n))
        assert torch.equal(other(torch.ones(2), i), huge(torch.ones(2), i))
    refusing = pycompiler.compile(powers)
    for n in (2, 1, 3, 5):
        if n == 1:
            assert torch.equal(refusing(torch.ones(2), n), torch.ones(2))
        else:
            with pytest.raises(OverflowError, match="int too big to convert"):
                refusing(torch.ones(2), n)
