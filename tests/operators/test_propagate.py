"""The short path of fake tensors gives FakeTensorMode's results: shape, strides, offset, dtype, device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.operators.propagate import is_ordinary, propagate, short_path, static_path
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

aten = torch.ops.aten


def x(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


CASES: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.permute.default, (x(2, 3, 4), [2, 0, 1]), {}),
    (aten.view.default, (x(2, 3, 4), [6, 4]), {}),
    (aten.expand.default, (x(3, 1), [2, 3, 5]), {}),
    (aten.unsqueeze.default, (x(4, 3).t(), 1), {}),
    (aten.t.default, (x(2, 3),), {}),
    (aten.detach.default, (x(3, 2).t(),), {}),
    (aten.transpose.int, (x(2, 3, 4), 0, 2), {}),
    (aten._unsafe_view.default, (x(2, 3, 4), [6, 4]), {}),
    (aten.as_strided.default, (x(6, 4), [2, 2], [8, 1], 3), {}),
    (aten.unbind.int, (x(3, 4), 1), {}),
    (aten.select.int, (x(4, 3), 0, 2), {}),
    (aten.slice.Tensor, (x(8, 3), 0, 1, 7, 2), {}),
    (aten.squeeze.dim, (x(4, 1), 1), {}),
    (aten.mm.default, (x(2, 3), x(4, 3).t()), {}),
    (aten.addmm.default, (x(4), x(2, 3), x(3, 4)), {}),
    (aten.bmm.default, (x(2, 3, 4), x(2, 4, 5)), {}),
    (aten.addmm.default, (x(2, 4), x(2, 3), x(3, 4)), {"beta": 0.5}),
    (aten.addmm.default, (x(1, 4), x(2, 3), x(3, 4)), {}),
    (aten.cat.default, ([x(2, 3), x(4, 3)], 0), {}),
    (aten.sum.dim_IntList, (x(2, 3, 4), [0, 2], True), {}),
    (aten.sum.dim_IntList, (x(2, 3, dtype=torch.bool), [0]), {}),
    (aten.mean.dim, (x(2, 3), [1]), {"dtype": torch.float64}),
    (aten.amax.default, (x(2, 3), [-1], True), {}),
    (aten.var_mean.correction, (x(2, 3, 4), [1, 2]), {"correction": 0, "keepdim": True}),
    (aten.gather.default, (x(4, 5), 1, x(4, 1, dtype=torch.int64)), {}),
    (aten.embedding.default, (x(7, 3), x(2, 5, dtype=torch.int64)), {}),
    (aten.slice_scatter.default, (x(4, 6), x(4, 2), 1, 0, 2), {}),
    (aten.add.Tensor, (x(2, 3), x(3)), {}),
    (aten.add.Tensor, (x(5, 1), x(1, 3)), {}),
    (aten.add.Tensor, (x(3, 2).t(), x(3, 2).t()), {}),
    (aten.add.Tensor, (x(2, 3).t(), x(3, 2)), {}),
    (aten.add.Tensor, (x(2, 3, dtype=torch.int32), 1.5), {}),
    (aten.mul.Tensor, (x(2, 3, dtype=torch.bfloat16), x()), {}),
    (aten.div.Tensor, (x(2, dtype=torch.int64), x(2, dtype=torch.int64)), {}),
    (aten.exp.default, (x(4, 3, 2).permute(2, 0, 1),), {}),
    (aten.exp.default, (x(4, dtype=torch.int32),), {}),
    (aten.gt.Scalar, (x(2, 3), 0), {}),
    (aten.where.self, (x(2, 1, dtype=torch.bool), x(), x(3)), {}),
    (aten.pow.Tensor_Scalar, (x(2, 3), 2), {}),
    (aten.clone.default, (x(2, 3).t(),), {"memory_format": torch.contiguous_format}),
    (aten.exp.default, (x(2, 4, 3, 3).contiguous(memory_format=torch.channels_last),), {}),
    (aten._to_copy.default, (x(2, 3),), {"dtype": torch.float16}),
    (aten.full.default, ([2, 3], 1.0), {"dtype": torch.float32, "device": torch.device("cpu")}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), CASES, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else "")
def test_same_as_the_mode(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    mode = FakeTensorMode()
    fake = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, args)
    got, expected = propagate(mode, op, (), fake, kwargs), mode.dispatch(op, (), fake, kwargs)
    if isinstance(got, torch.Tensor):
        got, expected = (got,), (expected,)
    assert len(got) == len(expected)
    for a, b in zip(got, expected, strict=True):
        assert type(a) is FakeTensor
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)
        assert a.storage_offset() == b.storage_offset()
        assert not a.requires_grad


_Z = x(4, 3, dtype=torch.complex64).t()
OTHERS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (aten.view_as_real.default, (_Z,), {}),
    (aten.view_as_complex.default, (x(3, 4, 2)[1:],), {}),
    (aten._conj.default, (_Z,), {}),
    (aten._conj.default, (_Z.conj(),), {}),
    (aten._neg_view.default, (_Z.conj().imag,), {}),
    (aten.select.int, (_Z.conj(), 0, 2), {}),
    (aten.view.default, (_Z.t().conj(), [2, 6]), {}),
    (aten.unbind.int, (_Z.conj().imag, 1), {}),
    (aten.unfold.default, (_Z, 0, 2, 1), {}),
    (aten.clone.default, (_Z.conj(),), {}),
    (aten.mm.default, (_Z.conj(), _Z.mT), {}),
    (aten._foreach_exp.default, ([x(3), x(2, 2)],), {}),
    (aten._foreach_add.List, ([x(3), x(2, 2)], [x(3), x(2, 2)]), {}),
    (aten._fft_c2c.default, (_Z, [1], 0, True), {}),
    (aten.div.out, (x(4), x(1)), {"out": x(4)}),
    (aten.mul.out, (x(2, 3), x(3)), {"out": x(3, 2).t()}),
]


@pytest.mark.parametrize(("op", "args", "kwargs"), OTHERS, ids=lambda v: str(v) if hasattr(v, "overloadpacket") else "")
def test_the_other_path_gives_what_the_mode_gives(op: Any, args: Any, kwargs: Any) -> None:
    mode = new_fake_mode()
    args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, mode.from_tensor, (args, kwargs))
    got = static_path(mode, op, args, kwargs)
    expected = FakeTensorMode.dispatch(mode, op, (), args, kwargs)
    assert (got is kwargs["out"]) if kwargs else (type(got) is type(expected))
    for a, b in zip(got if type(got) is list else [got], expected if type(got) is list else [expected], strict=True):
        assert type(a) is FakeTensor
        assert (a.shape, a.stride(), a.dtype, a.device) == (b.shape, b.stride(), b.dtype, b.device)
        assert (a.storage_offset(), a.is_conj(), a.is_neg()) == (b.storage_offset(), b.is_conj(), b.is_neg())
        first = args[0][0] if isinstance(args[0], list) else args[0]
        assert len({memory_of(t) for t in (first, a)}) == len({memory_of(t) for t in (first, b)})


def test_an_out_that_does_not_fit_is_left_to_the_mode() -> None:
    mode = new_fake_mode()
    fakes = [fake_of(mode, t) for t in (x(4), x(1), x(3), x(4, dtype=torch.int64), x(1).expand(4))]
    for out in fakes[2:]:
        assert static_path(mode, aten.div.out, (fakes[0], fakes[1]), {"out": out}) is None


@pytest.mark.parametrize("op", [aten.permute.default, aten.view.default, aten.detach.default, aten.unbind.int])
def test_views_share_storage(op: Any) -> None:
    mode = new_fake_mode()
    base = fake_of(mode, x(6)[2:].view(2, 2))
    rest = {aten.permute.default: ([1, 0],), aten.view.default: ([4],)}.get(op, ())
    got = short_path(mode, op, (base, *rest), {})
    for view in got if isinstance(got, list) else [got]:
        assert view.untyped_storage()._cdata == base.untyped_storage()._cdata
    assert (got[1] if isinstance(got, list) else got).storage_offset() == (4 if isinstance(got, list) else 2)


def test_no_short_path_for_what_metadata_cannot_say() -> None:
    mode = new_fake_mode()
    plain, conjugate = fake_of(mode, x(3)), mode.from_tensor(x(3, dtype=torch.complex64).conj())
    assert short_path(mode, aten.add.Tensor, (plain, plain), {}) is not None
    with mode:
        constant = torch.tensor(2.0)
    for args in ((conjugate, 1), (plain, x(3)), (constant, 1), (conjugate.imag, 1)):
        assert short_path(mode, aten.add.Tensor, args, {}) is None


def test_what_takes_the_short_path() -> None:
    assert all(map(is_ordinary, (aten.add.Tensor, aten.where.self, aten.mm.default, aten.permute.default)))
    for op in (aten.full.default, aten.bernoulli.p, aten.nonzero.default, aten._to_copy.default, aten.add_.Tensor):
        assert not is_ordinary(op)
