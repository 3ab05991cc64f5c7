"""Objects that Python-written custom operators reach besides their arguments.

In: an operator of another library, when a call of it is recorded.
Out: nothing, or a break, if the frame uses such an object, too.  A graph runs before the frame's effects, and the
frame's code reads objects as they were before the graph.  So an operator must not be in the graph if it reads an
object that the frame has written, or writes an object that the frame has read.  If the frame reads an object only
after the call of an operator that may write it, the graph ends before that read.
Example: an operator appends to a list, and the frame reads the list's length.

Objects named through attributes of modules, or reached through other objects, are not seen.
"""

from __future__ import annotations

import collections
import dis
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch._library import custom_ops
from torch._ops import OpOverload

from pycompiler.capture.breaks import Break
from pycompiler.capture.bytecode.object_uses import WRITERS, nested_codes


class Pending(Protocol):
    """The changes of a frame so far (`effects.Effects`)."""

    @property
    def globals(self) -> Mapping[tuple[int, str], Any]: ...
    def __bool__(self) -> bool: ...
    def written(self) -> list[Any]: ...


_CONTAINERS = (list, dict, set, bytearray, collections.deque)
_MOST = 64  # functions that are read


class OperatorUses:
    """The objects of an operator: `objects` by id; `changed`: the ids that it may write.

    `names` of globals, as (id of the namespace, name); `bound`: the globals that it may rebind.
    """

    def __init__(self, op: OpOverload) -> None:
        self.objects: dict[int, Any] = {}
        self.changed: set[int] = set()
        self.names: set[tuple[int, str]] = set()
        self.bound: set[tuple[int, str]] = set()
        self._seen: set[int] = set()
        definition: Any = custom_ops.OPDEFS.get(op._schema.name)
        if definition is not None:
            for fn in (definition._init_fn, *definition._backend_fns.values()):
                self._look(fn)

    def _look(self, fn: Any) -> None:
        fn = getattr(fn, "__func__", fn)
        if type(fn) is not types.FunctionType or id(fn) in self._seen or len(self._seen) == _MOST:
            return
        self._seen.add(id(fn))
        found = [Uses(code) for code in nested_codes(fn.__code__)]
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                self._name(name, cell.cell_contents, found)
            except ValueError:  # an empty cell
                continue
        for use in found if not _is_torchs(fn.__module__) else ():
            for name in use.globals:
                place = id(fn.__globals__), name
                self.names.add(place)
                if name in use.bound:
                    self.bound.add(place)
                if name in fn.__globals__:
                    self._name(name, fn.__globals__[name], [use])

    def _name(self, name: str, named: Any, uses: Sequence[Uses]) -> None:
        """Add an object that code names. A rebound name may mean a change in place (`log += [x]`)."""
        cls = type(named)
        stores = any(use.stores for use in uses)
        mutates = any(use.mutates or name in use.bound for use in uses)
        if cls in (types.FunctionType, types.MethodType):
            self._look(named)
        elif issubclass(cls, _CONTAINERS):
            self._take(named, mutates)
        elif not (issubclass(cls, (torch.Tensor, types.ModuleType)) or cls.__module__ == "builtins"):
            if not _is_torchs(cls.__module__):
                self._take(named, stores)
                for held in _attributes(named).values():
                    if issubclass(type(held), _CONTAINERS):
                        self._take(held, mutates or stores)
        elif cls is type and not _is_torchs(named.__module__) and named.__module__ != "builtins":
            self._take(named, stores)

    def _take(self, named: Any, changes: bool) -> None:
        self.objects[id(named)] = named
        if changes:
            self.changed.add(id(named))


class Uses:
    """Uses of names by a code object: `globals` and `bound` are names; `stores`: attributes are stored; `mutates`:
    containers are written."""

    def __init__(self, code: types.CodeType) -> None:
        steps = [*dis.get_instructions(code)]
        ops, names = {i.opname for i in steps}, {*code.co_names}
        self.globals = {i.argval for i in steps if i.opname.endswith("_GLOBAL")}
        self.bound = {i.argval for i in steps if i.opname in ("STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF")}
        self.stores = bool(ops & {"STORE_ATTR", "DELETE_ATTR"}) or "setattr" in names
        self.mutates = bool(ops & {"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"}) or bool(names & WRITERS)


def _attributes(real: Any) -> dict[str, Any]:
    try:
        found = object.__getattribute__(real, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _is_torchs(module: Any) -> bool:
    return str(module).partition(".")[0] == "torch"


class OperatorWrites:
    """Objects and globals that the operators of one graph may have written."""

    def __init__(self) -> None:
        self._changed: dict[Any, tuple[Any, str]] = {}  # by id, and globals by their places
        self._reached: dict[OpOverload, OperatorUses] = {}

    def note(self, ops: tuple[OpOverload, ...], known: Mapping[int, Any], effects: Pending) -> None:
        """A call that leads to these custom operators is recorded; `known`: objects that the frame has read, by id."""
        for op in ops:
            reached = self._reached.get(op)
            if reached is None:
                reached = self._reached[op] = OperatorUses(op)
            if not (reached.objects or reached.names):
                continue
            pending = {id(v) for v in effects.written()} if effects else set()
            for at, named in reached.objects.items():
                value = known.get(at)
                if value is not None and (at in reached.changed or id(value) in pending):
                    raise Break(
                        "unsupported-operation",
                        f"{op} uses an object that the frame also uses, and one of them changes the object",
                    )
                if at in reached.changed:
                    self._changed[at] = (named, str(op))
            if any(place in effects.globals for place in reached.names):
                raise Break("unsupported-operation", f"{op} reads a global that the frame changes")
            self._changed |= {place: (None, str(op)) for place in reached.bound}

    def look(self, real: Any) -> None:
        """The frame reads an existing object."""
        if self._changed:
            self._refuse(id(real), "an object")

    def look_at_name(self, namespace: dict[str, Any], name: str) -> None:
        """The frame reads a global."""
        if self._changed:
            self._refuse((id(namespace), name), f"the global {name}")

    def _refuse(self, place: Any, what: str) -> None:
        if (found := self._changed.get(place)) is not None:
            raise Break("unsupported-operation", f"{what} that the operator {found[1]} in the graph may have changed")
