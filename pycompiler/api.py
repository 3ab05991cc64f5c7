"""The public names: compile, disable, run, reset and friends.

In: functions and modules.  Out: the same, compiled.  Example:

    import pycompiler
    model = pycompiler.compile(model)
    model(x)
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from pycompiler import _native, backends, config, logs, pipeline, wrapping
from pycompiler.backends import options as known
from pycompiler.background import wait
from pycompiler.errors import ArgumentError, UnknownName
from pycompiler.errors import describe as _describe
from pycompiler.pipeline.stance import set_stance as set_stance
from pycompiler.wrapping import compiled_of

if TYPE_CHECKING:
    from pycompiler.artefacts.save import Saved

POLICIES = ("compile", "run", "eager", "error")


def compile(
    model: Callable[..., Any] | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] | None = None,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
    recompile_limit: int | None = None,
    isolate_recompiles: bool = True,
    nopython: bool | None = None,
    background: bool | None = None,
    verify: float = 0.0,
) -> Any:
    """Compile a function, method, callable object, class or `nn.Module`.

    fullgraph: raise `Unsupported` at the first graph break, and for a graph that would run eagerly (old name: nopython).
    dynamic: None, True or False.
    backend: a name of `list_backends(None)`, or a callable `(gm, example_inputs) -> callable`, which also gets `mode=`
    and `options=` where they are given; default: `get_default_backend()`.
    mode, options: see `backends/options.py`; not both.  disable: return `model` unchanged.
    name: the name in logs and messages.  recompile_limit: entries per code object; default: `config.recompile_limit` as
    it is when a call misses.  isolate_recompiles: accepted; each compiled callable has a cache of its own.
    background: a call that fits nothing compiled is captured, answered eagerly at once, and its graph compiled by a worker
    thread; from then on such calls run compiled (`wait_for_compiles`).  Default: `config.background_compile`, now.
    verify: the share (0 to 1) of the calls of each graph, the first one among them, that run beside eager on copies of
    their inputs, forward and backward.  A difference is an error in the log that names operator and line; the graph then
    runs eagerly.

    Without `model`, returns a decorator.  Raises `ArgumentError` (a RuntimeError, ValueError and TypeError) for what it
    does not know, when it is called, not at the first call of the result.
    """
    arguments = {k: v for k, v in locals().items() if k != "model"}
    logs.follow_torch()
    if model is None:
        return lambda fn: compile(_required(fn), **arguments)
    if not callable(model) and not isinstance(model, (staticmethod, classmethod)):
        raise ArgumentError(f"compile() takes a function or an nn.Module, got {_describe(model)}")
    chosen = backends.get_default_backend() if backend is None else backend
    _check_arguments(
        chosen, dynamic, mode, options, recompile_limit, name, verify, fullgraph=fullgraph, disable=disable,
        isolate_recompiles=isolate_recompiles, nopython=bool(nopython) if nopython is None else nopython,
        background=bool(background) if background is None else background,
    )  # fmt: skip
    function = backends.lookup(chosen)
    if disable or config.disable:
        return model
    ours = backends.is_ours(chosen)
    settings = dict(options or {})
    if ours:
        known.say_unread(mode, settings)
    if not isolate_recompiles:
        config.say_once("isolate_recompiles=False has no effect: each compiled callable has a cache of its own")
    guard_filter = settings.pop("guard_filter_fn", None)
    passed = {"mode": mode if mode != "default" else None, "options": settings}
    family = pipeline.Family(
        backend=function,
        backend_name=chosen if isinstance(chosen, str) else getattr(chosen, "__name__", repr(chosen)),
        fullgraph=bool(fullgraph or nopython),
        recompile_limit=recompile_limit,
        guard_filter=guard_filter,
        ours=ours,
        dynamic=dynamic,
        backend_options={} if ours else {k: v for k, v in passed.items() if v},
        knobs=known.knobs(settings) if ours else {},
        background=config.background_compile if background is None else background,
        verify=float(verify),
    )
    return wrapping.compiled(model, family, name)


def _required(model: Any) -> Any:
    if model is None:
        raise ArgumentError("compile() as a decorator takes a function or an nn.Module, got None")
    return model


def _check_arguments(
    backend: Any,
    dynamic: object,
    mode: object,
    options: Any,
    recompile_limit: object,
    name: object,
    verify: object,
    **flags: object,
) -> None:
    for flag, value in flags.items():
        if type(value) is not bool:
            raise ArgumentError(f"{flag} must be True or False, got {_describe(value)}")
    if dynamic is not None and not isinstance(dynamic, bool):
        raise ArgumentError(f"dynamic must be None, True or False, got {_describe(dynamic)}")
    if mode is not None and options is not None:
        raise ArgumentError("either mode or options can be given, not both: a mode is a set of options")
    if mode is not None:
        known.check_mode(mode)
    if options is not None and not isinstance(options, Mapping):
        raise ArgumentError(f"options must be a mapping from option names to values, got {_describe(options)}")
    if options and backends.is_ours(backend):
        known.check(options)
    elif options and "guard_filter_fn" in options:
        known.check_filter(options["guard_filter_fn"])
    if recompile_limit is not None and (type(recompile_limit) is not int or recompile_limit < 1):
        raise ArgumentError(f"recompile_limit must be a positive integer or None, got {_describe(recompile_limit)}")
    if not isinstance(verify, (int, float)) or not 0 <= verify <= 1:
        raise ArgumentError(f"verify must be a share of calls from 0 to 1, got {_describe(verify)}")
    if name is not None and not isinstance(name, str):
        raise ArgumentError(f"name must be a string or None, got {_describe(name)}")


def _compiled(target: Any, caller: str) -> _native.CompiledFunction:
    found = compiled_of(target)
    if found is None:
        raise ArgumentError(f"{caller} takes what pycompiler.compile returned, got {_describe(target)}")
    return found


# serving ------------------------------------------------------------------------------------------------------
def run(fn: Any = None) -> Any:
    """A frozen view of a compiled callable: what is compiled, or eager, never a compile.  The callable itself stays as it is.

    The view shares entries and counters with the callable, also those that it compiles later.  All that a call of the view
    calls is frozen, whatever its policy.  A module's view, compiled or with compiled submodules, shares the module's state.
    What was not compiled is returned as it is.  Without `fn`, returns a decorator.  `set_policy(fn, "run")` freezes the
    callable itself.
    """
    if fn is None:
        return run
    if not callable(fn) and not isinstance(fn, (staticmethod, classmethod)):
        raise ArgumentError(f"run() takes a compiled callable, got {_describe(fn)}")
    if not _parts(fn):
        config.say_once(f"run() froze nothing: {_describe(fn)} was not compiled (it takes what compile returned)")
        return fn
    if isinstance(fn, type):
        raise ArgumentError(
            f"run() gives no view of a class: set_policy({fn.__qualname__}, 'run') freezes its instances"
        )
    return wrapping.frozen(fn)


def save(compiled: Any, path: str | os.PathLike[str]) -> Saved:
    """Write what a compiled callable has compiled so far to a file, for `load` in another process.

    Guards, generated code, graphs and their kernels, forward and backward, of all its entries and resume functions; no
    parameters.  Entries that mean something in this process only are left out: `Saved.left_out` and the log say why.
    Raises `ArtefactError` when nothing can be saved.  The file appears complete or not at all.
    """
    from pycompiler.artefacts.save import save  # a program that does not save does without it

    return save(compiled, path)


def load(path: str | os.PathLike[str], model: Callable[..., Any], *, trust: bool = False) -> Any:
    """Compile `model`, the function or module that was compiled for `save`, with the entries of the file.

    Calls that they fit run natively; nothing is compiled, and no C++ compiler is needed.  All other calls are compiled.
    Raises `ArtefactError` for a file that is damaged, that was written with other versions, on a CPU with more
    instructions or from other sources of what it captured; and for one that others may write (it holds native code)
    unless `trust` is True.
    """
    if not callable(model):
        raise ArgumentError(f"load() takes the function or nn.Module that was compiled, got {_describe(model)}")
    from pycompiler.artefacts.load import load

    return load(path, lambda settings: compile(model, **settings), trust=trust)


def set_policy(fn: Any, policy: _native.Mode) -> Any:
    """What calls of a compiled callable do: returns `fn`.

    "compile": compile what no entry fits.  "run": then run eagerly (frozen).  "eager": always run eagerly.
    "error": raise `RecompileError` where no entry fits.  Holds for resume functions and across `reset`.
    """
    if policy not in POLICIES:
        raise UnknownName.of("policy", policy, POLICIES)
    _compiled(fn, "set_policy()")
    for part in _parts(fn):
        part._pycompiler_family.set_policy(policy)
    return fn


def _parts(fn: Any) -> list[_native.CompiledFunction]:
    """The CompiledFunctions of `fn` and, in a module, of its submodules."""
    candidates = [fn, *fn.modules()] if isinstance(fn, torch.nn.Module) else [fn]
    return [found for found in map(compiled_of, candidates) if found is not None]


def counters(fn: Any = None) -> dict[str, int]:
    """Counters since the last reset: of one compiled callable with its resume functions, or of all.

    hits, misses, compiles, eager_calls, limit_hits, guard_checks, fresh_failures (a new entry did not fit the very call
    that it was compiled for, which ran eagerly), tail_calls (resume functions entered).
    """
    chosen = pipeline.families() if fn is None else [_compiled(fn, "counters()")._pycompiler_family]
    total = dict.fromkeys(("hits", "misses", "compiles", "eager_calls", "limit_hits", "guard_checks"), 0)
    for family in chosen:
        for member in family.members:
            for key, value in member.counters().items():
                total[key] = total.get(key, 0) + value
    return total


def explain_miss(fn: Any, /, *args: Any, **kwargs: Any) -> list[str]:
    """Why a call with these arguments would fit no entry: one line an entry; empty when one fits, or none exists.

    Nothing is called or compiled.
    """
    found = _compiled(fn, "explain_miss()")
    if isinstance(fn, torch.nn.Module):
        args = (fn._orig_mod, *args)
    elif hasattr(fn, "__self__"):
        args = (fn.__self__, *args)
    return [text for _, _, text in found.explain_miss(*args, **kwargs)]


# control of capture -------------------------------------------------------------------------------------------
def disable(fn: Any = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    """Mark a function, method, class or module to run eagerly, also inside compiled callers.  Usable as a decorator.

    Of a compiled callable: its original, marked.  A class is changed in place.  Functions called by it run eagerly as
    well, unless they are compiled callables themselves or `recursive` is False.  `reason` appears in reports of the graph break.
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    if not callable(fn) and not isinstance(fn, (staticmethod, classmethod)):
        raise ArgumentError(f"disable() takes a function, class or module, got {_describe(fn)}")
    return wrapping.disabled(fn, reason, recursive)


def skip(fn: Any = None) -> Any:
    """The old form of `disable(fn, recursive=False)`: `fn` runs eagerly, what it calls is compiled.  Usable as a decorator."""
    return disable(fn, recursive=False)


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Wait until all compiles in the background (`compile(..., background=True)`) are done, at most `timeout` seconds.
    Whether they are."""
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout < 0):
        raise ArgumentError(
            f"wait_for_compiles() takes seconds, or None for as long as it takes; got {_describe(timeout)}"
        )
    return wait(timeout)


def graph_break(msg: str = "") -> None:
    """Break the graph here; outside of a capture it does nothing."""


graph_break._pycompiler_break = True  # type: ignore[attr-defined]


def is_compiling() -> bool:
    """False; captured code sees the constant True instead of a call."""
    return False


is_compiling._pycompiler_constant = True  # type: ignore[attr-defined]


def is_dynamo_compiling() -> bool:
    """The old name of `is_compiling`."""
    return False


is_dynamo_compiling._pycompiler_constant = True  # type: ignore[attr-defined]


def is_exporting() -> bool:
    """Whether `torch.export` captures; a compiled function is no export."""
    return bool(torch.compiler.is_exporting())


is_exporting._pycompiler_constant = False  # type: ignore[attr-defined]


def optimize(
    backend: str | Callable[..., Any] = "native",
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
) -> Callable[[Any], Any]:
    """The old form of `compile`: a decorator."""
    warnings.warn("optimize() is the old form of compile()", DeprecationWarning, stacklevel=2)
    return lambda model: compile(model, backend=backend, fullgraph=nopython, dynamic=dynamic, disable=disable)


def reset(target: Any = None) -> None:
    """Drop compiled entries and counters: of one compiled callable, or of all.  Policies (`set_policy`) stay."""
    if target is None:
        for family in pipeline.families():
            family.reset()
    else:
        _compiled(target, "reset()")._pycompiler_family.reset()
