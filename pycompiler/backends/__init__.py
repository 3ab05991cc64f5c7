"""Backends by name, and the registry that users extend.

In: a name or a callable `fn(gm, example_inputs) -> callable`.  Out: the callable.  `eager` runs the captured graph,
`aot_eager` its joint graph without codegen, `native` (alias `inductor`) compiles it; the last two are composed in
`pipeline/`, which registers them here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.errors import UnknownName, UserError, describe
from pycompiler.ir import choices
from pycompiler.ir.texts import forward_of

Backend = Callable[..., Callable[..., Sequence[Any]]]

REGISTRY: dict[str, Backend] = {}
ALIASES = {
    "inductor": "native",
    "pycompiler": "native",
    "eager_debug": "eager",
    "eager_noexcept": "eager",
    "pre_dispatch_eager": "eager",
    "aot_eager_decomp_partition": "aot_eager",
    "aot_eager_default_partitioner": "aot_eager",
}
OURS = ("eager", "aot_eager", "native")
of_graph: Callable[[fx.GraphModule, Sequence[Any], dict[str, Any]], Callable[..., Sequence[Any]]]
"""Compiles a graph that another compiler captured, from its example inputs and knobs; `pipeline/` sets it."""
NATIVE = "native"
TAGS: dict[str, tuple[str, ...]] = {
    name: ("debug",) for name in ("eager", "aot_eager", *(name for name, known in ALIASES.items() if known != NATIVE))
}
"""The tags of backends that have some; `list_backends` leaves names out by them."""
_default: str | Backend = NATIVE


def register_backend(compiler_fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Make a backend known by name (its own `__name__` unless given).  Usable as a decorator.

    tags: `list_backends` leaves out names with a tag that it is to exclude ("debug", "experimental").
    Raises `UserError` when the name is taken by another function.
    """
    if compiler_fn is None:
        return lambda fn: register_backend(fn, name, tags)
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise UserError(f"a backend's tags are a sequence of strings, got {describe(tags)}")
    if not callable(compiler_fn):
        raise UserError(f"register_backend takes a callable (gm, example_inputs) -> callable, got {compiler_fn!r}")
    key = name or getattr(compiler_fn, "__name__", "")
    if not key:
        raise UserError("the backend has no __name__; pass register_backend(fn, name='...')")
    if not isinstance(key, str):
        raise UserError(f"a backend's name is a string, got {describe(key)}")
    known = REGISTRY.get(key)
    if known is not None and known is not compiler_fn:
        raise UserError(f"a backend named {key!r} is registered already; choose another name")
    REGISTRY[key] = compiler_fn
    if tags:
        TAGS[key] = tuple(tags)
    return compiler_fn


def lookup(backend: str | Backend) -> Backend:
    """The backend's function; an unknown name raises `UnknownName`, listing the known ones."""
    if isinstance(backend, str):
        name = ALIASES.get(backend, backend)
        if name not in REGISTRY:
            raise UnknownName.of("backend", backend, list_backends(exclude_tags=()))
        return REGISTRY[choices.settings.get("backend", name) if name == "native" else name]
    if not callable(backend):
        raise UserError(f"backend must be a name or a callable (gm, example_inputs) -> callable, got {backend!r}")
    return backend


def lookup_backend(compiler_fn: str | Backend) -> Backend:
    """The backend of that name; a callable is one itself."""
    return lookup(compiler_fn)


def name_of(backend: str | Backend) -> str:
    """A backend's name in messages."""
    return backend if isinstance(backend, str) else str(getattr(backend, "__name__", repr(backend)))


def is_ours(backend: object) -> bool:
    """Whether a backend is one of this package, named: its failures are ours, and the call runs eagerly."""
    return isinstance(backend, str) and ALIASES.get(backend, backend) in OURS


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Names of the registered backends, sorted; without those that have one of the excluded tags."""
    excluded = set(exclude_tags or ())
    return sorted(name for name in {*REGISTRY, *ALIASES} if excluded.isdisjoint(TAGS.get(name, ())))


def set_default_backend(backend: str | Backend | None) -> None:
    """The backend of `compile()` calls that name none; None: "native" again."""
    global _default
    wanted = NATIVE if backend is None else backend
    lookup(wanted)
    _default = wanted


def get_default_backend() -> str | Backend:
    """The backend of `compile()` calls that name none: "native", unless `set_default_backend` said otherwise."""
    return _default


@register_backend
def eager(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    """Runs the captured graph as it is."""
    return forward_of(gm)
