"""The observable state of a program as plain data: values, types, identities, aliases, versions.

In: objects. Out: nested tuples. An object that occurred before is a reference to its number, so that two states are
equal if their objects are the same ones in the same places. Observation runs no code of the program, but drains its
generators.
"""

from __future__ import annotations

import collections
import decimal
import functools
import io
import random
import re
import types
from collections.abc import Iterator
from typing import Any

import torch

PLAIN = (bool, int, str, float, complex, bytes, type(None), type(Ellipsis), type(NotImplemented), slice, range, torch.dtype,
         torch.device, torch.Size, decimal.Decimal)  # fmt: skip
DRAINED = (types.GeneratorType, zip, map, filter, enumerate, reversed, type(iter([])), type(iter(())), type(iter({})), type(iter({}.values())))  # fmt: skip
DEEP = 25
MANY = 200_000
SKIPPED = {"__dict__", "__weakref__", "__doc__", "__module__", "__abstractmethods__", "__slotnames__"}


class TooMuch(Exception):
    """A state has more than `MANY` objects: observing lists that double with every line would not end."""


class Observer:
    """Observes one state; numbered objects stay alive as long as the observer."""

    def __init__(self, versions: bool = True, left: Iterator[int] | None = None) -> None:
        self.versions = versions
        self.left = iter(range(MANY)) if left is None else left
        self.seen: dict[int, int] = {}
        self.storages: dict[int, int] = {}
        self.held: list[Any] = []

    def look(self, value: Any, depth: int = 0) -> Any:
        """One object and all objects below it."""
        if next(self.left, None) is None:
            raise TooMuch
        kind = type(value)
        if kind in PLAIN:
            return float(value) if kind is float else (kind.__name__, without_addresses(repr(value)))
        if kind is tuple:
            return ("tuple", *(self.look(item, depth + 1) for item in value))
        if id(value) in self.seen:
            return ("same as", self.seen[id(value)])
        self.seen[id(value)] = len(self.seen)
        self.held.append(value)
        if depth > DEEP:
            return ("deep", kind.__name__)
        return (kind.__name__, len(self.seen), self._inside(value, kind, depth + 1))

    def _inside(self, value: Any, kind: type, depth: int) -> Any:
        for base, of in LOOKS:
            if issubclass(kind, base):
                return of(self, value, depth)
        return self.attributes(value, depth)

    def attributes(self, value: Any, depth: int) -> Any:
        """The `__dict__` and the slots of an instance."""
        try:
            held = object.__getattribute__(value, "__dict__")
        except AttributeError:
            held = {}
        made = [
            (key, self.look(held[key], depth)) for key in held if not key.startswith("_dynamo")
        ]  # marks of torch.compile
        for base in type(value).__mro__:
            for name, slot in vars(base).items():
                if type(slot) is types.MemberDescriptorType and base.__module__ == "fuzzed":
                    try:
                        made.append((name, self.look(slot.__get__(value), depth)))
                    except AttributeError:
                        made.append((name, "unbound"))
        return ("attributes", *made)

    def tensor(self, value: torch.Tensor, depth: int) -> Any:
        with torch._C.DisableTorchFunctionSubclass(), torch.no_grad():
            place = value.untyped_storage()._cdata
            storage = self.storages.setdefault(place, len(self.storages))
            self.held.append(value.untyped_storage())
            data = value.detach().to(torch.float64 if not value.is_complex() else torch.complex128).tolist()
            facts = (
                str(value.dtype),
                tuple(value.shape),
                value.stride(),
                value.requires_grad,
                value.is_leaf,
                value._version if self.versions else None,
            )
            grad = self._grad(value, depth) if value.is_leaf else None
        return (
            "tensor",
            facts,
            ("storage", storage, value.storage_offset()),
            grad,
            data,
            self.attributes(value, depth),
        )

    def _grad(self, leaf: torch.Tensor, depth: int) -> Any:
        """Observe a gradient without versions: the number of writes by autograd depends on the way of computing it."""
        versions, self.versions = self.versions, False
        try:
            return self.look(leaf.grad, depth)
        finally:
            self.versions = versions

    def module(self, value: torch.nn.Module, depth: int) -> Any:
        held = vars(value)
        own = {k: v for k, v in held.items() if not k.startswith("_") or k in ("_parameters", "_buffers", "_modules")}
        hooks = [
            (k, [self.look(hook, depth) for hook in v.values()]) for k, v in held.items() if k.endswith("hooks") and v
        ]
        return ("module", [(k, self.look(v, depth)) for k, v in own.items()], hooks)

    def mapping(self, value: Any, depth: int) -> Any:
        items = [(self.look(k, depth), self.look(v, depth)) for k, v in dict.items(value)]
        more = getattr(value, "default_factory", None) if isinstance(value, collections.defaultdict) else None
        return ("items", items, getattr(more, "__name__", None), self.attributes(value, depth))

    def sequence(self, value: Any, depth: int) -> Any:
        base = next(of for of in (list, tuple, collections.deque, set, frozenset) if isinstance(value, of))
        items = list(base.__iter__(value))
        if base in (set, frozenset) and not all(
            type(item) in PLAIN for item in items
        ):  # the order of a set depends on addresses
            items.sort(key=self._place)
        return (
            *(self.look(item, depth) for item in items),
            getattr(value, "maxlen", None),
            self.attributes(value, depth),
        )

    def _place(self, item: Any) -> tuple[str, str]:
        """The sort key of a set's member: its observation, since its hash may be its address."""
        if issubclass(type(item), DRAINED):
            return (type(item).__name__, "")
        asked = Observer(self.versions, self.left)
        asked.seen, asked.storages = dict(self.seen), dict(self.storages)  # of equal ones, the one observed first
        return (type(item).__name__, repr(asked.look(item)))

    def function(self, value: Any, depth: int) -> Any:
        cells = []
        for cell in value.__closure__ or ():
            try:
                cells.append(self.look(cell.cell_contents, depth))
            except ValueError:
                cells.append("empty")
        own = {k: v for k, v in vars(value).items() if k != "__wrapped__"}
        return (
            value.__name__,
            value.__qualname__,
            cells,
            self.look(value.__defaults__, depth),
            [(k, self.look(v, depth)) for k, v in own.items()],
        )

    def method(self, value: Any, depth: int) -> Any:
        return (self.look(value.__self__, depth), getattr(value, "__name__", None))

    def partial(self, value: Any, depth: int) -> Any:
        return (self.look(value.func, depth), self.look(value.args, depth), self.look(value.keywords, depth))

    def cls(self, value: type, depth: int) -> Any:
        if value.__module__ != "fuzzed":
            return value.__qualname__
        return (
            value.__qualname__,
            [(k, self.look(v, depth)) for k, v in vars(value).items() if k not in SKIPPED and not callable(v)],
        )

    def error(self, value: BaseException, depth: int) -> Any:
        return ("error", chain(value))

    def generator(self, value: Any, depth: int) -> Any:
        made = []
        try:
            for _ in range(6):
                made.append(self.look(next(value), depth))
        except StopIteration:
            made.append("end")
        except Exception as error:
            made.append(chain(error))
        return made

    def buffer(self, value: io.StringIO, depth: int) -> Any:
        return "closed" if value.closed else (value.getvalue(), value.tell())

    def generator_of_numbers(self, value: random.Random, depth: int) -> Any:
        return hash(value.getstate())


LOOKS: tuple[tuple[Any, Any], ...] = (
    (torch.Tensor, Observer.tensor), (torch.nn.Module, Observer.module), (dict, Observer.mapping),
    ((list, tuple, collections.deque, set, frozenset), Observer.sequence), (types.FunctionType, Observer.function),
    ((types.MethodType, types.BuiltinMethodType), Observer.method), (functools.partial, Observer.partial), (type, Observer.cls), (BaseException, Observer.error),
    (DRAINED, Observer.generator), (io.StringIO, Observer.buffer), (random.Random, Observer.generator_of_numbers),
    (bytearray, lambda self, value, depth: repr(value)),
)  # fmt: skip


NODES = re.compile(r"(?<=Output \d of )\w+")
NUMBER = re.compile(r"(-?\d+\.\d*(?:e[+-]?\d+)?)")
PADDING = re.compile(r"\[ +| +\]| +")
"""Padding in a printed array, which depends on its widest number."""


def without_addresses(text: str) -> str:
    """A string without object addresses, which differ between runs."""
    return re.sub("0x[0-9a-f]+", "0x", text)


def chain(error: BaseException | None, depth: int = 0) -> Any:
    """Classes and messages of an exception and of its whole chain."""
    if error is None or depth > 6:
        return None
    context = (chain(error.__cause__, depth + 1), chain(error.__context__, depth + 1), error.__suppress_context__)
    text = "" if isinstance(error, RecursionError) else without_addresses(str(error))
    return (type(error).__name__, text, getattr(error, "code", None), *context)


def first_difference(a: Any, b: Any, near: bool, path: str = "") -> str | None:
    """The place where two observations first differ, or None. With `near`, numbers may differ by the rounding of
    kernels, also in printed strings. Strings may differ in names of autograd nodes, because a compiled graph
    has a node of its own."""
    if isinstance(a, float) and isinstance(b, float):
        equal = a == b or (a != a and b != b) or (near and abs(a - b) <= 1e-4 * (1 + abs(a)))
        return None if equal else f"{path}: eager {a!r}, compiled {b!r}"
    if isinstance(a, (tuple, list)) and isinstance(b, (tuple, list)):
        for place, (one, other) in enumerate(zip(a, b, strict=False)):
            named = isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)
            found = first_difference(one, other, near, f"{path}.{one[0] if named else place}")
            if found is not None:
                return found
        return None if len(a) == len(b) else f"{path}: eager has {a[len(b) :]!r} more, compiled {b[len(a) :]!r}"
    if near and isinstance(a, str) and isinstance(b, str):
        a, b = NODES.sub("a node", a), NODES.sub("a node", b)
        parts = [NUMBER.split(PADDING.sub(lambda found: found[0].strip() or " ", text)) for text in (a, b)]
        if len(parts[0]) > 1 and parts[0][::2] == parts[1][::2]:
            a, b = (tuple(map(float, of[1::2])) for of in parts)
            return first_difference(a, b, near, path)
    return None if a == b else f"{path}: eager {a!r}, compiled {b!r}"
