"""Operations by the kinds of their operands: a table without ambiguity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import pycompiler
from pycompiler.capture.semantics.kind_table import KindTable
from pycompiler.capture.semantics.operators import BY_KIND
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.deferred import Deferred
from pycompiler.capture.values.tensor import Tensor
from tests.harness.compare import assert_same_calls


def test_each_handler_has_a_row_of_its_own() -> None:
    for operation, kind in (("binary", Tensor), ("binary", Const), ("ternary", Tensor)):
        with pytest.raises(ValueError, match=f"{operation} of {kind.__name__}"):
            BY_KIND.row(operation, kind)


def test_kinds_are_not_ambiguous() -> None:
    class SpecialTensor(Tensor):
        pass

    with pytest.raises(TypeError, match="ambiguous"):
        KindTable(["binary"], (Deferred, Tensor, SpecialTensor))


def test_the_first_kind_decides() -> None:
    class Special(str):
        pass

    table = KindTable(["add"], (str, int))
    of_str, of_int = table.row("add", str)(lambda a, b: "str"), table.row("add", int)(lambda a, b: "int")
    assert table.handler("add", 1, Special()) is table.handler("add", "", 1) is of_str
    assert table.handler("add", 1, 2.0) is of_int and table.handler("add", 1.0, 2.0) is None


class Thing:
    pass


def differs(x: Any, o: Any) -> Any:
    return x.sum() != id(o), x + 1


def equals(x: Any, o: Any) -> Any:
    return id(o) == x + 0


def is_less(x: Any, o: Any) -> Any:
    return (x + 0 < id(o)), -id(o) + x


def beside_an_array(x: Any, o: Any) -> Any:
    return x + 1, np.arange(3) == id(o)


@pytest.mark.parametrize("program", [differs, equals, is_less, beside_an_array])
def test_an_id_beside_a_tensor_is_a_number(program: Any) -> None:
    thing = Thing()
    compiled = pycompiler.compile(program, backend="eager")
    assert_same_calls(compiled, program, lambda: (torch.tensor([id(thing), 1]), thing), calls=2, exact=True)
    assert pycompiler.explain(program)(torch.tensor([id(thing), 1]), thing).graph_count
