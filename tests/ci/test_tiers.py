"""The fast tier: which tests run in which turn, shards, and the order of files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import tiers
from tests.tiers import Durations

CONFIG: Any = SimpleNamespace(
    getoption=lambda name: None, hook=SimpleNamespace(pytest_deselected=lambda items: None)
)  # of pytest, without options


def item_of(test: str, whole: bool = False) -> Any:
    return SimpleNamespace(nodeid=test, get_closest_marker=lambda name: whole or None)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 11, 100])
@pytest.mark.parametrize("seconds", [0.0, 0.01, 0.1, 0.3, 2.0])
def test_every_case_has_its_turn(count: int, seconds: float) -> None:
    turns = [tiers.chosen(count, seconds, turn) for turn in range(7, 7 + count)]
    assert set().union(*turns) == set(range(count))
    for found in turns:
        assert found
        assert len(found) * seconds <= max(tiers.SECONDS, seconds)
    if count * seconds <= tiers.SECONDS:
        assert turns[0] == set(range(count))


def test_slow_tests_and_files_have_their_turns() -> None:
    known = Durations(fixtures={"a.py": 20.0, "b.py": 1.0}, cases={"b.py::slow": 5.0, "b.py::quick": 0.3})
    tests = ["a.py::one", "a.py::two", "b.py::slow", "b.py::quick", "b.py::new"]
    turns = [tiers.select(tests, turn, known) for turn in range(tiers.TURNS)]
    assert sum("b.py::slow" in found for found in turns) == 1
    assert sum("a.py::one" in found for found in turns) == sum("a.py::two" in found for found in turns) == 1
    assert all({"b.py::quick", "b.py::new"} <= found for found in turns)


def test_many_cases_run_in_part() -> None:
    tests = ["a.py::one", *(f"a.py::many[{i}]" for i in range(8))]
    found = tiers.select(tests, 1, Durations(cases={"a.py::many": 0.2}))
    assert found == {"a.py::one", "a.py::many[1]"}
    assert tiers.select(tests, 1, Durations()) == set(tests)


def test_shards_are_whole_files_and_hold_all_tests() -> None:
    tests = [f"{file}.py::test[{i}]" for file in "abcdefg" for i in range(3)]
    known = Durations(fixtures={"a.py": 3.0}, cases={"b.py::test": 2.0, "c.py::test": 1.0})
    shards = [tiers.sharded(tests, i, 3, known) for i in (1, 2, 3)]
    assert sorted(t for s in shards for t in s) == sorted(tests)
    files = [{tiers.file_of(t) for t in s} for s in shards]
    assert "b.py" in files[0] and {"a.py", "c.py"}.isdisjoint(files[0])


def test_fuzzers_run_all_their_seeds_in_five_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "current", tiers.Tier("all", 3))
    assert [*tiers.part(100)] == [*range(100)]
    seen: list[int] = []
    for turn in range(tiers.PARTS):
        monkeypatch.setattr(tiers, "current", tiers.Tier("fast", turn))
        seen += tiers.part(100)
        assert [*tiers.part(3)] == [0, 1, 2]
    assert seen == [*range(100)]


def test_the_rest_is_not_in_the_fast_tier_and_has_four_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Durations(cases={"a.py::many": 0.25})
    monkeypatch.setattr(tiers, "read", lambda: known)
    tests = [f"a.py::many[{i}]" for i in range(40)]
    for turn in range(3):
        fast, rest = (chosen_by(name, turn, tests, monkeypatch) for name in ("fast", "rest"))
        assert fast == tiers.select(tests, turn, known) and not fast & rest
    monkeypatch.setattr(tiers, "select", lambda *_: set())
    quarters = [chosen_by("rest", turn, tests, monkeypatch) for turn in range(4)]
    assert sorted(t for q in quarters for t in q) == sorted(tests)


def chosen_by(tier: str, turn: int, tests: list[str], monkeypatch: pytest.MonkeyPatch) -> set[str]:
    monkeypatch.setattr(tiers, "current", tiers.Tier(tier, turn))
    items: Any = [item_of(test) for test in tests]
    tiers.modify(CONFIG, items)
    return {item.nodeid for item in items}


def test_long_files_come_first_with_their_tests_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Durations(fixtures={"c.py": 9.0}, cases={"b.py::two": 2.0})
    monkeypatch.setattr(tiers, "read", lambda: known)
    monkeypatch.setattr(tiers, "current", tiers.Tier())
    items: Any = [item_of(test) for test in ("a.py::one", "b.py::one", "c.py::one", "b.py::two")]
    tiers.modify(CONFIG, items)
    assert [item.nodeid for item in items] == ["c.py::one", "b.py::one", "b.py::two", "a.py::one"]


@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("known", [Durations(cases={"a.py::slow": 5.0}), Durations({"a.py": 9.0}, {"a.py::slow": 0.2})])
def test_each_case_of_a_slow_test_has_its_turn(count: int, known: Durations) -> None:
    tests = [f"a.py::slow[{i}]" for i in range(count)]
    turns = [tiers.select(tests, turn, known) for turn in range(tiers.TURNS * count)]
    assert set().union(*turns) == set(tests)
    assert sum(bool(found) for found in turns) == count


def test_whole_tests_run_in_every_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiers, "read", lambda: Durations(cases={"a.py::many": 5.0}))
    tests = [f"a.py::many[{i}]" for i in range(4)]
    for turn in range(5):
        monkeypatch.setattr(tiers, "current", tiers.Tier("fast", turn))
        items: Any = [item_of(test, whole=True) for test in tests]
        tiers.modify(CONFIG, items)
        assert [item.nodeid for item in items] == tests


def test_shards_divide_the_chosen_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that the tier leaves out take no time of a shard."""
    known = Durations(cases={"a.py::many": 0.3, "b.py::one": 1.0, "c.py::one": 1.0})
    monkeypatch.setattr(tiers, "read", lambda: known)
    monkeypatch.setattr(tiers, "current", tiers.Tier("fast", 0))
    tests = [*(f"a.py::many[{i}]" for i in range(100)), "b.py::one", "c.py::one"]
    shards = []
    for shard in ("1/2", "2/2"):
        items: Any = [item_of(test) for test in tests]
        tiers.modify(SimpleNamespace(**vars(CONFIG) | {"getoption": lambda name, shard=shard: shard}), items)
        shards.append({item.nodeid for item in items})
    assert sorted(map(len, shards)) == [1, 2] and "a.py::many[0]" in shards[0] | shards[1]


def test_recorded_durations_are_read_again(tmp_path: Path) -> None:
    recorder, path = tiers.Recorder(), tmp_path / "durations.json"

    def report(test: str, when: str, duration: float) -> Any:
        return type("Report", (), {"nodeid": test, "when": when, "duration": duration})

    for i in range(4):
        recorder.pytest_runtest_logreport(report(f"a.py::many[{i}]", "call", 0.5))
    recorder.pytest_runtest_logreport(report("a.py::many[0]", "setup", 7.0))
    recorder.pytest_runtest_logreport(report("a.py::quick", "call", 0.01))
    tiers.write(recorder.durations(), path)
    assert tiers.read(path) == Durations({"a.py": 7.0}, {"a.py::many": 0.5})
    assert tiers.read(tmp_path / "none.json") == Durations()
    older = Durations({"a.py": 1.0, "b.py": 3.0}, {"a.py::gone": 2.0, "b.py::kept": 0.5})
    assert recorder.added_to(older) == Durations({"a.py": 7.0, "b.py": 3.0}, {"a.py::many": 0.5, "b.py::kept": 0.5})


@pytest.mark.parametrize("shard", ["0/3", "4/3", "x", "1/"])
def test_a_shard_that_does_not_exist_is_refused(shard: str) -> None:
    config: Any = SimpleNamespace(getoption=lambda name: shard)
    with pytest.raises(pytest.UsageError, match="expected I/N"):
        tiers.modify(config, [])
