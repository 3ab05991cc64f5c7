"""The fuzzer of the compiler: fixed seeds, and tests that it detects planted bugs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import seams
import torch

from fuzz.programs import campaign, operators, worker  # noqa: F401
from fuzz.programs.compare import WRITTEN, Noise, Verdict, compare
from fuzz.programs.coverage import AIMS, TABLES, aim, cells, table_text, watching
from fuzz.programs.generate import OPERATORS, Aim, generate
from fuzz.programs.program import Program, bound, names
from fuzz.programs.reduce import reduce

SMALL = Program(
    7,
    ("a0 = data(1, 3, 4, dtype=torch.float64).requires_grad_()", "a1 = data(2, 3, 4, dtype=torch.float64)"),
    ("x0 = a0", "x1 = a1"),
    ("x1.add_(1)", "t0 = x0 * x1", "t1 = t0.t()", "t2 = t0.cumsum(0)", "t3 = t2.sin() + t1.sum()"),
    ("t1", "t3", "t0"),
)


def test_a_program_is_its_seed() -> None:
    for seed in range(20):
        assert generate(seed)[0] == generate(seed)[0]


def test_operators_are_drawn() -> None:
    """Each row gives statements that eager runs; most programs run to their end, forward and backward."""
    text = "\n".join(s for seed in range(150) for s in generate(seed)[0].statements)
    for word in ("[", "::2", "as_strided", "unfold", "expand", "cat(", "stack(", "F.pad", "scatter", "gather", "index_put", "cumsum", "layer_norm",
                 "softmax", "@", "topk", ".to(torch.", "where(", "no_grad", "add_(", "sort", "masked", "sum(", "var", "conv", "flip("):  # fmt: skip
        assert word in text, word
    assert len(OPERATORS) >= 75


def altered(change: Callable[[tuple[Any, ...], tuple[Any, ...]], Any]) -> Callable[..., Any]:
    """A compiler with a bug: its code applies `change` to eager's results."""
    return lambda fn, backend: lambda *args: change(fn(*args), args)


def off_by_little(results: Any, args: Any) -> Any:
    return (results[0], results[1] * (1 + 1e-7), results[2])


class WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, up: Any) -> Any:
        return up * 1.001


def fail(results: Any, args: Any) -> Any:
    raise ValueError


BUGS: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "a value": ("values", off_by_little),
    "a dtype": ("values", lambda r, a: (r[0], r[1].float(), r[2])),
    "a shape": ("values", lambda r, a: (r[0][None], r[1], r[2])),
    "strides": ("strides", lambda r, a: (r[0], r[1].t().contiguous().t(), r[2])),
    "aliasing": ("aliasing", lambda r, a: (r[0], r[1], r[2].clone())),
    "a gradient": ("values", lambda r, a: (r[0], WrongGradient.apply(r[1]), r[2])),
    "requires_grad": ("requires_grad", lambda r, a: (r[0], r[1].detach(), r[2])),
    "an argument": ("values", lambda r, a: (a[1].data.mul_(1.5), r)[1]),
    "a version": ("version", lambda r, a: (a[0].detach().mul_(1), r)[1]),
    "an error": ("error", fail),
}


@pytest.mark.parametrize("bug", BUGS)
def test_bugs_are_seen(bug: str) -> None:
    what, change = BUGS[bug]
    verdict = compare(SMALL, compiler=altered(change))
    assert verdict.kind == "differs", verdict
    assert verdict.what in (what, "undefined"), verdict
    assert compare(SMALL, compiler=altered(lambda r, a: r)).kind == "same"


def test_unsteady_programs_are_told_apart() -> None:
    """The sign of a pure rounding error is no finding; the same change to a program without rounding is one."""
    p = Program(
        1,
        ("a0 = data(1, 8, dtype=torch.float64)",),
        ("x0 = a0",),
        ("t0 = (x0 * 0.1 + x0 * 0.2 - x0 * 0.3).sign()",),
        ("t0",),
    )
    wrong = altered(lambda r, a: (-r[0],))
    assert compare(p, compiler=wrong).kind == "unsteady"
    steady = Program(1, p.leaves, p.arguments, ("t0 = x0.sign()",), ("t0",))
    assert compare(steady, compiler=wrong).kind == "differs"


def eager_with(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Any]:
    return altered(lambda r, a: (change(r[0]),))


def of_one(line: str, leaf: str) -> Program:
    return Program(1, (f"a0 = {leaf}",), ("x0 = a0",), (line,), ("t0",))


def test_few_digits_that_come_to_be_equal_are_unsteady() -> None:
    """Two bfloat16 results become equal under some roundings only: not each noisy run shows it."""
    p = of_one("t0 = F.log_softmax(x0, -1) == F.log_softmax(x0.flip(0), -1)", "data(5, 14, 9, dtype=torch.bfloat16)")
    make, fn = p.load()
    (equal,) = fn(*make()[1])
    (x,) = make()[1]
    near = (torch.log_softmax(x, -1) - torch.log_softmax(x.flip(0), -1)).abs() < 0.02
    assert near.sum() > equal.sum()
    assert compare(p, compiler=eager_with(lambda t: near)).kind == "unsteady"
    assert compare(p, compiler=eager_with(lambda t: ~t)).kind == "differs"


def test_as_many_values_as_rounding_leaves_are_unsteady() -> None:
    """The count of positive rounding errors is unsteady; a count that no rounding leads to is a finding."""
    p = of_one("t0 = (r := x0 * 0.1 + x0 * 0.2 - x0 * 0.3)[r > 0]", "data(3, 1, dtype=torch.float64)")
    other = eager_with(lambda t: t[:0] if t.numel() else t.new_ones(1))
    assert compare(p, compiler=other).kind == "unsteady"
    assert compare(p, compiler=eager_with(lambda t: t.new_ones(2))).kind == "differs"
    steady = of_one("t0 = x0[x0 > 0]", "data(3, 1, dtype=torch.float64)")
    assert compare(steady, compiler=other).kind == "differs"


def test_gradients_of_what_was_written_are_eagers_own() -> None:
    """Compiled code reports a write to a saved tensor that eager misses; if eager's gradient is right, the error is a
    finding."""

    def refuse(results: Any, args: Any) -> Any:
        raise RuntimeError(f"one of the variables {WRITTEN}")

    line = "data(1, 2, dtype=torch.float64)", "data(2, 1, dtype=torch.float64).requires_grad_()"
    leaves, arguments = tuple(f"a{k} = {made}" for k, made in enumerate(line)), ("x0 = a0", "x1 = a1")
    unseen = Program(1, leaves, arguments, ("t0 = torch.kron(x0[:3], x1[:2])", "x0 *= 2"), ("t0",))
    seen = Program(1, leaves, arguments, ("t0 = torch.kron(x0[:3], x1[:2])", "x1.sin()"), ("t0",))
    assert compare(unseen, compiler=altered(refuse)).what == "a bug of eager's own"
    assert compare(seen, compiler=altered(refuse)).kind == "differs"


CONSUMING = Program(
    1,
    ("a0 = data(1, 5, 40, dtype=torch.float32)",),
    ("x0 = a0",),
    ("t0 = x0.sin().softmax(-1)", "t1 = t0 == t0.amax(-1, keepdim=True)", "t2 = (t0 * 8).round()"),
    ("t1", "t0", "t2"),
    exact=("t1", "t2"),
)


def test_exact_consumers_are_compared_with_the_value_that_they_read() -> None:
    def rounded(consumed: float) -> Callable[..., Any]:
        def change(results: Any, args: Any) -> Any:
            t0 = results[1] * (1 + 1e-6)
            other = t0 * consumed
            return other == t0.amax(-1, keepdim=True), t0, (t0 * 8).round()

        return altered(change)

    assert [place for place, _, _ in CONSUMING.consumers()] == [0, 2]
    assert compare(CONSUMING, compiler=rounded(1.0)).kind == "same"
    verdict = compare(CONSUMING, compiler=rounded(1 - 1e-6))
    assert (verdict.kind, verdict.what) == ("differs", "consumer"), verdict
    assert compare(CONSUMING).kind == "same"


def test_a_part_of_the_programs_has_exact_consumers() -> None:
    made = [generate(seed)[0] for seed in range(200)]
    assert 0.12 < sum(bool(p.consumers()) for p in made) / len(made) < 0.28
    assert all(len(p.consumers()) == len(p.exact) for p in made)


def test_programs_are_cut_down() -> None:
    def fails(p: Program) -> bool:
        make, fn = p.load()
        fn(*make()[1])
        return any("cumsum" in s for s in p.statements)

    small = reduce(SMALL, fails)
    assert len(small.statements) <= 2
    assert len(small.leaves) == 1
    assert "cumsum" in small.body()


def test_a_script_runs(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SMALL.script(backend="eager"))
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    lines = [line for line in done.stdout.split("\n") if line.startswith(("[", "arguments"))]
    assert len(lines) == 6 and lines[:3] == lines[3:]  # results, gradients, arguments: of eager and of compiled code


def test_names_of_statements() -> None:
    assert bound("t1, t2 = torch.sort(x0)") == ["t1", "t2"]
    assert bound("with torch.no_grad():\n    t3 = x0 * a0") == ["t3"]
    assert bound("x0[:, 1] = t3") == []
    assert names("t10 = F.pad(x1, (1, 2))") == {"t10", "x1"}


def test_a_process_that_dies_is_a_finding() -> None:
    died = list(campaign.lines_of([sys.executable, "-c", "import os; print('{\"start\": 5}', flush=True); os.abort()"]))
    assert died[0] == {"start": 5}
    assert campaign.death(died[1]).startswith("SIGABRT")


def test_programs_as_captured() -> None:
    """The backend that runs the captured graph: capture alone."""
    for seed in range(100):
        verdict = compare(generate(seed)[0], backend="eager")
        assert verdict.kind in ("same", "raises", "unsteady"), f"seed {seed}: {verdict}"


def test_decisions_are_counted() -> None:
    """The cells of a scheduling backend lie in the tables, and no impossible cell is reached."""
    total: Counter[Any] = Counter()
    for seed in (3, 7, 11, 12, 13):
        program = generate(seed, "cpu", aim(seed))[0]
        with watching() as found:
            verdict = compare(program, calls=1)
        assert verdict.what != "error", verdict
        total += found
    assert len(total) > 15
    assert set(total) <= set(cells()), set(total) - set(cells())
    text = table_text(total)
    assert all(table in text for table in TABLES)
    assert f"{len(total)} of {len(cells())} cells reached" in text
    assert {row for _, row, _ in cells()} & AIMS.keys()


def test_single_rows_and_columns_are_reached() -> None:
    """Cells of single rows and columns, and of indirect loads from the same kernel, are reached with equal values."""
    tables = ("load x shape of what it reads", "role x shape of what it reads", "indirect read of what its kernel makes x made by")  # fmt: skip
    wanted = {cell for cell in cells() if cell[0] in tables}
    total: Counter[Any] = Counter()
    for seed in range(400, 416):
        program = generate(seed, "cpu", Aim({"single": 60.0, "single_index": 60.0}))[0]
        with watching() as found:
            verdict = compare(program, calls=1)
        assert verdict.kind != "differs", f"seed {seed}: {verdict}"
        total += found
    assert len(wanted & set(total)) > len(wanted) / 2, wanted - set(total)
    assert set(total) <= set(cells()), set(total) - set(cells())


BLOCK = 50


@pytest.mark.parametrize("block", range(6))
def test_programs(block: int) -> None:
    """300 programs, forward and backward, on the default backend, built with the users' compiler flags."""
    kinds: Counter[str] = Counter()
    for seed in range(block * BLOCK, block * BLOCK + BLOCK):
        verdict = compare(generate(seed, "cpu", aim(seed))[0])
        assert verdict.kind != "differs", f"seed {seed}: {verdict}"
        kinds[verdict.kind] += 1
    assert kinds["same"] >= 0.8 * BLOCK, kinds
    assert kinds["unsteady"] <= 1, kinds


def test_excuses_are_counted_and_capped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A run with too many unsteady programs fails, and names them."""

    def saying(unsteady: int) -> Callable[..., Any]:
        kinds = ["unsteady"] * unsteady + ["same"] * (400 - unsteady)
        lines = [{"seed": seed, "kind": kind, "what": "", "detail": f"t{seed}"} for seed, kind in enumerate(kinds)]
        return lambda arguments: iter(lines)

    for unsteady, status in ((2, 0), (3, 1)):
        monkeypatch.setattr(campaign, "lines_of", saying(unsteady))
        monkeypatch.setattr(campaign, "CHUNK", 400)
        assert campaign.run(0, 400, 1, "cpu", "native", 60.0, 0, None) == status
        told = capsys.readouterr().out
        assert "unsteady: seed 1: t1" in told
        assert ("3 of 400 programs are unsteady, at most 0.5% may be" in told) is bool(status)


EXTREMES = {
    "max": "x0.max(0).values", "amax": "x0.amax(0)", "sort": "x0.sort(0).values", "topk": "x0.topk(2, 0).values", "median": "x0.median(0).values",
    "kthvalue": "x0.kthvalue(2, 0).values", "cummax": "x0.cummax(0).values", "clamp": "x0.clamp(-1, 1)", "maximum": "torch.maximum(x0, x0.flip(0))",
    "where": "torch.where(x0 > 0, x0, -x0)", "gather": "x0.gather(0, x0.argsort(0))", "abs_": "x0.clone().abs_()", "floor": "x0.floor()",
    "max_pool2d": "F.max_pool2d(x0[None, None], 2)[0, 0]",
}  # fmt: skip


@pytest.mark.parametrize("name", EXTREMES)
def test_extremes_sorts_and_selections_are_quiet(name: str) -> None:
    """These operators do not round: under noise they give the same elements, and a wrong element is a finding."""
    p = of_one(f"t0 = {EXTREMES[name]}", "data(3, 6, 4, dtype=torch.float32)")
    make, fn = p.load()
    args = make()[1]  # casts round, so noise changes them
    with Noise(0, 4.0, snaps=False):
        (noisy,) = fn(*args)
    assert torch.equal(noisy, fn(*make()[1])[0])
    wrong = eager_with(lambda t: t + t.abs().mul(1e-2) + 1e-2)
    assert compare(p, compiler=wrong).kind == "differs"


def test_a_gradient_that_is_not_a_number_is_no_noise() -> None:
    """The gradient of a maximum depends on equality with its elements: eager's stays a number when operators round
    otherwise."""
    p = of_one(
        "t0 = x0 / (x0 == x0.amax(-1, keepdim=True)).any(-1, keepdim=True)", "data(3, 6, 4, dtype=torch.float32)"
    )
    assert compare(p, compiler=eager_with(lambda t: t * float("nan"))).kind == "differs"


def test_strides_that_reach_no_element_are_compared() -> None:
    p = Program(1, ("a0 = data(1, 1, 4, dtype=torch.float64)",), ("x0 = a0",), ("t0 = x0 + 1",), ("t0",))
    verdict = compare(p, compiler=altered(lambda r, a: (r[0].as_strided((1, 4), (9, 1)),)))
    assert (verdict.kind, verdict.what) == ("differs", "strides")


def test_noise_leaves_alone_what_has_no_memory() -> None:
    """Noise skips zero tensors, such as the gradient of `sgn`: a write to one ends the process."""
    with Noise(0, 1.0, snaps=True):
        assert torch._efficientzerotensor((3,), dtype=torch.float64)._is_zerotensor()


def test_a_process_says_what_it_reached(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "prepare", worker.Said)
    worker.walk(range(3, 4), "cpu", "native")
    findings = campaign.Findings()
    for line in capsys.readouterr().out.splitlines():
        if "kind" in (said := json.loads(line)):
            findings.note(said)
    assert findings.cells and set(findings.cells) <= set(cells())


def test_the_first_stage_that_differs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    p = Program(1, ("a0 = data(1, 3, dtype=torch.float64)",), ("x0 = a0",), ("t0 = x0 * 2 + 1",), ("t0",))
    assert worker.seam_of(p) == ", at no seam"
    right = seams.SEAMS["program"]
    monkeypatch.setitem(seams.SEAMS, "program", lambda gm, i: lambda *a: [t + 1 for t in right(gm, i)(*a)])
    assert worker.seam_of(p).startswith(", first at program: output 0: 3 of 3 elements")


def test_a_crash_is_cut_down_by_its_signal() -> None:
    segfault, abort = (Verdict("differs", "crash", f"signal {n}") for n in (-11, -6))
    assert worker.alike(segfault, segfault) and not worker.alike(abort, segfault)
