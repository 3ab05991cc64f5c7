"""Reasons of recompiles: they name the aspect in which a call differs, and the advice follows from it."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.ir import guard_differences
from pycompiler.pipeline import reports

X = torch.ones(4, 8)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Mine(torch.Tensor):
    pass


@dataclass
class Options:
    scale: float
    mode: str | None


def chosen(x: torch.Tensor, key: Any) -> torch.Tensor:
    return x.sin() if key else x.cos()


def by_equality(x: torch.Tensor, key: Any) -> torch.Tensor:
    return x.sin() if key == "a" else x.cos()


def by_branch(x: torch.Tensor, key: int) -> torch.Tensor:
    return x.sin() if key > 3 else x.cos()


def scaled(x: torch.Tensor, options: Options) -> torch.Tensor:
    return x * options.scale if options.mode is None else x


def ignoring(x: torch.Tensor, _: Any) -> torch.Tensor:
    return x.sin() + x.shape[0]


def conjugated() -> torch.Tensor:
    return torch.ones(4, 8, dtype=torch.complex64).conj()


# program, the two calls, a part of the reason, and the aspects of the advice
ROWS: dict[str, tuple[Callable[..., Any], tuple[Any, ...], tuple[Any, ...], str, tuple[str, ...]]] = {
    "flag of a tensor": (
        ignoring, (X, 0), (torch.ones(5, 8, requires_grad=True), 0),
        "L['x']: seen requires_grad True, expected False", ("requires_grad",)),
    "dtype": (ignoring, (X, 0), (X.double(), 0), "L['x']: seen dtype torch.float64, expected torch.float32", ("dtype",)),
    "dtype and flag": (
        ignoring, (X, 0), (X.double().requires_grad_(), 0),
        "L['x']: seen dtype torch.float64, expected torch.float32; requires_grad True, expected False",
        ("dtype", "requires_grad")),
    "dimensions": (ignoring, (X, 0), (torch.ones(4), 0), "L['x']: seen sizes (4,), expected (*, *)", ("dimensions",)),
    "conjugate": (
        ignoring, (torch.ones(4, 8, dtype=torch.complex64), 0), (conjugated(), 0),
        "L['x']: seen with dispatch key Conjugate", ("keys of dispatch",)),
    "class of a tensor": (ignoring, (X, 0), (X.as_subclass(Mine), 0), "expected Tensor", ("class",)),
    "a tensor that is None": (chosen, (X, None), (X, X.sum()), "L['key'] == None: seen Tensor", ("none",)),
    "text": (by_equality, (X, "b"), (X, "c"), "L['key'] == 'b': seen 'c'", ("text",)),
    "bytes": (by_equality, (X, b"b"), (X, b"c"), "L['key'] == b'b': seen b'c'", ("text",)),
    "text or None": (by_equality, (X, "b"), (X, None), "seen None", ("none",)),
    "flag": (chosen, (X, True), (X, False), "L['key'] == True: seen False", ("flag",)),
    "number": (by_equality, (X, 1j), (X, 2j), "L['key'] == 1j: seen 2j", ("number",)),
    "class": (chosen, (X, "b"), (X, 2), "seen 2", ("class",)),
    "dtype as a value": (
        lambda x, key: x.to(key), (X, torch.float64), (X, torch.float16),
        "L['key'] is torch.float64: seen torch.float16", ("value",)),
    "member": (lambda x, key: x if key is Color.RED else -x, (X, Color.RED), (X, Color.BLUE), "seen <Color.RED: 1> and <Color.BLUE: 2>", ("value",)),
    "function": (lambda x, key: key(x), (X, lambda x: x + 1), (X, lambda x: x + 2), "seen another", ("identity",)),
    "length": (lambda x, key: x + len(key), (X, [X]), (X, [X, X]), "len(L['key']) == 1: seen 2", ("length",)),
    "keys": (lambda x, key: x + sum(key.values()), (X, {"a": 1}), (X, {"b": 1}), "['b']", ("keys",)),
    "branch on a number": (by_branch, (X, 5), (X, 2), "not ", ("relation",)),
    "text of an attribute": (scaled, (X, Options(2.5, None)), (X, Options(2.5, "a")), "['mode'] == None: seen 'a'", ("none",)),
}  # fmt: skip


def reason(program: Callable[..., Any], first: tuple[Any, ...], second: tuple[Any, ...]) -> str:
    compiled = pycompiler.compile(program, backend="eager", dynamic=True)
    compiled(*first)
    with config.patch(error_on_recompile=True), pytest.raises(pycompiler.exc.RecompileError) as caught:
        compiled(*second)
    assert pycompiler.counters(compiled)["compiles"] == 1
    return str(caught.value)


@pytest.mark.parametrize("name", ROWS)
def test_a_reason_names_what_differs_and_nothing_else(name: str) -> None:
    program, first, second, says, aspects = ROWS[name]
    text = reason(program, first, second)
    [told] = re.findall(r"^  entry 0: (.*)$", text, re.MULTILINE)
    assert says in told and "None, None" not in told, text
    assert f"way out: {reports.way_out(aspects)}" in text, text


def test_strides_and_keys_that_follow_are_not_named() -> None:
    """A static call names sizes; it names strides only if the sizes do not imply them."""
    compiled = pycompiler.compile(lambda x: x.sin(), backend="eager", dynamic=False)
    compiled(X)
    for other, said in (
        (torch.ones(4, 9), "seen sizes (4, 9), expected (4, 8)  #"),
        (torch.ones(8, 4).t(), "seen strides (1, 4), expected (8, 1)  #"),
        (torch.ones(9, 4).t(), "seen sizes (4, 9), expected (4, 8); strides (1, 4), expected (8, 1)  #"),
    ):
        with config.patch(error_on_recompile=True), pytest.raises(pycompiler.exc.RecompileError) as caught:
            compiled(other)
        assert said in str(caught.value)


def test_a_mode_is_named_without_the_dispatch_keys_that_follow() -> None:
    compiled = pycompiler.compile(lambda x: x.sin(), backend="eager")
    compiled(X)
    with config.patch(error_on_recompile=True), pytest.raises(pycompiler.exc.RecompileError) as caught:
        with torch.autocast("cpu"):
            compiled(X)
    assert "cpu autocast True, expected False  #" in str(caught.value).replace("False\n", "False  #\n")
    assert "dispatch keys" not in str(caught.value)


def test_the_limits_advice_is_of_what_differs_between_entries() -> None:
    """The engine reports a limit without the values of the call."""
    compiled = pycompiler.compile(ignoring, backend="eager", recompile_limit=2)
    compiled(X, 0), compiled(X.double(), 0)
    with pytest.warns(reports.RecompileLimitWarning) as warned:
        compiled(X.half(), 0)
    [text] = [str(w.message) for w in warned]
    assert reports.way_out(("dtype",)) in text and "requires_grad" not in text.partition("Way out")[2]


def test_every_aspect_has_a_way_out() -> None:
    assert reports.WAYS_OUT.keys() == guard_differences.ASPECTS
