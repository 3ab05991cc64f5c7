"""Guards for methods that run while graphs are built, not in each call: `__torch_dispatch__`, and constructors of tensor
subclasses.

In: a function of a class.
Out: guards on everything it reads that outlives it, deeply.  The graph breaks if the function reads more than guards
can cover, or may write to it.  An allow list holds the supported uses; any other use is a break.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import dis
import enum
import functools
import itertools
import types
from collections import _tuplegetter  # type: ignore[attr-defined]
from collections.abc import Iterator
from typing import Any, NoReturn

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.bytecode.object_uses import WRITERS, getattr_name, is_only_read, nested_codes, stores
from pycompiler.capture.values.attributes import MISSING, is_data_descriptor, lookup, lookup_descriptor, mro_lookup
from pycompiler.capture.values.base import Capture
from pycompiler.capture.values.constant import reference
from pycompiler.ir.source import Source, const_source, mro_of, namespace_of
from pycompiler.operators import numpy_arrays

MAKERS = ("__new__", "__init__")
MOST_OBJECTS = 300
"""The most objects in containers that are guarded."""
# Modules of torch and of the language.  They are not read: by themselves they change no object of the program.
_KNOWN_MODULES = frozenset(
    ("torch", "functools", "_functools", "operator", "_operator", "itertools", "math", "cmath", "typing", "types",
     "collections", "_collections", "_collections_abc", "dataclasses", "enum", "contextlib", "abc", "_abc", "numbers", "copy",
     "builtins", "_pytest", "pluggy")
)  # fmt: skip
_LITERALS = (int, float, complex, str, bytes, bool, type(None), torch.Size, torch.device, range, slice)
_IMMUTABLE = (
    torch.dtype, torch.layout, torch.memory_format, type(Ellipsis), type(NotImplemented),
    types.GenericAlias, types.UnionType, torch._ops.OperatorBase, types.GetSetDescriptorType, types.MemberDescriptorType,
    _tuplegetter, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
"""Classes whose instances never change and always behave the same."""
_SEQUENCES = (tuple, list, collections.deque)
_DICTS = (dict, collections.OrderedDict, collections.defaultdict, collections.Counter)
_SETS = (set, frozenset)
_MEMBERS = (*_LITERALS[:7], torch.dtype, torch.device, torch._ops.OperatorBase, type, types.FunctionType, enum.Enum)
_READERS = frozenset(("get", "keys", "values", "items", "copy", "index", "count", "union", "intersection", "issubset"))
_ACTING = frozenset(
    ("print", "input", "open", "exec", "eval", "setattr", "delattr", "globals", "locals", "vars", "dir", "compile", "breakpoint",
     "__import__")
)  # fmt: skip
# Attributes that can reach any object, and torch functions that are no operators: these read and write torch's state.
_REACHING = frozenset(
    ("__dict__", "__globals__", "__closure__", "__defaults__", "__kwdefaults__", "__setattr__", "__delattr__", "__getattribute__",
     "manual_seed", "initial_seed", "get_rng_state", "set_rng_state", "attrgetter", "methodcaller")
)  # fmt: skip
_UNUSED_METHODS = frozenset(
    ("__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__tensor_flatten__",
     "__tensor_unflatten__", "__init_subclass__", "__sizeof__", "__deepcopy__", "__copy__", "__annotate__", "__annotate_func__")
)  # fmt: skip
_REPR_METHODS = frozenset(("__repr__", "__str__", "__format__"))
_ROOTS = frozenset(
    (
        "LOAD_GLOBAL",
        "LOAD_NAME",
        "LOAD_DEREF",
        "LOAD_CLASSDEREF",
        "LOAD_FROM_DICT_OR_DEREF",
        "LOAD_FROM_DICT_OR_GLOBALS",
    )
)
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD"))
_SILENT = frozenset(("EXTENDED_ARG", "CACHE", "NOP", "PRECALL", "RESUME", "COPY_FREE_VARS", "PUSH_NULL"))


class HookGuards:
    """The functions that `__torch_dispatch__` of a class may reach, and the objects they depend on."""

    def __init__(self, cx: Capture, cls: type) -> None:
        self.cx = cx
        self.at = cls.__qualname__
        """The function that is being read."""
        self.seen: set[int] = set()
        self.makers: set[int] = set()
        """Functions that write to the object they create."""
        self.count = 0
        self.classes: dict[int, type] = {}
        self.holders: dict[int, types.ModuleType | types.FunctionType] = {}
        """Modules that are passed on, and functions that have attributes."""
        self.names: dict[str, None] = {}
        """Attribute names read from objects that no code names."""
        self.absent: set[str] = set()
        self.reachable = ""
        """A container of the program that may be passed on; and the function that may write to it."""
        self.writer = ""
        self.done: set[tuple[int, str]] = set()
        self.reach_class(cls)

    def guard(self, fn: Any) -> None:
        """Guard everything a function depends on, and the functions it reaches."""
        if isinstance(fn, types.FunctionType):
            self.read(fn)
        else:
            self.look(fn, const_source(fn))
        self.finish()

    def told(self, context: Any) -> None:
        """Add the classes of a flattened tensor subclass's context: the context itself is guarded, but its classes have
        methods."""
        if isinstance(context, (tuple, list, dict)):
            for value in context.values() if isinstance(context, dict) else context:
                self.told(value)
        if type(context) not in (*_LITERALS, *_SEQUENCES, *_DICTS) and not isinstance(context, type):
            self.reach_class(type(context))
        if dataclasses.is_dataclass(context):
            self.told([getattr(context, part.name, None) for part in dataclasses.fields(context)])

    def finish(self) -> None:
        """Guard the attributes that code reads by name from objects passed on.  Each function found may read further
        names."""
        while left := [
            (holder, name)
            for holder in (*self.classes.values(), *self.holders.values())
            for name in self.names
            if (id(holder), name) not in self.done
        ]:
            for holder, name in left:
                self.done.add((id(holder), name))
                if isinstance(holder, type):
                    self.look_up(holder, name)
                elif name in (space := vars(holder)):
                    self.look(space[name], const_source(space).dict_item(name))
                elif name in self.absent:
                    self.cx.guard("dict_absent", const_source(space), name)
        if self.reachable and self.writer:
            raise Break("tensor-subclass", f"{self.writer} may write to {self.reachable}")

    def refuse(self, what: str) -> NoReturn:
        raise Break("tensor-subclass", f"{self.at} uses {what}")

    # functions ------------------------------------------------------------------------------------------------
    def read(self, fn: types.FunctionType) -> None:
        if id(fn) in self.seen:
            return
        self.seen.add(id(fn))
        before, self.at = self.at, fn.__qualname__
        self.parts(fn)
        self.code(fn)
        if vars(fn):
            self.holders[id(fn)] = fn
        self.at = before

    def parts(self, fn: types.FunctionType) -> None:
        source = const_source(fn)
        self.cx.guard("id_is", source.then("code"), fn.__code__)
        self.cx.guard("id_is", source.then("defaults"), fn.__defaults__)
        for i, value in enumerate(fn.__defaults__ or ()):
            self.look(value, source.then("defaults").item(i), held=True)
        if fn.__kwdefaults__ is None:
            self.cx.guard("id_is", source.then("kwdefaults"), None)
        else:
            self.look(fn.__kwdefaults__, source.then("kwdefaults"), only_read=True)

    def code(self, fn: types.FunctionType) -> None:
        makes = id(fn) in self.makers
        for code in nested_codes(fn.__code__):
            steps = [i for i in dis.get_instructions(code) if i.opname not in _SILENT]
            if stores(code, own=makes) or any(
                i.opname == "STORE_DEREF" and i.argval in fn.__code__.co_freevars for i in steps
            ):
                raise Break(
                    "tensor-subclass",
                    f"{fn.__qualname__}, which writes to an object or variable that outlives its call",
                )
            for k, step in enumerate(steps):
                if step.opname in _ATTRIBUTES:
                    self.attribute(str(step.argval), makes, absent=bool(code.co_exceptiontable))
                elif step.opname in _ROOTS and (step.argval in fn.__code__.co_freevars or "DEREF" not in step.opname):
                    path = [
                        str(i.argval)
                        for i in itertools.takewhile(lambda i: i.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[k + 1 :])
                    ]
                    self.root(fn, str(step.argval), path, steps[k + 1 + len(path) :])
                elif step.opname == "MATCH_CLASS":
                    self.refuse("match")
                elif step.opname == "IMPORT_NAME" and not _is_known(step.argval):
                    self.refuse(f"import {step.argval}")
                elif step.opname in ("STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE") or (
                    step.opname == "BINARY_OP" and step.argrepr.endswith("=")
                ):
                    self.writer = self.writer or fn.__qualname__

    def attribute(self, name: str, makes: bool, *, absent: bool = False) -> None:
        """Note that code reads an attribute; `absent`: the attribute may be missing without an error."""
        if name in _REACHING and not (makes and name == "__setattr__"):
            self.refuse(name)
        if name in WRITERS:
            self.writer = self.writer or self.at
        self.names[name] = None
        if absent:
            self.absent.add(name)

    def root(self, fn: types.FunctionType, name: str, path: list[str], rest: list[dis.Instruction]) -> None:
        """Guard an object that a function names, along the attributes read from it."""
        free = fn.__code__.co_freevars
        if name in free:
            i = free.index(name)
            assert fn.__closure__ is not None
            cell = const_source(fn).then("closure").item(i)
            if (found := _contents(fn.__closure__[i])) is fn.__closure__[i]:
                self.cx.guard("cell_empty", cell)
            else:
                self.walk(found, cell.then("cell"), path, rest)
        elif name in fn.__globals__:
            self.walk(fn.__globals__[name], const_source(fn.__globals__).dict_item(name), path, rest)
        elif name in _ACTING and name in vars(builtins):
            self.refuse(name)
        else:
            self.cx.guard("dict_absent", const_source(fn.__globals__), name)
            if name in ("getattr", "hasattr"):
                if (asked := getattr_name(rest)) is None:
                    self.refuse(f"{name} with a computed name")
                self.attribute(asked, False, absent=True)

    def walk(self, found: Any, source: Source, path: list[str], rest: list[dis.Instruction]) -> None:
        """Follow the attributes that a function names, to the object that it uses."""
        for name in path:
            if isinstance(found, types.ModuleType):
                self.cx.guard("id_is", source, reference(found))
                if _is_known(getattr(found, "__name__", "")):
                    return self.known_module(found, path[path.index(name) :])
                space = vars(found)
                if type(found) is not types.ModuleType or name not in space:
                    self.refuse(f"{found.__name__}.{name}")
                found, source = space[name], const_source(space).dict_item(name)
            elif isinstance(found, type):
                if _is_known(found.__module__):
                    break
                self.cx.guard("id_is", source, reference(found))
                if isinstance(found, enum.EnumMeta) and name in found.__members__:
                    return
                raw = lookup(self.cx, found, name)
                if raw is MISSING and name in vars(type):
                    return
                if isinstance(raw, classmethod):
                    self.reach_class(found)
                found, source = raw, const_source(found).then("mro_lookup", name)
            elif isinstance(found, (*_DICTS, *_SEQUENCES, *_SETS)) and name in _READERS:
                return self.look(found, source, only_read=True)
            elif isinstance(found, enum.Enum) or _is_frozen(type(found)):
                break
            elif _is_plain(type(found)) and type(vars(found)) is dict:
                found, source = self.held_by(found, source, name)
            else:
                break
        self.look(found, source, only_read=is_only_read(rest))

    def known_module(self, module: types.ModuleType, path: list[str]) -> None:
        """Guard an object that the program may have put into one of torch's modules."""
        for name in path:
            space = vars(module)
            found = space.get(name)
            if isinstance(found, types.ModuleType):
                module = found
                continue
            if type(found) in _LITERALS and name in space or isinstance(found, types.FunctionType):
                self.look(found, const_source(space).dict_item(name))
            return

    def held_by(self, found: Any, source: Source, name: str) -> tuple[Any, Source]:
        cls, space = type(found), vars(found)
        self.cx.guard("type_is", source, cls)
        raw = lookup_descriptor(self.cx, cls, name)
        if raw is not MISSING and is_data_descriptor(raw):
            self.refuse(f"{cls.__qualname__}.{name}")
        if name in space:
            return space[name], source.then("instance_dict").dict_item(name)
        self.cx.guard("instance_absent", source, name)
        if raw is MISSING or hasattr(type(raw), "__get__") and not isinstance(raw, (staticmethod, classmethod)):
            self.refuse(f"{name} of a {cls.__qualname__}")
        return lookup(self.cx, cls, name), const_source(cls).then("mro_lookup", name)

    # objects --------------------------------------------------------------------------------------------------
    def look(self, found: Any, source: Source, *, held: bool = False, only_read: bool = False) -> None:
        """Guard an object that a function may use in any way; `held`: its holder is guarded by identity and does not
        change."""
        kind = type(found)
        if kind in _LITERALS:
            if not held:
                self.cx.realize(self.cx.wrap(found, source), "which __torch_dispatch__ reads")
        elif kind in (*_SEQUENCES, *_DICTS, *_SETS) or isinstance(found, tuple):
            self.contents(found, source, held=held, only_read=only_read)
        elif kind is functools.partial:
            self.cx.guard("type_is", source, kind)
            self.look(found.func, source.attr("func"))
            self.look(found.args, source.attr("args"))
            self.look(found.keywords, source.attr("keywords"))
        else:
            if not held:
                self.cx.guard("id_is", source, reference(found))
            self.lasting(found, source)

    def lasting(self, found: Any, source: Source) -> None:
        """Guard the parts of an object that is guarded by identity."""
        kind = type(found)
        if isinstance(found, types.FunctionType):
            self.function(found)
        elif isinstance(found, type):
            self.reach_class(found)
        elif kind in (staticmethod, classmethod):
            self.look(found.__func__, source.attr("__func__"), held=True)
        elif kind is property:
            for name in ("fget", "fset", "fdel"):
                self.look(getattr(found, name), source.attr(name), held=True)
        elif isinstance(found, types.ModuleType):
            if not _is_known(getattr(found, "__name__", "")):
                if kind is not types.ModuleType:
                    self.refuse(f"a {kind.__name__}")
                self.holders[id(found)] = found
        elif kind is types.BuiltinFunctionType:
            self.builtin(found)
        elif kind is types.MethodType and isinstance(found.__self__, type):
            self.reach_class(found.__self__)
            self.look(found.__func__, source.then("method_func"), held=True)
        elif kind is functools._lru_cache_wrapper and _is_known(getattr(found, "__module__", "")):
            return
        elif isinstance(found, enum.Enum):
            self.reach_class(kind)
        elif _is_frozen(kind) and _is_plain(kind):
            self.reach_class(kind)
            for name, value in vars(found).items():
                self.look(value, source.then("instance_dict").dict_item(name), held=True)
        elif not isinstance(found, _IMMUTABLE) and not (
            kind.__module__ in ("typing", "dataclasses")
            or numpy_arrays.is_of_numpy(found)  # a function of NumPy, or a ufunc
        ):
            self.refuse(f"a {kind.__name__}, which may change")

    def function(self, fn: types.FunctionType) -> None:
        """Read a function of the program. For torch's functions, read the functions they wrap."""
        if not _is_known(fn.__globals__.get("__name__", "")):
            return self.read(fn)
        for cell in fn.__closure__ or ():
            if isinstance(inner := _contents(cell), types.FunctionType) and id(inner) not in self.seen:
                if _is_known(inner.__globals__.get("__name__", "")):
                    self.seen.add(id(inner))
                self.function(inner)

    def builtin(self, found: types.BuiltinFunctionType) -> None:
        if found.__name__ in (_ACTING | _REACHING):
            self.refuse(found.__name__)
        owner = found.__self__
        if isinstance(owner, (*_LITERALS, type)) and owner is not None:
            return
        module = found.__module__ or getattr(owner, "__name__", "")
        if isinstance(owner, (types.ModuleType, type(None))) and (_is_known(module) or _head(module) == "numpy"):
            return
        self.refuse(f"{found.__name__} of a {type(owner).__name__}" if owner is not None else str(found.__name__))

    def contents(self, found: Any, source: Source, *, held: bool, only_read: bool) -> None:
        kind = type(found)
        if id(found) in self.seen and isinstance(found, tuple):
            return
        self.count += len(found)
        if self.count > MOST_OBJECTS:
            self.refuse(f"a {kind.__name__} with too many elements")
        if isinstance(found, (tuple, frozenset)):
            if not held:
                self.cx.guard("id_is", source, reference(found))
        else:
            self.cx.guard("type_is", source, kind)
            if not only_read:
                self.reachable = self.reachable or f"a {kind.__name__} of the program"
        if id(found) in self.seen:
            return
        self.seen.add(id(found))
        if isinstance(found, tuple) and kind is not tuple:
            self.reach_class(kind)
        if isinstance(found, _SETS):
            if not all(map(_is_member, found)):
                self.refuse(f"a {kind.__name__} with elements that have their own __hash__ or __eq__")
            if kind is set:
                self.cx.guard("set_equals", source, frozenset(found))
            for value in found:
                self.look(value, source, held=True)
        elif isinstance(found, dict):
            if not all(map(_is_member, found)):
                self.refuse(f"a {kind.__name__} with keys that have their own __hash__ or __eq__")
            self.cx.guard_dict_keys(source, found)
            if kind is collections.defaultdict:
                self.reachable = self.reachable or "a defaultdict of the program"
                self.writer = self.writer or self.at
            for i, (key, value) in enumerate(found.items()):
                by_name = isinstance(key, _LITERALS[:7])
                self.look(value, source.dict_item(key) if by_name else source.then("dict_value_at", i))
        else:
            if not isinstance(found, tuple):
                self.cx.guard("length", source, len(found))
            if kind is collections.deque and any(type(v) not in _LITERALS for v in found):
                self.refuse("a deque with elements that are not constants")
            for i, value in enumerate(found):
                self.look(value, source.item(i), held=isinstance(found, tuple))

    # classes --------------------------------------------------------------------------------------------------
    def reach_class(self, cls: type) -> None:
        """Add a class that is called, or whose instances are used.

        Its special methods, which no code names, are guarded now; other attributes by the names that code reads.
        """
        if id(cls) in self.classes or (_is_known(cls.__module__) and not _is_dispatching(cls)):
            return
        if type(cls) not in (type, type(torch.Tensor), enum.EnumMeta) and not _is_known(type(cls).__module__):
            self.refuse(f"{cls.__qualname__}, whose metaclass is a {type(cls).__name__}")
        self.classes[id(cls)] = cls
        for name in dict.fromkeys(n for c in _own_bases(cls) for n in namespace_of(c)):
            if issubclass(cls, torch.Tensor) and name in _REPR_METHODS:
                continue
            if name.startswith("__") and name.endswith("__") and name not in _UNUSED_METHODS:
                raw = mro_lookup(cls, name)
                # methods of a frozen dataclass, which refuse
                if name in ("__setattr__", "__delattr__") and _is_frozen(cls):
                    lookup(self.cx, cls, name)
                    self.done.add((id(cls), name))
                elif isinstance(getattr(raw, "__func__", raw), types.FunctionType):
                    self.done.add((id(cls), name))
                    self.look_up(cls, name)

    def look_up(self, cls: type, name: str) -> None:
        """Guard the class attribute of a name. `super()` reaches definitions in further bases."""
        if name in self.absent and mro_lookup(cls, name) is MISSING:
            lookup(self.cx, cls, name)
        for base in _own_bases(cls):
            if name not in namespace_of(base):
                continue
            raw = lookup(self.cx, base, name)
            if name in (*MAKERS, "__post_init__"):
                self.makers.add(id(getattr(raw, "__func__", raw)))
            if isinstance(getattr(raw, "__func__", raw), types.FunctionType) or not isinstance(raw, enum.Enum):
                lookup(self.cx, cls, name)
                self.look(raw, const_source(base).then("mro_lookup", name))


def _head(module: object) -> str:
    return str(module).partition(".")[0]


def _is_known(module: object) -> bool:
    return _head(module) in _KNOWN_MODULES


def _is_dispatching(cls: type) -> bool:
    return issubclass(cls, torch.Tensor) and hasattr(cls, "__tensor_flatten__")


def _own_bases(cls: type) -> Iterator[type]:
    for base in mro_of(cls):
        if not _is_known(base.__module__):
            yield base


def _is_frozen(cls: type) -> bool:
    params = namespace_of(cls).get("__dataclass_params__")
    return params is not None and bool(params.frozen)


def _is_plain(cls: type) -> bool:
    """Whether attributes of instances are looked up as for `object`."""
    if cls is types.SimpleNamespace:
        return True
    if _is_known(cls.__module__):
        return False
    plain = mro_lookup(cls, "__getattribute__") is object.__getattribute__ and mro_lookup(cls, "__getattr__") is MISSING
    return plain and cls.__dictoffset__ != 0 and isinstance(mro_lookup(cls, "__dict__"), types.GetSetDescriptorType)


def _is_member(value: Any) -> bool:
    """Whether an object is hashed and compared without running code of the program."""
    if isinstance(value, tuple):
        return type(value) is tuple and all(map(_is_member, value))
    said = type(value).__hash__, type(value).__eq__
    known = isinstance(value, (torch._ops.OperatorBase, enum.Enum)) or not any(
        isinstance(m, types.FunctionType) for m in said
    )
    return known and isinstance(value, _MEMBERS)


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return cell
