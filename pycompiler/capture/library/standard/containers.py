"""Handlers of methods and constructors of list, tuple, dict, set and their subclasses."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.library.standard.iteration import sort_values
from pycompiler.capture.semantics import container_elements, formatting, operators
from pycompiler.capture.values.attributes import MISSING, mro_lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict, DictView, Proxy
from pycompiler.capture.values.containers.keys import Key, distinct_members, keys_of
from pycompiler.capture.values.containers.sequences import List, Sequence, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.objects import Object

NONE = Const(None)
Kind = TypeVar("Kind", bound=Value)


def storage(value: Value, kind: type[Kind], what: str) -> Kind:
    """The container itself, or the storage of an object whose class derives from the container's class."""
    if isinstance(value, Object) and value.storage is not None:
        value = value.storage
    if not isinstance(value, kind):
        raise Break("unsupported-operation", f"{what} of {value.describe()}")
    return value


# constructors -------------------------------------------------------------------------------------------------
@constructor(list)
def list_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return List(cx.listed(args[0]) if args else [])


@constructor(tuple)
def tuple_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args and isinstance(args[0], Tuple) and args[0].cls is tuple:
        return args[0]
    return Tuple(cx.tupled(args[0]) if args else [])


def _set_of(cls: type) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if not args:
            return cx.placed(Set({}, cls))
        if cls is frozenset and isinstance(args[0], Set) and args[0].cls is frozenset:
            return args[0]
        elements, like = container_elements.members(cx, args[0])
        made = Set(distinct_members(cx, elements), cls)
        if (
            isinstance(like, (set, frozenset, dict)) or like is None and isinstance(args[0], (Set, Dict))
        ):  # for a set or dict CPython sizes the table first, instead of growing it
            made.plain, made.shadow = False, None if like is None else cls(like)
        return cx.placed(made)

    return make


constructor(set)(_set_of(set))
constructor(frozenset)(_set_of(frozenset))


def _dict_of(cls: type) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        made = Dict({}, cls)
        if len(args) > 1:
            cx.evaluate_raw(cls, *[()] * len(args))
        if args:
            container_elements.dict_update(cx, made, args[0])
        for name, value in kwargs.items():
            made.setitem(cx, Const(name), value)
        return made

    return make


constructor(dict)(_dict_of(dict))
constructor(collections.OrderedDict)(_dict_of(collections.OrderedDict))


@constructor(collections.defaultdict)
def defaultdict_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args and not cx.is_none(args[0]) and mro_lookup(args[0].python_type(), "__call__") is MISSING:
        cx.throw(TypeError, "first argument must be callable or None")
    made = _dict_of(collections.defaultdict)(cx, args[1:], kwargs)
    if args and not cx.is_none(args[0]) and isinstance(made, Dict):
        made.default_factory = args[0]
    return made


@builtin(dict.fromkeys)
def dict_fromkeys(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls, args = (args[0].cls, args[1:]) if isinstance(args[0], Class) else (dict, args)
    value = args[1] if len(args) > 1 else kwargs.get("value", NONE)
    if cls is dict:
        return Dict({Key(cx, k): value for k in cx.elements(args[0])})
    made = cx.call(cx.make(cls), [], {})
    for key in cx.elements(args[0]):
        made.setitem(cx, key, value)
    return made


builtin(dict.__dict__["fromkeys"], collections.OrderedDict.__dict__["fromkeys"])(dict_fromkeys)


# lists --------------------------------------------------------------------------------------------------------
GROWING = (list.append, list.extend, list.insert, list.sort, list.reverse)  # no element leaves the list
ONE = (list.pop, list.remove, list.__setitem__, list.__delitem__)  # their handlers report the removed elements


def list_method(fn: Any) -> Callable[[Callable[..., Value | None]], Any]:
    """Register a method of list that changes it: handler(cx, list, *args) → value or None."""

    def register(handler: Callable[..., Value | None]) -> Any:
        @builtin(fn)
        def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            target = storage(args[0], List, f"list.{fn.__name__}")
            if fn not in ONE:
                cx.effects.mutate(target, () if fn in GROWING else None)
            return handler(cx, target, *args[1:], **kwargs) or NONE

        return call

    return register


@list_method(list.append)
def list_append(cx: Capture, target: List, value: Value) -> None:
    target.add(value)


@list_method(list.extend)
def list_extend(cx: Capture, target: List, values: Value) -> None:
    for value in container_elements.additions(cx, target, values):
        target.add(value)


@list_method(list.insert)
def list_insert(cx: Capture, target: List, index: Value, value: Value) -> None:
    insert(target, cx.size(index), value)


def insert(target: List, place: int, value: Value) -> None:
    if place == 0:
        target.add(value, first=True)
        return
    # before an element counted from the end, or after an element counted from the start
    beside = target.place(place if place < 0 else place - 1)
    if beside is None:
        target.items.insert(place, value)
    else:
        target.put(beside if place < 0 else beside + 1, value, first=place > 0)


@list_method(list.pop)
def list_pop(cx: Capture, target: List, index: Value = Const(-1)) -> Value:
    place = target.place(cx.size(index))
    if place is None:
        cx.throw(IndexError, "pop index out of range" if target.items else "pop from empty list")
    target.change(cx, [target.raw[place]])
    return cx.realize(target.remove(place))


@list_method(list.clear)
def list_clear(cx: Capture, target: List) -> None:
    target.empty()


@list_method(list.reverse)
def list_reverse(cx: Capture, target: List) -> None:
    target.items.reverse()


@list_method(list.remove)
def list_remove(cx: Capture, target: List, value: Value) -> None:
    place = _position(cx, target, value, "list.remove(x): x not in list")
    cx.effects.mutate(target, [target.items[place]])
    del target.items[place]


@list_method(list.sort)
def list_sort(cx: Capture, target: List, **kwargs: Value) -> None:
    items, held = list(target.iterate(cx)), target.items
    held.clear()  # the list is empty for code that the comparison runs
    try:
        sort_values(cx, items, kwargs)
        if held:
            raise Break("unsupported-operation", "a list that changes while it is sorted")
    finally:
        held[:] = items


@list_method(list.__setitem__)
def list_setitem(cx: Capture, target: List, key: Value, value: Value) -> None:
    target.setitem(cx, key, value)


@list_method(list.__delitem__)
def list_delitem(cx: Capture, target: List, key: Value) -> None:
    target.delitem(cx, key)


@list_method(list.__init__)
def list_init(cx: Capture, target: List, values: Value | None = None) -> None:
    target.empty()
    if values is not None:
        for value in container_elements.additions(cx, target, values):
            target.add(value)


def _position(cx: Capture, target: Sequence, value: Value, message: str) -> int:
    for i, v in enumerate(target.iterate(cx)):
        if cx.alike(v, value):
            return i
    cx.throw(ValueError, message)
    raise AssertionError


@builtin(list.index, tuple.index)
def sequence_index(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Sequence, "index")
    start, stop = ([cx.index(a) for a in args[2:]] + [0, len(target.items)][len(args) - 2 :])[:2]
    for i in range(len(target.items))[start:stop]:
        if cx.alike(target.at(cx, i), args[1]):
            return Const(i)
    if isinstance(target, List) and sys.version_info < (3, 14):
        cx.throw(ValueError, f"{formatting.text(cx, args[1], repr).const()} is not in list")
    name = "list" if isinstance(target, List) else "tuple"
    cx.throw(ValueError, f"{name}.index(x): x not in {name}")
    raise AssertionError


@builtin(list.count, tuple.count)
def sequence_count(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Sequence, "count")
    return Const(sum(cx.alike(v, args[1]) for v in target.iterate(cx)))


@builtin(list.copy)
def list_copy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return List(list(storage(args[0], List, "list.copy").items))


# the data model, called by name on the base class (super().__getitem__, dict.__len__) --------------------------
def _plain(kind: type[Any]) -> dict[str, Callable[[Capture, Any, Args], Value | None]]:
    return {
        "__getitem__": lambda cx, s, a: s.getitem(cx, a[0]),
        "__len__": lambda cx, s, a: s.length(cx),
        "__contains__": lambda cx, s, a: Const(s.contains(cx, a[0])),
        "__iter__": lambda cx, s, a: cx.iterator(s),
    }


for _base, _kind in ((list, List), (tuple, Tuple), (dict, Dict), (set, Set), (frozenset, Set),
                      (collections.OrderedDict, Dict)):  # fmt: skip
    for _name, _do in _plain(_kind).items():
        if _name in _base.__dict__:

            @builtin(_base.__dict__[_name])
            def _call(
                cx: Capture, args: Args, kwargs: Kwargs, _do: Any = _do, _kind: Any = _kind, _n: str = _name
            ) -> Value:
                if _n == "__getitem__" and isinstance(args[0], Object) and isinstance(args[0].storage, _kind):
                    return args[0].stored(cx, args[1])
                return _do(cx, storage(args[0], _kind, _n), args[1:]) or NONE


# dicts --------------------------------------------------------------------------------------------------------
def dict_method(*names: str) -> Callable[[Callable[..., Value | None]], Any]:
    """Register a method of dict, and of OrderedDict if OrderedDict has its own."""

    def register(handler: Callable[..., Value | None]) -> Any:
        def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            return handler(cx, storage(args[0], Dict, f"dict.{names[0]}"), *args[1:], **kwargs) or NONE

        def past(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
            if issubclass(storage(args[0], Dict, f"dict.{names[0]}").python_type(), collections.OrderedDict):
                raise Break(
                    "unsupported-operation", f"dict.{names[0]} of an OrderedDict, whose order methods of dict ignore"
                )
            return call(cx, args, kwargs)

        for name in names:
            own = collections.OrderedDict.__dict__.get(name)
            if name in dict.__dict__:
                builtin(dict.__dict__[name])(call if own is None else past)
            if own is not None:
                builtin(own)(call)
        return handler

    return register


@dict_method("get")
def dict_get(cx: Capture, target: Dict, key: Value, default: Value = NONE) -> Value:
    return target.lookup(cx, key) or default


@dict_method("keys")
def dict_keys(cx: Capture, target: Dict) -> Value:
    return DictView(target, "keys")


@dict_method("values")
def dict_values(cx: Capture, target: Dict) -> Value:
    return DictView(target, "values")


@dict_method("items")
def dict_items(cx: Capture, target: Dict) -> Value:
    return DictView(target, "items")


@dict_method("__setitem__")
def dict_setitem(cx: Capture, target: Dict, key: Value, value: Value) -> None:
    target.setitem(cx, key, value)


@dict_method("__delitem__")
def dict_delitem(cx: Capture, target: Dict, key: Value) -> None:
    target.delitem(cx, key)


@dict_method("pop")
def dict_pop(cx: Capture, target: Dict, key: Value, default: Value | None = None) -> Value:
    k = target.key(cx, key)
    found = target.found(cx, k)
    if found is not None:
        target.remove(cx, k)
        return found
    if default is None:
        if issubclass(target.cls, collections.OrderedDict):
            key_error(cx, key)
        cx.throw_value(KeyError, [key])
    assert default is not None
    return default


def key_error(cx: Capture, key: Value) -> NoReturn:
    """Raise the KeyError of an OrderedDict's C methods.

    For a tuple or None as key, they raise `KeyError(*key)`: break.
    """
    if issubclass(key.python_type(), (tuple, types.NoneType)):
        raise Break("unsupported-operation", f"{key.describe()} is not in an OrderedDict")
    cx.throw_value(KeyError, [key])


@dict_method("popitem")
def dict_popitem(cx: Capture, target: Dict, last: Value = Const(True)) -> Value:
    target.guard_keys(cx)
    if not target.entries:
        ordered = issubclass(target.cls, collections.OrderedDict)
        cx.throw(KeyError, f"{'' if ordered else 'popitem(): '}dictionary is empty")
    key = list(target.entries)[-1 if last.truth(cx) else 0]
    value = target.at(cx, key)
    target.remove(cx, key)
    return Tuple([key.value, value])


@dict_method("setdefault")
def dict_setdefault(cx: Capture, target: Dict, key: Value, default: Value = NONE) -> Value:
    within: Value = container_elements.store_target(target)
    if within is not target:
        if within.contains(cx, key):
            return within.getitem(cx, key)
        within.setitem(cx, key, default)
        return default
    k = target.key(cx, key)
    found = target.found(cx, k)
    if found is not None:
        return found
    target.store(cx, k, default)
    return default


@dict_method("update")
def dict_update(cx: Capture, target: Dict, source: Value | None = None, **kwargs: Value) -> None:
    if source is not None:
        container_elements.dict_update(cx, target, source)
    for name, value in kwargs.items():
        container_elements.store_target(target).setitem(cx, Const(name), value)


@dict_method("__init__")
def dict_init(cx: Capture, target: Dict, source: Value | None = None, **kwargs: Value) -> None:
    dict_update(cx, target, source, **kwargs)


@dict_method("clear")
def dict_clear(cx: Capture, target: Dict) -> None:
    target.empty(cx)


@builtin(dict.copy)
def dict_copy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Dict, "dict.copy")
    if issubclass(target.cls, collections.OrderedDict):
        raise Break("unsupported-operation", "dict.copy of an OrderedDict, whose order methods of dict ignore")
    keys_of(target)
    return Dict({cx.key(k): v for k, v in target.pairs(cx)})


@builtin(collections.OrderedDict.copy, collections.defaultdict.copy)
def typed_copy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """A copy of the same class: a subclass is called for it."""
    source = args[0]
    if isinstance(source, Dict):
        keys_of(source)
        pairs = {cx.key(k): v for k, v in source.pairs(cx)}
        return Dict(pairs, source.cls, default_factory=source.default_factory)
    if issubclass(source.python_type(), collections.defaultdict):
        raise Break("unsupported-operation", f"copy of {source.describe()}")
    made = cx.call(cx.class_of(source), [], {})
    for key in storage(source, Dict, "OrderedDict.copy").iterate(cx):
        made.setitem(cx, key, source.getitem(cx, key))
    return made


# sets ---------------------------------------------------------------------------------------------------------
@builtin(set.add)
def set_add(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    storage(args[0], Set, "set.add").add(cx, args[1])
    return NONE


@builtin(set.discard)
def set_discard(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    storage(args[0], Set, "set.discard").discard(cx, args[1])
    return NONE


@builtin(set.remove)
def set_remove(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Set, "set.remove")
    if not target.entries or not target.discard(cx, args[1]):
        cx.throw_value(KeyError, [args[1]])
    return NONE


@builtin(set.clear)
def set_clear(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    storage(args[0], Set, "set.clear").empty(cx, set.clear)
    return NONE


@builtin(set.pop)
def set_pop(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Set, "set.pop")
    if not target.entries:
        cx.throw(KeyError, "pop from an empty set")
    if len(target.entries) > 1:
        return _popped(cx, target)
    (value,) = target.entries.values()
    target.empty(cx, set.pop)
    return value


def _popped(cx: Capture, target: Set) -> Value:
    """The element that set.pop removes from a set with a shadow; both had the same operations."""
    if target.source is not None or target.shadow is None:
        raise Break("unsupported-operation", "set.pop() from a set of several elements, whose order is not known")
    cx.looks_at_hashes(target.shadow)
    cx.effects.mutate(target)
    key = Key(cx, cx.make(target.shadow.pop()))
    target.plain, target.changed, target.recipe = False, True, None
    taken = next(k for k in target.entries if k == key)
    del target.entries[taken]
    return taken.value


@builtin(set.__init__)
def set_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if kwargs or len(args) > 2:
        raise Break("builtin-call", "set.__init__ with arguments that it does not accept")
    storage(args[0], Set, "set.__init__").empty(cx, set.clear)
    return set_update(cx, args, kwargs)


@builtin(set.update)
def set_update(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    target = storage(args[0], Set, "set.update")
    for source in args[1:]:
        container_elements.set_update(cx, target, source)
    return NONE


@builtin(set.copy, frozenset.copy)
def set_copy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    source = storage(args[0], Set, "set.copy")
    return source if source.cls is frozenset else _set_of(set)(cx, [source], {})


def _set_operation(text: str, name: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        result = storage(args[0], Set, f"set.{name}")
        if len(args) == 1:
            return _set_of(frozenset if issubclass(result.cls, frozenset) else set)(cx, [result], {})
        for other in args[1:]:
            elements, like = container_elements.members(cx, other)
            result = container_elements.set_operation(cx, text, result, elements, getattr(result.cls, name), like)
        return result

    return call


for _name2, _text in (("union", "|"), ("intersection", "&"), ("difference", "-"), ("symmetric_difference", "^")):
    builtin(getattr(set, _name2))(_set_operation(_text, _name2))
    builtin(getattr(frozenset, _name2))(_set_operation(_text, _name2))


def _set_update(text: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        target = storage(args[0], Set, f"set {text}=")
        if text == "&" and len(args) > 2:  # an error in a later set leaves the set unchanged
            raise Break("builtin-call", f"set.intersection_update of {len(args) - 1} sets")
        for other in args[1:]:
            container_elements.set_in_place(cx, text, target, other)
        return NONE

    return call


for _name4, _text4 in (("intersection_update", "&"), ("difference_update", "-"), ("symmetric_difference_update", "^")):
    builtin(getattr(set, _name4))(_set_update(_text4))


@builtin(set.isdisjoint, frozenset.isdisjoint)
def set_isdisjoint(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(not any(args[0].contains(cx, v) for v in container_elements.members(cx, args[1])[0]))


def _set_compare(text: str) -> Callable[[Capture, Args, Kwargs], Value]:
    return lambda cx, args, kwargs: operators.compare(
        cx, text, args[0], Set(distinct_members(cx, container_elements.members(cx, args[1])[0]))
    )


for _name3, _text3 in (("issubset", "<="), ("issuperset", ">=")):
    builtin(getattr(set, _name3))(_set_compare(_text3))
    builtin(getattr(frozenset, _name3))(_set_compare(_text3))


@constructor(types.MappingProxyType)
def mapping_proxy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or not isinstance(args[0], Dict):
        raise Break("builtin-call", "types.MappingProxyType of a value that is not a dict")
    return Proxy(args[0])
