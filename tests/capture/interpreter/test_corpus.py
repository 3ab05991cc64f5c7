"""The corpus: every function behaves compiled as in eager Python; some also run through the native compiler."""

from __future__ import annotations

import dataclasses

import pytest
from capture.corpus import (
    arguments,
    classes,
    closures,
    containers,
    control,
    effects,
    iteration,
    library,
    modules,
    protocols,
    scalars,
    tensors,
    transforms,
)
from capture.harness import Case, cases, check_case

pytestmark = pytest.mark.whole  # each row is a rule of its own

MODULES = (
    arguments,
    classes,
    closures,
    containers,
    control,
    effects,
    iteration,
    library,
    modules,
    protocols,
    scalars,
    tensors,
    transforms,
)

# Tensor programs of each family whose result depends on the treatment of mutation, views and state.
NATIVE = (
    "attribute_store", "branch_on_tensor", "buffers", "closure_tensor", "copy_into_list_member", "derived", "dict_of_tensors",
    "evaluation", "inplace_on_input", "inplace_through_view", "list_of_tensors", "mlp", "no_grad", "overlapping_inputs",
    "returns_input_and_alias", "same_tensor_twice", "shared", "views_returned", "with_break_inside",
)  # fmt: skip


@pytest.mark.parametrize("case", cases(*MODULES))
@pytest.mark.captures_nothing(
    "the first call of a lazy module runs eagerly, and it is made anew for each call", "modules-lazy_linear"
)
def test_corpus(case: Case) -> None:
    check_case(case)


@pytest.mark.parametrize("case", [p for p in cases(*MODULES) if p.values[0].fn.__name__ in NATIVE])
def test_corpus_native(case: Case) -> None:
    check_case(dataclasses.replace(case, backend="native"))


def test_native_names_exist() -> None:
    known = {p.values[0].fn.__name__ for p in cases(*MODULES)}
    assert set(NATIVE) <= known
