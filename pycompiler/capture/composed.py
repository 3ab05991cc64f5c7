"""Functions of torch's, written in C++, that look at data only to refuse it or to warn: again in Python that can be inlined.

Where the program gives what they would refuse, the frame runs eagerly (`GraphBuilder.expect`) or the graph breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.polyfills import graph_break


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    """`torch.cov` without weights."""
    if fweights is not None or aweights is not None:
        graph_break("torch.cov with weights, at whose data it looks")
    rows = input if input.dim() == 2 else input.view(1, -1)
    if input.dim() > 2 or input.dtype is torch.bool or input.numel() == 0 or rows.shape[1] <= correction:
        graph_break("torch.cov of few observations, of which it warns")
    count = rows.shape[1]
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return torch.true_divide(torch.mm(rows, rows.t().conj()), count - correction).squeeze()


def corrcoef(input: Any) -> Any:
    """`torch.corrcoef`."""
    if input.dim() > 2:
        graph_break("torch.corrcoef of more than two dimensions")
    c = cov(input)
    if c.dim() == 0:
        return c / c
    d = c.diag()
    deviation = torch.sqrt(d.real if d.is_complex() else d)
    c = c / deviation.view(-1, 1) / deviation.view(1, -1)
    if c.is_complex():
        return torch.complex(torch.real(c).clip(-1, 1), torch.imag(c).clip(-1, 1))
    return c.clip(-1, 1)


COMPOSED: dict[Any, Callable[..., Any]] = {torch.cov: cov, torch.corrcoef: corrcoef}
