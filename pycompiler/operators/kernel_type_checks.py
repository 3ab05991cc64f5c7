"""Checks of argument dtypes, numbers and memory by the kernels: shape functions and decompositions are more lenient.

In: an operator and FakeTensors.  Out: nothing, or the kernel's exception.

Example: ``aten.mm`` of float32 and float64 raises, ``aten._softmax`` of int64 raises; both shape functions return a result.

The kernel runs once for each combination of dtypes, on small tensors of ones and zeros.  Only its errors about dtypes
count:  other errors may be about the values.  Its errors for tensors without elements count too, and its errors for
arguments that share the memory it writes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.operators.operator_facts import facts_of
from pycompiler.symbolic.concretize import Concretizer
from pycompiler.symbolic.symbols import hint_of

# If all arguments have one of these dtypes, a kernel accepts all calls or none, whatever the shapes and numbers.
# Exception: bools, which some kernels refuse.
_COMMON = frozenset((torch.float32, torch.float64, torch.bfloat16))
_ABOUT_TYPES = re.compile(
    r"not (yet )?(implemented|supported)|support|dtype|scalar type|type of|same type|[Bb]ool|complex|converted|cast\b|[Ii]nteger"
    r"|(weight|bias) type"
)
_FEW = 4096
_MOST_ANSWERS = 20_000

_ABOUT_NUMBERS = re.compile("without overflow")
_ABOUT_MEMORY = re.compile(r"single memory location")
_LARGE = 1 << 22  # elements that arguments of one memory span

_answers: dict[Any, Exception | None] = {}


def check_types(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], *, symbolic: bool = False) -> None:
    """Raises the exception that the kernel of `op` raises for arguments of these dtypes; other errors are ignored.

    `symbolic`: arguments and sizes may be symbolic numbers; the kernel runs with their hints.
    """
    if not has_kernel_checks(op):
        return
    tensors = tensors_of((args, kwargs))
    if symbolic:
        if (
            op._schema.is_mutable
            or all(0 in map(hint_of, t.shape) for t in tensors)
            or not _is_known(op, tensors, (*args, *kwargs.values()))
        ):
            today = Concretizer()
            check_types(op, today.of(args), today.of(kwargs))
        return
    if tensors and not any(t.numel() for t in tensors):
        check_empty(op, args, kwargs)
    if op._schema.is_mutable and len(tensors) > 1:
        check_memory(op, args, kwargs, tensors)
    types: dict[torch.dtype, None] = {}
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            types[value.dtype] = None
        elif type(value) in (list, tuple) and value and isinstance(value[0], torch.Tensor):
            types.update((v.dtype, None) for v in value if isinstance(v, torch.Tensor))
    key: tuple[Any, ...] = (op, *types, _has_truth(args) or _has_truth(kwargs.values()))
    if len(types) != 1 or next(iter(types)) not in _COMMON:
        key = (op, *(_key(a) for a in args), *((k, _key(v)) for k, v in kwargs.items()))
    try:
        answer = _answers.get(key, _answers)
    except TypeError:  # an argument without a hash
        return
    if answer is _answers:
        if not tensors or not all(type(t) is FakeTensor and on_host(t) for t in tensors):
            return
        if len(_answers) > _MOST_ANSWERS:
            _answers.clear()
        answer = _ask(op, args, kwargs, sum(t.numel() for t in tensors) <= _FEW)
        if answer is None or not _ABOUT_NUMBERS.search(str(answer)):
            _answers[key] = answer
    if isinstance(answer, Exception) and all(map(on_host, tensors)):
        raise type(answer)(*answer.args)


def _has_truth(args: Iterable[Any]) -> bool:
    """Whether an argument is True or False: ``x - True`` is refused, ``x - 1`` is not."""
    return any(type(a) is bool for a in args)


def _is_known(op: OpOverload, tensors: Sequence[torch.Tensor], args: Sequence[Any]) -> bool:
    """Whether the kernel is known to accept these arguments, all of one common dtype."""
    types = dict.fromkeys(t.dtype for t in tensors)
    return len(types) == 1 and next(iter(types)) in _COMMON and _answers.get((op, *types, _has_truth(args)), op) is None


def check_number(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises if the kernel reports that a dtype cannot hold a number among these arguments."""
    if not has_kernel_checks(op):
        return
    error = _outcome(op, args, kwargs, lambda t: torch.ones([min(n, 2) for n in t.shape], dtype=t.dtype))
    if error is not None and _ABOUT_NUMBERS.search(str(error)):
        try:
            raise error
        finally:
            del error  # its traceback leads to this frame and its callers' frames


def check_fill(shape: Sequence[int], dtype: torch.dtype, value: float) -> None:
    """Raises if a tensor of this shape and dtype cannot be filled with the number."""
    with _disable_current_modes(), torch.no_grad():
        torch.full(shape, value, dtype=dtype, device="cpu")


def check_empty(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises the kernel's exception for tensors without elements.  All such tensors are alike, so each exception applies.

    Shape functions are more lenient (``max`` over a dimension without elements).  An unused result would hide the error.
    For other devices the CPU kernel runs, which may lack some dtypes.
    """
    error = _outcome(op, args, kwargs, lambda t: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype))
    if error is not None and (all(map(on_host, tensors_of((args, kwargs)))) or not _ABOUT_TYPES.search(str(error))):
        try:
            raise error
        finally:
            del error  # its traceback leads to this frame and its callers' frames


def check_memory(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]
) -> None:
    """Raises the kernel's exception for arguments that share the memory it writes: ``x[i] = x`` reads memory that it writes."""
    memory: dict[int, torch.Tensor] = {}
    ends: dict[int, int] = {}
    for t in tensors:
        if not isinstance(t, FakeTensor) or t.layout is not torch.strided:
            return
        last = sum((n - 1) * s for n, s in zip(t.shape, t.stride(), strict=True))
        end = int(t.storage_offset() + last + 1) * t.element_size()
        ends[memory_of(t)] = max(ends.get(memory_of(t), 0), end)
    if len(ends) == len(tensors) or sum(ends.values()) > _LARGE:
        return

    def stand_in(t: torch.Tensor) -> torch.Tensor:
        whole = memory.setdefault(memory_of(t), torch.zeros(ends[memory_of(t)] + 8, dtype=torch.uint8))
        return whole[: len(whole) // 8 * 8].view(t.dtype).as_strided(t.shape, t.stride(), t.storage_offset())

    error = _outcome(op, args, kwargs, stand_in)
    if error is not None and _ABOUT_MEMORY.search(str(error)):
        try:
            raise error
        finally:
            del error  # its traceback leads to this frame and its callers' frames


def memory_of(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def shares_version(t: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share a version counter.  Views and detached tensors share it with their base; the result of
    `.data` does not."""
    if t.is_inference() or other.is_inference():
        return False
    before = other._version
    _set_versions((t,), (t._version + 1,))
    changed = other._version != before
    _set_versions((t,), (t._version - 1,))
    return changed


_set_versions = torch._C._autograd._unsafe_set_version_counter


def deep_copied(t: torch.Tensor) -> torch.Tensor:
    """A copy; its version counts one write, as a copy of `copy.deepcopy` does."""
    made = t.clone()
    torch.autograd.graph.increment_version(made)
    return made


def set_version(t: torch.Tensor, version: int) -> None:
    """Set the version of a tensor's memory."""
    _set_versions((t,), (version,))


# Internal kernels check nothing, and crash: only kernels that programs call themselves, or nearly so, may run here.
_INNER = re.compile(r"_(?!foreach_)|mkldnn|cudnn|miopen|fbgemm|quantized|.*backward")


@cache
def has_kernel_checks(op: OpOverload) -> bool:
    name, facts = op.overloadpacket.__name__, facts_of(op)
    if op.namespace != "aten" or facts.draws or (_INNER.match(name) and not facts.nearly_outer):
        return False
    if facts.acts and not name.startswith("_foreach_"):  # they return nothing, and write only their arguments
        return False
    return not facts.gives_views


def on_host(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and t.device.type == "cpu"


def _ask(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], as_it_is: bool) -> Exception | None:
    """The kernel's exception about the types of the arguments, or None.

    `as_it_is`: stand-ins have the sizes of the arguments; else at most two elements a dimension, which cost nothing.
    """

    def stand_in(value: torch.Tensor) -> torch.Tensor:
        shape = value.shape if as_it_is else [min(n, 2) for n in value.shape]
        return (torch.ones if value.dtype.is_floating_point else torch.zeros)(shape, dtype=value.dtype)

    error = _outcome(op, args, kwargs, stand_in)
    if error is None or not _ABOUT_TYPES.search(str(error)):
        return None
    if as_it_is or isinstance(error, NotImplementedError):
        return error
    return _ask(op, args, kwargs, True)  # small sizes may have an exception of their own


def _outcome(
    op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], stand_in: Callable[[torch.Tensor], torch.Tensor]
) -> Exception | None:
    """The kernel's exception for stand-ins of the arguments, or None."""

    def replaced(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return stand_in(value)
        if isinstance(value, (list, tuple)) and not isinstance(value, torch.Size):
            return type(value)(map(replaced, value))
        return value

    try:
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
            op(*map(replaced, args), **{k: replaced(v) for k, v in kwargs.items()})
    except Exception as error:
        return error.with_traceback(None)  # answers are stored, and its frames lead to the program's frames
    return None


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a value, in order."""
    found: list[torch.Tensor] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[torch.Tensor]) -> None:
    if isinstance(value, torch.Tensor):
        found.append(value)
    elif isinstance(value, (list, tuple)):
        for v in value:
            _gather(v, found)
    elif isinstance(value, Mapping):
        for v in value.values():
            _gather(v, found)


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    return (type(value), value)
