"""Facts about operators: one row an operator, and one answer a call.

In: an operator, and the arguments of a call.  Out: `Facts` of the operator, `CallFacts` of the call.

Example: ``facts_of(aten.gather.default).raises`` is "device".  ``describe(aten.bernoulli.p, (x, 0.5), {})`` draws once.

Facts follow from the schema and tags, and from the rows of `operator_table.py`.  An operator of another library, without
this information, counts as acting.  In-place writes are not treated here: the version counters of the arguments show them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch.fx import Node

from pycompiler.operators.process_groups import launches
from pycompiler.symbolic.unbacked_symbols import UnbackedCheck

TORCHS = frozenset(("aten", "prim", "prims"))
"""Namespaces of torch's own operators, which write nothing when they fail."""
_OURS = TORCHS | {"pycompiler"}
SWITCHES = frozenset((torch.use_deterministic_algorithms, torch.set_default_dtype))
"""Functions that set state which kernels read at run time: a graph that calls one of these runs as captured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about an operator that hold for all its calls."""

    # Results.
    layouts: Callable[..., Any] | None = None  # sizes and strides, also symbolic ones (`symbolic_shape_rules.py`)
    dtypes: Callable[..., Any] | None = None  # dtypes by those of the arguments (`static_shape_rules.py`)
    factory: Callable[..., Any] | None = None  # layout and dtype of a fresh tensor on the host
    view: Literal["", "meta", "reshape", "split", "bits"] = ""  # "bits": kernels need conjugate and negative bits
    ordinary: bool = False  # the meta kernel alone gives the result (see `propagate.is_ordinary`)
    strides: Literal["", "iterated", "reversed", "like", "contiguous"] = (
        ""  # by the kernel's rule, `tensor_iterator.py`
    )
    any_dtype: bool = False  # operands of different dtypes are not copied first
    corrected: Literal["", "packed", "copy", "norm", "dtype"] = ""  # an answer of torch's shape function that is wrong
    probe: Literal["", "meta", "never"] = ""  # the kernel cannot be run for the layouts of its results
    unwritten: bool = False  # the memory of the result has no values
    any_layout: Literal["", "view", "fold", "images"] = ""  # the same elements for every layout of the operands
    # Arguments.
    accepts: Callable[..., bool] | None = None  # checks that torch's shape function lacks
    composite_check: bool = False  # torch's Python rule lacks the check, too
    nearly_outer: bool = False  # an internal kernel that programs call nearly directly, so that it checks its arguments
    converts: bool = False  # a number is converted to the dtype of the result
    fills: bool = False  # the first argument is written, whatever it holds
    draws_in_place: Callable[..., bool] | None = None  # parameters for which the first argument is filled
    # Effects.
    raises: Literal["", "device", "host"] = ""  # for some data; "device": by an assertion of the device, on a GPU
    divides: bool = False  # raises for some integer divisors
    checks: bool = False  # has no effect but an error, so calls may be repeated
    writes_unseen: bool = False  # writes arguments without counting their versions
    waits: Literal["", "never", "masks", "always"] = ""  # for values on the device; "masks": for positions of masks
    draws_by_value: bool = False  # the number of random numbers depends on values
    draws_apart: bool = False  # the shape function of the in-place operator refuses a generator
    # Recomputation.
    cheap: bool = False  # as cheap as a load of the result
    jumps: bool = False  # from floats to floats, with jumps between neighbouring arguments
    selects: bool = False  # the result consists of bits of the operands
    product: bool = False  # a matrix product
    # The way to a kernel.
    whole: bool = False  # not in ATen's core set, but a library kernel or a loop of ours is faster than the parts
    kept: str = ""  # the reason for calls of ATen's kernel
    # By schema and tags.
    draws: bool = False  # from a random generator
    acts: bool = False  # has, or may have, side effects: each call runs, once, in order with the others
    written: tuple[tuple[int, str], ...] = ()  # positions and names of the arguments that the operator writes
    gives_views: bool = False  # of arguments
    gives_number: bool = False  # the result is a number, read from a tensor
    foreign: bool = False  # of another library, so that possible errors are unknown
    on_lists: bool = False  # does the same with each tensor of its lists
    launches: bool = False  # starts work that continues after the call
    lasts: bool = False  # see `_lasts`

    @property
    def writes(self) -> bool:
        """Whether the operator writes arguments."""
        return bool(self.written)

    @property
    def ordered(self) -> bool:
        """Whether calls must not be merged, repeated, or exchanged with each other."""
        return self.draws or self.acts

    @property
    def stays(self) -> bool:
        """Whether a call runs even if its result is unused."""
        return self.draws or self.acts or bool(self.raises) or self.writes_unseen


ROWS: dict[str, dict[str, Any]] = {}
"""By name: "gather" is each overload of `aten.gather` and of `aten.gather_`, "gather.default" one of them.

"add.*" means the overloads of `aten.add` that take a tensor and return a fresh one.  Names of other libraries begin
with "library::".
"""
_PLAIN_OVERLOADS = ("default", "Tensor", "Scalar", "Scalar_Other")


def row(names: str, **facts: Any) -> None:
    """Add facts about operators, by names with blanks between them.  A fact may be given once."""
    Facts(**facts)  # raises for an unknown fact
    for name in names.split():
        known = ROWS.setdefault(name, {})
        if twice := known.keys() & facts.keys():
            raise ValueError(f"{name} has two rows with {sorted(twice)}")
        known.update(facts)


@cache
def facts_of(op: object) -> Facts:
    """Facts about an operator; also about another target of a graph's node."""
    if not isinstance(op, OpOverload):
        acts = isinstance(op, (HigherOrderOperator, UnbackedCheck))
        return Facts(acts=acts, launches=launches(op), lasts=acts or launches(op))
    space, schema, name = op.namespace, op._schema, op.overloadpacket.__name__
    prefix = "" if space == "aten" else f"{space}::"
    found = dict(ROWS.get(prefix + (name if name.endswith("__") else name.rstrip("_")), {}))
    if op._overloadname in _PLAIN_OVERLOADS and str(schema.arguments[0].type if schema.arguments else "") == "Tensor":
        found |= ROWS.get(f"{prefix}{name}.*", {})
    found |= ROWS.get(f"{prefix}{name}.{op._overloadname}", {})
    found["draws"] = torch.Tag.nondeterministic_seeded in op.tags
    found["acts"] = space not in _OURS or not schema.returns
    changed = ((i, a) for i, a in enumerate(schema.arguments) if a.alias_info is not None and a.alias_info.is_write)
    found["written"], found["foreign"] = tuple((i, a.name) for i, a in changed), space not in _OURS
    found["gives_views"] = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
    found["gives_number"] = [str(a.type) for a in (*schema.arguments, *schema.returns)] == ["Tensor", "number"]
    found["on_lists"], found["launches"] = schema.name.startswith(_ON_LISTS), launches(op)
    return Facts(**found, lasts=_lasts(op, found))


_ON_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")


def _lasts(op: OpOverload, found: Mapping[str, Any]) -> bool:
    """Whether the operator acts, according to its schema.

    Another library's operator that returns results and writes nothing may be repeated after an error, unless the call
    involves another process.  Without an error it is called once.
    """
    if found["launches"]:
        return True
    computes = op._schema.returns and not op._schema.is_mutable
    only_writes = found["on_lists"] and found["written"]
    return bool(found["acts"] and not computes and not found.get("checks") and not only_writes)


class CallFacts(NamedTuple):
    """Facts about a call, or the sums of several calls."""

    effects: int = 0  # more than results: the call runs even if they are unused
    writes: int = 0  # in-place writes
    once: int = 0  # the call must not be repeated
    draws: int = 0  # random numbers
    kernels_draw: int = 0  # random numbers in a kernel of torch
    tells: int = 0  # side effects by the schema
    refusals: int = 0  # the call may raise a data error
    fails: int = 0  # an operator of another library
    meets: int = 0  # a collective
    others: int = 0  # an operator that is not ordinary, found while fakes run

    def plus(self, other: CallFacts) -> CallFacts:
        """The sums of two."""
        return CallFacts._make(map(operator.add, self, other))

    def since(self, then: CallFacts) -> CallFacts:
        """The calls since earlier sums."""
        return CallFacts._make(map(operator.sub, self, then))


NONE = CallFacts()
DIVISION = CallFacts(effects=1, refusals=1)
OTHER = CallFacts(others=1)


def describe(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CallFacts:
    """The effects of a call, apart from integer divisions (`divides`), which depend on the result."""
    usual, facts = _usual(op), facts_of(op)
    if usual.refusals and not refuses(op, args):
        usual = usual._replace(refusals=0)
    if facts.draws and drops_nothing(op, args, kwargs):
        usual = usual._replace(effects=0, once=0, draws=0, kernels_draw=0)
    return usual


@cache
def _usual(op: object) -> CallFacts:
    facts = facts_of(op)
    once, refuses = facts.ordered and not facts.checks, bool(facts.raises) or (facts.checks and facts.ordered)
    by_torch = facts.draws and not facts.acts
    flags = (
        facts.stays,
        facts.writes,
        once,
        facts.draws,
        by_torch,
        facts.lasts,
        refuses,
        facts.foreign,
        facts.launches,
    )
    return CallFacts(*map(int, flags)) if any(flags) else NONE


def refuses(op: object, args: Sequence[Any]) -> bool:
    """Whether a call may raise a data error that the program catches, and can be repeated afterwards.

    On a GPU many kernels end the process instead.
    """
    asserts = facts_of(op).raises == "device"
    return bool(_usual(op).refusals) and not (
        asserts and any(isinstance(a, torch.Tensor) and a.device.type == "cuda" for a in args)
    )


@cache
def _dropout_at(op: OpOverload) -> tuple[int, float] | None:
    """Position and default of the dropout probability of an attention or of its gradient, or None."""
    found = [(i, a.default_value or 0.0) for i, a in enumerate(op._schema.arguments) if a.name == "dropout_p"]
    return found[0] if found else None


def dropout_of(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The dropout probability in a call of an attention or of its gradient; None for another operator."""
    place = _dropout_at(op) if isinstance(op, OpOverload) else None
    if place is None:
        return None
    at, default = place
    return args[at] if at < len(args) else kwargs.get("dropout_p", default)


def drops_nothing(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether this call of a drawing operator has dropout probability 0, so that it does not draw."""
    if op is torch.ops.aten.native_dropout.default:
        return args[2:3] == (False,) or kwargs.get("train", True) is False
    share = dropout_of(op, args, kwargs) if facts_of(op).draws else None
    return type(share) in (int, float) and share == 0


@cache
def overload_by_generator(op: OpOverload, *, taken: bool) -> OpOverload | None:
    """The overload with the same arguments that takes a generator, or that takes none; None if there is none."""
    overloads = (getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads())
    found = (o for o in overloads if _other_arguments(o) == _other_arguments(op))
    return next((o for o in found if (len(o._schema.arguments) > len(_other_arguments(o))) == taken), None)


def _other_arguments(op: OpOverload) -> list[str]:
    return [a.name for a in op._schema.arguments if a.name != "generator"]


def divides(op: object, args: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether a call is an integer division on the CPU, which raises for some divisors.  `results`: tensors or buffers,
    if known."""
    if not facts_of(op).divides or (len(args) > 1 and isinstance(args[1], int) and args[1] != 0):
        return False
    known = [r for r in results if hasattr(r, "dtype")]
    return not any(r.dtype.is_floating_point or r.device.type != "cpu" for r in known)


def node_stays(node: Node) -> bool:
    """Whether a call in an ATen graph runs even if its result is unused; it may depend on the arguments."""
    return facts_of(node.target).stays or divides(node.target, node.args, [node.meta.get("val")])


def written_by(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[Any]:
    """The arguments that a call writes: tensors, and lists of tensors."""
    for at, name in facts_of(op).written:
        yield args[at] if at < len(args) else kwargs.get(name)


@cache
def _is_uncounted(op: object) -> bool:
    """Whether no kernel counts the versions of written arguments.

    For an operator on the CPU that returns nothing, nested calls count them (`torch._foreach_add_`); shape functions do
    not.
    """
    if not isinstance(op, OpOverload) or op._schema.returns or not facts_of(op).writes:
        return False
    return not torch._C._dispatch_has_kernel_for_dispatch_key(op.name(), "ADInplaceOrView")  # type: ignore[no-untyped-call]


def count_writes(op: object, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Increment the versions of written fake tensors, as kernels do for real tensors."""
    for found in written_by(op, args, kwargs) if _is_uncounted(op) else ():
        for t in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(t, torch.Tensor) and not t.is_inference():
                torch.autograd.graph.increment_version(t)


def operators_with(fact: str) -> Iterator[OpOverload]:
    """The overloads of ATen whose own rows have a fact."""
    for name in (name for name, facts in ROWS.items() if fact in facts and "." in name):
        name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, name, None)  # some versions of torch lack some operators
        for found in packet.overloads() if packet is not None else ():
            op = getattr(packet, found)
            if overload in ("*", found) and getattr(facts_of(op), fact):
                yield op
