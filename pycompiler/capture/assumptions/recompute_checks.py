"""What a checkpointed function looked at: eager's backward looks again, compiled code computes with what was there.

In: guards on what is there when a frame has run, sources of the tensors that it reads.  Out: `Again`, a constant of generated
code, which hangs a check on the nodes that lead to the checkpoint: a backward after a change is an error.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pycompiler import _native
from pycompiler.ir.guards import Guard, Scope
from pycompiler.ir.source import Source, read

CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, collections.deque)
GONE = object()
NUMBERS = {int, float, complex, bool, str, bytes}


@dataclass(frozen=True, eq=False)
class Again:
    """`guards`: of places that were looked at. `tensors`: places that must hold the tensors that they held. `held`: where
    tensors were that the program has by now, wherever else. `names`: locals that sources begin with, first those (`looked`)
    that are looked at again. `stored`: places and containers that the frame itself writes. `numbers`: places of numbers that are
    symbols, of which no guard says which one it is."""

    guards: tuple[Guard, ...]
    tensors: tuple[Source, ...]
    held: tuple[Source, ...]
    names: tuple[str, ...]
    looked: int
    stored: tuple[Source, ...] = ()
    numbers: tuple[Source, ...] = ()

    @cached_property
    def tree(self) -> _native.GuardTree:
        return _native.GuardTree(list(self.guards), list(self.names[: self.looked]))

    @cached_property
    def each(self) -> list[tuple[Guard, _native.GuardTree]]:
        return [(g, _native.GuardTree([g], list(self.names[: self.looked]))) for g in self.guards]

    def watch(self, scope: Scope, results: Sequence[Any], made: Sequence[Any]) -> None:
        """The frame has run: `results` are tensors that the checkpoint's backward is reached from, `made` what the frame made."""
        nodes: dict[Any, list[int]] = {}  # and which of their gradients lead there
        for result in results:
            if result.grad_fn is not None:
                nodes.setdefault(result.grad_fn, []).append(result.output_nr)
        if not nodes:
            return
        whole = self.tree.check(scope.locals, scope.globals) is None
        each = [] if whole else [(g, t) for g, t in self.each if t.check(scope.locals, scope.globals) is None]
        stored = [(s, value) for s in self.stored if (value := _read(s, scope)) is not GONE]
        numbers = [(s, value) for s in self.numbers if (value := _read(s, scope)) is not GONE]
        held = [value for _, value in stored if isinstance(value, (dict, *CONTAINERS))]
        contents = [(value, _contents(value)) for value in (*held, *made)]
        states = []
        for k, source in enumerate((*self.tensors, *self.held)):
            tensor = _read(source, scope)
            if isinstance(tensor, torch.Tensor):  # weakly: nobody changes what nobody has
                states.append((source, k < len(self.tensors), weakref.ref(tensor), _state(tensor)))
        scope = Scope({name: scope.locals[name] for name in self.names[: self.looked]}, scope.globals)

        def look(given: list[int], grads: Sequence[Any]) -> None:
            if all(grads[k] is None for k in given):
                return
            failed = self.tree.check(scope.locals, scope.globals) if whole else None
            if failed is not None:
                _changed(str(self.guards[failed]) if failed < len(self.guards) else "a place of it is gone")
            for guard, tree in each:
                if tree.check(scope.locals, scope.globals) is not None:
                    _changed(str(guard))
            for source, value in stored:
                if not _same(_read(source, scope), value):
                    _changed(f"{source} is what the frame stored there")
            for source, value in numbers:
                if not _same(_read(source, scope), value):
                    _changed(f"{source} is {value!r}")
            for value, before in contents:
                now = _contents(value)
                if len(now) != len(before) or not all(map(_same, now, before)):
                    _changed(f"a {type(value).__name__} that the frame made, or stored, holds what it held")
            for source, stays, known, state in states:
                found = known()
                if stays and _read(source, scope) is not found:
                    _changed(f"{source} is the tensor that it was")
                if found is not None and _state(found) != state:
                    _changed(f"the tensor at {source} is as it was, unwritten")

        for node, given in nodes.items():
            node.register_prehook(partial(look, given))


def _read(source: Source, scope: Scope) -> Any:
    """What is there, or GONE."""
    try:
        return read(source, scope)
    except (LookupError, AttributeError, TypeError, ValueError):
        return GONE


def _contents(value: Any) -> list[Any]:
    """What a container holds, or an object of the program's."""
    if isinstance(value, dict):
        return [part for key in dict.keys(value) for part in (key, dict.__getitem__(value, key))]
    for kind in CONTAINERS:
        if isinstance(value, kind):
            return [*kind.__iter__(value)]
    found = getattr(value, "__dict__", None)
    return _contents(found) if type(found) is dict and not isinstance(value, torch.Tensor) else []


def _same(a: Any, b: Any) -> bool:
    return a is b or (type(a) is type(b) and type(a) in NUMBERS and bool(a == b))


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What code can see of a tensor: its layout, and which memory it has, written how often; the memory may go."""
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        held = [getattr(tensor, name) for name in names]  # a mesh among them
        return (context, *(_state(t) if isinstance(t, torch.Tensor) else t for t in held))
    strided = tensor.layout is torch.strided and torch._C._has_storage(tensor)
    memory = (StorageWeakRef(tensor.untyped_storage()), tensor.stride(), tensor.storage_offset()) if strided else ()  # type: ignore[no-untyped-call]
    version = None if tensor.is_inference() else tensor._version
    return (version, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad, *memory)


def _changed(expected: str) -> None:
    raise RuntimeError(
        f"in compiled code, what a checkpointed function, the backward of an autograd Function, or a hook looks at has changed "
        f"before its backward: this no longer holds: {expected}. Eager mode would compute with what is there now; compiled "
        f"code has what was there. Leave the call to eager mode (torch.compiler.disable), or change nothing before the backward"
    )


def watch(
    again: Again, namespace: dict[str, Any], results: tuple[torch.Tensor, ...], made: tuple[Any, ...], *values: Any
) -> None:
    """Generated code calls this after the graph and the frame's effects; `values` are those of `again.names`."""
    if torch.is_grad_enabled():
        again.watch(Scope(dict(zip(again.names, values, strict=True)), namespace), results, made)
