"""Alias guards: a written object must not also be reachable under another name that the frame read.

In: the capture at its end, with its effects.
Out: `no_alias` guards.  One guard covers a group of objects that might be one object: any two objects of the group
must differ.
"""

from __future__ import annotations

import functools

from pycompiler.capture.values.attributes import instance_dict
from pycompiler.capture.values.base import Capture, LazyObject, Value
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.instance_dicts import InstanceDict
from pycompiler.capture.values.containers.iterators import Iter
from pycompiler.capture.values.containers.sequences import Sequence
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.objects import HOOK_DICTS, Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.guards import keys_of
from pycompiler.ir.source import Source

# values whose guards may hold for other objects, too
COMPARED = (Sequence, Dict, Set, Object, Tensor, Function, Opaque, Iter)
PARTS = ("_parameters", "_buffers", "_modules", *HOOK_DICTS)


def may_be(a: Value, b: Value) -> bool:
    """Whether two existing values could turn out to be one object: mutable ones of the same class."""
    return type(a) is type(b) and isinstance(a, COMPARED) and a.python_type() is b.python_type()


def guard_mutated(cx: Capture) -> None:
    """Guard objects and tensors that the program wrote, and the dicts that hold attributes."""
    _guard_gradients(cx)
    written = [v for v in dict.fromkeys(cx.effects.written()) if v.source is not None]
    kinds = {type(v) for v in written if isinstance(v, COMPARED)}
    alike: dict[tuple[type, type], dict[Source, None]] = {}
    for source, v in {v.source: v for v in cx.by_id.values() if v.source is not None}.items():
        if type(v) in kinds:
            alike.setdefault((type(v), v.python_type()), {})[source] = None
    guarded = set[tuple[type, type]]()
    namespaces = Namespaces(cx)
    for value in written:
        assert value.source is not None
        if type(value) in kinds:
            kind = type(value), value.python_type()
            group = alike.get(kind, {})
            told = kind in guarded and value.source in group
            others = () if told else tuple(s for s in group if s != value.source)
            if others:
                cx.guard("no_alias", value.source, None, others)
            if value.source in group:
                guarded.add(kind)
        namespaces.guard(value)


def _guard_gradients(cx: Capture) -> None:
    """A tensor with a new gradient must not be another tensor whose gradient the program read."""
    if any(w.kind == "grad" for w in cx.effects.journal):
        saw = cx.facts.saw
        looked = [
            v for v in cx.by_id.values()
            if isinstance(v, Tensor) and (saw("grad", v) or "grad" in v.overlay)
        ]  # fmt: skip
        first, *others = dict.fromkeys(v.source for v in looked if v.source is not None)
        if others:
            cx.guard("no_alias", first, None, tuple(others))


class Namespaces:
    """A dict that the program wrote must not hold attributes that it read, nor the other way round."""

    def __init__(self, cx: Capture) -> None:
        self.cx = cx
        self._all: dict[tuple[type, type | None], dict[int, Source]] = {}
        self._guarded = set[tuple[type, type | None]]()

    def guard(self, value: Value) -> None:
        assert value.source is not None
        if isinstance(value, Dict):
            memory, others = value.real, self._looked_at(value)
            mine = value.source
        else:
            memory, mine = instance_dict(getattr(value, "real", None)), value.namespace_source()
            kind = type(value), value.python_type() if isinstance(value, Object) else None
            if kind not in self._all:
                self._all[kind] = self._around(value)
            others = self._all[kind]
            # These dicts are in a group whose members a guard keeps different.
            if others.get(id(memory)) == mine:
                if kind in self._guarded:
                    return
                self._guarded.add(kind)
        apart = tuple(dict.fromkeys(s for i, s in others.items() if i != id(memory)))
        if apart and memory is not None:
            self.cx.guard("no_alias", mine, None, apart)

    def _around(self, value: Value) -> dict[int, Source]:
        """Dicts that the value's attributes may be in, by id, including the attribute dicts of other objects of its
        kind."""
        found: dict[int, Source] = {}
        for o in self.cx.by_id.values():
            shown = o.storage if isinstance(o, Object) else o
            if isinstance(shown, Dict) and not isinstance(shown, InstanceDict) and not _is_table(shown.source):
                assert shown.source is not None
                found[id(shown.real)] = shown.source
            if isinstance(o, Object) and o.source is not None and may_be(o, value):
                found[id(instance_dict(o.real))] = o.namespace_source()
        return found

    def _looked_at(self, changed: Dict) -> dict[int, Source]:
        """The attribute dicts of objects with an attribute that the program read and that the dict has a key for.

        An unknown key counts as every name.
        """
        if not self._objects:
            return {}
        saw = self.cx.facts.saw
        keys = (*keys_of(changed.real), *(k.value.const() for k in changed.known() if k.value.is_const()))
        names = {k for k in keys if type(k) is str}
        asked = (k.value for k in changed.known())
        # a string that may be any name
        every = any(isinstance(k, LazyObject) for k in (*asked, *(k for k, _ in changed.unasked)))
        return {
            id(instance_dict(o.real)): o.namespace_source()
            for o in self._objects
            if every or any(saw("attribute", o, n) for n in names) or saw("attributes", o)
        }

    @functools.cached_property
    def _objects(self) -> list[Object]:
        found = [o for o in self.cx.by_id.values() if isinstance(o, Object) and o.source is not None]
        return [o for o in found if o.exists and instance_dict(o.real) is not None]


def _is_table(source: Source | None) -> bool:
    """Whether a dict is a table of a module (parameters, buffers, submodules, hooks), or was created in the frame."""
    if source is None:
        return True
    of_instance = source.base is not None and source.base.kind == "instance_dict"
    return of_instance and source.kind == "dict_item" and source.arg in PARTS
