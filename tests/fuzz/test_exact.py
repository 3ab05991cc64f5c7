"""Programs of `exact.py` by fixed seeds; `python -m tests.fuzz.exact` continues with others."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.ir import phases
from pycompiler.ir.target import Target
from tests.fuzz import exact, rewritings


@pytest.mark.parametrize("first", range(500_000, 500_060, 20))
def test_bits_are_eagers(first: int) -> None:
    torch.set_num_threads(1)
    for seed in range(first, first + 20):
        program = exact.generate(seed)
        with exact.team(seed):
            found = exact.compare(program)
        assert not found, f"seed {seed}: {found}\n{program.text()}"


@pytest.mark.gpu
@pytest.mark.parametrize("first", range(800_000, 800_060, 20))
def test_bits_are_eagers_on_a_gpu(first: int) -> None:
    for seed in range(first, first + 20):
        program = exact.generate(seed)
        found = exact.compare(program, "cuda")
        assert not found, f"seed {seed}: {found}\n{program.text()}"


@pytest.mark.parametrize("name", exact.SETTINGS)
def test_each_setting_changes_no_bits(name: str) -> None:
    program = exact.generate(600_100, twins=True)
    found = exact.twins(program, settings=[name])
    assert not found, f"{found}\n{program.text()}"


class Targets(phases.Observer):
    """The targets of schedules."""

    def __init__(self) -> None:
        self.found: list[Target] = []

    def artefact(self, name: str, value: Any) -> None:
        if name == "schedule":
            self.found.append(value.target)


def test_a_machine_is_the_target_of_each_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a graph that was compiled for another machine: plans are not shared."""
    monkeypatch.setattr(phases, "observers", [targets := Targets()])
    torch.set_num_threads(1)
    pycompiler.compile(lambda x: x + 1)(torch.ones(300))
    with exact.team(0):
        pycompiler.compile(lambda x: x + 2)(torch.ones(300))
    with exact.team(1):
        assert torch.get_num_threads() == 2
        pycompiler.compile(lambda x: x + 1)(torch.ones(300))
    with exact.machine(1, **exact.TILES):
        pycompiler.compile(lambda x: x + 1)(torch.ones(300))
    assert torch.get_num_threads() == 1
    plain, alone, team, tiles = targets.found
    assert plain == alone
    assert team == replace(plain, processors=2, parallel_work=1)
    assert tiles == replace(plain, **exact.TILES) != plain


@pytest.mark.parametrize("seed", range(600_000, 600_006))
def test_settings_change_no_bits(seed: int) -> None:
    program = exact.generate(seed, twins=True)
    found = exact.twins(program)
    assert not found, f"seed {seed}: {found}\n{program.text()}"


@pytest.mark.parametrize("seed", range(700_000, 700_008))
def test_programs_written_otherwise_have_the_same_bits(seed: int) -> None:
    program = exact.generate(seed, twins=True)
    found = exact.rewritten(program)
    assert not found, f"seed {seed}: {found}\n{program.text()}"


@pytest.mark.captures_nothing("eager programs, written otherwise")
def test_rewrites_hold_in_eager() -> None:
    """Rewrites keep eager's result and change the source."""
    torch.set_num_threads(1)
    for seed in range(700_100, 700_140):
        program = exact.generate(seed, twins=True)
        body = rewritings.rewritten(program.body, program.results, random.Random(seed), program.training)
        assert tuple(body) != program.body
        make, fn = program.load("cpu")
        other = replace(program, body=tuple(body)).load("cpu")[1]
        found = exact.difference(exact.run(other, make, False), exact.run(fn, make, False), program.results)
        assert not found, f"seed {seed}: {found}\n{program.text()}\n{body}"


def test_differences_are_seen() -> None:
    program = exact.generate(500_000)
    make, fn = program.load("cpu")
    seen = exact.run(fn, make, program.training)
    other = exact.Seen(
        [torch.nextafter(v, v + 1) if v.is_floating_point() else ~v for v in seen.values], seen.gradients
    )
    assert exact.difference(other, seen, program.results)
    assert not exact.difference(seen, seen, program.results)


SUMMANDS = exact.Program(
    1, "float16",
    ("x0 = data(321607, 23, 7, dtype=torch.float16).requires_grad_()",
     "x1 = data(515617, 7, dtype=torch.float16, special=True, largest=False).requires_grad_()"),
    ("t0 = x1 * x0", "t1 = 1 / t0", "t2 = t1 * t1 - t1 * t1", "t3 = torch.lerp(t1, x0, x1.clamp(0.1, 0.9))", "t4 = x1.trunc() * t1"),
    ("t2", "t3", "t4"), True,
)  # fmt: skip


def test_other_orders_of_statements_excuse_a_gradient_and_no_more() -> None:
    """Eager adds small summands to large ones, a gradient of 0 times infinity; in other orders the sum is not 0."""
    make, fn = SUMMANDS.load("cpu", eager=True)
    want = exact.run(fn, make, True)
    others = [exact.run(p.load("cpu", eager=True)[1], make, True) for p in exact.other_orders(SUMMANDS)]
    differing = [o for o in others if exact.difference(o, want, SUMMANDS.results)]
    assert differing and all(exact.is_order_of_summands(SUMMANDS, "cpu", o, want) for o in differing)
    wrong = exact.Seen(want.values, [g if g is None else torch.full_like(g, torch.nan) for g in want.gradients])
    assert not exact.is_order_of_summands(SUMMANDS, "cpu", wrong, want)
    assert exact.compare(SUMMANDS) in ("", exact.EXCUSED)
