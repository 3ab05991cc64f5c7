"""Tensor subclasses that hold tensors and compute through `__torch_dispatch__` ("wrappers").

In: a wrapper.  Out: the tensors inside, and a `Spec`, by which the same wrapper is made of others.
Example: ``flatten(TwoTensor(a, b))`` gives ``[a, b], Spec(TwoTensor, (("a", None), ("b", None)), None, ...)``.

torch's contract (`__tensor_flatten__`, `__tensor_unflatten__`) is what makes a class one of them: all that decides what operators
do lies in the class, the tensors inside and the context.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from pycompiler.ir import distributed, jagged
from pycompiler.ir.distributed import is_distributed
from pycompiler.ir.modes import OwnMode
from pycompiler.ir.numbers import SYMBOLIC, number_at
from pycompiler.ir.symbols import is_symbolic

# What a wrapper's class says; capture guards them.
CONTRACT = ("__torch_dispatch__", "__tensor_flatten__", "__tensor_unflatten__", "__torch_function__")
_ATTRIBUTES = ("__getattr__", "__setattr__", "__del__")
# What else such a class may define although tensors have it: the graph calls torch's methods on wrappers by name.
_OWN = frozenset(
    (*CONTRACT, "__new__", "__init__", "__init_subclass__", "__repr__", "__str__", "__module__", "__doc__", "__qualname__",
     "__dict__", "__weakref__", "__annotations__", "__slots__", "__firstlineno__", "__static_attributes__",
     "__annotate__", "__annotate_func__", "__annotations_cache__", "__slotnames__")
)  # fmt: skip
_DISABLED = torch._C._disabled_torch_function_impl
_NO_DISPATCH = torch._C._disabled_torch_dispatch_impl


def _raw(cls: type, name: str) -> Any:
    return next((vars(c)[name] for c in type.mro(cls) if name in vars(c)), None)


def is_wrapper(cls: type) -> bool:
    """Whether a class keeps the contract, and nothing but `__torch_dispatch__` takes part in what operators do; or is torch's own
    of jagged tensors."""
    if jagged.is_jagged(cls):
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
    if distributed.is_awaited(cls):  # its methods by names of tensors' read data, and wait before
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
    """How a wrapper is made: `parts` are the names of its tensors, each with the spec of a wrapper inside or None.

    Of a jagged tensor the context is its ragged dimension; sizes and strides follow from the tensors inside.
    """

    cls: type
    parts: tuple[tuple[str, Spec | None], ...]
    context: Any
    size: torch.Size
    stride: tuple[int, ...]
    held: tuple[tuple[str, Any], ...] = ()  # what `__tensor_flatten__` names besides, which is no tensor (a mesh)

    def rebuild(self, leaves: Iterator[torch.Tensor]) -> torch.Tensor:
        inner: dict[str, Any] = {
            name: next(leaves) if part is None else part.rebuild(leaves) for name, part in self.parts
        }
        if jagged.is_jagged(self.cls):
            return jagged.make(self.cls, inner, self.context)
        inner |= self.held
        if is_distributed(self.cls):
            return distributed.make(self.cls, inner, self.context, self.size, self.stride)
        return self.cls.__tensor_unflatten__(inner, self.context, self.size, self.stride)  # type: ignore[attr-defined, no-any-return]


def at(spec: Spec | None, env: Mapping[str, Any]) -> Spec | None:
    """A spec whose sizes have symbols, where these have numbers."""
    if spec is None or not has_symbols(spec):
        return spec
    size, stride = ([number_at(n, env) for n in ns] for ns in (spec.size, spec.stride))
    parts = tuple((name, at(part, env)) for name, part in spec.parts)
    return replace(spec, parts=parts, size=torch.Size(size), stride=tuple(stride))


def has_symbols(spec: Spec | None) -> bool:
    """Whether sizes are no numbers; those of what is inside of a jagged tensor are not in its spec."""
    if spec is None:
        return False
    return any(map(is_symbolic, (*spec.size, *spec.stride))) or any(has_symbols(part) for _, part in spec.parts)


def told_by_symbols(spec: Spec | None) -> bool:
    """Whether a context has symbols in it."""
    if spec is None:
        return False
    held = any(isinstance(v, SYMBOLIC) for v in pytree.tree_leaves(spec.context))
    return held or any(told_by_symbols(part) for _, part in spec.parts)


class Making:
    """Makes a wrapper: called with the tensors among its class's arguments, which are at `places`; the last are by `names`."""

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
    """Appends the plain tensors inside; None for a tensor that is one of them."""
    if not is_wrapper(type(tensor)):
        leaves.append(tensor)
        return None
    if jagged.is_jagged(type(tensor)):
        inside = jagged.parts(tensor)
        leaves += [t for _, t in inside]
        named = tuple((name, None) for name, _ in inside)
        return Spec(type(tensor), named, tensor._ragged_idx, torch.Size(()), ())  # type: ignore[attr-defined]
    held: tuple[tuple[str, Any], ...] = ()
    if is_distributed(type(tensor)):
        found, held, context = distributed.plain(tensor)
    else:
        names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
        found = {name: getattr(tensor, name) for name in names}
    parts = tuple((name, flatten(inner, leaves)) for name, inner in found.items())
    return Spec(type(tensor), parts, context, tensor.size(), tensor.stride(), held)


def leaves_of(tensor: torch.Tensor, leaves: list[torch.Tensor]) -> None:
    """Appends what `flatten` does, and asks for nothing else."""
    if not is_wrapper(type(tensor)):
        leaves.append(tensor)
    elif jagged.is_jagged(type(tensor)):
        leaves += [t for _, t in jagged.parts(tensor)]
    else:
        for name in tensor.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            inner = getattr(tensor, name)
            if isinstance(inner, torch.Tensor):
                leaves_of(inner, leaves)


def structural(spec: Spec | None) -> list[bool]:
    """Of each tensor inside: whether operators hand it on as it is (`jagged.py`)."""
    if spec is None:
        return [False]
    if jagged.is_jagged(spec.cls):
        return [name != jagged.VALUES for name, _ in spec.parts]
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
    """Whether two specs are equal; a context whose comparison fails, or answers with no bool, is another one."""
    try:
        return (a == b) is True
    except Exception:
        return False


def alike(a: Spec | None, b: Spec | None) -> bool:
    """Whether two specs are equal but for strides."""
    if a is None or b is None:
        return a is b
    parts = len(a.parts) == len(b.parts) and all(
        n == m and alike(s, t) for (n, s), (m, t) in zip(a.parts, b.parts, strict=True)
    )
    return parts and same(replace(a, parts=(), stride=()), replace(b, parts=(), stride=()))


def count(spec: Spec | None) -> int:
    """How many plain tensors are inside."""
    return 1 if spec is None else sum(count(part) for _, part in spec.parts)


class _Asked(OwnMode):
    """Notes that an operator was asked for."""

    asked = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.asked = True
        return func(*args, **(kwargs or {}))


def answers_by_itself(tensor: torch.Tensor) -> bool:
    """Whether sizes, strides, device and layout are what the tensor's own words say: its class is not asked."""
    with _Asked() as mode:
        for look in (torch.Tensor.size, torch.Tensor.stride, torch.Tensor.storage_offset, torch.Tensor.dim):
            look(tensor)
        for name in ("device", "layout", "is_nested"):
            getattr(tensor, name)
    return not mode.asked
