"""What a checkpointed function looked at: eager's backward looks again, compiled code computes with what was there.

In: guards on what is there when a frame has run, sources of the tensors that it reads.  Out: `Again`, a constant of generated
code, which hangs a check on the nodes that lead to the checkpoint: a backward after a change is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pycompiler import _native
from pycompiler.ir.guards import Guard, Scope
from pycompiler.ir.source import Source, read


@dataclass(frozen=True, eq=False)
class Again:
    """`guards`: of places that were looked at. `tensors`: places that must hold the tensors that they held. `held`: where
    tensors were that the program has by now, wherever else. `names`: locals that sources begin with."""

    guards: tuple[Guard, ...]
    tensors: tuple[Source, ...]
    held: tuple[Source, ...]
    names: tuple[str, ...]

    @cached_property
    def tree(self) -> _native.GuardTree:
        return _native.GuardTree(list(self.guards), list(self.names))

    def watch(self, scope: Scope, results: Sequence[Any]) -> None:
        """The frame has run: `results` are tensors that the checkpoint's backward is reached from."""
        nodes = dict.fromkeys(node for node in (r.grad_fn for r in results) if node is not None)
        if (
            not nodes or self.tree.check(scope.locals, scope.globals) is not None
        ):  # what the frame itself changed is no news
            return
        reached = {source: read(source, scope) for source in (*self.tensors, *self.held)}
        states = {source: _state(tensor) for source, tensor in reached.items()}

        def look(_: Any) -> None:
            failed = self.tree.check(scope.locals, scope.globals)
            if failed is not None:
                _changed(str(self.guards[failed]) if failed < len(self.guards) else "a place of it is gone")
            for source in self.tensors:
                if read(source, scope) is not reached[source]:
                    _changed(f"{source} is the tensor that it was")
            for source, state in states.items():
                if _state(reached[source]) != state:
                    _changed(f"the tensor at {source} is as it was, unwritten")

        for node in nodes:
            node.register_prehook(look)


def _state(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What code can see of a tensor: its layout, and which memory it has, written how often; the memory may go."""
    if is_traceable_wrapper_subclass(tensor):
        names, context = tensor.__tensor_flatten__()
        return (context, *(_state(getattr(tensor, name)) for name in names))
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


def watch(again: Again, namespace: dict[str, Any], results: tuple[torch.Tensor, ...], *values: Any) -> None:
    """Generated code calls this after the graph and the frame's effects; `values` are those of `again.names`."""
    if torch.is_grad_enabled():
        again.watch(Scope(dict(zip(again.names, values, strict=True)), namespace), results)
