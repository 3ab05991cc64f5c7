"""Recompute checks: an eager backward calls a checkpointed function again, and reads Python state again.  Compiled code
uses the state of the first call.

In: guards on places after the frame has run, and sources of the tensors that the function reads.
Out: `RecomputeCheck`, a constant of generated code.  It hangs a check on the autograd nodes that lead to the checkpoint.  A
backward after a change of that state is an error.
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
MISSING_VALUE = object()
NUMBERS = {int, float, complex, bool, str, bytes}


@dataclass(frozen=True, eq=False)
class RecomputeCheck:
    """The places to check before a backward.

    `guards`: guards on places that the function read.
    `tensors`: places that must still hold the same tensors.
    `held`: places where tensors were; the program may have moved these tensors.
    `names`: the locals at the start of sources, first the `looked` ones that are read again.
    `stored`: places and containers that the frame itself writes.
    `numbers`: places of numbers that are symbols, whose value no guard fixes.
    """

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
        """Called after the frame has run.

        `results`: tensors through which the checkpoint's backward is reached.
        `made`: objects that the frame created.
        """
        # the autograd nodes, and the indexes of their gradients that lead to the checkpoint
        nodes: dict[Any, list[int]] = {}
        for result in results:
            if result.grad_fn is not None:
                nodes.setdefault(result.grad_fn, []).append(result.output_nr)
        if not nodes:
            return
        whole = self.tree.check(scope.locals, scope.globals) is None
        each = [] if whole else [(g, t) for g, t in self.each if t.check(scope.locals, scope.globals) is None]
        stored = [(s, value) for s in self.stored if (value := _read(s, scope)) is not MISSING_VALUE]
        numbers = [(s, value) for s in self.numbers if (value := _read(s, scope)) is not MISSING_VALUE]
        held = [value for _, value in stored if isinstance(value, (dict, *CONTAINERS))]
        contents = [(value, _contents(value)) for value in (*held, *made)]
        states = []
        for k, source in enumerate((*self.tensors, *self.held)):
            tensor = _read(source, scope)
            if isinstance(tensor, torch.Tensor):  # weakly: a tensor without a holder cannot be written
                states.append((source, k < len(self.tensors), weakref.ref(tensor), _state(tensor)))
        scope = Scope({name: scope.locals[name] for name in self.names[: self.looked]}, scope.globals)

        def look(given: list[int], grads: Sequence[Any]) -> None:
            if all(grads[k] is None for k in given):
                return
            failed = self.tree.check(scope.locals, scope.globals) if whole else None
            if failed is not None:
                _changed(
                    str(self.guards[failed]) if failed < len(self.guards) else "each object that was read still exists"
                )
            for guard, tree in each:
                if tree.check(scope.locals, scope.globals) is not None:
                    _changed(str(guard))
            for source, value in stored:
                if not _same(_read(source, scope), value):
                    _changed(f"{source} is the object that the frame stored there")
            for source, value in numbers:
                if not _same(_read(source, scope), value):
                    _changed(f"{source} is {value!r}")
            for value, before in contents:
                now = _contents(value)
                if len(now) != len(before) or not all(map(_same, now, before)):
                    _changed(f"a {type(value).__name__} that the frame created or stored has its old contents")
            for source, stays, known, state in states:
                found = known()
                if stays and _read(source, scope) is not found:
                    _changed(f"{source} is the same tensor as before")
                if found is not None and _state(found) != state:
                    _changed(f"the tensor at {source} has not been written")

        for node, given in nodes.items():
            node.register_prehook(partial(look, given))


def _read(source: Source, scope: Scope) -> Any:
    """The object at a source, or GONE."""
    try:
        return read(source, scope)
    except (LookupError, AttributeError, TypeError, ValueError):
        return MISSING_VALUE


def _contents(value: Any) -> list[Any]:
    """The content of a container, or of an object of the program."""
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
    """The visible state of a tensor: its layout, its memory and how often the memory was written.  The memory may be
    freed."""
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        held = [getattr(tensor, name) for name in names]  # a device mesh may be among them
        return (context, *(_state(t) if isinstance(t, torch.Tensor) else t for t in held))
    strided = tensor.layout is torch.strided and torch._C._has_storage(tensor)
    memory = (StorageWeakRef(tensor.untyped_storage()), tensor.stride(), tensor.storage_offset()) if strided else ()  # type: ignore[no-untyped-call]
    version = None if tensor.is_inference() else tensor._version
    return (version, tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad, *memory)


def _changed(expected: str) -> None:
    raise RuntimeError(
        f"in compiled code, state that a checkpointed function, the backward of an autograd Function, or a hook reads "
        f"has changed before its backward: this no longer holds: {expected}. Eager mode would compute with the new state, "
        f"compiled code with the old one. Run the call eagerly (torch.compiler.disable), or do not change the state before "
        f"the backward"
    )


def watch(
    again: RecomputeCheck,
    namespace: dict[str, Any],
    results: tuple[torch.Tensor, ...],
    made: tuple[Any, ...],
    *values: Any,
) -> None:
    """Called by generated code after the graph and the frame's effects; `values` are the locals of `again.names`."""
    if torch.is_grad_enabled():
        again.watch(Scope(dict(zip(again.names, values, strict=True)), namespace), results, made)
