"""The public names: compile, disable, run, reset, explain and friends.

In: functions and modules.  Out: the same, compiled.  Example:

    import pycompiler
    model = pycompiler.compile(model)
    model(x)
"""

from __future__ import annotations

import functools
import inspect
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, overload

import torch

from pycompiler import _native, backends, config, pipeline
from pycompiler.errors import UnknownName, UserError

F = TypeVar("F", bound=Callable[..., Any])

MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
OPTIONS = (
    "guard_filter_fn", "epilogue_fusion", "max_autotune", "fallback_random", "shape_padding", "triton.cudagraphs",
    "trace.enabled", "trace.graph_diagram", "size_asserts", "coordinate_descent_tuning", "threads", "partition",
    "activation_memory_budget", "deterministic", "emulate_precision_casts",
)  # fmt: skip

_families: weakref.WeakSet[Any] = weakref.WeakSet()


class _FamilyRef:
    """Keeps a family reachable from its compiled callables (families are not weakly referable by hash)."""


@overload
def compile(model: F, **kwargs: Any) -> F: ...
@overload
def compile(model: None = None, **kwargs: Any) -> Callable[[F], F]: ...


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
    name: str | None = None,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = True,
    nopython: bool | None = None,
) -> Any:
    """Compile a function or an `nn.Module`.

    fullgraph: raise `Unsupported` at the first graph break (old name: nopython).  dynamic: None, True or False.
    backend: a name of `list_backends()` or a callable `(gm, example_inputs) -> callable`; default: `get_default_backend()`.
    mode: one of `MODES`; options: keys of `OPTIONS`; not both.  disable: return `model` unchanged.
    recompile_limit: entries per code object, default `config.recompile_limit`.  isolate_recompiles: always so here.
    Without `model`, returns a decorator.  Raises `UserError` for anything that it does not know.
    """
    if model is None:
        arguments = {k: v for k, v in locals().items() if k != "model"}
        return lambda fn: compile(fn, **arguments)
    if not callable(model):
        raise UserError(f"compile() takes a function or an nn.Module, got {type(model).__name__}")
    _check_arguments(dynamic, mode, options, recompile_limit)
    if disable or config.disable:
        return model
    chosen = backends.get_default_backend() if backend is None else backend
    fn = backends.lookup(chosen)
    options = dict(options or {})
    family = pipeline.Family(
        backend=fn,
        backend_name=chosen if isinstance(chosen, str) else getattr(chosen, "__name__", repr(chosen)),
        fullgraph=fullgraph or bool(nopython),
        recompile_limit=recompile_limit,
        guard_filter=options.get("guard_filter_fn"),
        ours=isinstance(chosen, str) and backends.ALIASES.get(chosen, chosen) in ("eager", "aot_eager", "native"),
    )
    return _compile_target(model, family, name)


def _check_arguments(
    dynamic: object, mode: str | None, options: Mapping[str, Any] | None, recompile_limit: object
) -> None:
    if dynamic not in (None, True, False):
        raise UserError(f"dynamic must be None, True or False, got {dynamic!r}")
    if mode is not None and options is not None:
        raise UserError("give mode or options, not both")
    if mode is not None and mode not in MODES:
        raise UnknownName.of("mode", mode, MODES)
    for key in options or {}:
        if key not in OPTIONS:
            raise UnknownName.of("option", key, OPTIONS)
    if recompile_limit is not None and (not isinstance(recompile_limit, int) or recompile_limit < 1):
        raise UserError(f"recompile_limit must be a positive integer, got {recompile_limit!r}")


def _compile_target(model: Any, family: pipeline.Family, name: str | None) -> Any:
    if isinstance(model, torch.nn.Module):
        return compile_module(model, family, name)
    inner = getattr(model, "_pycompiler_original", None)
    if isinstance(model, _native.CompiledFunction):
        model = inner or model.fn
    if isinstance(model, types.FunctionType):
        return _compile_function(model, family, name)
    if isinstance(model, types.MethodType):
        if isinstance(model.__func__, types.FunctionType):
            return types.MethodType(_compile_function(model.__func__, family, name), model.__self__)
        return model
    if isinstance(model, (staticmethod, classmethod)):
        return type(model)(_compile_target(model.__func__, family, name))
    if isinstance(model, type):
        return model
    return _compile_function(_forwarder(model), family, name)


def _forwarder(target: Any) -> types.FunctionType:
    """A Python function that calls `target`: builtins, partials and callable objects have no frame of their own."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return target(*args, **kwargs)

    try:
        functools.update_wrapper(call, target)
    except AttributeError:
        pass
    return call


def _compile_function(fn: types.FunctionType, family: pipeline.Family, name: str | None) -> Any:
    if getattr(fn, "_pycompiler_disabled", False):
        return fn
    made = pipeline.new_compiled(fn, family, name=name)
    functools.update_wrapper(made, fn)
    made._pycompiler_original = fn
    made._pycompiler_family = family
    made._orig_mod = fn
    _compiled.add(made)
    return made


_compiled: weakref.WeakSet[Any] = weakref.WeakSet()


def compile_module(module: torch.nn.Module, family: pipeline.Family, name: str | None) -> Any:
    """A module that shares `module`'s state (`__dict__`), and whose call is compiled.

    Its class derives from the module's own: attributes, `state_dict` keys, hooks, `isinstance`, signature and doc are
    the original's; `_orig_mod` leads to it; pickling and copying give the original's.
    """
    original = module.__dict__.get("_pycompiler_orig_mod", module)
    if isinstance(module, CompiledModuleMixin):
        module = module._orig_mod
    cls = type(module)
    entry = cls.__call__
    function = entry if isinstance(entry, types.FunctionType) else _forwarder(module)
    compiled = pipeline.new_compiled(function, family, name=name or cls.__qualname__)
    call: Any = types.MethodType(compiled, module) if isinstance(entry, types.FunctionType) else compiled
    namespace = {
        "__call__": call,
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": cls.__doc__,
        "_orig_mod": property(lambda self: module),
        "_pycompiler_compiled": compiled,
        "_pycompiler_family": family,
        "__reduce_ex__": lambda self, protocol: module.__reduce_ex__(protocol),
        "__deepcopy__": lambda self, memo: _deepcopy_compiled(self, memo),
        "__signature__": _signature(module),
    }
    made_class = type(cls)(cls.__name__, (cls, CompiledModuleMixin), namespace)
    made = cls.__new__(made_class)
    object.__setattr__(made, "__dict__", module.__dict__)
    compiled._pycompiler_family = family
    _compiled.add(compiled)
    del original
    return made


class CompiledModuleMixin:
    """Marks classes made by `compile_module`."""

    _orig_mod: Any
    _pycompiler_compiled: Any


def _signature(module: torch.nn.Module) -> inspect.Signature | None:
    try:
        return inspect.signature(module.forward)
    except (TypeError, ValueError):
        return None


def _deepcopy_compiled(self: Any, memo: dict[int, Any]) -> Any:
    import copy

    family = self._pycompiler_family
    fresh = pipeline.Family(
        backend=family.backend, backend_name=family.backend_name, fullgraph=family.fullgraph,
        recompile_limit=family.recompile_limit, guard_filter=family.guard_filter, ours=family.ours,
    )  # fmt: skip
    return compile_module(copy.deepcopy(self._orig_mod, memo), fresh, None)


def compiled_of(target: Any) -> Any:
    """The `CompiledFunction` behind what `compile` returned, or None."""
    if isinstance(target, CompiledModuleMixin):
        return target._pycompiler_compiled
    if isinstance(target, types.MethodType):
        target = target.__func__
    return target if isinstance(target, _native.CompiledFunction) else None


def run(fn: Any) -> Any:
    """A frozen callable: cached entries or eager, never a compile.

    For a compiled callable: the callable itself, switched to mode "run".  For a function or module that was not
    compiled: itself.
    """
    found = compiled_of(fn)
    if found is None:
        if not callable(fn):
            raise UserError(f"run() takes a compiled callable, got {type(fn).__name__}")
        return fn
    for member in list(found._pycompiler_family.members):
        member.set_mode("run")
    found._pycompiler_family.mode = "run"
    return fn


def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Mark a function or module to run eagerly inside compiled callers; with recursive=False its callees are captured."""
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    found = compiled_of(fn)
    if found is not None:
        fn = fn._orig_mod if isinstance(fn, CompiledModuleMixin) else found._pycompiler_original
    if isinstance(fn, torch.nn.Module):
        fn.forward = disable(fn.forward, recursive, reason=reason)  # type: ignore[method-assign]
        return fn
    if isinstance(fn, type):
        for attribute in ("__init__", "__call__", "forward"):
            if isinstance(fn.__dict__.get(attribute), types.FunctionType):
                setattr(fn, attribute, disable(fn.__dict__[attribute], recursive, reason=reason))
        return fn
    if not callable(fn):
        raise UserError(f"disable() takes a function, class or module, got {type(fn).__name__}")

    @functools.wraps(fn)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    disabled._pycompiler_disabled = True  # type: ignore[attr-defined]
    disabled._pycompiler_reason = reason  # type: ignore[attr-defined]
    return disabled


def graph_break(msg: str = "") -> None:
    """Break the graph here; outside of a capture it does nothing."""


graph_break._pycompiler_break = True  # type: ignore[attr-defined]


def reset(target: Any = None) -> None:
    """Drop compiled entries: of one compiled callable, or of all."""
    if target is not None:
        found = compiled_of(target)
        if found is None:
            raise UserError(f"reset() takes a compiled callable, got {type(target).__name__}")
        found._pycompiler_family.reset()
        return
    for compiled in list(_compiled):
        compiled._pycompiler_family.reset()


def is_compiling() -> bool:
    """True while a program is captured (captured code sees the constant True)."""
    return False


is_compiling._pycompiler_constant = True  # type: ignore[attr-defined]
