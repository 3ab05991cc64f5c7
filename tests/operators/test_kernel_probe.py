"""The kernel probe for layouts: which kernels it calls, and which facts it takes from their results."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pycompiler.operators.kernel_probe import probe_results, probe_write
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

aten = torch.ops.aten


def fakes(*values: Any) -> tuple[Any, ...]:
    mode = new_fake_mode()

    def fake(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return mode.from_tensor(value) if value.is_conj() or value.is_neg() else fake_of(mode, value)
        return [fake(v) for v in value] if isinstance(value, list) else value

    return tuple(map(fake, values))


T = torch.randn(3, 4).t()
Z = torch.complex(T, T)
I, MASK = torch.tensor([0, 1]), torch.ones(4, 3, dtype=torch.bool)
KNOWN = [
    (aten.cumsum.default, (T, 0)),
    (aten.sort.default, (T,)),
    (aten.any.dim, (MASK, -1, True)),
    (aten.index.Tensor, (T, [I, None])),
    (aten.constant_pad_nd.default, (T, [1, 2], 0.0)),
    (aten.avg_pool2d_backward.default, (torch.ones(1, 2, 2, 2), torch.ones(1, 2, 4, 4), [2, 2], [2, 2], [0, 0], False, True, None)),
    (aten._safe_softmax.default, (T, -1)),
    (aten._fft_r2c.default, (T, [0], 0, True)),
    (aten._fft_c2r.default, (Z, [0], 2, 4)),
    (aten.clone.default, (Z.conj(),)),
    (aten.mm.default, (Z.conj(), Z.mT.conj())),
    (aten.complex.default, (T, T)),
    (aten.abs.default, (torch._neg_view(T),)),
]  # fmt: skip
UNKNOWN = [
    (aten.nonzero.default, (T,)),
    (aten.index.Tensor, (T, [MASK])),
    (aten.linalg_lstsq.default, (torch.eye(3), torch.eye(3))),
    (aten.bernoulli.p, (T, 0.5)),
    (aten.permute.default, (T, [0, 1])),
    (aten.mkldnn_linear.default, (T, T)),
    (aten.cumsum.default, (T, 7)),
    (aten.cumsum.default, (torch.ones(0, 3), 0)),
]


@pytest.mark.parametrize(("op", "args"), KNOWN, ids=[str(op) for op, _ in KNOWN])
def test_the_kernel_says(op: Any, args: tuple[Any, ...]) -> None:
    real = op(*args)
    wanted = [((tuple(t.shape), t.stride()), t.dtype) for t in (real if isinstance(real, tuple) else (real,))]
    assert probe_results(op, fakes(*args), {}) == wanted


@pytest.mark.parametrize(("op", "args"), UNKNOWN, ids=[f"{i} {op}" for i, (op, _) in enumerate(UNKNOWN)])
def test_it_is_not_asked(op: Any, args: tuple[Any, ...]) -> None:
    assert probe_results(op, fakes(*args), {}) is None


def test_writes() -> None:
    assert probe_write(aten.index_add_.default, fakes(torch.ones(4, 3), 0, I, torch.ones(2, 3)), {})
    assert not probe_write(aten.index_add_.default, fakes(torch.ones(4, 3), 0, I, torch.ones(5, 3)), {})
    assert not probe_write(aten.t_.default, fakes(T), {})  # the shape changes
    assert not probe_write(aten.normal_.default, fakes(T), {})  # would draw random numbers
    x = fakes(torch.ones(3))[0]
    assert not probe_write(aten.copy_.default, (x, x), {})  # both arguments are one memory
