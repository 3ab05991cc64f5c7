"""Instructions that create the frame's new objects: a row of `BUILDERS` for each class of values.

In: the head of the generated code, a value, the name of a variable.  Out: instructions in the head's `prepare` that
store the object in the variable.
"""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import threading
import types
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.library.gradients import backward_calls
from pycompiler.capture.library.gradients.parameters import Parameter
from pycompiler.capture.library.standard.numbers import Getter
from pycompiler.capture.library.standard.regular_expressions import Match, Text
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recipe.codegen import BUILDERS, Head, flat, is_alias
from pycompiler.capture.semantics import tracebacks
from pycompiler.capture.values.array import READ_ONLY, Array, ArrayMethod
from pycompiler.capture.values.attributes import is_behind_python_descriptor
from pycompiler.capture.values.base import Cell, LazyObject, Value
from pycompiler.capture.values.classes import Class, MadeMethod, MadeProperty, PyModule, Super
from pycompiler.capture.values.constant import AddressStr, Identity, UnknownObject, UnknownStr
from pycompiler.capture.values.containers.dicts import Dict, DictView, LocalsDict, Proxy
from pycompiler.capture.values.containers.instance_dicts import DELETED, InstanceDict
from pycompiler.capture.values.containers.iterators import Generator, Iter, IterationState, IteratorMethod
from pycompiler.capture.values.containers.keys import USER_KEYS, Key, user_key_among
from pycompiler.capture.values.containers.sequences import Deque, List, Slice, Tuple
from pycompiler.capture.values.containers.sets import UNORDERED, Set
from pycompiler.capture.values.deferred import Deferred, ThreadIdent
from pycompiler.capture.values.functions import Builtin, Function, Method, Partial
from pycompiler.capture.values.native_objects import NativeObject
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque, ProfilerRange
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, NestedInt
from pycompiler.capture.values.tensor import Handle, Storage, StorageMethod, Tensor, TensorMethod
from pycompiler.capture.values.weak_references import FIRST, HookDictReference, HookNumber, MadeReference
from pycompiler.operators.numpy_arrays import array_of, number_of, read_only_array_of
from pycompiler.torch_compat import jagged_tensors


def _tuple(head: Head, value: Tuple, name: str) -> None:
    if value.begin is not None and value.reach is not None:
        more = [head.load_item(v) for v in value.added]
        end = [*flat(more), *build.build_tuple(len(more))]
        head.store(head.call(operator.add, head.load(value.begin), end), name)
        return
    items = [head.load_item(v) for v in value.items]
    if value.cls is tuple and len(items) > build.AT_ONCE:
        head.store(head.call(tuple, build.list_of(items)), name)
    elif value.cls is tuple:
        head.store([*flat(items), *build.build_tuple(len(items))], name)
    elif value.cls is torch.Size:
        head.store(head.call(torch.Size, [*flat(items), *build.build_tuple(len(items))]), name)
    else:
        head.store(head.call(runtime_helpers.make_tuple_subclass, head.load_class(value.cls), *items), name)


def _list(head: Head, value: List, name: str) -> None:
    items = [head.load_item(v) for v in value.items]
    made = build.list_of(items)
    extra = [build.load_const(value.limit)] if isinstance(value, Deque) else []
    head.store(made if value.cls is list else head.call(value.cls, made, *extra), name)


def _store_keys(keys: Iterable[Key]) -> None:
    """Break if generated code must store a key that it cannot store."""
    found = user_key_among(keys)
    if found is not None:
        raise Break("mutation-unsupported", USER_KEYS, found.at)


def _dict(head: Head, value: Dict, name: str) -> None:
    _store_keys(value.entries)
    pairs = [code for k, v in value.entries.items() for code in (head.load(k.value), head.load_item(v))]
    if value.cls is dict:
        head.store([*flat(pairs), *build.build_map(len(pairs) // 2)], name)
        return
    factory = [head.load(value.default_factory)] if value.default_factory is not None else []
    head.store(head.call(value.cls, *factory), name)
    head.prepare += [*head.call(runtime_helpers.fill_dict, build.load_fast(name), *pairs), *build.pop_top()]
    if value.attributes:
        names, held = build.load_const(tuple(value.attributes)), head.load_all([*value.attributes.values()])
        head.prepare += [
            *head.call(runtime_helpers.set_attributes, build.load_fast(name), names, *held),
            *build.pop_top(),
        ]


def _reference(head: Head, value: MadeReference, name: str) -> None:
    load = head.load(value.referent)
    if isinstance(value.referent, Tensor) and value.referent.source is None:
        if not head.is_bare(value.referent):
            raise Break("builtin-call", "a weak reference to a tensor with attributes", value.made_at)
        head.referred.append((value, value.referent.node.name))
    head.store(head.call(weakref.ref, load), name)


def _registered(head: Head, value: HookDictReference, name: str) -> None:
    head.store(head.call(weakref.ref, head.load(value.entries)), name)


def _hook_number(head: Head, value: HookNumber, name: str) -> None:
    first = build.load_fast(head.handles)
    head.store(head.call(operator.add, first, build.load_const(value.value - FIRST)), name)


def _variables(head: Head, value: LocalsDict, name: str) -> None:
    if value.frame() in head.cx.stopped:
        raise SkipFrame("the dict of locals() is alive where the graph ends, and a later call would change it")
    _dict(head, value, name)


def _instance_dict(head: Head, value: InstanceDict, name: str) -> None:
    head.store([*head.load(value.owner), *build.load_attr("__dict__")], name)


def _set(head: Head, value: Set, name: str) -> None:
    _store_keys(value.entries)
    if value.recipe is not None and any(user_key_among(v.entries) is not None for v in value.recipe[1]):
        raise Break("mutation-unsupported", USER_KEYS, value.made_at)
    if value.additions() is None and value.recipe is not None and not any(v.changed for v in value.recipe[1]):
        head.store(head.call(value.recipe[0], *[head.load(v) for v in value.recipe[1]]), name)
        return
    items = [head.load(v) for v in _additions(head, value)]
    if value.cls is set:
        head.store([*flat(items), *build.build_set(len(items))], name)
    else:
        head.store(head.call(value.cls, [*flat(items), *build.build_tuple(len(items))]), name)


def _additions(head: Head, value: Set) -> list[Value]:
    """The elements in an order of additions that gives the new set its order in eager."""
    order = value.additions()
    if order is None:
        if value.made_at is None:
            raise SkipFrame(f"a {value.cls.__name__} of unknown order is alive where the graph ends")
        raise Break("unsupported-operation", UNORDERED, value.made_at)
    if not value.plain and len(order) > 1:
        head.cx.looks_at_hashes(value.shadow)
    return order


def _object(head: Head, value: Object, name: str) -> None:
    args = build.load_const(None)
    if value.args is not None:
        made_of = value.args if value.group is None else value.group
        args = [*flat([head.load_item(a) for a in made_of]), *build.build_tuple(len(made_of))]
    storage = value.storage
    if isinstance(storage, Tuple):
        _tuple(head, Tuple(storage.items, value.cls), name)
    else:
        head.store(head.call(runtime_helpers.make_object, head.load_class(value.cls), args), name)
    head.temps[id(value)] = name  # attributes may lead back to the object
    me = build.load_fast(name)
    if isinstance(storage, (Dict, Set)):
        _store_keys(storage.entries)
    if isinstance(storage, Dict):
        pairs = [code for k, v in storage.entries.items() for code in (head.load(k.value), head.load_item(v))]
        head.prepare += [*head.call(runtime_helpers.fill_dict, me, *pairs), *build.pop_top()]
    elif isinstance(storage, List):
        items = [head.load_item(v) for v in storage.items]
        head.prepare += [*head.call(runtime_helpers.fill_list, me, *items), *build.pop_top()]
    elif isinstance(storage, Set):
        items = [head.load(v) for v in _additions(head, storage)]
        head.prepare += [*head.call(runtime_helpers.fill_set, me, *items), *build.pop_top()]
    # `args` are the original arguments, which may have changed since.
    if value.group is not None and value.args is not None:
        given = [*flat([head.load_item(a) for a in value.args]), *build.build_tuple(len(value.args))]
        head.prepare += [
            *head.call(runtime_helpers.set_attributes, me, build.load_const(("args",)), given),
            *build.pop_top(),
        ]
    if value.passed or value.raised_at is not None:
        head.prepare += [*grown_traceback(head, me, value), *build.pop_top()]
    stored = [k for k, v in value.overlay.items() if v is not DELETED]
    for held, names in itertools.groupby(
        stored, lambda k: is_behind_python_descriptor(value.cls, k)
    ):  # in the order that their dict shows
        store = runtime_helpers.hold_attributes if held else runtime_helpers.set_attributes
        known = tuple(names)
        values = [head.load_item(value.overlay[k]) for k in known]
        head.prepare += [*head.call(store, build.load_fast(name), build.load_const(known), *values), *build.pop_top()]


def grown_traceback(head: Head, load: Code, exception: Value) -> Code:
    known = isinstance(exception, Object) and "__context__" in exception.overlay
    add = tracebacks.add_traceback if known else tracebacks.raise_outside
    if exception.source is None and exception.passed:  # parts of a group share one traceback
        alike = head.tracebacks.setdefault(id(exception.passed), exception)
        if alike is not exception:
            return head.call(add, head.call(tracebacks.with_traceback_of, load, head.load(alike)))
    return head.call(add, load, *[build.load_const(place) for place in tracebacks.entries(exception.passed)])


def _function(head: Head, value: Function, name: str) -> None:
    none = build.load_const(None)
    defaults, kwdefaults, closure = none, none, none
    if value.made_defaults:
        loads = [head.load_item(v) for v in value.made_defaults]
        defaults = [*flat(loads), *build.build_tuple(len(loads))]
    if value.made_kwdefaults:
        pairs = [c for k, v in value.made_kwdefaults.items() for c in (build.load_const(k), head.load_item(v))]
        kwdefaults = [*flat(pairs), *build.build_map(len(pairs) // 2)]
    if value.made_closure:
        cells = [head.load_cell(c) for c in value.made_closure]
        closure = [*flat(cells), *build.build_tuple(len(cells))]
    attributes = none
    plain = {k: v for k, v in value.overlay.items() if k not in ("__name__", "__qualname__")}
    if plain:
        pairs = [c for k, v in plain.items() for c in (build.load_const(k), head.load_item(v))]
        attributes = [*flat(pairs), *build.build_map(len(pairs) // 2)]
    names = build.load_const((value.name, value.qualname))
    parts = (build.load_const(value.code), build.load_const(value.globals), names, defaults, kwdefaults, closure)
    head.store(head.call(runtime_helpers.make_function, *parts, attributes), name)


def _cell(head: Head, value: Cell, name: str) -> None:
    contents = [] if value.contents is None else [head.load_item(value.contents)]
    head.store(head.call(runtime_helpers.make_cell, *contents), name)


def _iter(head: Head, value: Iter, name: str) -> None:
    if value.exhausted and isinstance(value, Generator):
        head.store(head.call(runtime_helpers.ended_generator, build.load_const(value.names)), name)
        return
    if value.exhausted:
        head.store(head.call(runtime_helpers.ended_iterator, build.load_const(value.cls)), name)
        return
    if value.recipe is None:
        kind = "generator" if isinstance(value, Generator) else value.cls.__name__
        raise Break("generator-state", f"a {kind} made inside of the frame", value.made_at)
    make, args = value.recipe(value.taken)
    if value.over is not None and _is_moved(head, value.over, value.taken):
        raise Break(
            "generator-state", f"a {value.cls.__name__} over an object that the frame has changed", value.made_at
        )
    head.store(head.call(make, *[head.load_item(a) for a in args]), name)


def _is_moved(head: Head, over: IterationState, taken: int) -> bool:
    """Whether a new iterator would not continue where the program's does.

    The container may have changed since, or will change in the replay.
    """
    container = over.container
    if over.is_moved(taken):
        return True
    if not head.cx.effects.is_written(container):
        return False
    if isinstance(container, List) and not isinstance(container, Deque):  # the iterator would stand behind the end
        return (over.length - taken if over.backwards else taken) > container.length_before
    if not isinstance(container, Dict):
        return True
    keys = [key.value for key in container.entries]
    return len(keys) != len(container.real) or not all(
        key.is_const() and key.const() is old for key, old in zip(keys, container.real, strict=True)
    )


def _method(head: Head, value: Method, name: str) -> None:
    head.store(head.call(_bind_method, head.load(value.function), head.load(value.receiver)), name)


def _bind_method(function: Any, receiver: Any) -> Any:
    if isinstance(function, types.ClassMethodDescriptorType):
        return function.__get__(None, receiver)
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        return function.__get__(receiver, type(receiver))
    if not callable(function):  # a classmethod binds any object
        return classmethod(function).__get__(None, receiver)
    return types.MethodType(function, receiver)


def _const(head: Head, value: Any, name: str) -> None:
    if isinstance(value, Class) and value.made is not None:
        fn, args, kwargs = value.made
        if value.cell is not None:  # filled by the creation of the class
            cell = head.temps[id(value.cell)] = head.temp()
            head.store(head.call(runtime_helpers.make_cell), cell)
        loads = [head.load(v) for v in (*args, *kwargs.values())]
        head.store(build.call_function(build.load_const(fn), *loads, kwnames=tuple(kwargs)), name)
        head.temps[id(value)] = name  # later attributes may lead back to it
        for change, args, words in value.steps:
            given = build.load_const(functools.partial(change, **words) if words else change)
            called = build.call_function(given, build.load_fast(name), *head.load_all(args))
            head.prepare += [*called, *build.pop_top()]
        return
    real = {Class: "cls", PyModule: "module", Builtin: "fn", Opaque: "real"}[type(value)]
    if is_alias(getattr(value, real)) and head.names_made_class(getattr(value, real)):
        head.store(head.alias(getattr(value, real)), name)
        return
    if head.names_made_class(getattr(value, real)):
        raise SkipFrame(f"{value.describe()}, of a class that each call creates, leaves the graph")
    head.store(build.load_const(getattr(value, real)), name)


def _partial(head: Head, value: Partial, name: str) -> None:
    if value.shown.keys() - {"__dict__"}:
        raise SkipFrame("a partial leaves the graph that created it and read its parts")
    names = tuple(value.kwargs)
    loads = [head.load(value.function), *(head.load_item(v) for v in (*value.args, *value.kwargs.values()))]
    head.store(build.call_function(build.load_const(functools.partial), *loads, kwnames=names), name)
    if value.overlay:
        known = tuple(value.overlay)
        head.temps[id(value)] = name  # an attribute may lead back to it
        values = [head.load_item(v) for v in value.overlay.values()]
        store = head.call(runtime_helpers.set_attributes, build.load_fast(name), build.load_const(known), *values)
        head.prepare += [*store, *build.pop_top()]


def _getter(head: Head, value: Getter, name: str) -> None:
    head.store(head.call(value.cls, *[head.load(k) for k in value.keys]), name)


def _slice(head: Head, value: Slice, name: str) -> None:
    head.store(head.call(slice, *[head.load(p) for p in value.parts]), name)


def _view(head: Head, value: DictView, name: str) -> None:
    owner: Any = collections.OrderedDict if value.is_ordered() else value.mapping.seen_by
    head.store(head.call(getattr(owner, value.what), head.load(value.mapping)), name)


def _proxy(head: Head, value: Proxy, name: str) -> None:
    head.store(head.call(types.MappingProxyType, head.load(value.mapping)), name)


def _tensor(head: Head, value: Tensor, name: str) -> None:
    if (retained := backward_calls.retained_at(head.cx, value)) is not None:
        raise Break("unsupported-attribute", "Tensor.retain_grad() of a tensor that leaves the graph", *retained)
    behind = backward_calls.spent(head.cx, value)
    if head.cx.items.stands_for_number(value):
        load = head.call(torch.Tensor.item, build.load_fast(head.output(value)))
    elif behind is None:
        load = build.load_fast(head.output(value))
    else:
        given = head.cx.graph.call_method("detach", [value], {})
        assert isinstance(given, Tensor)
        load = head.call(runtime_helpers.spent, build.load_fast(head.output(given)), *head.load_all([*behind]))
    if head.cx.inference.is_made(value.fake):
        load = head.call(runtime_helpers.as_inference, load)
    if value.cls is not torch.Tensor and not value.wrapper:
        load = head.call(runtime_helpers.as_subclass, load, build.load_const(value.cls))
    _with_attributes(head, value, name, load)


def _parameter(head: Head, value: Parameter, name: str) -> None:
    _with_attributes(head, value, name, build.load_fast(head.numbers[value.place]))


def _with_attributes(head: Head, value: Tensor, name: str, load: Code) -> None:
    head.store(load, name)
    head.temps[id(value)] = name  # attributes may lead back to it
    if value.overlay:
        values = [head.load_item(v) for v in value.overlay.values()]
        names = build.load_const(tuple(value.overlay))
        head.prepare += [
            *head.call(runtime_helpers.set_attributes, build.load_fast(name), names, *values),
            *build.pop_top(),
        ]


def _array(head: Head, value: Array, name: str) -> None:
    if (
        value.tensor.exists and (swap := head.cx.facts.swaps.get(value.tensor)) is not None
    ):  # swapped only after this code
        raise Break("unsupported-operation", "an array of replaced data leaves the graph", swap.made_at)
    of = number_of if value.scalar else read_only_array_of if value.fixed == READ_ONLY else array_of
    head.store(head.call(of, head.load(value.tensor)), name)


def _array_method(head: Head, value: ArrayMethod, name: str) -> None:
    head.store([*head.load(value.array), *build.load_attr(value.name)], name)


def _tensor_method(head: Head, value: TensorMethod, name: str) -> None:
    head.store([*head.load(value.tensor), *build.load_attr(value.name)], name)


def _storage(head: Head, value: Storage, name: str) -> None:
    head.store(head.call(torch.Tensor.untyped_storage, head.load(value.tensor)), name)


def _storage_method(head: Head, value: StorageMethod, name: str) -> None:
    head.store([*head.load(value.storage), *build.load_attr(value.name)], name)


def _iterator_method(head: Head, value: IteratorMethod, name: str) -> None:
    head.store([*head.load(value.iterator), *build.load_attr(value.name)], name)


def _super(head: Head, value: Super, name: str) -> None:
    head.store(head.call(super, head.load_class(value.cls), head.load(value.receiver)), name)


def _pattern(head: Head, value: Text, name: str) -> None:
    if isinstance(value, Match):
        raise Break("builtin-call", "a match object made inside of a function leaves the graph")
    head.store(build.load_const(value.real), name)


def _made_descriptor(head: Head, value: MadeProperty | MadeMethod, name: str) -> None:
    if value.cls not in (property, staticmethod, classmethod, functools.cached_property):
        raise Break("builtin-call", "an instance of a property subclass made inside of a function leaves the graph")
    head.store(head.call(value.cls, *head.load_all(value.given())), name)


def _range(head: Head, value: ProfilerRange, name: str) -> None:
    head.store(head.call(runtime_helpers.open_range, build.load_const(value.name), build.load_const(value.left)), name)


def _handle(head: Head, value: Handle, name: str) -> None:
    if value.owner is None or value.hook is None:
        raise SkipFrame(f"{value.describe()} of a tensor of the graph")
    # Handles are created before flags are set, and only a tensor that requires grad accepts a hook.
    if value.owner in head.cx.graph.flipped_at:
        head.prepare += [
            *head.call(runtime_helpers.set_flag, head.load(value.owner), build.load_const(True)),
            *build.pop_top(),
        ]
    head.store(head.call(torch.Tensor.register_hook, head.load(value.owner), head.load_item(value.hook)), name)


def _unknown(head: Head, value: UnknownStr | UnknownObject, name: str) -> None:
    raise value.broke


def _addressed(head: Head, value: AddressStr | Deferred, name: str) -> None:
    head.store(head.call(value.make, *head.load_all(value.parts)), name)


def _thread_ident(head: Head, value: ThreadIdent, name: str) -> None:
    head.store(head.call(threading.get_ident), name)


def _identity(head: Head, value: Identity, name: str) -> None:
    """The id of an existing object, or of an object that is created once."""
    gone = value.is_gone()  # counts references to it
    of = value.value
    is_one = of.source is not None and not isinstance(of, (*PLAIN_VALUES, LazyObject))
    if gone or not (is_one or isinstance(of, (Object, List, Dict, Set))):
        raise SkipFrame(f"the id of {of.describe()} leaves the graph")
    head.store(head.call(id, head.load(of)), name)


def _nested_int(head: Head, value: NestedInt, name: str) -> None:
    owner, dim = value.owner(head.cx)
    head.store(head.call(jagged_tensors.size, head.load(owner), build.load_const(dim)), name)


def _owned(head: Head, value: NativeObject, name: str) -> None:
    """Repeat all calls on it, and on the objects that it was used with."""
    for step in value.journal:
        loads = [head.load(v) for v in (*step.args, *step.kwargs.values())]
        fn = (
            [build.load_const(step.fn)]
            if not step.raised
            else [build.load_const(runtime_helpers.quietly), build.load_const(step.fn)]
        )
        called = build.call_function(*fn, *loads, kwnames=tuple(step.kwargs))
        if step.made is None:
            head.prepare += [*called, *build.pop_top()]
            continue
        made = head.temps[id(step.made)] = name if step.made is value else head.temp()
        head.keep.append(step.made)
        head.store(called, made)


BUILDERS |= {
    Text: _pattern, InstanceDict: _instance_dict, LocalsDict: _variables, Tuple: _tuple, List: _list, Dict: _dict, Set: _set,
    Object: _object, Function: _function, Cell: _cell, Iter: _iter, Method: _method, Class: _const, PyModule: _const,
    Builtin: _const, Opaque: _const, NativeObject: _owned, Partial: _partial, Getter: _getter, Slice: _slice,
    DictView: _view, Proxy: _proxy,
    TensorMethod: _tensor_method, NestedInt: _nested_int, AddressStr: _addressed,
    Deferred: _addressed, ThreadIdent: _thread_ident, Identity: _identity, Storage: _storage, StorageMethod: _storage_method,
    UnknownStr: _unknown, UnknownObject: _unknown,
    MadeReference: _reference, HookDictReference: _registered, HookNumber: _hook_number,
    IteratorMethod: _iterator_method, Super: _super,
    MadeProperty: _made_descriptor, MadeMethod: _made_descriptor,
    Parameter: _parameter, Tensor: _tensor, Handle: _handle, ProfilerRange: _range, Array: _array, ArrayMethod: _array_method,
}  # fmt: skip
