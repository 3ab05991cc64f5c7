"""Side effects of operators, from their schemas and tags."""

from __future__ import annotations

import torch

from pycompiler.operators import operator_effects
from pycompiler.torch_compat import fake_mode

aten = torch.ops.aten


def test_kinds() -> None:
    assert operator_effects.draws(aten.bernoulli.p)
    assert operator_effects.draws(aten.native_dropout.default)
    assert operator_effects.has_side_effects(aten._assert_async.msg)
    assert operator_effects.has_side_effects(aten._linalg_check_errors.default)
    assert not operator_effects.has_side_effects(aten.sym_size.int)
    assert operator_effects.has_side_effects(
        torch.ops.profiler._record_function_enter_new.default
    )  # an operator of another library: unknown
    assert operator_effects.raises(aten.gather.default)
    whole, real = torch.ones(2, dtype=torch.int64), torch.ones(2)
    assert operator_effects.divides(aten.floor_divide.default, (whole, whole), [whole])
    assert operator_effects.divides(aten.remainder.Scalar, (whole, 0), [whole])
    assert not operator_effects.divides(aten.remainder.Scalar, (whole, 2), [whole])
    assert not operator_effects.divides(aten.floor_divide.default, (real, whole), [real])
    assert not operator_effects.divides(aten.div.Tensor, (whole, whole), [real])
    for plain in (aten.add.Tensor, aten.mm.default, aten.view.default):
        assert not operator_effects.must_run(plain)
        assert operator_effects.effect_flags(plain) == (False, False, False)
    assert operator_effects.effect_flags(aten.add_.Tensor) == (False, True, False)
    assert operator_effects.effect_flags(aten.native_batch_norm.default) == (True, False, False)


def test_assertions_of_kernels_on_a_gpu_are_no_errors() -> None:
    mode = fake_mode.new_fake_mode()
    for device, seen in (("cpu", 4), ("cuda", 1)):
        with mode:
            x, i = torch.empty(3, device=device), torch.empty(2, dtype=torch.int64, device=device)
            before = mode.refusals
            x[i], x.gather(0, i), x.bernoulli(), x.histc(3)
            x + 1, x.bernoulli(0.5)
        assert mode.refusals - before == seen
    assert not operator_effects.refuses(aten.native_batch_norm.default, ())
