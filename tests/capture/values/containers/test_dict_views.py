"""`keys()` of an existing dict as an argument: guarded, and not read where the dict may have changed."""

from __future__ import annotations

from collections.abc import KeysView
from typing import Any

import torch

import pycompiler

X = torch.arange(3.0)


def test_keys_are_guarded() -> None:
    def program(x: torch.Tensor, keys: KeysView[str]) -> Any:
        for key in keys:
            x = x * 2 + len(key)
        return x - 1 if "c" in keys else x + len(keys), keys

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    d: dict[str, int] = {"a": 1, "b": 2}
    for change in ({}, {"c": 3}, {"long": 4}):
        d.update(change)
        want, got = program(X, d.keys()), compiled(X, view := d.keys())
        assert torch.equal(got[0], want[0]) and got[1] is view
    del d["a"]
    d["a"] = 1  # equal, in another order
    assert torch.equal(compiled(X, d.keys())[0], program(X, d.keys())[0])
    assert torch.equal(compiled(X, {}.keys())[0], program(X, {}.keys())[0])


def test_a_dict_that_changes_meanwhile() -> None:
    def program(x: torch.Tensor, d: dict[str, int], keys: KeysView[str]) -> Any:
        x = x + len(keys)
        d["new"] = 1
        return x * 2 + len(keys) if "new" in keys else x

    compiled = pycompiler.compile(program, backend="eager")
    for first in ({"a": 1}, {"a": 1, "b": 2}):
        other = dict(first)
        assert torch.equal(compiled(X, other, other.keys()), program(X, first, first.keys()))
        assert other == first


def test_keys_of_another_dict() -> None:
    def program(x: torch.Tensor, d: dict[str, int], keys: KeysView[str]) -> Any:
        x = x + len(d) * 10
        return x + len(keys)

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    d, other = {"a": 1}, {"b": 2, "c": 3}
    for keys in (d.keys(), other.keys(), {"a": 5}.keys()):
        assert torch.equal(compiled(X, d, keys), program(X, d, keys))


def test_a_dict_is_the_one_that_an_object_keeps_its_attributes_in() -> None:
    class Kept:
        a = 1

    def program(o: Any, d: dict[str, Any], held: list[Any]) -> Any:
        d["b"] = 1
        shown = o.__dict__
        shown["c"] = 2
        return d is shown, held[0] is o.__dict__, len({id(d), id(shown)}), list(d), list(shown)

    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        o, p = Kept(), Kept()
        found = [fn(x, x.__dict__, [x.__dict__]) for fn, x in ((program, o), (compiled, p))]
        assert found[0] == found[1]
        assert vars(o) == vars(p)


def test_a_text_that_was_stored_goes_out_behind_another_write() -> None:
    """Two writes are replayed apart, since a dropped value may have a finalizer. A store between them becomes a dict entry."""

    def program(table: dict[Any, Any], key: str) -> None:
        table[key] = 1
        table[2] = table.get
        table.pop(key)

    def order(table: dict[Any, Any], key: str) -> None:
        table[key] = 1
        table[2] = table.get
        table["a"] = table.pop(key) + 1
        table[key] = 3

    for fn in (program, order):
        compiled = pycompiler.compile(fn, backend="eager")
        found = []
        for run in (fn, compiled):
            table: dict[Any, Any] = {"a": 1, "b": 2}
            seen = []
            for key in ("x", "y", "b", "xy"):
                run(table, key)
                seen.append([(k, v if isinstance(v, int) else "") for k, v in table.items()])
            found.append(seen)
        assert found[0] == found[1]
