"""Backends by name, and the registry that users extend.

In: a name or a callable `fn(gm, example_inputs) -> callable`.
Out: the callable.  `eager` runs the captured graph, `aot_eager` its joint graph without codegen, `native` (alias
`inductor`) compiles it.  The last two are composed in `pipeline/`, which registers them here.

Files in reading order:

- entry.py: this compiler as a backend of torch.compile
- options.py: modes and options of this package's backends
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.errors import UnknownName, UserError, describe
from pycompiler.ir import choices
from pycompiler.ir.generated_source import forward_of

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
BUILTIN_BACKENDS = ("eager", "aot_eager", "native")
of_graph: Callable[[fx.GraphModule, Sequence[Any], dict[str, Any]], Callable[..., Sequence[Any]]]
"""Compiles a graph that another compiler captured, from its example inputs and knobs; `pipeline/` sets it."""
NATIVE = "native"
TAGS: dict[str, tuple[str, ...]] = {
    name: ("debug",) for name in ("eager", "aot_eager", *(name for name, known in ALIASES.items() if known != NATIVE))
}
"""The tags of backends; `list_backends` excludes names by them."""
_default: str | Backend = NATIVE


def register_backend(compiler_fn: Backend | None = None, name: str | None = None, tags: Sequence[str] = ()) -> Any:
    """Register a backend under a name.  Usable as a decorator.

    Args:
        compiler_fn: A function `(gm, example_inputs) -> callable`.  None: return a decorator.
        name: The backend's name.  None: the function's `__name__`.
        tags: Words such as "debug" and "experimental", by which `list_backends` leaves the name out.

    Returns:
        Callable: `compiler_fn`; without it, a decorator.

    Raises:
        UserError: Another function has the name, or an argument has a wrong type.

    Example:
        ```python
        @pycompiler.register_backend(name="printing", tags=("debug",))
        def printing(gm, example_inputs):
            print(gm.graph)
            return gm                                # a callable with the graph's inputs

        compiled = pycompiler.compile(lambda x: x + 1, backend="printing")
        compiled(torch.ones(3))
        ```
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
    """The backend of a name.  A callable is itself a backend.

    Args:
        compiler_fn: A name of `list_backends(None)`, or a backend.

    Returns:
        Callable: A function `(gm, example_inputs) -> callable`.

    Raises:
        UnknownName: No backend has the name; the message lists the known ones.
        UserError: `compiler_fn` is neither a name nor callable.

    Example:
        ```python
        native = pycompiler.lookup_backend("native")
        assert pycompiler.lookup_backend(native) is native
        ```
    """
    return lookup(compiler_fn)


def name_of(backend: str | Backend) -> str:
    """A backend's name in messages."""
    return backend if isinstance(backend, str) else str(getattr(backend, "__name__", repr(backend)))


def is_builtin_backend(backend: object) -> bool:
    """Whether a backend is a named backend of this package: its failures are internal errors, and the call runs
    eagerly."""
    return isinstance(backend, str) and ALIASES.get(backend, backend) in BUILTIN_BACKENDS


def list_backends(exclude_tags: Sequence[str] = ("debug", "experimental")) -> list[str]:
    """Names of the registered backends, aliases included.

    Args:
        exclude_tags: Leave out names with one of these tags.  None or `()`: all names.

    Returns:
        list[str]: The names, sorted.

    Example:
        ```python
        assert "native" in pycompiler.list_backends()
        assert "eager" in pycompiler.list_backends(None)
        ```
    """
    excluded = set(exclude_tags or ())
    return sorted(name for name in {*REGISTRY, *ALIASES} if excluded.isdisjoint(TAGS.get(name, ())))


def set_default_backend(backend: str | Backend | None) -> None:
    """Set the backend of `compile()` calls without a backend.

    Args:
        backend: A name or a function, as in `compile`.  None: "native" again.

    Raises:
        UnknownName: No backend has the name.
        UserError: `backend` is neither a name nor callable.

    Example:
        ```python
        pycompiler.set_default_backend("aot_eager")  # no kernels
        pycompiler.compile(lambda x: x + 1)(torch.ones(3))
        pycompiler.set_default_backend(None)
        ```
    """
    global _default
    wanted = NATIVE if backend is None else backend
    lookup(wanted)
    _default = wanted


def get_default_backend() -> str | Backend:
    """The backend of `compile()` calls without a backend: "native", unless `set_default_backend` has set another one.

    Returns:
        str | Callable: A name or a function, as it was set.

    Example:
        ```python
        assert pycompiler.get_default_backend() == "native"
        ```
    """
    return _default


@register_backend
def eager(gm: fx.GraphModule, example_inputs: list[torch.Tensor]) -> Callable[..., Sequence[Any]]:
    """Runs the captured graph as it is."""
    return forward_of(gm)
