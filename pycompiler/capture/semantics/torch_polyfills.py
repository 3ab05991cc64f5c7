"""Python versions of torch functions whose C++ code reads data only to reject them or to warn.

Capture inlines them.  For data that the original would reject, the frame runs eagerly (`GraphBuilder.expect`) or the
graph breaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.semantics.polyfills import graph_break
from pycompiler.operators import ctc_loss as ctc_operators


def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
    rows = input if input.dim() == 2 else input.view(1, -1)
    if fweights is not None or aweights is not None:
        return _weighted(rows, input.dim(), correction, fweights, aweights)
    if input.dim() > 2 or input.dtype is torch.bool or input.numel() == 0 or rows.shape[1] <= correction:
        graph_break("torch.cov of an input that torch rejects or warns about")
    count = rows.shape[1]
    rows = rows - (rows.sum(1) / count).unsqueeze(1)
    return torch.true_divide(torch.mm(rows, rows.t().conj()), count - correction).squeeze()


def _weighted(rows: Any, dims: int, correction: int, fweights: Any, aweights: Any) -> Any:
    count = rows.shape[1]
    for given, whole in ((fweights, True), (aweights, False)):
        if given is not None and (given.dim() != 1 or given.numel() != count or given.is_floating_point() is whole):
            graph_break("torch.cov with weights that torch rejects")
    if fweights is not None and fweights.dtype is torch.bool:
        graph_break("torch.cov with weights that torch rejects")
    if dims > 2 or rows.dtype is torch.bool or count < 2:  # for one observation, eager may write to its input
        graph_break("torch.cov with weights, of bools, of fewer than two observations, or of more than two dimensions")
    for given in (fweights, aweights):
        if given is not None:
            torch._check_tensor_all_with(RuntimeError, given.min().ge(0))
    weights = aweights if fweights is None else fweights if aweights is None else fweights * aweights
    total = weights.sum()
    torch._check_tensor_all_with(RuntimeError, total.ne(0))
    mean = (rows * weights).sum(1) / total
    if aweights is not None and correction != 0:
        freedom = total - correction * (weights * aweights).sum() / total
    else:
        freedom = total - correction
    torch._check_tensor_all_with(RuntimeError, freedom.le(0).logical_not())  # otherwise eager warns
    rows = rows - mean.unsqueeze(1)
    return torch.true_divide(torch.mm(rows, (rows * weights).t().conj()), freedom).squeeze()


def warns_of(what: str) -> None:
    """Marks a warning of torch, which is given after the graph (`shown.ONCE`)."""


def istft(
    input: Any, n_fft: int, hop_length: Any = None, win_length: Any = None, window: Any = None, center: bool = True,
    normalized: bool = False, onesided: Any = None, length: Any = None, return_complex: bool = False,
) -> Any:  # fmt: skip
    """`torch.istft` of arguments that torch accepts, if the windows cover each element."""
    hop = n_fft // 4 if hop_length is None else hop_length
    size = n_fft if win_length is None else win_length
    if not input.is_complex() or input.dim() not in (2, 3) or 0 in input.shape or not 0 < hop <= size <= n_fft:
        graph_break("torch.istft of an input that torch rejects")
    bins, frames = input.shape[-2], input.shape[-1]
    half = bins != n_fft if onesided is None else onesided
    if bins != (n_fft // 2 + 1 if half else n_fft) or (return_complex and half):
        graph_break("torch.istft of a spectrum that torch rejects")
    if window is not None and (window.dim() != 1 or window.shape[0] != size or window.is_complex() > return_complex):
        graph_break("torch.istft with a window that torch rejects")
    whole, begin = n_fft + hop * (frames - 1), n_fft // 2 if center else 0
    end = begin + length if length is not None else whole - n_fft // 2 if center else whole
    if end <= begin or begin >= whole:
        graph_break("torch.istft with an empty result")
    if window is None:
        warns_of("no window")
        window = torch.ones(size, dtype=input.real.dtype, device=input.device)
    if size != n_fft:
        left = (n_fft - size) // 2
        window = torch.constant_pad_nd(window, (left, n_fft - size - left), 0)
    rows = (input if input.dim() == 3 else input.unsqueeze(0)).transpose(1, 2)
    norm = "ortho" if normalized else "backward"
    if return_complex:
        rows = torch.fft.ifft(rows, dim=-1, norm=norm)
    else:
        rows = torch.fft.irfft(rows if half else rows[..., : n_fft // 2 + 1], n_fft, dim=-1, norm=norm)
    windows = window.pow(2).expand(1, frames, n_fft)
    fold = torch.ops.aten.unfold_backward
    y = fold(rows * window.view(1, 1, n_fft), (rows.shape[0], whole), 1, n_fft, hop)[:, begin:end]
    envelope = fold(windows, (1, whole), 1, n_fft, hop)[:, begin:end]
    torch._check_tensor_all_with(RuntimeError, envelope.abs().min().lt(1e-11).logical_not())
    y = y / envelope
    if end > whole:
        warns_of("a short signal")
        y = torch.constant_pad_nd(y, (0, end - whole))
    return y if input.dim() == 3 else y.squeeze(0)


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: int = 1,
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """`torch.ctc_loss` with all tensors on the CPU."""
    if torch.is_autocast_enabled("cpu") and log_probs.dtype in (torch.bfloat16, torch.float16):
        log_probs = log_probs.float()
    kinds = {_kind_of_lengths(n) for n in (input_lengths, target_lengths)}
    if len(kinds) > 1 or None in kinds:
        graph_break("torch.ctc_loss of lengths that torch rejects")
    lengths = [
        n if isinstance(n, torch.Tensor) else torch.tensor(n, dtype=torch.int64)
        for n in (input_lengths, target_lengths)
    ]
    tensors = (log_probs, targets, *lengths)
    if log_probs.dim() not in (2, 3) or log_probs.dtype not in (torch.float32, torch.float64) or 0 in log_probs.shape:
        graph_break("torch.ctc_loss of an input that torch rejects")
    if any(t.device.type != "cpu" or t.is_floating_point() is (k > 0) or t.is_complex() for k, t in enumerate(tensors)):
        graph_break("torch.ctc_loss on a device other than the CPU, or of lengths or targets that are not integers")
    rows = log_probs if log_probs.dim() == 3 else log_probs.unsqueeze(1)
    frames, whole = (n.to(torch.int64) for n in lengths)
    made = ctc_operators.losses(rows, targets.to(torch.int64), frames, whole, blank, zero_infinity)
    if zero_infinity:
        made = torch.where(made == math.inf, torch.zeros((), dtype=made.dtype), made)
    if reduction == 1:
        return (made / whole.to(made.dtype).clamp_min(1)).mean()
    if reduction == 2:
        return made.sum()
    return made if log_probs.dim() == 3 else made.squeeze(0)


def _kind_of_lengths(given: Any) -> str | None:
    if isinstance(given, torch.Tensor):
        return "tensor"
    return "integers" if isinstance(given, (list, tuple)) and all(type(n) is int for n in given) else None


def named_ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, blank: int = 0, reduction: str = "mean",
    zero_infinity: bool = False,
) -> Any:  # fmt: skip
    """`torch.nn.functional.ctc_loss`."""
    if reduction not in REDUCTIONS:
        graph_break("torch.nn.functional.ctc_loss with an unknown reduction")
    number = REDUCTIONS.index(reduction)
    return ctc_loss(log_probs, targets, input_lengths, target_lengths, blank, number, zero_infinity)


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


def rows(x: Any) -> Any:
    """The rows of a jagged tensor."""
    values, offsets, lengths, dim = x.values(), x.offsets(), x.lengths(), x._ragged_idx - 1
    if lengths is None:
        return torch.split(values, offsets.diff().tolist(), dim)
    found = zip(offsets.tolist(), lengths.tolist(), strict=False)
    return tuple([torch.narrow(values, dim, begin, length) for begin, length in found])


def narrowed(tensor: Any, start: int, length: int) -> Any:
    """`torch.nested.narrow` of jagged layout for plain numbers: the numbers alone decide which rows are adjacent."""
    from torch.nested._internal import nested_tensor

    made: Any = nested_tensor
    rows, width = tensor.shape[0], tensor.shape[1]
    offsets = start + width * torch.arange(0, rows, dtype=torch.int64, device=tensor.device)
    offsets = torch.cat([offsets, (offsets[-1] + length).unsqueeze(0)])
    values = tensor.view(-1, *tensor.shape[2:])
    told = {"min_seqlen": length, "max_seqlen": length}
    if start + length == width and (rows <= 2 or length == width):
        part = values[start : start + width * (rows - 1) + length]
        return made.nested_view_from_values_offsets(part, offsets - start, **told)
    lengths = torch.tensor([length], device=tensor.device, dtype=torch.int64).expand(rows)
    return made.nested_view_from_values_offsets_lengths(values, offsets, lengths, **told)


REDUCTIONS = ["none", "mean", "sum"]


def lstm_cell(input: Any, hx: Any, w_ih: Any, w_hh: Any, b_ih: Any = None, b_hh: Any = None) -> Any:
    """The two results share the gates, and one result is computed from the other. Each can be a graph result only if
    the gates are graph values. A GPU has one kernel for the whole cell; under autocast the cell is cast as a whole."""
    h, c = hx
    made = torch.ops.aten.lstm_cell(input, hx, w_ih, w_hh, b_ih, b_hh)
    given = [t for t in (input, h, c, w_ih, w_hh, b_ih, b_hh) if t is not None]
    if torch.is_autocast_enabled("cpu") or any(t.device.type != "cpu" for t in given) or made[0].shape != c.shape:
        return made
    gates = torch.nn.functional.linear(h, w_hh, b_hh) + torch.nn.functional.linear(input, w_ih, b_ih)
    taken, kept, new, shown = gates.chunk(4, 1)
    state = kept.sigmoid() * c + taken.sigmoid() * new.tanh()
    return shown.sigmoid() * state.tanh(), state


COMPOSED: dict[Any, Callable[..., Any]] = {
    torch.cov: cov, torch.corrcoef: corrcoef, torch.istft: istft, torch.ctc_loss: ctc_loss,
    torch.nn.functional.ctc_loss: named_ctc_loss, torch.lstm_cell: lstm_cell,
}  # fmt: skip
