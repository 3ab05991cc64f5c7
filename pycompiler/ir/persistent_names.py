"""Persistent names of objects that also exist in another process: modules, classes, functions, operators, code objects.

In: an object.  Out: `name_of(object)`, a tuple of strings, or None for an object that only has an address.
`resolve(name)` finds the object again.  `content(object)` must be equal in the process that resolves the name.

    name_of(torch.nn.Linear)                  # ("attribute", "torch.nn.modules.linear", "Linear")
    resolve(("namespace", "torch.nn"))        # vars(torch.nn)

Why contents: guards cover state that can change within a process.  Capture reads unchangeable state (the code of a
function, the layout of a class) without a guard.  The next process may have other state, because the source was edited.
"""

from __future__ import annotations

import collections
import enum
import functools
import hashlib
import importlib
import operator
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.torch_version import TorchVersion

from pycompiler.operators import numpy_arrays, numpy_random
from pycompiler.operators.functional_twins import original, twin_of, writing

Name = tuple[str, ...]

# Types without a name in the standard library.
dict_reversekeyiterator: type = type(reversed({}))
dict_reversevalueiterator: type = type(reversed({}.values()))
dict_reverseitemiterator: type = type(reversed({}.items()))
odict_iterator: type = type(iter(collections.OrderedDict()))
odict_keys: type = type(collections.OrderedDict().keys())
odict_values: type = type(collections.OrderedDict().values())
odict_items: type = type(collections.OrderedDict().items())

# Packages that the saved artefact compares by version only.
VERSIONED = frozenset({*sys.stdlib_module_names, "builtins", "torch", "pycompiler"})


class NameGone(LookupError):
    """A name does not resolve in this process."""


# resolving names ----------------------------------------------------------------------------------------------
def _module(name: str) -> types.ModuleType:
    found = sys.modules.get(name)
    if found is None:
        try:
            found = importlib.import_module(name)
        except Exception as e:  # an import may raise any exception
            raise NameGone(f"module {name} cannot be imported ({type(e).__name__}: {e})") from None
    return found


def _attribute(module: str, path: str) -> Any:
    found: Any = _module(module)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise NameGone(f"{module} has no {path}") from None
    return found


def _raw(module: str, cls: str, name: str) -> Any:
    owner = _attribute(module, cls)
    if not isinstance(owner, type) or name not in owner.__dict__:
        raise NameGone(f"class {module}.{cls} has no {name}")
    return owner.__dict__[name]


def _wrapped(module: str, path: str, depth: str) -> Any:
    found = _attribute(module, path)
    for _ in range(int(depth)):
        found = getattr(found, "__wrapped__", None)
    return found


def _operator(namespace: str, name: str, overload: str) -> Any:
    try:
        packet = getattr(getattr(torch.ops, namespace), name)
        return getattr(packet, overload) if overload else packet
    except (AttributeError, RuntimeError):
        raise NameGone(f"there is no operator {namespace}.{name}" + (f".{overload}" if overload else "")) from None


def _twin(namespace: str, name: str, overload: str) -> Any:
    op = _operator(namespace, name, overload)
    if writing(op) is None:
        raise NameGone(f"operator {namespace}.{name} does not write its arguments any more")
    return twin_of(op)


def _member(module: str, path: str, name: str) -> Any:
    found = _attribute(module, path)
    if not isinstance(found, enum.EnumMeta) or name not in found.__members__:
        raise NameGone(f"{module}.{path} has no member {name}")
    return found.__members__[name]


def _code(module: str, path: str, digest: str) -> types.CodeType:
    candidates = list(_codes(module, path))
    for code in candidates:
        if code_digest(code) == digest:
            return code
    seen = "has other code now" if candidates else "does not exist"
    raise NameGone(f"function {path} of {module} {seen}")


READ: dict[str, Callable[..., Any]] = {
    "module": _module,
    "namespace": lambda name: vars(_module(name)),
    "attribute": _attribute,
    "attributes": lambda module, path: vars(_attribute(module, path)),
    "raw": _raw,
    "wrapped": _wrapped,
    "operator": _operator,
    "twin": _twin,
    "member": _member,
    "code": _code,
    "class of": lambda name: type(_module(name)),
    "mro": lambda module, path: _attribute(module, path).__mro__,
}


def resolve(name: Name) -> Any:
    """The object with this name in this process; raises NameGone."""
    return READ[name[0]](*name[1:])


# code ---------------------------------------------------------------------------------------------------------
_CODE_PARTS = operator.attrgetter(
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount",
    "co_posonlyargcount", "co_kwonlyargcount", "co_stacksize", "co_firstlineno", "co_linetable", "co_exceptiontable",
    "co_name", "co_qualname",
)  # fmt: skip


def code_digest(code: types.CodeType) -> str:
    """A digest of instructions, constants, names and lines, equal in every process.  The file name is not part of it."""
    return hashlib.sha256(repr((_CODE_PARTS(code), [_constant(c) for c in code.co_consts])).encode()).hexdigest()


def _constant(value: Any) -> Any:
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, tuple):
        return tuple(map(_constant, value))
    if isinstance(value, frozenset):  # its repr has another order in each process
        return ("frozenset", sorted(repr(_constant(v)) for v in value))
    return (type(value).__name__, repr(value))


def _codes(module: str, path: str) -> Iterator[types.CodeType]:
    """Code objects with this qualified name: of existing functions, and of functions defined inside of them."""
    head = path.partition(".<locals>.")[0]
    try:
        found = _attribute(module, head)
    except NameGone:
        return
    for function in _functions(found):
        yield from _inside(function.__code__, path)


def _functions(found: Any, depth: int = 4) -> Iterator[types.FunctionType]:
    """Python functions behind an object: the function itself, wrapped functions, and functions in its closure."""
    if isinstance(found, types.FunctionType):
        yield found
        if depth:
            for cell in found.__closure__ or ():
                try:
                    contents = cell.cell_contents
                except ValueError:
                    continue
                if isinstance(contents, types.FunctionType):
                    yield from _functions(contents, depth - 1)
    if depth:
        for part in ("__wrapped__", "__func__", "fget", "fset", "func", "fn"):
            inner = getattr(found, part, None) if not isinstance(found, type) else None
            if inner is not None and inner is not found:
                yield from _functions(inner, depth - 1)


def _inside(code: types.CodeType, path: str) -> Iterator[types.CodeType]:
    if code.co_qualname == path:
        yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _inside(constant, path)


# finding names ------------------------------------------------------------------------------------------------
def name_of(value: Any) -> Name | None:
    """A name that resolves to this very object in this process, or None."""
    for kind, find in FIND.items():
        if issubclass(
            type(value), kind
        ):  # `issubclass(type(value), ...)`, since an object may lie about its `__class__`
            return next((name for name in find(value) if _leads_to(name, value)), None)
    return next((n for find in (_as_attribute, _of_numpy) for n in find(value) if _leads_to(n, value)), None)


def _leads_to(name: Name, value: Any) -> bool:
    try:
        return resolve(name) is value
    except (NameGone, TypeError):
        return False


def _path(value: Any) -> tuple[str, str] | None:
    try:
        module, path = value.__module__, value.__qualname__
    except Exception:  # an object's own `__getattr__` may raise any exception
        return None
    return (module, path) if isinstance(module, str) and isinstance(path, str) else None


def _as_attribute(value: Any) -> Iterator[Name]:
    if (known := _path(value)) is not None and "<" not in known[1]:
        yield "attribute", *known
        for depth in range(1, 4):
            yield "wrapped", *known, str(depth)
    if (place := _globals_index().get(id(value))) is not None:
        yield "attribute", *place


def _class(value: type) -> Iterator[Name]:
    """A class by its own name, or by the module object that is its instance.

    A class that torch creates for an autograd Function is named by the Function.
    """
    yield from _as_attribute(value)
    if (known := _path(value.__dict__.get("_forward_cls"))) is not None:
        yield "attribute", known[0], f"{known[1]}._backward_cls"
    module = value.__dict__.get("__module__")
    if isinstance(module, str) and type(sys.modules.get(module)) is value:
        yield "class of", module


def _builtin(value: Any) -> Iterator[Name]:
    yield from _as_attribute(value)
    name = value.__name__
    owner = getattr(value, "__self__", None)
    if isinstance(owner, types.ModuleType):
        yield "attribute", owner.__name__, name
    elif isinstance(owner, type) and (known := _path(owner)):
        yield "attribute", known[0], f"{known[1]}.{name}"
    for module in ("torch", "torch._C", "torch._C._nn", "torch.nn.functional", "torch._VF"):
        yield "attribute", module, name


def _descriptor(value: Any) -> Iterator[Name]:
    owner = name_of(value.__objclass__)
    if owner is not None and owner[0] == "attribute":
        yield "raw", owner[1], owner[2], value.__name__
    yield from _builtin(value)


def _part_of_class(value: Any) -> Iterator[Name]:
    """A property, classmethod or similar, named by the function that it holds."""
    inner = next((f for part in ("fget", "fset", "__func__", "func", "__wrapped__")
                  if isinstance(f := getattr(value, part, None), types.FunctionType)), None)  # fmt: skip
    if inner is not None and (known := _path(inner)) is not None:
        cls, _, name = known[1].rpartition(".")
        if cls:
            yield "raw", known[0], cls, name
    yield from _as_attribute(value)


def _function(value: types.FunctionType) -> Iterator[Name]:
    yield from _as_attribute(value)
    if (known := _path(value)) is not None and "<" not in known[1] and "." in known[1]:
        cls, _, name = known[1].rpartition(".")
        yield "raw", known[0], cls, name


def _of_numpy(value: Any) -> Iterator[Name]:
    """A ufunc, by its own name."""
    if type(value).__module__ == "numpy" and isinstance(name := getattr(value, "__name__", None), str):
        yield "attribute", "numpy", name


def _of_code(value: types.CodeType) -> Iterator[Name]:
    for module in _modules_of(value.co_filename):
        yield "code", module, value.co_qualname, code_digest(value)


def _modules_of(filename: str) -> list[str]:
    if not _FILES:
        for name, module in list(sys.modules.items()):
            if isinstance(file := getattr(module, "__dict__", {}).get("__file__"), str):
                _FILES.setdefault(file, []).append(name)
    return _FILES.get(filename, [])


def _of_module(value: types.ModuleType) -> Iterator[Name]:
    name = value.__name__
    yield "module", name
    if "." in name:  # torch.ops.aten is not in sys.modules
        yield "attribute", *name.rsplit(".", 1)
    yield from (("module", key) for key, module in list(sys.modules.items()) if module is value)


def _namespace(value: dict[str, Any]) -> Iterator[Name]:
    name = value.get("__name__")
    if isinstance(name, str):
        if name in sys.modules:
            yield "namespace", name
        elif "." in name:
            yield "attributes", *name.rsplit(".", 1)
    if (place := _globals_index().get(id(value))) is not None:
        yield "attribute", *place


def _overload(value: torch._ops.OpOverload) -> Iterator[Name]:
    op = original(value)
    namespace, _, name = (op or value)._schema.name.partition("::")
    yield "operator" if op is None else "twin", namespace, name, (op or value)._overloadname


def _packet(value: torch._ops.OpOverloadPacket) -> Iterator[Name]:
    namespace, _, name = value._qualified_op_name.partition("::")
    yield "operator", namespace, name, ""


FIND: dict[type | tuple[type, ...], Callable[[Any], Iterator[Name]]] = {
    types.ModuleType: _of_module,
    enum.Enum: lambda v: iter([("member", *(_path(type(v)) or ("", "")), v.name)] if isinstance(v.name, str) else []),
    type: _class,
    types.FunctionType: _function,
    types.CodeType: _of_code,
    dict: _namespace,
    torch._ops.OpOverload: _overload,
    torch._ops.OpOverloadPacket: _packet,
    types.BuiltinFunctionType: _builtin,
    (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
     types.GetSetDescriptorType, types.MemberDescriptorType): _descriptor,
    (property, staticmethod, classmethod, functools.cached_property): _part_of_class,
}  # fmt: skip


_INDEX: dict[int, tuple[str, str]] = {}
_FILES: dict[str, list[str]] = {}


def _globals_index() -> dict[int, tuple[str, str]]:
    """id -> (module, name) of every global of every module.  Built once per block of `naming()`."""
    if not _INDEX:
        for name, module in list(sys.modules.items()):
            namespace = getattr(module, "__dict__", None)
            if type(namespace) is not dict or not isinstance(name, str):
                continue
            for attribute, value in list(namespace.items()):
                if isinstance(attribute, str) and not attribute.startswith("__") and "." not in attribute:
                    _INDEX.setdefault(id(value), (name, attribute))
    return _INDEX


class naming:
    """Context manager: inside, modules and their globals are listed only once."""

    def __enter__(self) -> None:
        _INDEX.clear()
        _FILES.clear()

    __exit__ = lambda self, *exc: self.__enter__()  # noqa: E731


# contents -----------------------------------------------------------------------------------------------------
def is_versioned(module: str) -> bool:
    return module.partition(".")[0] in VERSIONED


def content(value: Any) -> str | None:
    """The unchangeable content of a named object as a str; None for an object whose str would not be specific enough."""
    if isinstance(value, types.CodeType):
        return code_digest(value)
    if isinstance(value, type):
        return _class_content(value)
    if isinstance(value, enum.Enum):
        return repr(value.value) if isinstance(value.value, (int, str, float, bytes, type(None))) else None
    if isinstance(value, torch._ops.OpOverload):
        return str(value._schema)
    if type(value) is TorchVersion:
        return str.__str__(value)
    if isinstance(value, (dict, list)):
        return type(value).__name__  # a root of guards: guards check the parts that are read
    if type(value).__name__ == "_tuplegetter":
        return repr(value.__reduce__()[1])
    if isinstance(value, tuple):
        return repr([_path(c) for c in value]) if all(isinstance(c, type) for c in value) else None
    return _behaviour(value)


_PLAIN = (
    types.ModuleType, types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType, torch._ops.OpOverloadPacket,
    torch.dtype, torch.layout, torch.memory_format, typing._SpecialForm,
    typing._SpecialGenericAlias,  # type: ignore[attr-defined]
)  # fmt: skip


def _behaviour(value: Any) -> str | None:
    if isinstance(value, types.FunctionType):
        return code_digest(value.__code__)
    if isinstance(value, property):
        return repr([f and _behaviour(f) for f in (value.fget, value.fset, value.fdel)])
    if isinstance(value, (staticmethod, classmethod)):
        return f"{type(value).__name__} {_behaviour(value.__func__)}"
    if isinstance(value, functools.cached_property):
        return f"cached {_behaviour(value.func)}"
    if isinstance(value, functools._lru_cache_wrapper):
        return f"lru_cache {_behaviour(value.__wrapped__)}"
    if type(value).__name__ == "CompiledFunction" and isinstance(getattr(value, "fn", None), types.FunctionType):
        return code_digest(value.fn.__code__)
    if isinstance(value, _PLAIN) or type(value).__name__ == "pybind11_builtins" or numpy_random.is_method(value):
        return type(value).__name__
    if numpy_arrays.is_function(value):
        return f"{type(value).__name__} {value.__name__}"  # fixed by the version of NumPy
    if type(value).__module__.startswith("pycompiler."):
        return type(value).__qualname__  # an object of this package
    return None


_FIXED = ("_fields", "__slots__", "__match_args__")


def _class_content(cls: type) -> str:
    layout = [
        [_path(c) for c in cls.__mro__],
        _path(type(cls)),
        cls.__basicsize__,
        cls.__itemsize__,
        cls.__dictoffset__,
    ]
    for base in cls.__mro__:
        if not is_versioned(base.__module__):
            layout.append([(name, _attribute_content(name, raw)) for name, raw in sorted(vars(base).items())])
    return hashlib.sha256(repr(layout).encode()).hexdigest()


_UNSEEN = frozenset({"__doc__", "__dict__", "__weakref__", "__module__", "__annotations__", "__parameters__"})


def _attribute_content(name: str, raw: Any) -> str:
    if name in _UNSEEN:
        return ""
    if name in _FIXED:
        return repr(raw)
    if type(raw).__name__ == "_tuplegetter":
        return repr(raw.__reduce__()[1])
    return (_behaviour(raw) if not isinstance(raw, type) else None) or type(raw).__name__


# calls in graphs ------------------------------------------------------------------------------------------------
TORCHS = frozenset({"aten", "prim", "prims", "pycompiler"})
_TRACED_KEYS = ("CompositeImplicitAutograd", "Autograd", "AutogradCPU", "AutogradCUDA")


def traced_through(target: Any) -> str | None:
    """The name of a called function whose own Python code was traced into the compiled graph and that has no version,
    or None.

        Examples: an operator of the program with a gradient or a decomposition."""
    if isinstance(target, (str, torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
        packet = target if isinstance(target, torch._ops.OpOverloadPacket) else getattr(target, "overloadpacket", None)
        return None if packet is None else _traced_operator(packet)
    module = getattr(target, "__module__", None) or type(target).__module__
    return None if is_versioned(str(module)) else getattr(target, "__qualname__", repr(target))


def _traced_operator(packet: torch._ops.OpOverloadPacket) -> str | None:
    name = packet._qualified_op_name
    if name.partition("::")[0] in TORCHS:
        return None
    known = torch._library.custom_ops.OPDEFS.get(name)
    if known is not None:
        return name if known._backward_fn is not None else None
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    for overload in packet.overloads():  # type: ignore[no-untyped-call]
        full = name if overload == "default" else f"{name}.{overload}"
        if any(has(full, key) for key in _TRACED_KEYS):
            return name
    return None
