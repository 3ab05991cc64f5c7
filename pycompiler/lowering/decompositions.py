"""The decompositions wanted before lowering: composite ATen operators that have no lowering of their own here.

In: nothing.  Out: `core_decompositions()`, a table for make_fx's `decomposition_table` (or the joint trace's
`decompositions`).  Softmax, layer norm, cross-entropy and the activations are not in it: lowering writes them as loops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import get_decompositions

aten = torch.ops.aten

_WANTED = [
    "_native_batch_norm_legit",
    "_native_batch_norm_legit_functional",
    "_native_batch_norm_legit_no_training",
    "_batch_norm_with_update",
    "_batch_norm_with_update_functional",
    "_batch_norm_no_update",
    "batch_norm_backward",
    "native_batch_norm",
    "native_batch_norm_backward",
    "cudnn_batch_norm",
    "cudnn_batch_norm_backward",
    "native_group_norm_backward",
    "_fused_rms_norm_backward",
    "_safe_softmax",
    "_weight_norm_interface",
    "binary_cross_entropy",
    "binary_cross_entropy_backward",
    "binary_cross_entropy_with_logits",
    "mse_loss",
    "mse_loss_backward",
    "smooth_l1_loss",
    "smooth_l1_loss_backward",
    "huber_loss",
    "huber_loss_backward",
    "soft_margin_loss",
    "soft_margin_loss_backward",
    "multi_margin_loss",
    "margin_ranking_loss",
    "hinge_embedding_loss",
    "nll_loss2d_forward",
    "nll_loss2d_backward",
    "glu_backward",
    "addr",
    "linspace",
    "logspace",
    "norm",
    "renorm",
    "dist",
    "aminmax",
    "trace",
    "logaddexp2",
    "diag_embed",
    "im2col",
    "col2im",
    "pixel_shuffle",
    "pixel_unshuffle",
    "channel_shuffle",
    "grid_sampler_2d",
    "affine_grid_generator",
    "reflection_pad1d",
    "reflection_pad2d",
    "reflection_pad3d",
    "replication_pad1d",
    "replication_pad2d",
    "replication_pad3d",
    "reflection_pad1d_backward",
    "reflection_pad2d_backward",
    "reflection_pad3d_backward",
    "unfold_backward",
    "diagonal_backward",
    "rot90",
    "narrow_copy",
    "take",
    "index_copy",
    "index_fill",
    "isin",
    "special_erfcx",
    "mvlgamma",
    "expand_copy",
    "permute_copy",
    "squeeze_copy",
    "unsqueeze_copy",
    "t_copy",
    "transpose_copy",
    "view_copy",
    "unbind_copy",
    "split_with_sizes_copy",
    "diagonal_copy",
    "as_strided_copy",
    "unfold_copy",
]


@cache
def _table() -> dict[Any, Callable[..., Any]]:
    packets = [getattr(aten, name) for name in _WANTED if hasattr(aten, name)]  # torch versions differ by a few
    found: dict[Any, Callable[..., Any]] = dict(get_decompositions(packets))
    return found


def core_decompositions() -> dict[torch._ops.OpOverload, Callable[..., Any]]:
    """A fresh copy of the table: OpOverload -> decomposition."""
    return {op: f for op, f in _table().items() if isinstance(op, torch._ops.OpOverload)}
