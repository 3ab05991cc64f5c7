"""What stands for torch's module of symbolic shapes answers as that does, and leaves it what is symbolic."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

from pycompiler.ir import plain_numbers
from pycompiler.ir.symbols import Symbols

CALLS: dict[str, list[tuple[Any, ...]]] = {
    "guard_or_false": [(True,), (False,)],
    "guard_or_true": [(True,), (False,)],
    "statically_known_true": [(True,), (False,)],
    "sym_and": [(True, False), (True, True, True)],
    "sym_or": [(True, False), (False, False)],
    "sym_eq": [(2, 2), ((1, 2), (1, 3)), ([2, 3], [2, 3])],
    "guard_int": [(3,)],
    "has_free_symbols": [(3,), (torch.ones(2),)],
    "has_free_unbacked_symbols": [(3,), (torch.ones(2),)],
    "free_unbacked_symbols": [(3,), (torch.ones(2),)],
    "_iterate_exprs": [(torch.ones(2),), (torch.eye(2).to_sparse(),)],
    "is_nested_int": [(3,), (torch.ones(2),)],
    "compute_unbacked_bindings": [(None, torch.ones(2))],
}


@pytest.mark.parametrize("name", [n for n in CALLS if hasattr(symbolic_shapes, n)])
def test_answers_are_torchs(name: str) -> None:
    for args in CALLS[name]:
        ours, theirs = (getattr(module, name)(*args) for module in (plain_numbers, symbolic_shapes))
        if name == "_iterate_exprs":
            ours, theirs = list(ours), [e for e in theirs if e.free_symbols]
        assert ours == theirs and (type(ours) is type(theirs) or name == "free_unbacked_symbols")


def test_symbols_are_asked_of_torch() -> None:
    symbols = Symbols()
    n = symbols.new(5)
    assert plain_numbers.guard_or_false(n == 5) is True
    assert len(symbols.relations) == 1
    assert plain_numbers.DimDynamic is symbolic_shapes.DimDynamic
    with pytest.raises(AttributeError):
        _ = plain_numbers.nothing_of_this_name
