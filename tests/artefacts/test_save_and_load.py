"""Save and load in one process: settings, files on disk, threads, artefacts of artefacts."""

from __future__ import annotations

import os
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import pycompiler
from pycompiler.artefacts import encode
from pycompiler.capture.recipe.recipe import Recipe, holes
from pycompiler.exc import ArtefactError, RecompileError
from pycompiler.pipeline import EntryParts
from pycompiler.wrapping import compiled_of
from tests.artefacts import programs


def scaled(x: Tensor, n: int = 2) -> Tensor:
    return (x * n).relu()


def broken(x: Tensor) -> Tensor:
    y = x + 1
    pycompiler.graph_break()
    return y * 2


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


def saved(model: Any, path: Path, *calls: Any, **settings: Any) -> Any:
    compiled = pycompiler.compile(model, **settings)
    for arguments in calls:
        compiled(*arguments)
    assert pycompiler.save(compiled, path).left_out == ()
    return compiled


def test_what_save_says(tmp_path: Path) -> None:
    compiled = pycompiler.compile(scaled)
    compiled(torch.ones(3))
    compiled(torch.ones(3), 4)
    done = pycompiler.save(compiled, str(tmp_path / "a"))
    assert (done.entries, done.left_out, done.size) == (2, (), os.path.getsize(tmp_path / "a"))
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == 0o600
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_settings_come_back(tmp_path: Path) -> None:
    options = {"activation_memory_budget": 0.5}
    saved(scaled, tmp_path / "a", (torch.ones(3),), fullgraph=True, recompile_limit=3, options=options)
    family = compiled_of(pycompiler.load(tmp_path / "a", scaled))._pycompiler_family
    assert (family.fullgraph, family.recompile_limit, family.knobs, family.backend_name) == (True, 3, options, "native")


def test_the_entry_used_last_comes_first(tmp_path: Path) -> None:
    compiled = saved(scaled, tmp_path / "a", (torch.ones(3),), (torch.ones(4),), (torch.ones(3),))
    loaded = pycompiler.load(tmp_path / "a", scaled)
    for c in (compiled, loaded):
        before = pycompiler.counters(c)["guard_checks"]
        c(torch.ones(3))
        assert pycompiler.counters(c)["guard_checks"] == before + 1
    assert [len(e.guards) for e in loaded.entries] == [len(e.guards) for e in compiled.entries]


def refuses(x: Tensor, index: Tensor, seen: list[Any]) -> Tensor:
    """Eager runs again to raise its error; so the entry runs generated code, not the graph alone."""
    seen.append("before")
    y = x.sin()
    try:
        return y[index]
    except IndexError:
        return y
    finally:
        pycompiler.graph_break()
        seen.append("after")


def test_entries_are_made_of_the_same(tmp_path: Path) -> None:
    """An entry is assembled from saved data: the loaded entry's recipe equals the original's."""
    arguments = (torch.ones(3), torch.tensor([2, 0]))
    compiled = saved(refuses, tmp_path / "a", (*arguments, []))
    loaded = pycompiler.load(tmp_path / "a", refuses)
    families = [compiled_of(c)._pycompiler_family for c in (compiled, loaded)]

    def told(made: EntryParts) -> Any:
        recipe, code = made.recipe, made.recipe.code
        text = None if code is None else (code.co_code, code.co_exceptiontable, [h.name for h in holes(code)])
        return [str(g) for g in recipe.guards], recipe.inputs, recipe.template, text, recipe.hook, recipe.errors

    kinds = set()
    for ours, theirs in ((compiled.entries, loaded.entries), *(
        (a.entries, b.entries) for a, b in zip(*(f.resumes.values() for f in families), strict=True)
    )):  # fmt: skip
        assert len(ours) == len(theirs) > 0
        for a, b in zip(ours, theirs, strict=True):
            assert told(families[0].made[a]) == told(families[1].made[b]) and a.kind == b.kind
            kinds.add(a.kind)
    assert "function" in kinds
    for c in (compiled, loaded):
        for index in (torch.tensor([2, 0]), torch.tensor([5])):
            ours, theirs = list[Any](), list[Any]()
            torch.testing.assert_close(c(arguments[0], index, ours), refuses(arguments[0], index, theirs))
            assert ours == theirs


def test_frozen(tmp_path: Path) -> None:
    """A loaded callable that must not compile runs its entries, and gives the reason for each miss."""
    saved(scaled, tmp_path / "a", (torch.ones(3),))
    loaded = pycompiler.set_policy(pycompiler.load(tmp_path / "a", scaled), "error")
    assert torch.equal(loaded(torch.ones(3)), scaled(torch.ones(3)))
    with pytest.raises(RecompileError, match=r"sizes \(5,\), expected \(3,\)"):
        loaded(torch.ones(5))
    assert "programs" not in str(pycompiler.explain_miss(loaded, torch.ones(5)))
    assert "test_save_and_load.py:" in pycompiler.explain_miss(loaded, torch.ones(5))[0]


def test_misses_are_compiled(tmp_path: Path) -> None:
    saved(broken, tmp_path / "a", (torch.ones(3),))
    loaded = pycompiler.load(tmp_path / "a", broken)
    for n in (3, 4, 3, 4):
        assert torch.equal(loaded(torch.ones(n)), broken(torch.ones(n)))
    assert pycompiler.counters(loaded)["compiles"] == 2


def test_loaded_twice_and_saved_again(tmp_path: Path) -> None:
    first = saved(Layers(), tmp_path / "a", (torch.ones(3, 4),))
    models = [Layers(), Layers()]
    loaded = [pycompiler.load(tmp_path / "a", m) for m in models]
    for made, model in zip(loaded, models, strict=True):  # parameters are the module's own
        x = torch.randn(3, 4)
        torch.testing.assert_close(made(x), model(x))
        made(x).sum().backward()
        assert all(p.grad is not None for p in model.parameters())
        assert pycompiler.counters(made)["compiles"] == 0
    loaded[0](torch.ones(5, 4))
    assert pycompiler.save(loaded[0], tmp_path / "b").entries == 2
    again = pycompiler.load(tmp_path / "b", models[1])
    for n in (3, 5):
        torch.testing.assert_close(again(torch.ones(n, 4)), models[1](torch.ones(n, 4)))
    assert pycompiler.counters(again)["compiles"] == 0
    assert pycompiler.counters(first)["compiles"] == 1


def test_reset_drops_what_was_loaded(tmp_path: Path) -> None:
    saved(broken, tmp_path / "a", (torch.ones(3),))
    loaded = pycompiler.load(tmp_path / "a", broken)
    pycompiler.reset(loaded)
    loaded(torch.ones(3))
    assert pycompiler.counters(loaded)["compiles"] == 2


def test_methods_and_classes(tmp_path: Path) -> None:
    model = Layers()
    saved(model.forward, tmp_path / "a", (torch.ones(3, 4),))
    loaded = pycompiler.load(tmp_path / "a", model.forward)
    torch.testing.assert_close(loaded(torch.ones(3, 4)), model(torch.ones(3, 4)))
    assert compiled_of(loaded).counters()["compiles"] == 0


def test_a_function_without_a_module(tmp_path: Path) -> None:
    space: dict[str, Any] = {}
    exec("def fn(x):\n    return x.sin() + 1\n", space)
    assert space["fn"].__module__ is None
    saved(space["fn"], tmp_path / "a", (torch.ones(3),))
    loaded = pycompiler.load(tmp_path / "a", space["fn"])
    assert torch.equal(loaded(torch.ones(3)), space["fn"](torch.ones(3)))
    assert pycompiler.counters(loaded)["hits"] == 1


def test_code_that_was_replaced_is_not_saved(tmp_path: Path) -> None:
    """After `__code__` is replaced, entries of the old code are not saved."""

    def changing(x: Tensor) -> Tensor:
        return x + 1

    def other(x: Tensor) -> Tensor:
        return x - 1

    compiled = pycompiler.compile(changing)
    compiled(torch.ones(3))
    changing.__code__ = other.__code__
    compiled(torch.ones(3))
    assert pycompiler.save(compiled, tmp_path / "a").entries == 1

    def fresh(x: Tensor) -> Tensor:
        return x * 0

    fresh.__code__ = other.__code__
    assert torch.equal(pycompiler.load(tmp_path / "a", fresh)(torch.ones(3)), torch.zeros(3))


LARGE = torch.zeros(1 << 23)


def left_out(model: Any, path: Path, *arguments: Any) -> str:
    compiled = pycompiler.compile(model)
    compiled(*arguments)
    with pytest.raises(ArtefactError) as raised:
        pycompiler.save(compiled, path)
    return str(raised.value)


def test_what_is_not_compiled_yet(tmp_path: Path) -> None:
    compiled = pycompiler.compile(scaled, background=True)
    compiled(torch.ones(3))
    assert pycompiler.wait_for_compiles(60)
    assert pycompiler.save(compiled, tmp_path / "a").entries == 1
    (entry,) = pycompiler.load(tmp_path / "a", scaled).entries
    assert entry.kind == "plan"
    family = compiled_of(compiled)._pycompiler_family
    family.made[compiled.entries[0]] = EntryParts(Recipe([], process=("its graph is not compiled yet",)))
    with pytest.raises(ArtefactError, match="scaled, entry 0: its graph is not compiled yet"):
        pycompiler.save(compiled, tmp_path / "a")


def test_large_constants_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def small(x: Tensor) -> Tensor:
        return x + torch.tensor([1.0, 2.0, 3.0])

    saved(small, tmp_path / "a", (torch.ones(3),))
    assert pycompiler.load(tmp_path / "a", small)(torch.ones(3)).tolist() == [2, 3, 4]
    monkeypatch.setattr(encode, "CONSTANT_BYTES", 8)
    assert "a constant of 12 bytes (torch.float32[3])" in left_out(small, tmp_path / "a", torch.ones(3))


TABLE = {"k": 2.0}


def test_existing_objects_are_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Guards start from the loading process's own object, and fail when it changes."""

    def run(x: Tensor) -> Tensor:
        return x * TABLE["k"] + ("json.tool" in sys.modules)

    sys.modules.pop("json.tool", None)
    saved(run, tmp_path / "a", (torch.ones(1),))
    loaded = pycompiler.load(tmp_path / "a", run)
    assert loaded(torch.ones(1)).item() == 2 and pycompiler.counters(loaded)["compiles"] == 0
    monkeypatch.setitem(TABLE, "k", 3.0)
    assert loaded(torch.ones(1)).item() == 3
    monkeypatch.setitem(sys.modules, "json.tool", sys)
    assert loaded(torch.ones(1)).item() == 4


class Odd(type):
    def __eq__(cls, other: object) -> bool:
        raise RuntimeError("never compared")

    def __hash__(cls) -> int:
        raise RuntimeError("never hashed")


class OddThing(metaclass=Odd):
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(name)

    def __repr__(self) -> str:
        raise RuntimeError("repr")


ODD = {"a": OddThing()}


def test_objects_that_lie(tmp_path: Path) -> None:
    def with_odd(x: Tensor, y: Any = ODD["a"]) -> Any:
        return x + 1, y

    saved(with_odd, tmp_path / "a", (torch.ones(3),))
    assert pycompiler.load(tmp_path / "a", with_odd)(torch.ones(3))[1] is ODD["a"]


def test_operators_of_the_program(tmp_path: Path) -> None:
    """An operator that runs whole may be saved; a graph traced through its Python code may not."""
    name = "artefact_own::twice"

    @torch.library.custom_op(name, mutates_args=())
    def twice(x: Tensor) -> Tensor:
        return x * 2

    twice.register_fake(torch.empty_like)

    def run(x: Tensor) -> Tensor:
        return torch.ops.artefact_own.twice(x) + 1

    saved(run, tmp_path / "a", (torch.ones(3),))
    assert pycompiler.load(tmp_path / "a", run)(torch.ones(3)).tolist() == [3, 3, 3]
    twice.register_autograd(lambda ctx, g: g * 2)
    assert name in left_out(run, tmp_path / "b", torch.ones(3))
    with torch.library._scoped_library("artefact_own", "FRAGMENT") as library:
        library.define("thrice(Tensor x) -> Tensor")
        library.impl("thrice", lambda x: x * 3, "CompositeImplicitAutograd")

        def composed(x: Tensor) -> Tensor:
            return torch.ops.artefact_own.thrice(x)

        assert "artefact_own::thrice" in left_out(composed, tmp_path / "b", torch.ones(3))


def test_globals_are_read_at_each_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def with_global(x: Tensor) -> Tensor:
        return x + LARGE[:3]

    saved(with_global, tmp_path / "a", (torch.ones(3),))
    loaded = pycompiler.load(tmp_path / "a", with_global)
    monkeypatch.setitem(globals(), "LARGE", torch.full((1 << 23,), 5.0))
    assert loaded(torch.ones(3)).tolist() == [6.0, 6.0, 6.0]


@pytest.fixture
def busy() -> Iterator[Any]:
    """A compiled callable that another thread calls, and compiles for more and more sizes."""
    compiled = pycompiler.compile(broken, recompile_limit=1000, dynamic=False)
    compiled(torch.ones(1))
    stop, failed = threading.Event(), []

    def calls() -> None:
        n = 1
        while not stop.is_set():
            n += 1
            for m in (n, 1 + n // 2):
                if not torch.equal(compiled(torch.ones(m)), broken(torch.ones(m))):
                    failed.append(m)

    thread = threading.Thread(target=calls)
    thread.start()
    yield compiled
    stop.set()
    thread.join()
    assert not failed


def test_saved_while_another_thread_compiles(busy: Any, tmp_path: Path) -> None:
    for k in range(3):
        end = time.monotonic() + 400  # meanwhile the other thread continues, as fast as the machine allows
        while pycompiler.counters(busy)["compiles"] < 2 + k and time.monotonic() < end:
            time.sleep(0.01)
        assert pycompiler.save(busy, tmp_path / "a").entries >= 2 + k
        loaded = pycompiler.load(tmp_path / "a", broken)
        assert torch.equal(loaded(torch.ones(1)), broken(torch.ones(1)))
        assert pycompiler.counters(loaded)["compiles"] == 0


def test_saved_by_many_threads(tmp_path: Path) -> None:
    compiled = saved(scaled, tmp_path / "a", (torch.ones(3),))
    done: list[int] = []

    def work() -> None:
        done.append(pycompiler.save(compiled, tmp_path / "a").entries)
        done.append(len(pycompiler.load(tmp_path / "a", scaled).entries))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert done == [1] * 12
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def counts_and_logs(x: Tensor, table: dict[str, Any], k: str, v: float) -> Tensor:
    table[k] = table.get(k, 0) + 1
    table[f"{k}/{v:.2f}"] = x.sum()
    if v < table["best"]:
        table["best"] = v
    return x * 2


def test_what_is_computed_of_several_places(tmp_path: Path) -> None:
    def table() -> dict[str, Any]:
        return {"best": 9.0}

    calls = [("a", 3.0), ("b", 2.5), ("c", 4.0), ("b", 1.0), ("a", 7.0), ("d", 0.5)]
    compiled, given = pycompiler.compile(counts_and_logs, backend="eager"), table()
    for k, v in [*calls, ("e", 8.0), ("a", 0.375), ("c", 8.5), ("f", 0.25)]:
        compiled(torch.ones(2), given, k, v)
    assert pycompiler.save(compiled, tmp_path / "a").left_out == ()
    loaded, ours, theirs = pycompiler.load(tmp_path / "a", counts_and_logs), table(), table()
    before = loaded.counters()["compiles"]
    for k, v in [("z", 7.5), ("y", 6.5), ("z", 8.0), ("z", 0.25), ("x", 8.0)]:
        assert torch.equal(loaded(torch.ones(2), ours, k, v), counts_and_logs(torch.ones(2), theirs, k, v))
        assert str(ours) == str(theirs)
    assert loaded.counters()["compiles"] == before


def test_functions_and_numbers_of_numpy(tmp_path: Path) -> None:
    compiled = pycompiler.compile(of_numpy, fullgraph=True)
    for n in (3, 4):
        compiled(torch.ones(n), np.float64(n), np.arange(3.0) * n)
    assert pycompiler.save(compiled, tmp_path / "a").left_out == ()
    loaded = pycompiler.load(tmp_path / "a", of_numpy)
    for n in (3, 4, 9):
        args = torch.ones(n), np.float64(n), np.arange(3.0) * n
        torch.testing.assert_close(loaded(*args), of_numpy(*args))
    assert loaded.counters()["compiles"] == 0


def of_numpy(x: Tensor, scale: Any, table: Any) -> Tensor:
    return (
        x * scale + table[1] * np.sqrt(x.shape[0]) + np.cumsum([1, 2])[-1] + torch.from_numpy(np.multiply(table, 2))[0]
    )


def test_a_function_whose_operators_warn(tmp_path: Path) -> None:
    x = torch.randn(2, 1, requires_grad=True)
    with pytest.warns(UserWarning, match="degrees of freedom"):
        want = programs.spread(x)
        saved(programs.spread, tmp_path / "a", (x,))
    loaded = pycompiler.load(tmp_path / "a", programs.spread)
    for _ in range(2):
        with pytest.warns(UserWarning, match="degrees of freedom"):
            torch.testing.assert_close(loaded(x), want, equal_nan=True)
    assert pycompiler.counters(loaded)["compiles"] == 0
