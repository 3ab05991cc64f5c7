"""`ir/guards.py` without a compile: equality of constants, the message of a failed guard, and torch's global state."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch._dispatch.python import enable_python_dispatcher
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from pycompiler.ir import guards
from pycompiler.ir.guard_entries import entries
from pycompiler.ir.guards import GLOBAL_STATE_FIELDS, GUARD_KINDS, Guard, TensorSpec, foreign_state, global_state
from pycompiler.ir.source import GLOBALS, Scope, local

X = torch.ones(4, 8)


class Mode(TorchFunctionMode):
    """A torch function mode of the program."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1, 1, True), (1, True, False), (1, 1.0, False), (0.0, -0.0, False), (float("nan"), float("nan"), True),
     ((1, "a"), (1, "a"), True), ((1,), (True,), False), (1j, complex(-0.0, 1), False), ({1}, {True}, False),
     (np.float64("nan"), np.float64("nan"), True), (np.float32(0.0), np.float32(-0.0), False), (np.int64(3), np.int64(4), False)],
)  # fmt: skip
def test_constants_are_the_same_by_type_and_value(one: Any, other: Any, same: bool) -> None:
    assert guards.same_constant(one, other) is same


@pytest.mark.parametrize(
    ("found", "seen"),
    [(X.to("meta"), "device meta, expected cpu"),
     (X.double(), "dtype torch.float64, expected torch.float32"),
     (X.t().contiguous().t(), "strides (1, 4), expected (8, 1)"),
     (X[:2], "sizes (2, 8), expected (4, 8)"),
     (torch.ones(4, 9)[:, :4], "sizes (4, 4), expected (4, 8); strides (9, 1), expected (8, 1)"),
     (torch.ones(2, 4).t(), "sizes (4, 2), expected (4, 8); strides (1, 4), expected (8, 1)"),
     (torch.ones(16).as_strided((1, 8), (3, 1)), "sizes (1, 8), expected (4, 8)"),
     (X[0], "sizes (8,), expected (4, 8)"),
     (torch.nn.Parameter(X, requires_grad=False), "type Parameter, expected Tensor"),
     (1, "type int, expected Tensor")],
)  # fmt: skip
def test_a_tensor_differs_in_what_does_not_follow_from_another_aspect(found: Any, seen: str) -> None:
    assert GUARD_KINDS["tensor"].seen(found, TensorSpec.of(X)) == seen


@pytest.mark.parametrize(
    ("value", "shown"),
    [(int, "L['x'] is int"), (torch.float64, "L['x'] is torch.float64"), (None, "L['x'] is None"),
     (X, "L['x'] is the Tensor seen at compile time"), (len, "L['x'] is the builtin_function_or_method seen at compile time")],
)  # fmt: skip
def test_an_identity_is_shown_by_the_value_where_that_names_the_object(value: Any, shown: str) -> None:
    assert str(Guard("id_is", local("x"), value)) == shown


def test_a_constant_is_shown_up_to_200_letters() -> None:
    seen = GUARD_KINDS["equals"].seen
    assert seen("a" * 197, None) == repr("a" * 197)
    assert seen("a" * 198, None) == "'" + "a" * 196 + "..."
    assert seen([1], None) == "list"
    assert seen((1, X, X), None) == "(1, Tensor[4, 8], Tensor[4, 8])"
    assert seen(([1],), None) == "(a list,)"


@pytest.mark.parametrize(
    ("guard", "is_global"),
    [(Guard("equals", local("x"), 1), False), (Guard("equals", GLOBALS.dict_item("X"), 1), True),
     (Guard("global_state", GLOBALS.dict_item("X"), ()), False), (Guard("global_state", local("x"), ()), False)],
)  # fmt: skip
def test_guards_on_globals_are_told_apart(guard: Guard, is_global: bool) -> None:
    [entry] = entries([guard], Scope({"x": 1}, {"X": 1}))
    assert entry.is_global is is_global


def test_a_filter_reads_torch_s_names() -> None:
    guards_of_x = [Guard("equals", local("x"), 1), Guard("class_absent", local("x").attr("y"), "z")]
    found = entries(guards_of_x, Scope({"x": 1}, {}))
    assert [entry.guard_type for entry in found] == ["EQUALS_MATCH", "CLASS_ABSENT"]
    for entry, name in zip(found, ("L['x']", "L['x'].y"), strict=True):
        assert entry.name == entry.entry_source.name == entry.orig_guard.name == name


def test_a_guard_is_filtered_with_the_value_at_its_source() -> None:
    sources = [local("x"), local("x").item(1), GLOBALS.dict_item("Y"), local("missing")]
    made = entries([Guard("equals", source, 1) for source in sources], Scope({"x": [2, 3]}, {"Y": 4}))
    assert [entry.value for entry in made if entry.has_value] == [[2, 3], 3, 4]
    assert [entry.has_value for entry in made] == [True, True, True, False]


# global state of torch --------------------------------------------------------------------------------------------------
def state(name: str) -> Any:
    return global_state()[GLOBAL_STATE_FIELDS.index(name)]


@pytest.mark.parametrize("device", ["meta", "cpu", "cpu:0", "meta:0"])
def test_the_default_device_is_that_of_new_tensors(device: str) -> None:
    assert state("default device") == "cpu"
    with torch.device(device):
        assert state("default device") == str(torch.empty(0).device if ":" not in device else torch.device(device))
        with torch.device("meta"):
            assert state("default device") == "meta"


@pytest.mark.parametrize(
    ("modes", "told"),
    [((), None), ((Mode,), None), ((lambda: torch.device("meta"),), None), ((lambda: torch.device("meta"), Mode), None),
     ((Mode, lambda: torch.device("meta")), "a function mode of torch's")],
)  # fmt: skip
def test_modes_of_torch_inside_of_a_program_s_are_foreign(
    modes: tuple[Callable[[], Any], ...], told: str | None
) -> None:
    with contextlib.ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode())
        assert foreign_state() == told
        assert guards._function_mode() is (told is not None)


def test_a_mode_of_the_program_sees_no_question_about_the_state() -> None:
    seen: list[Any] = []

    class Noting(Mode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs)

    with torch.device("meta"):  # which device that is, a new tensor tells
        outside = global_state()
        with Noting():
            inside = global_state()
    assert seen == []
    differ = [name for name, one, other in zip(GLOBAL_STATE_FIELDS, outside, inside, strict=True) if one != other]
    assert differ == ["function modes"]


@pytest.mark.parametrize(
    ("around", "told"),
    [(contextlib.nullcontext, None), (enable_python_dispatcher, "a transform"), (forward_ad.dual_level, "forward-mode AD"),
     (torch.autograd.detect_anomaly, "anomaly detection")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Anomaly Detection has been enabled")
def test_what_prevents_a_capture_is_named(around: Callable[[], Any], told: str | None) -> None:
    with around():
        assert foreign_state() == told


@pytest.mark.parametrize(
    ("transform", "levels", "told"),
    [(torch.func.vmap, (("Vmap", 1, "Error"),), None), (torch.func.grad, (("Grad", 1, None),), None),
     (torch.func.functionalize, (("Functionalize", 1, None),), "a transform")],
)  # fmt: skip
def test_levels_are_known_outside_of_their_transforms(transform: Any, levels: Any, told: str | None) -> None:
    found = []

    def program(x: torch.Tensor) -> torch.Tensor:
        found.append((guards.transform_levels(), foreign_state()))
        with guards.outside_transforms():
            found.append((guards.transform_levels(), foreign_state()))
        return x.sum()

    transform(program)(torch.ones(2))
    assert found == [(levels, told), (levels, None)]
    assert guards.transform_levels() == ()


def test_nothing_is_asked_where_torch_skips_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guards, "skips_next", lambda: True)
    assert global_state() == ("a call that torch skips", *[None] * (len(GLOBAL_STATE_FIELDS) - 1))


def test_a_checkpoint_is_seen_without_its_hooks() -> None:
    def answers() -> list[bool]:
        with guards.without_saved_tensor_hooks():
            inside = guards.in_checkpoint()
        return [guards.in_checkpoint(), inside]

    assert answers() == [False, False]
    assert checkpoint(answers, use_reentrant=False) == [True, True]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert answers() == [False, False]


def test_a_kernel_is_seen_outside_of_its_dispatch_keys() -> None:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutogradFunctionality)
    x = torch.ones(2, requires_grad=True)
    found = []
    for exclude in (contextlib.nullcontext, lambda: torch._C._ExcludeDispatchKeyGuard(keys)):
        with exclude():
            found.append((guards.in_kernel(), (x * 2).requires_grad))
            with guards.outside_transforms():
                found.append((guards.in_kernel(), (x * 2).requires_grad))
    assert found == [(False, True), (False, True), (True, False), (True, True)]
