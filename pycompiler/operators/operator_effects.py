"""What an operator does besides computing its results: one answer for every stage that drops, merges, repeats or reorders calls.

In: an operator. Out: `draws`, `acts`, `raises`, or `stays` (any of them).
Example: ``aten._assert_async`` acts, ``aten.bernoulli`` draws, ``aten.gather`` raises, ``aten.add`` does nothing of that kind.

The answers follow from schema and tags; what they do not tell (an operator of another library) is taken to act.
Writes to arguments are another matter: the version counters of the arguments tell.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from pycompiler.ir.late import Check
from pycompiler.ir.process_groups import launches

aten = torch.ops.aten

TORCHS = frozenset(("aten", "prim", "prims"))
"""Namespaces of torch's own operators, which write nothing when they fail."""
_OURS = TORCHS | {"pycompiler"}

# Kernels that raise for some values of their arguments.
_RAISING = frozenset(
    (
        *(
            "index",
            "index_put",
            "_index_put_impl",
            "index_select",
            "index_add",
            "index_copy",
            "index_fill",
            "index_reduce",
            "gather",
        ),
        *("scatter", "scatter_add", "scatter_reduce", "take", "put", "embedding", "_embedding_bag", "nll_loss_forward"),
        *("_embedding_bag_forward_only", "nll_loss2d_forward", "multilabel_margin_loss_forward", "multi_margin_loss"),
        *("binary_cross_entropy", "_ctc_loss", "repeat_interleave", "bincount", "cholesky", "linalg_eig"),
        *("masked_scatter", "histc", "histogram", "_histogramdd_bin_edges", "_histogramdd_from_bin_cts"),
        "isin",  # of one element, for some strides (a view in its kernel)
        *("_linalg_eigvals", "_linalg_eigh", "_linalg_svd", "linalg_lstsq", "lu_unpack"),
        *("linalg_pinv", "linalg_matrix_sqrth", "linalg_polar", "linalg_lu_solve", "cholesky_inverse"),
        *("max_unpool2d", "max_unpool3d", "segment_reduce", "searchsorted", "embedding_renorm"),
        *("fake_quantize_per_channel_affine_cachemask", "_pack_padded_sequence"),
        *(
            "pick",
            "within",
            "branch",
            "loop",
            "unwound",
            "scan",
            "unscanned",
            "ctc_losses",
        ),  # ours (`checked.py`, `ctc.py`, `autograd/branches.py`)
    )
)


SWITCHES = frozenset((torch.use_deterministic_algorithms, torch.set_default_dtype))
"""What kernels ask for when they run: a graph that calls one of these runs as captured."""


@cache
def draws(op: object) -> bool:
    """Takes numbers from a generator."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


@cache
def _dropout_at(op: OpOverload) -> tuple[int, float] | None:
    """Where an attention operator takes the share that it drops, and what it is by default."""
    found = [(i, a.default_value or 0.0) for i, a in enumerate(op._schema.arguments) if a.name == "dropout_p"]
    return found[0] if found and draws(op) else None


def drops_nothing(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """An operator that would draw if it dropped anything."""
    if op is torch.ops.aten.native_dropout.default:
        return args[2:3] == (False,) or kwargs.get("train", True) is False
    place = _dropout_at(op) if isinstance(op, OpOverload) else None
    if place is None:
        return False
    at, default = place
    share = args[at] if at < len(args) else kwargs.get("dropout_p", default)
    return type(share) in (int, float) and share == 0


@cache
def acts(op: object) -> bool:
    """Is called for what it does, or may be: each call runs, once, in order with the others."""
    if not isinstance(op, OpOverload):
        return isinstance(op, (HigherOrderOperator, Check))
    return op.namespace not in _OURS or not op._schema.returns


@cache
def raises(op: object) -> bool:
    """Refuses some values of its arguments: a call whose result nobody reads runs nevertheless."""
    if not isinstance(op, OpOverload) or op.namespace not in _OURS:
        return False
    return op.overloadpacket.__name__.rstrip("_") in _RAISING or op in _DRAWING_OF_TENSORS


# Operators that draw from what tensors say, which has to be a probability, a deviation or a rate.
_DRAWING_OF_TENSORS = frozenset(
    (
        *(aten.bernoulli.default, aten.bernoulli.out, aten.bernoulli.Tensor, aten.bernoulli_.Tensor),
        *(aten.normal.float_Tensor, aten.normal.Tensor_Tensor, aten.multinomial.default, aten.multinomial.out),
        *(aten.poisson.default, aten.poisson.out),
    )
)

# Those of them whose kernels refuse by other means than an assertion.
_TOLD_BY_THE_HOST = frozenset(
    (
        *("repeat_interleave", "bincount", "cholesky", "linalg_eig", "histc", "histogram", "_ctc_loss", "isin"),
        *("_histogramdd_bin_edges", "_histogramdd_from_bin_cts"),
        *("_linalg_eigvals", "_linalg_eigh", "_linalg_svd", "linalg_lstsq", "lu_unpack"),
        *("linalg_pinv", "linalg_matrix_sqrth", "linalg_polar", "linalg_lu_solve", "cholesky_inverse"),
        *("segment_reduce", "searchsorted", "fake_quantize_per_channel_affine_cachemask", "_pack_padded_sequence"),
        *("pick", "within", "branch", "loop", "unwound", "scan", "unscanned", "ctc_losses"),
    )
)


@cache
def _asserts(op: object) -> bool:
    return raises(op) and isinstance(op, OpOverload) and op.overloadpacket.__name__.rstrip("_") not in _TOLD_BY_THE_HOST


def refuses(op: object, args: Sequence[Any]) -> bool:
    """A call may raise an error of data that the program catches, after which it can be made again.  On a GPU many kernels
    end the process instead."""
    if not raises(op) and (ordered(op) and not is_check(op) or not (draws(op) or acts(op))):
        return False
    return not (_asserts(op) and any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args))


_DIVIDING = frozenset(("floor_divide", "remainder", "fmod", "div"))


@cache
def _divides(op: object) -> bool:
    return isinstance(op, OpOverload) and op.namespace == "aten" and op.overloadpacket.__name__.rstrip("_") in _DIVIDING


def divides(op: object, args: Sequence[Any], results: Sequence[Any]) -> bool:
    """A division of integers on the CPU, which raises for some divisors.  `results`: tensors or buffers, where known."""
    if not _divides(op) or (len(args) > 1 and isinstance(args[1], int) and args[1] != 0):
        return False
    known = [r for r in results if hasattr(r, "dtype")]
    return not any(r.dtype.is_floating_point or r.device.type != "cpu" for r in known)


def node_stays(node: Node) -> bool:
    """`stays` of a call in an ATen graph, whose arguments it may depend on."""
    return stays(node.target) or divides(node.target, node.args, [node.meta.get("val")])


@cache
def stays(op: object) -> bool:
    """A call runs though nobody reads its result."""
    return draws(op) or acts(op) or raises(op) or writes_unseen(op)


# Operators that only look: they may be called again.
_CHECKS = frozenset(
    (
        "_linalg_check_errors",
        "_assert_async",
        "_assert_scalar",
        "_assert_tensor_metadata",
        "_functional_assert_async",
        "within",
    )
)


@cache
def is_check(op: object) -> bool:
    return isinstance(op, OpOverload) and op.namespace in _OURS and op.overloadpacket.__name__ in _CHECKS


@cache
def ordered(op: object) -> bool:
    """Calls of such operators are neither merged, nor repeated, nor exchanged with each other."""
    return draws(op) or acts(op)


@cache
def tells(op: object) -> bool:
    """Acts by its schema.  An operator of another library that gives results and writes nothing may be called again after an
    error, where no other process meets it in the call; while there is none it is called once."""
    if launches(op):
        return True
    computes = isinstance(op, OpOverload) and op._schema.returns and not op._schema.is_mutable
    return acts(op) and not computes and not is_check(op) and not _only_writes(op)


@cache
def _only_writes(op: object) -> bool:
    """Gives nothing, and does no more than to write the lists of tensors that it takes."""
    return is_on_lists(op) and op._schema.is_mutable  # type: ignore[attr-defined, no-any-return]


@cache
def is_on_lists(op: object) -> bool:
    """Does the same with each tensor of lists."""
    return isinstance(op, OpOverload) and op._schema.name.startswith(_ON_LISTS)


_ON_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


@cache
def fails(op: object) -> bool:
    """An operator of another library, of which nothing tells what errors it raises."""
    return isinstance(op, OpOverload) and op.namespace not in _OURS


# Batch norms whose schemas do not say that they write running statistics, or for which nobody counts it: torch's rules
# for symbolic sizes call the latter.
_WRITES_UNSEEN = frozenset(
    (aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm)
    + (aten._native_batch_norm_legit, aten._batch_norm_with_update)
)


@cache
def writes_unseen(op: object) -> bool:
    """Writes arguments without counting their versions."""
    return isinstance(op, OpOverload) and op.overloadpacket in _WRITES_UNSEEN and op._overloadname == "default"


@cache
def _uncounted(op: object) -> tuple[tuple[int, str], ...]:
    """Where an operator that gives nothing takes what it writes, if no kernel counts that: on the processor what it calls
    in turn does (`torch._foreach_add_`), which shape functions do not."""
    if not isinstance(op, OpOverload) or not op._schema.is_mutable or op._schema.returns:
        return ()
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "ADInplaceOrView"):  # type: ignore[no-untyped-call]
        return ()
    places = enumerate(op._schema.arguments)
    return tuple((i, a.name) for i, a in places if a.alias_info is not None and a.alias_info.is_write)


def count_writes(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Versions of fakes tell what was written, as those of tensors do."""
    for at, name in _uncounted(op):
        found = args[at] if at < len(args) else kwargs.get(name)
        for t in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(t, torch.Tensor) and not t.is_inference():
                torch.autograd.graph.increment_version(t)


@cache
def noted(op: object) -> tuple[bool, bool, bool]:
    """Whether a call must run though nobody reads its result, writes arguments, and whether it happens once only."""
    writes = isinstance(op, OpOverload) and op._schema.is_mutable
    return stays(op), writes, ordered(op) and not is_check(op)
