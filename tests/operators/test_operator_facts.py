"""Facts about operators, from their schemas and tags and from the table."""

from __future__ import annotations

import pytest
import torch

from pycompiler.operators.operator_facts import NONE, ROWS, CallFacts, describe, divides, facts_of, refuses, row
from pycompiler.torch_compat import fake_mode

aten = torch.ops.aten


def test_kinds() -> None:
    assert facts_of(aten.bernoulli.p).draws
    assert facts_of(aten.native_dropout.default).draws
    assert facts_of(aten._assert_async.msg).acts
    assert facts_of(aten._linalg_check_errors.default).acts
    assert not facts_of(aten.sym_size.int).acts
    assert facts_of(
        torch.ops.profiler._record_function_enter_new.default
    ).acts  # an operator of another library: unknown
    assert facts_of(aten.gather.default).raises
    whole, real = torch.ones(2, dtype=torch.int64), torch.ones(2)
    assert divides(aten.floor_divide.default, (whole, whole), [whole])
    assert divides(aten.remainder.Scalar, (whole, 0), [whole])
    assert not divides(aten.remainder.Scalar, (whole, 2), [whole])
    assert not divides(aten.floor_divide.default, (real, whole), [real])
    assert not divides(aten.div.Tensor, (whole, whole), [real])
    for plain in (aten.add.Tensor, aten.mm.default, aten.view.default):
        assert not facts_of(plain).stays
        assert describe(plain, (), {}) is NONE
    assert describe(aten.add_.Tensor, (), {}) == CallFacts(writes=1)
    assert describe(aten.native_batch_norm.default, (), {}) == CallFacts(effects=1)


def test_assertions_of_kernels_on_a_gpu_are_no_errors() -> None:
    mode = fake_mode.new_fake_mode()
    for device, seen in (("cpu", 4), ("cuda", 1)):
        with mode:
            x, i = torch.empty(3, device=device), torch.empty(2, dtype=torch.int64, device=device)
            before = mode.seen
            x[i], x.gather(0, i), x.bernoulli(), x.histc(3)
            x + 1, x.bernoulli(0.5)
        assert mode.seen.since(before).refusals == seen
    assert not refuses(aten.native_batch_norm.default, ())


def test_rows_name_operators_of_torch() -> None:
    """A row without an operator is a misspelled name, or an operator that some version of torch lacks."""
    unknown = {name for name in ROWS if "::" not in name and not hasattr(aten, name.partition(".")[0])}
    assert unknown <= {"cholesky", "linalg_matrix_sqrth", "linalg_polar", "_scaled_mm", "_batch_norm_no_update"}, (
        unknown
    )
    overloads = [name.partition(".") for name in ROWS if "." in name and "::" not in name and name not in unknown]
    missing = [n for n, _, o in overloads if o != "*" and hasattr(aten, n) and o not in getattr(aten, n).overloads()]
    assert not missing


def test_a_fact_is_given_once() -> None:
    with pytest.raises(ValueError, match="mm.default has two rows"):
        row("mm.default", ordinary=True)
    with pytest.raises(TypeError, match="colour"):
        row("mm.default", colour="red")


def test_facts_of_a_name_hold_for_its_overloads() -> None:
    assert facts_of(aten.index_put_.default).raises == facts_of(aten.index_put.default).raises == "device"
    assert facts_of(aten.gather.default).ordinary and not facts_of(aten.gather.out).ordinary
    assert facts_of(aten.add.Tensor).strides == "iterated" and not facts_of(aten.add.out).strides
    dropout = aten.native_dropout.default
    assert facts_of(dropout).draws and describe(dropout, (torch.ones(2), 0.5, True), {}).draws == 1
    assert describe(dropout, (torch.ones(2), 0.5, False), {}) == NONE
