"""The encoder: objects → records; see `data`.

In: `Encoder(root)`: the code object and the globals of the callable's function, which the loading side provides.
Out: `value(object)`: the token of an object; `records`, `names`, `libraries`.  Raises `Unsavable` for an object that
cannot be written.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import functools
import marshal
import operator
import types
import typing
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler import _native
from pycompiler.artefacts.data import DECODED_LATE, GUARD, INLINE, SHARED, SOURCE, Unsavable, fields_of, is_data
from pycompiler.autograd import runtime
from pycompiler.autograd.control_flow import CompiledSides
from pycompiler.capture.recipe.recipe import Hole, Resume
from pycompiler.errors import describe
from pycompiler.ir.guards import Guard
from pycompiler.ir.lazy_value import Lazy, LazyCall
from pycompiler.ir.persistent_names import Name, content, name_of
from pycompiler.ir.plan import Plan
from pycompiler.ir.source import ACCESSORS, ClassKey, Source, read
from pycompiler.ir.source import Scope as ReadScope
from pycompiler.operators import numpy_arrays
from pycompiler.regions import FailureAwareCompiler
from pycompiler.symbolic.expr import Atom, Expr
from pycompiler.symbolic.symbols import Symbols, symbols_of
from pycompiler.torch_compat.process_settings import Lock

Token = Any  # a plain value, or a 1-tuple: the position of a record

CONSTANT_BYTES = 1 << 24  # the most bytes of a tensor that a graph holds
META = ("val", "requires_grad", "strides", "effects", "user", "constant")
EXISTING = ("name", "class", "at", "root code", "root globals", "torch", "reader")
_READERS = {id(accessor.read): kind for kind, accessor in ACCESSORS.items()}


class Encoder:
    """`names`: (name, content) of existing outside objects; `libraries`: the files of kernels."""

    def __init__(self, root: types.FunctionType, parent: Encoder | None = None, meta: tuple[str, ...] = META) -> None:
        self.root = root
        self.meta = meta  # of nodes of graphs
        self.records: list[tuple[Any, ...]] = []
        self.names: list[tuple[Name, str]] = [] if parent is None else parent.names
        self.libraries: list[bytes] = [] if parent is None else parent.libraries
        self.named: dict[Name, int] = {} if parent is None else parent.named
        self.memo: dict[int, Token] = {}
        self.shared: dict[Any, Token] = {}
        self.keep: list[Any] = []
        self.namespace: dict[str, Any] = root.__globals__

    # positions --------------------------------------------------------------------------------------------------
    def add(self, *record: Any) -> Token:
        self.records.append(record)
        return (len(self.records) - 1,)

    def remember(self, value: Any, token: Token) -> Token:
        self.memo[id(value)] = token
        self.keep.append(value)
        return token

    @contextlib.contextmanager
    def whole_or_nothing(self) -> Iterator[None]:
        """Forget the records of the block if an object in it cannot be written."""
        parts = (self.records, self.names, self.libraries)
        before, tables = [len(part) for part in parts], [dict(t) for t in (self.memo, self.shared, self.named)]
        try:
            yield
        except Unsavable:
            for part, length in zip(parts, before, strict=True):
                del part[length:]  # type: ignore[attr-defined]
            self.memo, self.shared, self.named = tables
            raise

    # values -----------------------------------------------------------------------------------------------------
    def value(self, value: Any) -> Token:
        cls = type(value)
        found = self.memo.get(id(value))
        if found is not None:
            return found
        if type(cls) is not type:  # its equality may be any function
            return self.remember(value, self.unusual(value))
        if cls in INLINE:
            return value
        if cls in SHARED:
            token = self.shared.get(value)
            if token is None:
                token = self.shared[value] = self.made(value)
            return self.remember(value, token)
        write = WRITE.get(cls)
        if write is not None:
            token = write(self, value)
        elif is_data(cls):
            token = self.made(value)
        else:
            token = self.unusual(value)
        return self.remember(value, token)

    def once(self, value: Any) -> Token:
        """The token of an object equal to `value`."""
        token = self.shared.get(value)
        if token is None:
            token = self.shared[value] = self.value(value)
        return token

    def values(self, items: Any) -> tuple[Token, ...]:
        return tuple(self.value(v) for v in items)

    def made(self, value: Any) -> Token:
        """An object of one of CLASSES."""
        cls = type(value)
        names = fields_of(cls)
        if cls is Guard:
            held: dict[str, Token] = {"arg": self.guard_arg(value), "user": self.once(value.user[-1:])}
            return self.add("guard", *(held[n] if n in held else self.value(getattr(value, n)) for n in GUARD))
        if cls is Source:
            held = {"arg": ROOTS[value.kind](self, value.arg)} if value.kind in ROOTS else {}
            return self.add("source", *(held[n] if n in held else self.value(getattr(value, n)) for n in SOURCE))
        place = self.memo.get(id(cls)) or self.remember(cls, self.add("class", cls.__module__, cls.__qualname__, names))
        if names is not None and cls.__dataclass_params__.frozen:
            return self.add("make", place, self.values(getattr(value, n) for n in names))
        token = self.remember(value, self.add("new", place))
        state = {n: getattr(value, n) for n in names or list(value.__dict__)}
        written = {
            n: self.later(v) if (cls, n) in DECODED_LATE and v is not None else self.value(v) for n, v in state.items()
        }
        self.add("state", token, tuple(written.items()))
        return token

    def guard_arg(self, guard: Guard) -> Token:
        """The token of a guard's argument.

        For an identity guard it is an object with a name, or the object that the guard's own path leads to.
        """
        if guard.kind != "id_is":
            return self.value(guard.arg)
        weak = isinstance(guard.arg, weakref.ref)
        value = _alive(guard.arg) if weak else guard.arg
        token = self.existing(value)
        if token == ():
            token = self.at(guard.source, value)
        return self.add("weak", token) if weak else token

    def exact(self, value: Any) -> Token:
        """The token of an object in generated code or at the root of a guard: an existing object must be found by name,
        not copied."""
        cls = type(value)
        if cls is tuple:
            return self.remember(value, self.add("tuple", tuple(map(self.exact, value))))
        if type(cls) is type and (cls in COPIED or is_data(cls)):
            return self.value(value)
        if _is_enumeration(cls):
            return self.value(value)
        if cls is types.BuiltinFunctionType and _is_of_text(value):
            return self.value(value)
        token = self.existing(value)
        if token == ():
            raise Unsavable(f"{describe(value)} has no name by which another process could find it")
        return token

    def existing(self, value: Any) -> Token:
        """The token of an object that will be that very object, or () when it has no name."""
        cls = type(value)
        if type(cls) is type and cls in (type(None), bool, type(Ellipsis)):
            return value
        known = self.memo.get(id(value))
        if known is not None and self.records[known[0]][0] in EXISTING:
            return known
        try:
            token = self.named_value(value) if type(cls) is type and cls in CONTAINERS else self.value(value)
        except Unsavable:
            return ()
        return token if type(token) is tuple and self.records[token[0]][0] in EXISTING else ()

    def at(self, source: Source, value: Any) -> Token:
        """The token of the object at a path that starts at a global or at a named object."""
        text = content(value)
        if source.root.kind == "local" or text is None:
            raise Unsavable(f"{describe(value)}, which is compared by identity at {source}, has no name")
        try:
            if read(source, ReadScope({}, self.namespace)) is not value:
                raise LookupError("the path leads to another object now")
        except Exception as e:  # a path through the program may raise any exception
            raise Unsavable(f"{source} has changed: {e}") from None
        token = self.add("at", self.value(self.namespace), self.value(source), text)
        return self.remember(value, token)

    def later(self, value: Any, meta: tuple[str, ...] = META) -> Token:
        """The token of an object that is decoded when it is needed, separately: its records are a separate byte
        string."""
        inner = Encoder(self.root, self, meta)
        inner.namespace = self.namespace
        top = inner.value(value.get() if isinstance(value, Lazy) else value)
        return self.add("later", marshal.dumps((inner.records, top)))

    def unusual(self, value: Any) -> Token:
        for kind, write in BY_BASE:
            if issubclass(type(value), kind):
                return write(self, value)
        if numpy_arrays.is_number(value) and type(value.item()) in (int, float, bool):
            return self.add("call", self.value(type(value)), self.value((value.item(),)))
        if _is_enumeration(type(value)):
            return self.add("call", self.value(getattr), self.value((type(value), value.name)))
        return self.named_value(value)

    def named_value(self, value: Any) -> Token:
        """The token of an existing object, by its name."""
        if value is self.root.__globals__:
            return self.add("root globals")
        name = name_of(value)
        text = None if name is None else content(value)
        if name is None or text is None:
            raise Unsavable(f"{describe(value)} has no name by which another process could find it")
        place = self.named.get(name)
        if place is None:
            place = self.named[name] = len(self.names)
            self.names.append((name, text))
        return self.add("name", place)


# kinds of values ----------------------------------------------------------------------------------------------------
def _tuple(e: Encoder, value: tuple[Any, ...]) -> Token:
    return e.add("tuple", e.values(value))


def _list(e: Encoder, value: list[Any]) -> Token:
    token = e.remember(value, e.add("list"))
    e.add("extend", token, e.values(value))
    return token


def _dict(e: Encoder, value: dict[Any, Any]) -> Token:
    if value is e.root.__globals__ or isinstance(value.get("__name__"), str):
        return e.named_value(value)
    token = e.remember(value, e.add("dict"))
    e.add("update", token, tuple((e.value(k), e.value(v)) for k, v in list(value.items())))
    return token


def _function(e: Encoder, value: types.FunctionType) -> Token:
    if (text := runtime.source_of(value)) != "":
        return _printed(e, value, text)
    if (kind := _READERS.get(id(value))) is not None:
        return e.add("reader", kind)
    return e.named_value(value)


def _printed(e: Encoder, value: types.FunctionType, text: str) -> Token:
    """A printed wrapper of `autograd.runtime`: its source, and its globals."""
    name = text.partition("(")[0].removeprefix("def ")
    scope = {k: v for k, v in value.__globals__.items() if k not in ("__builtins__", name)}
    token = e.remember(value, e.add("printed", name, text, value.__name__))
    e.add("globals", token, tuple((k, e.value(v)) for k, v in scope.items()))
    return token


def _code(e: Encoder, value: types.CodeType) -> Token:
    if value is e.root.__code__:
        return e.add("root code")
    try:
        return e.named_value(value)
    except (Unsavable, RecursionError):
        pass
    constants = tuple(map(e.exact, value.co_consts))
    return e.add("code", marshal.dumps(value.replace(co_consts=())), constants)


def _is_of_text(value: types.BuiltinFunctionType) -> bool:
    """Whether it is a method of a string or a number, which each attribute access creates again."""
    return value.__self__ is not None and type(value.__self__) in INLINE


def _builtin(e: Encoder, value: types.BuiltinFunctionType) -> Token:
    owner = value.__self__
    if value.__name__ == "apply" and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        if owner.__module__ == runtime.__name__:
            return e.add("apply", owner.__name__, *e.values(runtime.functions_of(owner)))
    if _is_of_text(value):
        return e.add("method", e.value(owner), value.__name__)
    return e.named_value(value)


def _method(e: Encoder, value: types.MethodType) -> Token:
    owner = value.__self__
    if isinstance(owner, fx.GraphModule):
        return e.add("graph call", e.later(owner, meta=()))
    return e.add("method", e.value(owner), value.__name__)


def _plan(e: Encoder, value: Any) -> Token:
    plan: Plan = value.plan
    if plan.module:
        raise Unsavable(f"graph {plan.name} has kernels for a GPU")
    library = None
    if plan.library is not None:
        library = len(e.libraries)
        try:
            e.libraries.append(Path(plan.library).read_bytes())
        except OSError as error:
            raise Unsavable(f"the kernels of graph {plan.name} are gone: {error}") from None
    name = plan.name.rpartition("] ")[2]  # the numbers in an id belong to this process
    made = e.add(
        "plan",
        e.value(plan.__class__(**{**plan.__dict__, "name": name, "library": None, "source": ""})),
        library,
        plan.source,
    )
    e.remember(value, made)
    if value.exclusive is not None:
        written, eager = value.exclusive
        e.add("unless shared", made, tuple(written), e.value(eager))
    return made


def _tensor(e: Encoder, value: torch.Tensor) -> Token:
    if isinstance(value, FakeTensor):
        return _fake(e, value)
    if type(value) is not torch.Tensor or value.requires_grad or value.layout is not torch.strided:
        raise Unsavable(f"a graph holds a tensor that the program owns: {type(value).__name__}{list(value.shape)}")
    if value.device.type != "cpu" or value.is_conj() or value.is_neg():
        raise Unsavable(f"a graph holds a tensor on {value.device}")
    size = 0
    if value.numel():
        size = (1 + sum((n - 1) * s for n, s in zip(value.shape, value.stride(), strict=True))) * value.element_size()
    if size > CONSTANT_BYTES:
        raise Unsavable(f"a graph holds a constant of {size} bytes ({value.dtype}{list(value.shape)}); "
                        f"at most {CONSTANT_BYTES} are saved: pass it as an argument, or make it a buffer")  # fmt: skip
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return e.add("tensor", data, tuple(value.shape), value.stride(), e.value(value.dtype))


def _fake(e: Encoder, value: FakeTensor) -> Token:
    if value.layout is not torch.strided or value.is_conj() or value.is_neg() or value.is_inference():
        raise Unsavable("a graph that may be compiled again has tensors that are not strided, or conjugated")
    offset: Any = value.storage_offset()
    lies = (e.values(value.shape), e.values(value.stride()), e.value(offset))
    return e.add("fake", *lies, e.value(value.dtype), e.value(value.device), value.requires_grad)


def _symbolic(e: Encoder, value: Any) -> Token:
    """A symbolic number: its expression, and the environment of its compile."""
    if symbols_of(value) is None:
        raise Unsavable(f"{describe(value)} is a symbolic number of another compiler")
    return e.add("symbolic", type(value).__name__, e.value(value.node.env), e.value(value.node.value))


def _symbols(e: Encoder, value: Symbols) -> Token:
    """The symbols of a compile. The places of assumptions are no longer needed."""
    token = e.remember(value, e.add("symbols"))
    e.add("state", token, tuple((name, e.value(v)) for name, v in value.state().items()))
    return token


def _graph(e: Encoder, value: fx.Graph) -> Token:
    token = e.remember(value, e.add("graph"))
    for node in value.nodes:
        parts = e.values((node.target, node.args, node.kwargs))
        meta = tuple((k, e.value(node.meta[k])) for k in e.meta if k in node.meta)
        e.remember(node, e.add("node", token, node.op, node.name, parts, meta))
    return token


def _node(e: Encoder, value: fx.Node) -> Token:
    e.value(value.graph)
    found = e.memo.get(id(value))
    if found is None:
        raise Unsavable(f"node {value.name} is not in a graph any more")
    return found


def _graph_module(e: Encoder, value: fx.GraphModule) -> Token:
    held: dict[str, Any] = {}
    for node in value.graph.nodes:
        if node.op in ("get_attr", "call_module"):
            held[node.target] = functools.reduce(getattr, node.target.split("."), value)
    return e.add("graph module", e.value(value.graph), tuple((k, e.value(v)) for k, v in held.items()))


def _partial(e: Encoder, value: functools.partial[Any]) -> Token:
    return e.add("partial", e.value(value.func), e.values(value.args), e.value(value.keywords))


def _reduced(e: Encoder, value: Any) -> Token:
    return e.add("call", *e.values(value.__reduce__()[:2]))


def _forward_reference(e: Encoder, value: typing.ForwardRef) -> Token:
    if value != typing.ForwardRef(value.__forward_arg__):
        raise Unsavable(f"{describe(value)}, a forward reference with a module")
    return e.add("call", e.value(typing.ForwardRef), e.value((value.__forward_arg__,)))


def _is_enumeration(cls: type) -> bool:
    """Whether a class is a C++ enumeration, whose members are equal, but not always the same object."""
    return type(cls).__name__ == "pybind11_type" and "__members__" in cls.__dict__


def _union(e: Encoder, value: Any) -> Token:
    return e.add("call", e.value(functools.reduce), e.value((operator.or_, value.__args__)))


def _text(e: Encoder, value: Any) -> Token:
    return e.add("torch", str(value).removeprefix("torch."))


# Classes of `Optional[int]`, `List[int]`: equal aliases are interchangeable.
ALIASES = {type(alias) for alias in (typing.Optional[int], typing.List[int], typing.Callable[[int], int])}  # noqa: UP006, UP045
ALIASES = ALIASES - {types.UnionType} | {type(Callable[[int], int])}  # unions of newer Pythons are written otherwise

WRITE: dict[type, Callable[[Encoder, Any], Token]] = {
    tuple: _tuple,
    list: _list,
    dict: _dict,
    torch.Size: lambda e, v: e.add("size", tuple(v)),
    set: lambda e, v: e.add("set", e.values(v)),
    frozenset: lambda e, v: e.add("frozenset", e.values(v)),
    range: lambda e, v: e.add("range", v.start, v.stop, v.step),
    slice: lambda e, v: e.add("slice", *e.values((v.start, v.stop, v.step))),
    torch.dtype: _text,
    torch.layout: _text,
    torch.memory_format: _text,
    torch.device: lambda e, v: e.add("device", str(v)),
    weakref.ref: lambda e, v: e.add("weak", e.value(_alive(v))),
    types.FunctionType: _function,
    types.CodeType: _code,
    types.BuiltinFunctionType: _builtin,
    types.MethodType: _method,
    functools.partial: _partial,
    type(NotImplemented): lambda e, v: e.add("not implemented"),
    Lock: lambda e, v: e.add("lock"),
    _native.Plan: _plan,
    _native.BackendCall: lambda e, v: e.add("backend call", e.value(v.target)),
    _native.PlainState: lambda e, v: e.add("plain state"),
    **dict.fromkeys(
        (_native.NodeForward, _native.NodeBackward, _native.NodeGradients),
        lambda e, v: e.add("autograd node", type(v).__name__, e.value(v.recipe)),
    ),
    Lazy: lambda e, v: e.later(v),
    LazyCall: lambda e, v: e.add("graph call", e.later(v.later)),
    FailureAwareCompiler: lambda e, v: e.value(v.compile),
    CompiledSides: lambda e, v: e.add("choice", v.number, e.value(v.sides), e.value(v.like), e.value(v.names)),
    torch.SymInt: _symbolic,
    torch.SymFloat: _symbolic,
    torch.SymBool: _symbolic,
    Symbols: _symbols,
    Expr: _reduced,
    Atom: _reduced,
    fx.Graph: _graph,
    fx.Node: _node,
    Hole: lambda e, v: e.add("hole", v.name),
    Resume: lambda e, v: e.add("resume", e.value(v.code), e.value(v.namespace)),
    operator.itemgetter: _reduced,
    operator.attrgetter: _reduced,
    types.GenericAlias: _reduced,
    typing.ForwardRef: _forward_reference,
    types.UnionType: _union,
    **dict.fromkeys(ALIASES, _reduced),
    ClassKey: lambda e, v: e.add("call", e.value(ClassKey), e.value((_alive(v.reference),))),
}  # fmt: skip

CONTAINERS = (dict, list, set, bytearray, collections.OrderedDict, collections.defaultdict, collections.deque)
# Objects whose identity does not matter, and parts of the artefact itself.
COPIED = (
    *INLINE, frozenset, range, slice, torch.Size, torch.dtype, torch.layout, torch.memory_format, torch.device,
    types.CodeType, _native.Plan, _native.BackendCall, Hole, Resume, Expr,
    *ALIASES, types.GenericAlias, types.UnionType, typing.ForwardRef,
)  # fmt: skip

BY_BASE: tuple[tuple[Any, Callable[[Encoder, Any], Token]], ...] = (
    (torch.Tensor, _tensor),
    (fx.GraphModule, _graph_module),
    (fx.immutable_collections.immutable_list, lambda e, v: e.add("fixed list", e.values(v))),
    (fx.immutable_collections.immutable_dict, lambda e, v: e.add("fixed dict", e.values(v), e.values(v.values()))),
)


ROOTS: dict[str, Callable[[Encoder, Any], Token]] = {
    "const": lambda e, arg: e.exact(arg),
    "class": lambda e, arg: e.add("weak", e.exact(_alive(arg))),
}
"""The writers for roots of sources that hold objects."""


def _alive(reference: Any) -> Any:
    found = reference()
    if found is None:
        raise Unsavable("a guard compares with an object that was freed")
    return found
