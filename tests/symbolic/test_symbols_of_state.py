"""`dynamic=True` and state: arguments are symbols from the first call on; other values become symbols once they
changed, as without it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same

NUMBER = 3
TENSOR = torch.ones(3, 2)
LIST: list[Any] = [3]
DICT: dict[str, Any] = {"n": 3}


class Holder:
    def __init__(self) -> None:
        self.n = 3
        self.tensor = torch.ones(3, 2)


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cache = torch.ones(3, 2)
        self.n = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        self.cache = torch.cat([self.cache, x[:1]])
        return self.cache.sum(0) * self.n


def counts(x: torch.Tensor) -> torch.Tensor:
    global NUMBER
    NUMBER += 1
    return x * NUMBER


def counts_in_a_list(x: torch.Tensor) -> torch.Tensor:
    LIST[0] += 1
    return x * LIST[0]


def counts_in_a_dict(x: torch.Tensor) -> torch.Tensor:
    DICT["n"] = DICT["n"] + x.shape[0]
    return x * DICT["n"]


def counts_in_a_cell() -> Callable[[torch.Tensor], torch.Tensor]:
    n = 3

    def program(x: torch.Tensor) -> torch.Tensor:
        nonlocal n
        n += 1
        return x * n

    return program


def counts_in_an_object() -> Callable[[torch.Tensor], torch.Tensor]:
    holder = Holder()

    def program(x: torch.Tensor) -> torch.Tensor:
        holder.n += 1
        return x * holder.n

    return program


def tensors_of_objects() -> Callable[[torch.Tensor], torch.Tensor]:
    holder, held = Holder(), [torch.ones(3, 2)]

    def program(x: torch.Tensor) -> torch.Tensor:
        holder.tensor = torch.cat([holder.tensor, x[:1]])
        held[0] = torch.cat([held[0], x[:1]])
        return holder.tensor.sum() + held[0].sum() * held[0].shape[0]

    return program


def global_tensor(x: torch.Tensor) -> torch.Tensor:
    global TENSOR
    TENSOR = torch.cat([TENSOR, x[:1]])
    return TENSOR.sum() * TENSOR.shape[0]


def modules() -> Callable[[torch.Tensor], torch.Tensor]:
    module = Cached()
    return lambda x: module(x)


MADE: dict[str, Callable[[], Callable[[torch.Tensor], torch.Tensor]]] = {
    "a global": lambda: counts, "an element": lambda: counts_in_a_list, "an entry": lambda: counts_in_a_dict,
    "a variable of the function around": counts_in_a_cell, "an attribute": counts_in_an_object,
    "tensors": tensors_of_objects, "a global tensor": lambda: global_tensor, "a cache": modules,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _as_at_first() -> Iterator[None]:
    global NUMBER, TENSOR
    before = NUMBER, TENSOR
    yield
    NUMBER, TENSOR = before
    LIST[0] = DICT["n"] = 3


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("sizes", [(5,), (3, 4, 6)])
@pytest.mark.parametrize("name", MADE)
def test_what_is_no_argument_is_a_symbol_once_it_changed(name: str, sizes: tuple[int, ...], backend: str) -> None:
    global NUMBER, TENSOR
    args = [torch.ones(sizes[i % len(sizes)], 2) for i in range(12)]
    want = [*map(MADE[name](), args)]
    NUMBER, TENSOR = 3, torch.ones(3, 2)
    LIST[0] = DICT["n"] = 3
    compiled = pycompiler.compile(MADE[name](), backend=backend, dynamic=True)
    assert_same([*map(compiled, args)], want)
    counters = pycompiler.counters(compiled)
    assert (counters["compiles"], counters["eager_calls"]) == (2, 0)


def test_static_by_default_is_the_same() -> None:
    with pycompiler.config.patch(assume_static_by_default=False):
        compiled = pycompiler.compile(counts_in_a_cell(), backend="eager")
        for n in range(3, 12):
            assert_same(compiled(torch.ones(n)), torch.ones(n) * (n + 1))
    assert pycompiler.counters(compiled)["compiles"] == 2


def test_what_must_not_become_a_symbol_does_not() -> None:
    with pycompiler.config.patch(automatic_dynamic_shapes=False, recompile_limit=3):
        compiled = pycompiler.compile(counts_in_a_cell(), backend="eager", dynamic=True)
        with pytest.warns(pycompiler.errors.RecompileLimitWarning):
            for _ in range(5):
                compiled(torch.ones(3))
    assert pycompiler.counters(compiled)["compiles"] == 3

    holder = Holder()

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * holder.tensor.shape[0]

    compiled = pycompiler.compile(program, backend="eager", dynamic=True)
    for n in (3, 4, 5):
        holder.tensor = torch.ones(n, 2)
        pycompiler.mark_static(holder.tensor, 0)
        assert_same(compiled(torch.ones(2)), torch.full((2,), float(n)))
    assert pycompiler.counters(compiled)["compiles"] == 3


class Kind(torch.Tensor):
    pass


@pytest.mark.parametrize("make", [np.ones, lambda n: torch.ones(n).as_subclass(Kind)], ids=["array", "subclass"])
def test_arguments_of_other_classes_are_symbols_from_the_first_call_on(make: Callable[[int], Any]) -> None:
    compiled = pycompiler.compile(lambda a: a * 2 + a.sum(), backend="eager", dynamic=True)
    for n in (3, 5, 8):
        assert (compiled(make(n)) == n + 2).all()
    assert pycompiler.counters(compiled)["compiles"] == 1
