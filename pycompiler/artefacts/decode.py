"""The decoder: records → objects; see `data`.

In: records, names, libraries, and the function that receives the artefact.
Out: `Decoder.all(records)`, one object per record.  A name without an object here, or with another object than when
it was written, raises `ArtefactError`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import marshal
import os
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensorMode

from pycompiler import _native, config
from pycompiler.artefacts.data import GUARD, fields_of, is_data
from pycompiler.autograd import runtime
from pycompiler.autograd.control_flow import choice_of
from pycompiler.capture.bytecode.resume import register_resume_code
from pycompiler.capture.recipe.recipe import GRAPH, TAIL_CALL, Resume
from pycompiler.errors import ArtefactError
from pycompiler.ir.generated_source import drop_source_when_freed, forward_of
from pycompiler.ir.guards import Guard
from pycompiler.ir.lazy_value import Lazy, LazyCall
from pycompiler.ir.persistent_names import Name, NameGone, content, resolve
from pycompiler.ir.source import ACCESSORS, Scope, Source, read
from pycompiler.pipeline import Family
from pycompiler.runtime import disk_cache
from pycompiler.runtime.heap import keep_freed_memory
from pycompiler.symbolic.symbolic_node import SymbolicNode
from pycompiler.symbolic.symbols import Symbols
from pycompiler.torch_compat.fake_mode import fake_like, new_fake_mode
from pycompiler.torch_compat.process_settings import Lock


def read_names(names: Sequence[tuple[Name, str]]) -> list[Any]:
    """The objects of the names here; ArtefactError with one line for each missing or changed object."""
    found, wrong = [], []
    known: dict[int, str | None] = {}
    for name, expected in names:
        try:
            value = resolve(name)
        except NameGone as e:
            wrong.append(str(e))
            continue
        text = known.get(id(value))
        if text is None:
            text = known[id(value)] = content(value)
        if text != expected:
            wrong.append(f"{_spelled(name)} has changed")
        found.append(value)
    if wrong:
        raise ArtefactError("\n".join(["the program has changed since the artefact was written:", *wrong]))
    return found


def _spelled(name: Name) -> str:
    return f"{name[0] if name[0] != 'attribute' else ''} {'.'.join(name[1:3])}".strip()


class Decoder:
    """`function`: the function that receives the artefact; `family`: of its compiled function; `names`: the named
    objects."""

    def __init__(
        self, function: types.FunctionType, family: Family, names: Sequence[Any], libraries: Sequence[bytes]
    ) -> None:
        self.function, self.family, self.names, self.libraries = function, family, names, libraries
        self.made: list[Any] = []
        self._mode: FakeTensorMode | None = None
        self._symbolic = False

    def all(self, records: Sequence[tuple[Any, ...]]) -> list[Any]:
        made = self.made = []
        for record in records:
            made.append(READ[record[0]](self, *record[1:]))
        return made

    def value(self, token: Any) -> Any:
        return self.made[token[0]] if type(token) is tuple else token

    def values(self, tokens: Sequence[Any]) -> list[Any]:
        made = self.made
        return [made[t[0]] if type(t) is tuple else t for t in tokens]

    def later(self, text: bytes) -> Lazy:
        def make() -> Any:
            inner = Decoder(self.function, self.family, self.names, self.libraries)
            records, top = marshal.loads(text)
            inner.all(records)
            return inner.value(top)

        return Lazy(make)

    def mode(self, symbolic: bool) -> FakeTensorMode:
        if self._mode is None or (symbolic and not self._symbolic):
            self._mode, self._symbolic = new_fake_mode(symbolic=symbolic), symbolic
        return self._mode


# kinds of records -----------------------------------------------------------------------------------------------------
def _guard(d: Decoder, *fields: Any) -> Guard:
    made: Any = object.__new__(Guard)
    made.__dict__.update(zip(GUARD, d.values(fields), strict=True))
    return made  # type: ignore[no-any-return]


def _source(d: Decoder, *fields: Any) -> Source:
    values: list[Any] = [sys.intern(value) if type(value) is str else value for value in d.values(fields)]
    return Source(*values)


def _class(d: Decoder, module: str, name: str, fields: tuple[str, ...] | None) -> type:
    found = resolve(("attribute", module, name))
    if not (isinstance(found, type) and is_data(found) and fields_of(found) == fields):
        raise ArtefactError(f"{module}.{name} is not a class that an artefact may hold")
    return found


def _make(d: Decoder, cls: Any, values: tuple[Any, ...]) -> Any:
    made: Any = object.__new__(known := d.value(cls))
    for name, value in zip(known.__dataclass_fields__, d.values(values), strict=True):
        object.__setattr__(made, name, value)
    return made


def _state(d: Decoder, token: Any, items: tuple[tuple[str, Any], ...]) -> None:
    made = d.value(token)
    for name, value in items:
        object.__setattr__(made, name, d.value(value))


def _at(d: Decoder, namespace: Any, source: Any, expected: str) -> Any:
    where: Source = d.value(source)
    try:
        found = read(where, Scope({}, d.value(namespace)))
    except Exception as e:
        raise ArtefactError(
            f"the program has changed since the artefact was written: {where} cannot be read ({e})"
        ) from None
    if content(found) != expected:
        raise ArtefactError(f"the program has changed since the artefact was written: {where} has another value")
    return found


def _printed(d: Decoder, name: str, text: str, called: str) -> Any:
    made = runtime.build_text(name, text, {})
    if made.__name__ != called:
        made.__name__ = made.__qualname__ = called
    return made


def _globals(d: Decoder, token: Any, items: tuple[tuple[str, Any], ...]) -> None:
    d.value(token).__globals__.update((k, d.value(v)) for k, v in items)


def _code(d: Decoder, text: bytes, constants: tuple[Any, ...]) -> types.CodeType:
    code: types.CodeType = marshal.loads(text)
    return code.replace(co_consts=tuple(d.values(constants)))


def _resume(d: Decoder, code: Any, namespace: Any) -> Resume:
    """A resume function; a later capture that breaks at the same place finds its code."""
    register_resume_code(d.value(code))
    return Resume.of(d.value(code), d.value(namespace))


def _plan(d: Decoder, plan: Any, library: int | None, source: str) -> Any:
    data = d.value(plan)
    keep_freed_memory()
    if library is not None:
        data.library, data.source = library_file(d.libraries[library], source), source
    if config.verify_ir:
        from pycompiler.runtime.rules import check_plan  # imports cffi

        check_plan(data)
    try:
        return _native.Plan(data)
    except (OSError, RuntimeError) as e:
        raise ArtefactError(f"the kernels of graph {data.name} cannot be loaded: {e}") from None


def library_file(library: bytes, source: str) -> str:
    """A file with these bytes, in the cache of kernels."""
    key = disk_cache.digest("artefact", hashlib.sha256(library).hexdigest())

    def fill(folder: Path) -> None:
        (folder / disk_cache.SOURCE).write_text(source)
        (folder / disk_cache.LIBRARY).write_bytes(library)

    try:
        folder, _ = disk_cache.fetch(disk_cache.open_root(), key, fill)
    except OSError as error:
        try:
            folder, _ = disk_cache.fetch(disk_cache.fall_back(error), key, fill)
        except OSError as second:
            raise ArtefactError(f"no folder for the artefact's kernels: {error}; {second}") from second
    return os.fspath(folder / disk_cache.LIBRARY)


def _unless_shared(d: Decoder, plan: Any, written: tuple[int, ...], eager: Any) -> None:
    _native.unless_shared(d.value(plan), list(written), d.value(eager))


def _tensor(d: Decoder, data: bytes, shape: tuple[int, ...], stride: tuple[int, ...], dtype: Any) -> torch.Tensor:
    with torch.inference_mode(False):
        made = torch.empty_strided(shape, stride, dtype=d.value(dtype), device="cpu")
        if data:
            ctypes.memmove(made.data_ptr(), data, len(data))
    return made


def _fake(
    d: Decoder, shape: Any, stride: Any, offset: Any, dtype: Any, device: Any, requires_grad: bool
) -> torch.Tensor:
    lies = (d.values(shape), d.values(stride), d.value(offset))
    symbolic = any(isinstance(n, torch.SymInt) for n in (*lies[0], *lies[1], lies[2]))
    made = fake_like(d.mode(symbolic), *lies, d.value(dtype), d.value(device))
    return made.requires_grad_() if requires_grad else made


def _symbols(d: Decoder) -> Symbols:
    made = object.__new__(Symbols)
    made.place = lambda: None
    vars(made).update({name: {} for name in Symbols.CACHES})
    return made


def _symbolic(d: Decoder, kind: str, symbols: Any, value: Any) -> Any:
    return getattr(torch, kind)(SymbolicNode(d.value(symbols), d.value(value)))


def _node(d: Decoder, graph: Any, op: str, name: str, parts: tuple[Any, ...], meta: tuple[Any, ...]) -> fx.Node:
    target, args, kwargs = d.values(parts)
    made: fx.Node = d.value(graph).create_node(op, target, tuple(args), dict(kwargs), name=name)
    made.meta = {k: d.value(v) for k, v in meta}
    return made


def _graph_module(d: Decoder, graph: Any, held: tuple[tuple[str, Any], ...]) -> fx.GraphModule:
    made = fx.GraphModule({k: d.value(v) for k, v in held}, d.value(graph))
    drop_source_when_freed(made)
    return made


def _graph_call(d: Decoder, module: Any) -> LazyCall:
    return LazyCall(d.value(module), forward_of)


def _is_unusual() -> Any:
    return _native.PlainState(runtime._is_unusual)


HOLES = {hole.name: hole for hole in (GRAPH, TAIL_CALL)}

READ: dict[str, Callable[..., Any]] = {
    "name": lambda d, place: d.names[place],
    "root globals": lambda d: d.function.__globals__,
    "root code": lambda d: d.function.__code__,
    "at": _at,
    "guard": _guard,
    "source": _source,
    "make": _make,
    "class": _class,
    "new": lambda d, cls: object.__new__(d.value(cls)),
    "state": _state,
    "later": lambda d, text: d.later(text),
    "tuple": lambda d, items: tuple(d.values(items)),
    "list": lambda d: [],
    "extend": lambda d, token, items: d.value(token).extend(d.values(items)),
    "dict": lambda d: {},
    "update": lambda d, token, items: d.value(token).update([(d.value(k), d.value(v)) for k, v in items]),
    "size": lambda d, items: torch.Size(items),
    "set": lambda d, items: set(d.values(items)),
    "frozenset": lambda d, items: frozenset(d.values(items)),
    "range": lambda d, *bounds: range(*bounds),
    "slice": lambda d, *bounds: slice(*d.values(bounds)),
    "torch": lambda d, name: getattr(torch, name),
    "device": lambda d, name: torch.device(name),
    "weak": lambda d, token: weakref.ref(d.value(token)),
    "reader": lambda d, kind: ACCESSORS[kind].read,
    "printed": _printed,
    "globals": _globals,
    "code": _code,
    "hole": lambda d, name: HOLES[name],
    "resume": _resume,
    "apply": lambda d, name, forward, backward: runtime.apply_of(name, d.value(forward), d.value(backward)),
    "method": lambda d, owner, name: getattr(d.value(owner), name),
    "graph call": _graph_call,
    "plan": _plan,
    "unless shared": _unless_shared,
    "backend call": lambda d, target: _native.BackendCall(d.value(target)),
    "plain state": lambda d: _is_unusual(),
    "autograd node": lambda d, kind, recipe: getattr(_native, kind)(d.value(recipe)),
    "partial": lambda d, func, args, kwargs: functools.partial(d.value(func), *d.values(args), **d.value(kwargs)),
    "not implemented": lambda d: NotImplemented,
    "lock": lambda d: Lock(),
    "call": lambda d, function, arguments: d.value(function)(*d.value(arguments)),
    "tensor": _tensor,
    "fake": _fake,
    "choice": lambda d, number, sides, like, names: choice_of(number, d.value(sides), d.value(like), d.value(names)),
    "symbolic": _symbolic,
    "symbols": _symbols,
    "graph": lambda d: fx.Graph(),
    "node": _node,
    "graph module": _graph_module,
    "fixed list": lambda d, items: fx.immutable_collections.immutable_list(d.values(items)),
    "fixed dict": lambda d, keys, values: dict(zip(d.values(keys), d.values(values), strict=True)),
}  # fmt: skip
