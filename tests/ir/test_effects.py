"""What operators do besides computing results, by schema and tags."""

from __future__ import annotations

import torch

from pycompiler.ir import effects, fake

aten = torch.ops.aten


def test_kinds() -> None:
    assert effects.draws(aten.bernoulli.p)
    assert effects.draws(aten.native_dropout.default)
    assert effects.acts(aten._assert_async.msg)
    assert effects.acts(aten._linalg_check_errors.default)
    assert not effects.acts(aten.sym_size.int)
    assert effects.acts(torch.ops.profiler._record_function_enter_new.default)  # another library's: unknown
    assert effects.raises(aten.gather.default)
    whole, real = torch.ones(2, dtype=torch.int64), torch.ones(2)
    assert effects.divides(aten.floor_divide.default, (whole, whole), [whole])
    assert effects.divides(aten.remainder.Scalar, (whole, 0), [whole])
    assert not effects.divides(aten.remainder.Scalar, (whole, 2), [whole])
    assert not effects.divides(aten.floor_divide.default, (real, whole), [real])
    assert not effects.divides(aten.div.Tensor, (whole, whole), [real])
    for plain in (aten.add.Tensor, aten.mm.default, aten.view.default):
        assert not effects.stays(plain)
        assert effects.noted(plain) == (False, False, False)
    assert effects.noted(aten.add_.Tensor) == (False, True, False)
    assert effects.noted(aten.native_batch_norm.default) == (True, False, False)


def test_assertions_of_kernels_on_a_gpu_are_no_errors() -> None:
    mode = fake.new_fake_mode()
    for device, seen in (("cpu", 4), ("cuda", 1)):
        with mode:
            x, i = torch.empty(3, device=device), torch.empty(2, dtype=torch.int64, device=device)
            before = mode.refusals
            x[i], x.gather(0, i), x.bernoulli(), x.histc(3)
            x + 1, x.bernoulli(0.5)
        assert mode.refusals - before == seen
    assert not effects.refuses(aten.native_batch_norm.default, ())
