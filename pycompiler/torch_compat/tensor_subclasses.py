"""Tensor subclasses that hold inner tensors and compute through `__torch_dispatch__` (in names: "wrappers").

In: such a tensor.  Out: the inner tensors, and a `Spec` that rebuilds the same subclass from other tensors.

Example: ``flatten(TwoTensor(a, b))`` gives ``[a, b], Spec(TwoTensor, (("a", None), ("b", None)), None, ...)``.

torch's contract (`__tensor_flatten__`, `__tensor_unflatten__`) defines these classes: the class, the inner tensors and
the context determine the behaviour of all operators.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pycompiler.symbolic.number_nodes import SYMBOLIC, number_at
from pycompiler.symbolic.symbols import is_symbolic
from pycompiler.torch_compat import distributed_tensors, jagged_tensors
from pycompiler.torch_compat.dispatch_modes import OwnMode
from pycompiler.torch_compat.distributed_tensors import is_distributed

# Methods of the class that define its behaviour; capture guards them.
CONTRACT = ("__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__", "__torch_function__")
_ATTRIBUTES = ("__getattr__", "__setattr__", "__del__")
# Further names that such a class may override although tensors have them: the graph calls torch's methods by name.
_OWN = frozenset(
    (*CONTRACT, "__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__module__", "__doc__", "__qualname__",
     "__dict__", "__weakref__", "__annotations__", "__slots__", "__firstlineno__", "__static_attributes__",
     "__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__")
)  # fmt: skip
_DISABLED = torch._C._disabled_torch_function_impl
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl


def _raw(cls: type, name: str) -> Any:
    return next((vars(c)[name] for c in type.mro(cls) if name in vars(c)), None)


def is_tensor_subclass(cls: type) -> bool:
    """Whether a class keeps the contract, and only `__torch_dispatch__` affects operators; also True for torch's jagged
    tensors."""
    if jagged_tensors.is_jagged(cls):
        return True
    if type(cls) is not type(torch.Tensor) or not issubclass(cls, torch.Tensor):
        return False
    if not (hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")):
        return False
    if getattr(cls, "__torch_dispatch__", _NO_DISPATCH) is _NO_DISPATCH:
        return False
    hook = _raw(cls, "__torch_function__")
    if (
        hook is not _raw(torch.Tensor, "__torch_function__")
        and getattr(cls, "__torch_function__", None) is not _DISABLED
    ):
        return False
    # its methods that share a name with a tensor's method read data, and wait before
    if distributed_tensors.is_pending_collective(cls):
        return True
    own = {n for c in type.mro(cls) if not issubclass(torch.Tensor, c) for n in vars(c)} - _OWN
    return not any(n in _ATTRIBUTES or hasattr(torch.Tensor, n) for n in own)


def held_by(tensor: torch.Tensor) -> dict[str, Any]:
    """The attributes of an instance: in its dict, and in slots."""
    held = dict(vars(tensor))
    for cls in type.mro(type(tensor)):
        for name, slot in () if issubclass(torch.Tensor, cls) else vars(cls).items():
            if type(slot) is types.MemberDescriptorType and hasattr(tensor, name):
                held.setdefault(name, slot.__get__(tensor))
    return held


@dataclass(frozen=True)
class Spec:
    """How to build a tensor subclass.

    `parts`: the names of its inner tensors, each with the spec of a nested subclass or None.
    The context of a jagged tensor is its ragged dimension; its sizes and strides follow from the inner tensors.
    """

    cls: type
    parts: tuple[tuple[str, Spec | None], ...]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]
    # further attributes named by `__tensor_flatten__` that are not tensors (a mesh)
    held: tuple[tuple[str, Any], ...] = ()

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> torch.Tensor:
        inner: dict[str, Any] = {
            name: next(leaves) if part is None else part.rebuild(leaves) for name, part in self.parts
        }
        if jagged_tensors.is_jagged(self.cls):
            return jagged_tensors.make(self.cls, inner, self.context)
        inner |= self.held
        if is_distributed(self.cls):
            return distributed_tensors.build(self.cls, inner, self.context, self.size, self.stride)
        return self.cls.__tensor_unflatten__(inner, self.context, self.size, self.stride)  # type: ignore[attr-defined, no-any-return]


def at(spec: Spec | None, env: Mapping[str, Any]) -> Spec | None:
    """A spec with symbolic sizes replaced by their values."""
    if spec is None or not has_symbols(spec):
        return spec
    size, stride = ([number_at(n, env) for n in ns] for ns in (spec.size, spec.stride))
    parts = tuple((name, at(part, env)) for name, part in spec.parts)
    return replace(spec, parts=parts, size=torch.Size(size), stride=tuple(stride))


def has_symbols(spec: Spec | None) -> bool:
    """Whether the spec has symbolic sizes; sizes of a jagged tensor's inner tensors are not in its spec."""
    if spec is None:
        return False
    return any(map(is_symbolic, (*spec.size, *spec.stride))) or any(has_symbols(part) for _, part in spec.parts)


def context_has_symbols(spec: Spec | None) -> bool:
    """Whether a context contains symbols."""
    if spec is None:
        return False
    held = any(isinstance(v, SYMBOLIC) for v in pytree.tree_leaves(spec.context))
    return held or any(context_has_symbols(part) for _, part in spec.parts)


class SubclassConstructor:
    """Builds a tensor subclass from the tensors among its class's arguments.

    The tensors are at `places`; the last arguments are passed by `names`.
    """

    def __init__(self, cls: type, known: Sequence[Any], places: Sequence[int], names: tuple[str, ...]) -> None:
        self.cls, self.known, self.places, self.names = cls, tuple(known), tuple(places), names
        self.__name__, self.__qualname__, self.__module__ = "making", "making", __name__

    def __call__(self, *tensors: torch.Tensor) -> Any:
        given = [*self.known]
        for place, tensor in zip(self.places, tensors, strict=True):
            given[place] = tensor
        direct = len(given) - len(self.names)
        return self.cls(*given[:direct], **dict(zip(self.names, given[direct:], strict=True)))


def flatten(tensor: torch.Tensor, leaves: list[torch.Tensor]) -> Spec | None:
    """Append the plain inner tensors; returns None for a plain tensor."""
    if not is_tensor_subclass(type(tensor)):
        leaves.append(tensor)
        return None
    if jagged_tensors.is_jagged(type(tensor)):
        inside = jagged_tensors.parts(tensor)
        leaves += [t for _, t in inside]
        named = tuple((name, None) for name, _ in inside)
        return Spec(type(tensor), named, tensor._ragged_idx, torch.Size(()), ())  # type: ignore[attr-defined]
    held: tuple[tuple[str, Any], ...] = ()
    if is_distributed(type(tensor)):
        found, held, context = distributed_tensors.flatten_parts(tensor)
    else:
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        found = {name: getattr(tensor, name) for name in names}
    parts = tuple((name, flatten(inner, leaves)) for name, inner in found.items())
    return Spec(type(tensor), parts, context, tensor.size(), tensor.stride(), held)


def leaves_of(tensor: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Append the same tensors as `flatten`, with no other calls of the class."""
    if not is_tensor_subclass(type(tensor)):
        leaves.append(tensor)
    elif jagged_tensors.is_jagged(type(tensor)):
        leaves += [t for _, t in jagged_tensors.parts(tensor)]
    else:
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):
                leaves_of(inner, leaves)


def structural(spec: Spec | None) -> list[bool]:
    """For each inner tensor, whether operators pass it on unchanged (`jagged_tensors.py`)."""
    if spec is None:
        return [False]
    if jagged_tensors.is_jagged(spec.cls):
        return [name != jagged_tensors.VALUES for name, _ in spec.parts]
    return [s for _, part in spec.parts for s in structural(part)]


def rebuild(spec: Spec | None, leaves: Iterator[torch.Tensor]) -> torch.Tensor:
    return next(leaves) if spec is None else spec.rebuild(leaves)


def flatten_all(tensors: Sequence[torch.Tensor]) -> tuple[list[torch.Tensor], list[Spec | None]]:
    leaves: list[torch.Tensor] = []
    return leaves, [flatten(t, leaves) for t in tensors]


def rebuild_all(specs: Sequence[Spec | None], leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    rest = iter(leaves)
    return [rebuild(spec, rest) for spec in specs]


def same(a: Spec | None, b: Spec | None) -> bool:
    """Whether two specs are equal.  A context whose comparison raises, or returns no bool, counts as different."""
    try:
        return (a == b) is True
    except Exception:
        return False


def alike(a: Spec | None, b: Spec | None) -> bool:
    """Whether two specs are equal except for strides."""
    if a is None or b is None:
        return a is b
    parts = len(a.parts) == len(b.parts) and all(
        n == m and alike(s, t) for (n, s), (m, t) in zip(a.parts, b.parts, strict=True)
    )
    return parts and same(replace(a, parts=(), stride=()), replace(b, parts=(), stride=()))


def count(spec: Spec | None) -> int:
    """The number of plain inner tensors."""
    return 1 if spec is None else sum(count(part) for _, part in spec.parts)


class _CallRecorder(OwnMode):
    """A mode that records whether an operator was called."""

    asked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = True
        return func(*args, **(kwargs or {}))


def has_own_metadata(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides, device and layout come from the tensor itself, without a call of its class."""
    with _CallRecorder() as mode:
        for look in (torch.Tensor.size, torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor.dim):
            look(tensor)
        for name in ("device", "layout", "is_nested"):
            getattr(tensor, name)
    return not mode.asked
