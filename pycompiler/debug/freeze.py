"""Freeze all that a frame reads into records that another process can thaw (`thaw.py`), without running the program's code.

In: `Freezer(limit)`, `value(object, where)`.  Out: tokens.  After `finish()`: `records` that create empty objects,
`fills` that give them contents, `missing` (objects that cannot be written, with their places) and `remarks`.

A record is a tuple for `marshal`: a tag, then values.  A token is a plain value, or a 1-tuple with the position of a
record.  Objects of a library (installed, or Python's own) are written as names (`ir/persistent_names.py`).
Objects of the program are written by contents: functions by code, classes by attributes, tensors by storages.
Modules are written by the globals whose names occur in recorded code.
"""

from __future__ import annotations

import collections
import ctypes
import dis
import enum
import functools
import linecache
import marshal
import operator
import os
import site
import sys
import sysconfig
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from pycompiler.errors import describe
from pycompiler.ir.persistent_names import VERSIONED, Name, name_of

Token = Any
INLINE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))
TEXT_BYTES = 1 << 20  # most bytes of a source file
# Order of fills: objects needed for hashing and comparison come before the containers that hash them.
FUNCTION, CLASS, STATE, SEQUENCE, TABLE = range(5)
_SLOT_BYTES = 8
NOT_STATE = frozenset({
    "__dict__", "__weakref__", "_abc_impl", "__annotations__", "__annotate__", "__annotate_func__", "__module__", "__qualname__",
    "__static_attributes__", "__firstlineno__", "__slots__", "_backward_cls",
    "_name_", "_value_", "__objclass__", "_sort_order_",
})  # fmt: skip


@functools.cache
def _library_folders() -> tuple[str, ...]:
    found = [sysconfig.get_path(p) for p in ("stdlib", "platstdlib", "purelib", "platlib")]
    found += [*site.getsitepackages(), site.getusersitepackages(), os.path.dirname(os.path.dirname(torch.__file__))]
    return tuple(f.rstrip(os.sep) + os.sep for f in dict.fromkeys(filter(None, found)))


def is_library(module: str) -> bool:
    """Whether the contents of a module can be found by name in another process: it belongs to Python, or is installed."""
    top = module.partition(".")[0]
    if top in VERSIONED:
        return True
    found = sys.modules.get(top)
    file = getattr(found, "__file__", None)
    return isinstance(file, str) and os.path.abspath(file).startswith(_library_folders())


def module_of(name: Name) -> str:
    """The module where a name starts; torch's operators belong to torch."""
    return "torch" if name[0] == "operator" else name[1]


def is_plain(cls: type) -> bool:
    """Whether instances consist of a `__dict__` and slots, without further C data."""
    made: Any = cls.__new__
    if made is not object.__new__ and not isinstance(made, types.FunctionType):
        return False
    words = sum(isinstance(v, types.MemberDescriptorType) for base in cls.__mro__ for v in vars(base).values())
    words += (cls.__dictoffset__ > 0) + (cls.__weakrefoffset__ > 0)
    return cls.__basicsize__ == object.__basicsize__ + _SLOT_BYTES * words


def names_in(code: types.CodeType) -> Iterable[str]:
    """Names that code may read from a module: its names, and str constants that are identifiers (`getattr`, `globals()`)."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, str) and constant.isidentifier():
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from names_in(constant)


def imports_of(code: types.CodeType) -> Iterable[str]:
    """Modules that the code imports at run time."""
    return (i.argval for i in dis.get_instructions(code) if i.opname == "IMPORT_NAME")


class Freezer:
    """`limit`: bytes of tensors; the data of further tensors is left out."""

    def __init__(self, limit: int) -> None:
        self.room = limit
        self.records: list[tuple[Any, ...]] = []
        self.fills: list[tuple[Any, ...]] = []
        self.missing: list[str] = []
        self.remarks: list[str] = []
        self.libraries: set[str] = set()
        self.sources: dict[str, str] = {}
        self.memo: dict[int, Token] = {}
        self.keep: list[Any] = []
        self.used: set[str] = set()
        self.spaces: dict[int, tuple[dict[str, Any], Token, str, set[str]]] = {}

    # records ------------------------------------------------------------------------------------------------------
    def add(self, *record: Any) -> Token:
        self.records.append(record)
        return (len(self.records) - 1,)

    def remember(self, value: Any, token: Token) -> Token:
        self.memo[id(value)] = token
        self.keep.append(value)
        return token

    def fill(self, order: int, tag: str, token: Token, *parts: Any) -> None:
        self.fills.append((order, tag, token, *parts))

    def finish(self) -> None:
        """Write the globals whose names occur in recorded code, until they bring no further code."""
        progress = True
        while progress:
            progress = False
            for space, token, where, done in list(self.spaces.values()):
                wanted = [n for n in space if type(n) is str and n in self.used and n not in done]
                done.update(wanted)
                progress = progress or bool(wanted)
                for name in wanted:
                    self.fill(TABLE, "update", token, ((name, self.value(space[name], f"{where}{name}")),))
        self.fills.sort(key=operator.itemgetter(0))

    # values -------------------------------------------------------------------------------------------------------
    def value(self, value: Any, where: str) -> Token:
        cls = type(value)
        if cls in INLINE:
            return value
        found = self.memo.get(id(value))
        if found is not None:
            return found
        write = _BY_ID.get(id(cls))
        if write is not None:
            return self.remember(value, write(self, value, where))
        if isinstance(value, type):
            return self.remember(value, self.named(value) or _class(self, value, where))
        return self.remember(value, _instance(self, value, where) or self.named(value) or self.gone(value, where))

    def values(self, items: Iterable[Any], where: str) -> tuple[Token, ...]:
        return tuple(self.value(v, f"{where}[{k}]") for k, v in enumerate(items))

    def pairs(self, items: Mapping[Any, Any], where: str) -> tuple[tuple[Token, Token], ...]:
        return tuple(
            (self.value(k, f"a key of {where}"), self.value(v, f"{where}[{k!r:.40}]")) for k, v in items.items()
        )

    def state(self, items: Mapping[str, Any], where: str) -> tuple[tuple[str, Token], ...]:
        return tuple((k, self.value(v, f"{where}.{k}")) for k, v in items.items() if type(k) is str)

    def gone(self, value: Any, where: str, why: str = "") -> Token:
        """A placeholder that raises when it is used."""
        text = f"{where}: {why or f'an object of {type(value).__module__}.{type(value).__qualname__}'}"
        self.missing.append(text)
        return self.add("missing", text)

    def named(self, value: Any) -> Token:
        """The name of a library's object; None for other objects."""
        try:
            name = name_of(value)
        except Exception:  # attributes of an object may raise any exception
            return None
        if name is None or not is_library(module_of(name)):
            return None
        self.libraries.add(module_of(name).partition(".")[0])
        return self.add("name", name)

    # functions and modules ----------------------------------------------------------------------------------------
    def code(self, code: types.CodeType, where: str) -> Token:
        if (found := self.memo.get(id(code))) is not None:
            return found
        self.used.update(names_in(code))
        for name in imports_of(code):
            module = sys.modules.get(name)
            if module is not None and not is_library(name):
                self.value(module, name)
        self.source(code.co_filename)
        try:
            token = self.add("code", marshal.dumps(code))
        except ValueError:  # generated code holds objects
            constants = self.values(code.co_consts, f"a constant of {where}")
            token = self.add("code of", marshal.dumps(code.replace(co_consts=())), constants)
        return self.remember(code, token)

    def source(self, filename: str) -> None:
        """Store the text of a source file, for debuggers and tracebacks elsewhere."""
        if filename not in self.sources and not os.path.abspath(filename).startswith(_library_folders()):
            text = "".join(linecache.getlines(filename))
            self.sources[filename] = text if len(text) <= TEXT_BYTES else ""

    def space(self, space: dict[str, Any]) -> Token:
        """The globals of functions; a module's globals are read from the module."""
        name = space.get("__name__")
        module = sys.modules.get(name) if isinstance(name, str) else None
        if module is not None and vars(module) is space:
            token = self.value(module, str(name))
            return self.add("vars", token)
        if (known := self.spaces.get(id(space))) is None:
            token = self.add("space", name if isinstance(name, str) else "__main__")
            known = self.spaces[id(space)] = (space, token, "G.", set())
        return known[1]


# kinds of values --------------------------------------------------------------------------------------------------------
def _function(f: Freezer, value: types.FunctionType, where: str) -> Token:
    return f.named(value) or own_function(f, value, where)


def own_function(f: Freezer, value: types.FunctionType, where: str) -> Token:
    """A function by its code, also for a library's function."""
    where = value.__qualname__
    cells = tuple(
        f.value(c, f"{where}: {n}") for n, c in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    )
    token = f.add("function", f.code(value.__code__, where), f.space(value.__globals__), value.__name__, cells)
    f.remember(value, token)
    defaults = (
        f.value(value.__defaults__, f"defaults of {where}"),
        f.value(value.__kwdefaults__, f"defaults of {where}"),
    )
    f.fill(FUNCTION, "function", token, value.__qualname__, value.__module__, *defaults, f.state(vars(value), where))
    return token


def _cell(f: Freezer, value: types.CellType, where: str) -> Token:
    token = f.remember(value, f.add("cell"))
    try:
        contents = value.cell_contents
    except ValueError:
        return token
    f.fill(FUNCTION, "cell", token, f.value(contents, where))
    return token


def _module(f: Freezer, value: types.ModuleType, where: str) -> Token:
    if (token := f.named(value)) is not None:
        return token
    name = value.__name__
    token = f.remember(value, f.add("module", name))
    f.spaces[id(vars(value))] = (vars(value), f.add("vars", token), "G." if name == "__main__" else f"{name}.", set())
    return token


_LAYOUT = (types.MemberDescriptorType, types.GetSetDescriptorType)


def _class(f: Freezer, cls: Any, where: str) -> Token:
    """A class of the program."""
    metaclass = type(cls)
    is_enum = isinstance(cls, enum.EnumMeta)
    if not is_enum and metaclass is not type and f.named(metaclass) is None:
        return f.gone(cls, where, f"class {cls.__qualname__} has metaclass {metaclass.__qualname__}")
    bases = f.values(cls.__bases__, f"a base of {cls.__qualname__}")
    if is_enum:
        members = tuple((n, f.value(m.value, f"{where}.{n}")) for n, m in cls.__members__.items())
        token = f.remember(cls, f.add("enum", cls.__name__, bases, members))
    else:
        slots = tuple(n for n, v in vars(cls).items() if isinstance(v, types.MemberDescriptorType))
        offers = "__dict__" in vars(cls), "__weakref__" in vars(cls)
        slots = (*slots, *(n for n, has in zip(("__dict__", "__weakref__"), offers, strict=True) if has))
        has_slots = slots if "__slots__" in vars(cls) else None
        token = f.remember(cls, f.add("class", f.value(metaclass, where), cls.__name__, bases, has_slots))
    members_ = cls.__members__ if is_enum else {}
    for name, member in members_.items():
        attributes = {k: v for k, v in vars(member).items() if k not in NOT_STATE}
        f.fill(STATE, "member", token, name, f.state(attributes, f"{cls.__qualname__}.{name}"))
    own = {
        k: v for k, v in vars(cls).items()
        if k not in NOT_STATE and k not in members_ and not isinstance(v, _LAYOUT)
        and not (is_enum and not isinstance(v, (types.FunctionType, property, staticmethod, classmethod)))
    }  # fmt: skip
    f.fill(CLASS, "class", token, cls.__module__, cls.__qualname__, f.state(own, cls.__qualname__))
    return token


def _instance(f: Freezer, value: Any, where: str) -> Token:
    """An object of a Python class; None for others."""
    cls = type(value)
    if isinstance(value, enum.Enum):
        return f.named(value) or f.add("member", f.value(cls, where), f.value(value.value, where))
    base = solid_base(cls)
    if not (base in BASES or issubclass(base, BaseException) or (base is object and is_plain(cls))):
        return None
    kind = f.value(cls, f"the class of {where}")
    if f.records[kind[0]][0] == "missing":
        return kind
    solid = f.value(base, where)
    if base is object:
        token = f.remember(value, f.add("object", kind, solid))
    elif base in (list, dict, set, collections.deque):
        token = f.remember(value, f.add("object", kind, solid))
        items = f.pairs(dict(dict.items(value)), where) if base is dict else f.values(list(base.__iter__(value)), where)
        f.fill(TABLE if base in (dict, set) else SEQUENCE, f"base {base.__name__}", token, items)
    else:
        parts = value.args if isinstance(value, BaseException) else (base(value),)
        token = f.remember(value, f.add("object", kind, solid, *f.values(parts, where)))
    state = dict(getattr(value, "__dict__", None) or {})
    for owner in cls.__mro__:
        for name, member in vars(owner).items():
            if isinstance(member, types.MemberDescriptorType) and is_plain(cls):
                try:
                    state.setdefault(name, member.__get__(value))
                except AttributeError:
                    continue
    f.fill(STATE, "state", token, f.state(state, where))
    return token


BASES: tuple[type, ...] = (tuple, list, dict, set, frozenset, collections.deque, str, bytes, int, float, complex)


def solid_base(cls: type) -> type:
    """The C class that determines the layout of a Python class."""
    while cls.__flags__ & _HEAP_TYPE and cls.__base__ is not None:
        cls = cls.__base__
    return cls


_HEAP_TYPE = 1 << 9


def _list(f: Freezer, value: list[Any], where: str) -> Token:
    token = f.remember(value, f.add("list"))
    f.fill(SEQUENCE, "base list", token, f.values(value, where))
    return token


def _dict(f: Freezer, value: dict[Any, Any], where: str) -> Token:
    name = value.get("__name__")
    module = sys.modules.get(name) if isinstance(name, str) else None
    if module is not None and vars(module) is value:
        return f.named(value) or f.space(value)
    token = f.remember(value, f.add("dict"))
    f.fill(TABLE, "base dict", token, f.pairs(value, where))
    return token


def _ordered(f: Freezer, value: Any, where: str) -> Token:
    token = f.remember(value, f.add("ordered"))
    f.fill(TABLE, "update", token, f.pairs(value, where))
    return token


def _default(f: Freezer, value: collections.defaultdict[Any, Any], where: str) -> Token:
    token = f.remember(value, f.add("default", f.value(value.default_factory, where)))
    f.fill(TABLE, "update", token, f.pairs(value, where))
    return token


def _set(f: Freezer, value: set[Any], where: str) -> Token:
    token = f.remember(value, f.add("set"))
    f.fill(TABLE, "base set", token, f.values(value, where))
    return token


def _deque(f: Freezer, value: collections.deque[Any], where: str) -> Token:
    token = f.remember(value, f.add("deque", value.maxlen))
    f.fill(SEQUENCE, "base deque", token, f.values(value, where))
    return token


def _named_only(f: Freezer, value: Any, where: str) -> Token:
    return f.named(value) or f.gone(value, where, f"{describe(value)}, which has no name")


def _builtin(f: Freezer, value: types.BuiltinFunctionType, where: str) -> Token:
    token = f.named(value)
    if token is None and value.__self__ is not None and not isinstance(value.__self__, types.ModuleType):
        token = f.add("attribute", f.value(value.__self__, where), value.__name__)
    return token or f.gone(value, where)


def _storage(f: Freezer, value: torch.Tensor, where: str) -> Token:
    storage = value.untyped_storage()
    key = storage._cdata
    if (known := f.memo.get(key)) is not None and f.records[known[0]][0] in ("storage", "lost storage"):
        return known
    size = storage.nbytes()
    if size > f.room:
        f.remarks.append(f"{where}: {size} bytes of data were left out; random numbers stand for them")
        token = f.add("lost storage", size, str(value.device))
    else:
        f.room -= size
        host: Any = storage.cpu() if size else storage  # type: ignore[no-untyped-call]
        token = f.add("storage", ctypes.string_at(host.data_ptr(), size) if size else b"", str(value.device))
    f.memo[key] = token
    f.keep.append(storage)
    return token


def _tensor(f: Freezer, value: torch.Tensor, where: str) -> Token:
    with torch._C.DisableTorchFunction():
        odd = value.layout is not torch.strided or value.is_conj() or value.is_neg() or value.is_quantized
        if odd or value.device.type == "meta":
            return f.gone(value, where, f"a tensor that cannot be recorded ({value.layout}, on {value.device})")
        if value.requires_grad and not value.is_leaf:
            f.remarks.append(f"{where} was computed with gradients: the record holds a leaf without its history")
        lies = tuple(value.shape), value.stride(), value.storage_offset()
        token = f.add(
            "tensor", _storage(f, value, where), f.value(value.dtype, where), *lies, value.requires_grad, value.is_leaf,
            type(value).__name__, value.is_inference(),
        )  # fmt: skip
        f.remember(value, token)
        grad = f.value(value.grad, f"{where}.grad") if value.is_leaf else None
        f.fill(STATE, "tensor", token, grad, f.state(vars(value), where))
        return token


def _partial(f: Freezer, value: functools.partial[Any], where: str) -> Token:
    return f.add("partial", f.value(value.func, where), f.values(value.args, where), f.pairs(value.keywords, where))


def _made(tag: str, *parts: str) -> Callable[[Freezer, Any, str], Token]:
    """A writer for objects that consist of these attributes."""
    return lambda f, value, where: f.add(tag, *(f.value(getattr(value, p), where) for p in parts))


def _array(f: Freezer, value: Any, where: str) -> Token:
    if value.dtype.hasobject:
        return f.gone(value, where, "an array of objects")
    return f.add("array", value.dtype.str, value.shape, value.tobytes())


def _cached(f: Freezer, value: Any, where: str) -> Token:
    parameters = value.cache_parameters()
    token = f.named(value)
    return token or f.add("cached", f.value(value.__wrapped__, where), parameters["maxsize"], parameters["typed"])


def _weak(f: Freezer, value: Any, where: str) -> Token:
    return f.add("weak", f.value(value(), where))


WRITE: dict[type, Callable[[Freezer, Any, str], Token]] = {
    types.FunctionType: _function,
    types.CodeType: lambda f, value, where: f.code(value, where),
    types.CellType: _cell,
    types.ModuleType: _module,
    types.MethodType: _made("method", "__func__", "__self__"),
    types.BuiltinFunctionType: _builtin,
    types.MethodDescriptorType: _named_only,
    types.WrapperDescriptorType: _named_only,
    types.MethodWrapperType: _made("attribute", "__self__", "__name__"),
    torch._ops.OpOverload: _named_only,
    torch._ops.OpOverloadPacket: _named_only,
    torch.Tensor: _tensor,
    torch.nn.Parameter: _tensor,
    torch.dtype: lambda f, value, where: f.add("torch", str(value).removeprefix("torch.")),
    torch.layout: lambda f, value, where: f.add("torch", str(value).removeprefix("torch.")),
    torch.memory_format: lambda f, value, where: f.add("torch", str(value).removeprefix("torch.")),
    torch.device: lambda f, value, where: f.add("device", str(value)),
    torch.Size: lambda f, value, where: f.add("size", tuple(value)),
    tuple: lambda f, value, where: f.add("tuple", f.values(value, where)),
    frozenset: lambda f, value, where: f.add("frozenset", f.values(value, where)),
    list: _list,
    dict: _dict,
    set: _set,
    collections.OrderedDict: _ordered,
    collections.defaultdict: _default,
    collections.deque: _deque,
    slice: _made("slice", "start", "stop", "step"),
    range: _made("range", "start", "stop", "step"),
    property: _made("property", "fget", "fset", "fdel"),
    types.GenericAlias: _made("alias", "__origin__", "__args__"),
    staticmethod: _made("staticmethod", "__func__"),
    classmethod: _made("classmethod", "__func__"),
    functools.partial: _partial,
    type(functools.lru_cache(len)): _cached,
    weakref.ref: _weak,
    type(collections.namedtuple("_", "a").a): lambda f, v, where: f.add("item getter", *v.__reduce__()[1]),  # type: ignore
}

if (numpy := sys.modules.get("numpy")) is not None:
    WRITE[numpy.ndarray] = _array
# Keyed by id, since a metaclass may redefine equality.
_BY_ID = {id(cls): write for cls, write in WRITE.items()}
