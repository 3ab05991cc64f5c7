"""Records of `freeze.py` → objects.

In: records and fills.  Out: `Thaw(...).value(token)`.  Recorded code becomes functions, which run only when they are
called.  The creation of objects runs none of the program's code, except `__hash__` and `__eq__` of keys.
"""

from __future__ import annotations

import collections
import functools
import marshal
import types
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pycompiler.ir.persistent_names import NameGone, resolve


class NotRecorded(RuntimeError):
    """The frame uses an object that its record lacks."""


class Missing:
    """Placeholder of an object that could not be recorded."""

    def __init__(self, text: str) -> None:
        object.__setattr__(self, "text", text)

    def __getattr__(self, name: str) -> Any:
        raise NotRecorded(f"not recorded: {object.__getattribute__(self, 'text')} (the program reads its {name})")

    def __call__(self, *_: Any, **__: Any) -> Any:
        raise NotRecorded(f"not recorded: {object.__getattribute__(self, 'text')} (the program calls it)")

    def __repr__(self) -> str:
        return f"<not recorded: {object.__getattribute__(self, 'text')}>"


class Thaw:
    """`modules`: the program's modules by name; `remarks`: differences from the recording process."""

    def __init__(self, records: Iterable[tuple[Any, ...]], fills: Iterable[tuple[Any, ...]]) -> None:
        self.modules: dict[str, types.ModuleType] = {}
        self.remarks: list[str] = []
        self.made: list[Any] = []
        with torch._C.DisableTorchFunction(), torch.inference_mode(False), torch.no_grad():
            for tag, *parts in records:
                self.made.append(MAKE[tag](self, *parts))
            for _, tag, token, *parts in fills:
                FILL[tag](self, self.value(token), *parts)

    def value(self, token: Any) -> Any:
        return self.made[token[0]] if type(token) is tuple else token

    def values(self, tokens: Iterable[Any]) -> list[Any]:
        return [self.value(t) for t in tokens]

    def pairs(self, items: Iterable[tuple[Any, Any]]) -> dict[Any, Any]:
        return {self.value(k): self.value(v) for k, v in items}

    def device(self, name: str) -> str:
        """The device of a tensor; the host if there is no such device."""
        try:
            torch.empty(0, device=name)
        except (RuntimeError, AssertionError):
            self.remarks.append(f"tensors of {name} are on the CPU: this machine has no {name}")
            return "cpu"
        return name


# creation ---------------------------------------------------------------------------------------------------------------
def _name(t: Thaw, name: tuple[str, ...]) -> Any:
    try:
        return resolve(name)
    except NameGone as error:
        t.remarks.append(f"{'.'.join(name[1:])}: {error}")
        return Missing(f"{'.'.join(name[1:])} ({error})")


def _module(t: Thaw, name: str) -> types.ModuleType:
    made = t.modules[name] = types.ModuleType(name)
    made.__dict__["__builtins__"] = __builtins__
    return made


def _function(t: Thaw, code: Any, space: Any, name: str, cells: Any) -> types.FunctionType:
    return types.FunctionType(t.value(code), t.value(space), name, None, tuple(t.values(cells)) or None)


def _class(t: Thaw, metaclass: Any, name: str, bases: Any, slots: tuple[str, ...] | None) -> type:
    kind = t.value(metaclass)
    made: type = kind(name, tuple(t.values(bases)), {} if slots is None else {"__slots__": slots})
    return made


def _enum(t: Thaw, name: str, bases: Any, members: Any) -> type:
    kinds = t.values(bases)
    mixed = {"type": kinds[0]} if len(kinds) > 1 else {}
    made: type = kinds[-1](name, [(n, t.value(v)) for n, v in members], **mixed)
    return made


def _tensor(
    t: Thaw, storage: Any, dtype: Any, shape: Any, stride: Any, offset: int, requires_grad: bool, leaf: bool, cls: str,
    inference: bool,
) -> torch.Tensor:  # fmt: skip
    with torch.inference_mode(inference):
        held = t.value(storage)
        made = torch.empty(0, dtype=t.value(dtype), device=held.device).set_(held, offset, shape, stride)
        if cls == "Parameter":
            return torch.nn.Parameter(made, requires_grad=requires_grad)
        if requires_grad and not leaf:
            with torch.enable_grad():
                return made.requires_grad_().clone()
        return made.requires_grad_() if requires_grad else made


def _storage(t: Thaw, data: bytes, device: str) -> torch.UntypedStorage:
    if not data:
        return torch.empty(0, dtype=torch.uint8, device=t.device(device)).untyped_storage()
    return torch.frombuffer(bytearray(data), dtype=torch.uint8).clone().to(t.device(device)).untyped_storage()


def _lost(t: Thaw, size: int, device: str) -> torch.UntypedStorage:
    numbers = torch.rand(size // 4 + 1, generator=torch.Generator().manual_seed(0))
    return numbers.to(t.device(device)).untyped_storage()


def _array(t: Thaw, dtype: str, shape: Any, data: bytes) -> Any:
    import numpy

    return numpy.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def _object(t: Thaw, cls: Any, base: Any, *parts: Any) -> Any:
    return t.value(base).__new__(t.value(cls), *t.values(parts))


MAKE: dict[str, Callable[..., Any]] = {
    "missing": lambda t, text: Missing(text),
    "name": _name,
    "module": _module,
    "vars": lambda t, module: vars(t.value(module)),
    "space": lambda t, name: {"__name__": name, "__builtins__": __builtins__},
    "code": lambda t, text: marshal.loads(text),
    "code of": lambda t, text, constants: marshal.loads(text).replace(co_consts=tuple(t.values(constants))),
    "function": _function,
    "cell": lambda t: types.CellType(),
    "class": _class,
    "enum": _enum,
    "member": lambda t, cls, value: t.value(cls)(t.value(value)),
    "object": _object,
    "list": lambda t: [],
    "dict": lambda t: {},
    "set": lambda t: set(),
    "ordered": lambda t: collections.OrderedDict(),
    "default": lambda t, factory: collections.defaultdict(t.value(factory)),
    "deque": lambda t, size: collections.deque(maxlen=size),
    "tuple": lambda t, items: tuple(t.values(items)),
    "frozenset": lambda t, items: frozenset(t.values(items)),
    "slice": lambda t, *parts: slice(*t.values(parts)),
    "range": lambda t, *parts: range(*parts),
    "size": lambda t, items: torch.Size(items),
    "torch": lambda t, name: getattr(torch, name),
    "device": lambda t, name: torch.device(name),
    "storage": _storage,
    "lost storage": _lost,
    "tensor": _tensor,
    "array": _array,
    "partial": lambda t, f, args, kwargs: functools.partial(t.value(f), *t.values(args), **t.pairs(kwargs)),
    "method": lambda t, function, owner: types.MethodType(t.value(function), t.value(owner)),
    "cached": lambda t, function, size, typed: functools.lru_cache(size, typed)(t.value(function)),
    "attribute": lambda t, owner, name: getattr(t.value(owner), name),
    "property": lambda t, *parts: property(*t.values(parts)),
    "alias": lambda t, origin, args: types.GenericAlias(t.value(origin), t.value(args)),
    "staticmethod": lambda t, function: staticmethod(t.value(function)),
    "classmethod": lambda t, function: classmethod(t.value(function)),
    "weak": lambda t, value: (lambda: None) if value is None else weakref.ref(t.value(value)),
    "item getter": lambda t, index, doc: _ITEM_GETTER(index, doc),
}
_ITEM_GETTER: Any = type(collections.namedtuple("_", "a").a)  # type: ignore[attr-defined]


# contents ---------------------------------------------------------------------------------------------------------------
def _fill_function(t: Thaw, made: Any, qualname: str, module: Any, defaults: Any, kwdefaults: Any, state: Any) -> None:
    made.__qualname__, made.__module__ = qualname, module
    made.__defaults__, made.__kwdefaults__ = t.value(defaults), t.value(kwdefaults)
    made.__dict__.update((k, t.value(v)) for k, v in state)


def _fill_class(t: Thaw, made: Any, module: str, qualname: str, state: Any) -> None:
    made.__module__, made.__qualname__ = module, qualname
    for name, value in state:
        type.__setattr__(made, name, t.value(value))


def _fill_state(t: Thaw, made: Any, state: Any) -> None:
    if isinstance(made, Missing):
        return
    own = getattr(made, "__dict__", None)
    for name, value in state:
        slot = next((vars(c)[name] for c in type(made).__mro__ if name in vars(c)), None)
        if isinstance(slot, types.MemberDescriptorType):
            slot.__set__(made, t.value(value))
        elif isinstance(own, dict):
            own[name] = t.value(value)


def _fill_member(t: Thaw, made: Any, name: str, state: Any) -> None:
    made[name].__dict__.update((k, t.value(v)) for k, v in state)


def _fill_cell(t: Thaw, made: types.CellType, contents: Any) -> None:
    made.cell_contents = t.value(contents)


def _fill_tensor(t: Thaw, made: torch.Tensor, grad: Any, state: Any) -> None:
    if grad is not None and not isinstance(gradient := t.value(grad), Missing):
        made.grad = gradient
    made.__dict__.update((k, t.value(v)) for k, v in state)


FILL: dict[str, Callable[..., Any]] = {
    "function": _fill_function,
    "class": _fill_class,
    "state": _fill_state,
    "cell": _fill_cell,
    "member": _fill_member,
    "tensor": _fill_tensor,
    "update": lambda t, made, items: made.update(t.pairs(items)),
    "base list": lambda t, made, items: list.extend(made, t.values(items)),
    "base dict": lambda t, made, items: dict.update(made, t.pairs(items)),
    "base set": lambda t, made, items: set.update(made, t.values(items)),
    "base deque": lambda t, made, items: collections.deque.extend(made, t.values(items)),
}
