"""Effects of an operator beside its results: one answer for every stage that drops, merges, repeats or reorders calls.

In: an operator.  Out: `draws`, `has_side_effects`, `raises`, or `must_run` (any of them).

Example: ``aten._assert_async`` acts, ``aten.bernoulli`` draws, ``aten.gather`` raises, ``aten.add`` has no such effect.

The answers follow from schema and tags.  An operator of another library, without this information, counts as acting.
In-place writes are not treated here: the version counters of the arguments show them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from pycompiler.operators.process_groups import launches
from pycompiler.symbolic.unbacked_symbols import UnbackedCheck

aten = torch.ops.aten

TORCHS = frozenset(("aten", "prim", "prims"))
"""Namespaces of torch's own operators, which write nothing when they fail."""
_OURS = TORCHS | {"pycompiler"}

# Operators whose kernels raise for some values of their arguments.
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
        "isin",  # for one element and some strides (a view in its kernel)
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
        ),  # operators of this package (`value_checks.py`, `ctc_loss.py`, `autograd/control_flow.py`)
    )
)


SWITCHES = frozenset((torch.use_deterministic_algorithms, torch.set_default_dtype))
"""Functions that set state which kernels read at run time: a graph that calls one of these runs as captured."""


@cache
def draws(op: object) -> bool:
    """Whether the operator draws from a random generator."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


@cache
def _dropout_at(op: OpOverload) -> tuple[int, float] | None:
    """Position and default of the dropout probability of an attention operator, or None."""
    found = [(i, a.default_value or 0.0) for i, a in enumerate(op._schema.arguments) if a.name == "dropout_p"]
    return found[0] if found and draws(op) else None


def drops_nothing(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of a drawing operator has dropout probability 0, so that it does not draw."""
    if op is torch.ops.aten.native_dropout.default:
        return args[2:3] == (False,) or kwargs.get("train", True) is False
    place = _dropout_at(op) if isinstance(op, OpOverload) else None
    if place is None:
        return False
    at, default = place
    share = args[at] if at < len(args) else kwargs.get("dropout_p", default)
    return type(share) in (int, float) and share == 0


@cache
def has_side_effects(op: object) -> bool:
    """Whether the operator has, or may have, side effects: each call runs, once, in order with the others."""
    if not isinstance(op, OpOverload):
        return isinstance(op, (HigherOrderOperator, UnbackedCheck))
    return op.namespace not in _OURS or not op._schema.returns


@cache
def raises(op: object) -> bool:
    """Whether the operator raises for some values of its arguments: a call runs even if its result is unused."""
    if not isinstance(op, OpOverload) or op.namespace not in _OURS:
        return False
    return op.overloadpacket.__name__.rstrip("_") in _RAISING or op in _DRAWING_OF_TENSORS


# Operators that draw with a probability, deviation or rate from a tensor, whose values must be valid.
_DRAWING_OF_TENSORS = frozenset(
    (
        *(aten.bernoulli.default, aten.bernoulli.out, aten.bernoulli.Tensor, aten.bernoulli_.Tensor),
        *(aten.normal.float_Tensor, aten.normal.Tensor_Tensor, aten.multinomial.default, aten.multinomial.out),
        *(aten.poisson.default, aten.poisson.out),
    )
)

# Raising operators whose kernels do not use a device assertion.
_RAISE_ON_HOST = frozenset(
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
    return raises(op) and isinstance(op, OpOverload) and op.overloadpacket.__name__.rstrip("_") not in _RAISE_ON_HOST


def refuses(op: object, args: Sequence[Any]) -> bool:
    """Whether a call may raise a data error that the program catches, and can be repeated afterwards.

    On a GPU many kernels end the process instead.
    """
    if not raises(op) and (ordered(op) and not is_check(op) or not (draws(op) or has_side_effects(op))):
        return False
    return not (_asserts(op) and any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args))


_DIVIDING = frozenset(("floor_divide", "remainder", "fmod", "div"))


@cache
def _divides(op: object) -> bool:
    return isinstance(op, OpOverload) and op.namespace == "aten" and op.overloadpacket.__name__.rstrip("_") in _DIVIDING


def divides(op: object, args: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether a call is an integer division on the CPU, which raises for some divisors.  `results`: tensors or buffers,
    if known."""
    if not _divides(op) or (len(args) > 1 and isinstance(args[1], int) and args[1] != 0):
        return False
    known = [r for r in results if hasattr(r, "dtype")]
    return not any(r.dtype.is_floating_point or r.device.type != "cpu" for r in known)


def node_stays(node: Node) -> bool:
    """`must_run` for a call in an ATen graph; it may depend on the arguments."""
    return must_run(node.target) or divides(node.target, node.args, [node.meta.get("val")])


@cache
def must_run(op: object) -> bool:
    """Whether a call runs even if its result is unused."""
    return draws(op) or has_side_effects(op) or raises(op) or writes_unseen(op)


# Operators that only check: their calls may be repeated.
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
    """Whether calls of the operator must not be merged, repeated, or exchanged with each other."""
    return draws(op) or has_side_effects(op)


@cache
def has_lasting_effect(op: object) -> bool:
    """Whether the operator acts, according to its schema.

    Another library's operator that returns results and writes nothing may be repeated after an error, unless the call
    involves another process.  Without an error it is called once.
    """
    if launches(op):
        return True
    computes = isinstance(op, OpOverload) and op._schema.returns and not op._schema.is_mutable
    return has_side_effects(op) and not computes and not is_check(op) and not _only_writes(op)


@cache
def _only_writes(op: object) -> bool:
    """Whether the operator returns nothing, and only writes the lists of tensors that it takes."""
    return is_on_lists(op) and op._schema.is_mutable  # type: ignore[attr-defined, no-any-return]


@cache
def is_on_lists(op: object) -> bool:
    """Whether the operator does the same with each tensor of its lists."""
    return isinstance(op, OpOverload) and op._schema.name.startswith(_ON_LISTS)


_ON_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


@cache
def is_foreign(op: object) -> bool:
    """Whether the operator belongs to another library, so that its possible errors are unknown."""
    return isinstance(op, OpOverload) and op.namespace not in _OURS


# Batch norms that write running statistics without saying so in their schemas, or without counting the write.
# torch's rules for symbolic sizes call the latter.
_WRITES_UNSEEN = frozenset(
    (aten.native_batch_norm, aten.cudnn_batch_norm, aten.miopen_batch_norm)
    + (aten._native_batch_norm_legit, aten._batch_norm_with_update)
)


@cache
def writes_unseen(op: object) -> bool:
    """Whether the operator writes arguments without counting their versions."""
    return isinstance(op, OpOverload) and op.overloadpacket in _WRITES_UNSEEN and op._overloadname == "default"


@cache
def _uncounted(op: object) -> tuple[tuple[int, str], ...]:
    """Positions and names of written arguments whose versions no kernel counts, for an operator that returns nothing.

    On the CPU, nested calls count the versions (`torch._foreach_add_`); shape functions do not.
    """
    if not isinstance(op, OpOverload) or not op._schema.is_mutable or op._schema.returns:
        return ()
    if torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "ADInplaceOrView"):  # type: ignore[no-untyped-call]
        return ()
    places = enumerate(op._schema.arguments)
    return tuple((i, a.name) for i, a in places if a.alias_info is not None and a.alias_info.is_write)


def count_writes(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Increment the versions of written fake tensors, as kernels do for real tensors."""
    for at, name in _uncounted(op):
        found = args[at] if at < len(args) else kwargs.get(name)
        for t in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(t, torch.Tensor) and not t.is_inference():
                torch.autograd.graph.increment_version(t)


@cache
def effect_flags(op: object) -> tuple[bool, bool, bool]:
    """Whether a call must run even if its result is unused; whether it writes arguments; whether it must run only once."""
    writes = isinstance(op, OpOverload) and op._schema.is_mutable
    return must_run(op), writes, ordered(op) and not is_check(op)
