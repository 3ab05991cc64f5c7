"""The public functions: compile, disable, run, reset and others.

In: functions and modules.  Out: the same, compiled.  Example:

    import pycompiler

    model = pycompiler.compile(model)
    model(x)
"""

from __future__ import annotations

import io
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
    from pycompiler.artefacts.cache_bundle import CacheInfo
    from pycompiler.artefacts.save import SaveReport

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

    The first call captures the program's bytecode and compiles it.  A later call whose guards hold runs the compiled entry.
    Wrong arguments are errors of this call, not of the first call of the result.

    Args:
        model (Callable | nn.Module | None): The program.  None: return a decorator.
        fullgraph: Raise `Unsupported` at the first graph break, and for a graph that would run eagerly.
        dynamic: None: the first compile takes sizes as numbers, and sizes that differ later become symbols.
            True: sizes are symbols from the first compile on.  False: sizes are always numbers.
        backend: A name of `list_backends(None)`, or a callable `(gm, example_inputs) -> callable`.  Such a callable also
            gets `mode=` and `options=`, if they are given.  None: the backend of `get_default_backend()`.
        mode: A name of torch.compile's modes.  "reduce-overhead" records graphs on a GPU as CUDA graphs, like
            `options={"triton.cudagraphs": True}`.  The other names have no effect, which is logged.  Excludes `options`.
        options: Settings of this callable: the [knobs](knobs.md) `threads`, `partition`, `activation_memory_budget`,
            `deterministic`, `fallback_random`, `emulate_precision_casts`, `triton.…`, `trace.…`, and `guard_filter_fn`, a
            function that selects guards.
        name: The name in logs and messages.  None: the program's own name.
        disable: Return `model` unchanged.
        recompile_limit: The most entries of one code object.  None: `config.recompile_limit`, read at each miss.
        isolate_recompiles: Accepted for compatibility: each compiled callable has entries of its own.
        nopython: The old name of `fullgraph`.
        background: A call that misses is captured and runs eagerly at once, while a worker thread compiles its graph.
            None: the value of `config.background_compile`.
        verify: The share (0 to 1) of each graph's calls, the first one included, that run beside eager on copies of their
            inputs, forward and backward.  A difference is logged as an error with operator and line.  The graph then runs
            eagerly.

    Returns:
        Callable | nn.Module: The compiled callable; without `model`, a decorator.

    Raises:
        ArgumentError: An argument has a wrong type or value.
        UnknownName: A backend, mode or option does not exist.
        UserError: `backend` is neither a name nor callable.
        ConfigError: An option's knob does not accept the value.

    Example:
        ```python
        @pycompiler.compile(fullgraph=True, dynamic=True)
        def step(x, y):
            return (x * y).relu().sum()

        step(torch.randn(8, 4), torch.randn(8, 4))
        step(torch.randn(16, 4), torch.randn(16, 4))  # compiles nothing: sizes are symbols
        assert pycompiler.counters(step)["compiles"] == 1
        ```
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
    ours = backends.is_builtin_backend(chosen)
    settings = dict(options or {})
    if ours:
        known.log_without_effect(mode, settings)
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
        knobs=known.knobs(mode, settings) if ours else {},
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
    if options and backends.is_builtin_backend(backend):
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
        raise ArgumentError(f"{caller} takes a result of pycompiler.compile, got {_describe(target)}")
    return found


# serving ------------------------------------------------------------------------------------------------------
def run(fn: Any = None) -> Any:
    """A frozen view of a compiled callable: its calls use existing entries or run eagerly, and never compile.

    The callable itself does not change.  The view shares its entries and counters, including entries that it compiles later.
    All compiled functions that a call of the view reaches are frozen too.  The view of a module shares the module's state.
    `set_policy(fn, "run")` freezes the callable itself.

    Args:
        fn (Callable | nn.Module | None): A compiled callable, or a module with compiled submodules.
            None: return a decorator.

    Returns:
        Callable | nn.Module: The view.  A callable that is not compiled is returned unchanged, with a warning in the log.

    Raises:
        ArgumentError: `fn` is not callable, or is a class.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        frozen = pycompiler.run(compiled)
        frozen(torch.ones(3))                        # runs eagerly: there is no entry yet
        assert pycompiler.counters(compiled)["compiles"] == 0
        ```
    """
    if fn is None:
        return run
    if not callable(fn) and not isinstance(fn, (staticmethod, classmethod)):
        raise ArgumentError(f"run() takes a compiled callable, got {_describe(fn)}")
    if not _parts(fn):
        config.say_once(f"run() froze nothing: {_describe(fn)} is not a result of pycompiler.compile")
        return fn
    if isinstance(fn, type):
        raise ArgumentError(f"run() cannot freeze a class: set_policy({fn.__qualname__}, 'run') freezes its instances")
    return wrapping.frozen(fn)


def save(compiled: Any, path: str | os.PathLike[str]) -> SaveReport:
    """Write all entries of a compiled callable to a file, for `load` in another process.

    The file has guards, generated code, graphs and their kernels, forward and backward, of all entries and resume
    functions.  It has no parameters.  The file appears complete or not at all.
    Entries that are valid only in this process are left out: `SaveReport.left_out` and the log give the reasons.

    Args:
        compiled (Callable | nn.Module): A compiled callable that has been called.
        path: The file.

    Returns:
        SaveReport: The number of entries, the omissions with their reasons, and the file's size.

    Raises:
        ArtefactError: `compiled` is not a compiled callable, nothing can be saved, or the file cannot be written.

    Example:
        ```python
        model = torch.nn.Linear(8, 8)
        compiled = pycompiler.compile(model)
        compiled(torch.randn(4, 8))
        saved = pycompiler.save(compiled, "linear.pyca")
        assert saved.entries == 1 and saved.left_out == ()
        ```
    """
    from pycompiler.artefacts.save import save  # imported only for saving

    return save(compiled, path)


def load(path: str | os.PathLike[str], model: Callable[..., Any], *, trust: bool = False) -> Any:
    """Compile a function or module with the entries of a file that `save` wrote.

    Calls that fit these entries run natively: nothing is compiled, and no C++ compiler is needed.  Other calls compile.

    Args:
        path: The file.
        model: The function or module that was compiled for `save`.
        trust: Accept a file that other users may write.  The file holds native code.

    Returns:
        Callable | nn.Module: The compiled callable.

    Raises:
        ArgumentError: `model` is not callable.
        ArtefactError: The file is damaged, is from other versions, from a CPU with more instructions or from other sources
            of the captured code, or other users may write it.

    Example:
        ```python
        model = torch.nn.Linear(8, 8)
        compiled = pycompiler.compile(model)
        compiled(torch.randn(4, 8))
        pycompiler.save(compiled, "linear.pyca")

        served = pycompiler.load("linear.pyca", torch.nn.Linear(8, 8))
        served(torch.randn(4, 8))                    # compiles nothing
        assert pycompiler.counters(served)["compiles"] == 0
        ```
    """
    if not callable(model):
        raise ArgumentError(f"load() takes the function or nn.Module that was compiled, got {_describe(model)}")
    from pycompiler.artefacts.load import load

    return load(path, lambda settings: compile(model, **settings), trust=trust)


def load_compiled_function(
    file: io.IOBase, *, f_globals: dict[str, object] | None = None, external_data: dict[str, Any] | None = None
) -> Callable[..., Any]:
    """Load a function that `compiled.aot_compile(example_inputs).save_compiled_function(path)` wrote.

    `aot_compile` compiles for a call with `example_inputs`, a pair (args, kwargs), without making the call.  It is a method of
    functions and methods that were compiled with `fullgraph=True`.

    Args:
        file: A file opened for reading bytes.  It holds native code: load only what you trust.
        f_globals: Where the function is looked up by its name before its module is imported.
        external_data: Accepted for compatibility.  It has no effect.

    Returns:
        Callable: The compiled function.  A method takes its instance as the first argument.  A call that fits no entry raises
            `RecompileError`.

    Raises:
        ArtefactError: As in `load`, and if no function has the recorded name.

    Example:
        ```python
        @pycompiler.compile(fullgraph=True)
        def step(x):
            return x.relu() * 2

        made = step.aot_compile(((torch.ones(3),), {}))
        made.save_compiled_function("step.pyca")
        with open("step.pyca", "rb") as file:
            served = pycompiler.load_compiled_function(file)
        assert torch.equal(served(torch.ones(3)), torch.full((3,), 2.0))
        ```
    """
    from pycompiler.artefacts.aot_compile import load_compiled_function

    return load_compiled_function(file, compile, f_globals, external_data)


def _aot_compile(self: _native.CompiledFunction, example_inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Any:
    """Compile for a call with `example_inputs`, a pair (args, kwargs), without making the call."""
    from pycompiler.artefacts.aot_compile import aot_compile

    return aot_compile(self, example_inputs)


def _save_compiled_function(
    self: _native.CompiledFunction, path: str | os.PathLike[str], external_data: object = None
) -> SaveReport:
    """Write the function to a file for `load_compiled_function`."""
    from pycompiler.artefacts.aot_compile import save_compiled_function

    return save_compiled_function(self, path, external_data)


for _name, _method in (("aot_compile", _aot_compile), ("save_compiled_function", _save_compiled_function)):
    setattr(_native.CompiledFunction, _name, _method)


def save_cache_artifacts() -> tuple[bytes, CacheInfo] | None:
    """The kernels that this process has built, or found in the kernel cache, as bytes.

    `load_cache_artifacts` puts them into the kernel cache of another machine.  Compiles there capture and guard as always,
    and find their kernels.  `save` keeps whole entries instead.

    Returns:
        tuple[bytes, CacheInfo] | None: The bytes and their contents.  None: there are no kernels.

    Example:
        ```python
        pycompiler.compile(lambda x: x.relu() + 1)(torch.ones(3))
        data, info = pycompiler.save_cache_artifacts()
        assert info.artifacts["kernels"]
        ```
    """
    from pycompiler.artefacts import cache_bundle

    return cache_bundle.pack()


def load_cache_artifacts(serialized_artifacts: bytes) -> CacheInfo | None:
    """Put the kernels of `save_cache_artifacts` into the kernel cache.

    They are used on machines with the same compiler, C library and CPU.  Kernels are native code: load only what you trust.

    Args:
        serialized_artifacts: The bytes.

    Returns:
        CacheInfo | None: The contents.  None, with a log line: the bytes are damaged, or the cache cannot be written.

    Example:
        ```python
        pycompiler.compile(lambda x: x.relu() + 1)(torch.ones(3))
        data, info = pycompiler.save_cache_artifacts()
        assert pycompiler.load_cache_artifacts(data) == info
        ```
    """
    from pycompiler.artefacts import cache_bundle

    return cache_bundle.unpack(serialized_artifacts)


def set_policy(fn: Any, policy: _native.Mode) -> Any:
    """Set the policy of a compiled callable: the effect of a call that fits no entry.

    | policy | effect |
    | --- | --- |
    | `"compile"` | compile the call |
    | `"run"` | run it eagerly: the callable is frozen |
    | `"eager"` | run each call eagerly, even if an entry fits |
    | `"error"` | raise `RecompileError` |

    The policy also holds for resume functions.  `reset` keeps it.

    Args:
        fn (Callable | nn.Module): A compiled callable.
        policy (str): A name of the table.

    Returns:
        Callable | nn.Module: `fn`.

    Raises:
        UnknownName: The policy does not exist.
        ArgumentError: `fn` is not a compiled callable.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        compiled(torch.ones(3))
        pycompiler.set_policy(compiled, "error")
        compiled(torch.ones(3))                      # its entry fits
        try:
            compiled(torch.ones(3, dtype=torch.int32))
        except pycompiler.exc.RecompileError as error:
            print(error)                             # the guard that failed
        ```
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
    """Counters of calls and compiles since the last reset.

    | counter | counts |
    | --- | --- |
    | `hits` | calls whose guards hold for an entry |
    | `misses` | calls that fit no entry |
    | `compiles` | compiled entries |
    | `eager_calls` | calls that ran eagerly |
    | `limit_hits` | misses at a recompile limit |
    | `guard_checks` | entries whose guards were checked |
    | `fresh_failures` | new entries that did not fit the very call that they were compiled for; the call ran eagerly |
    | `tail_calls` | resume functions entered |

    Args:
        fn (Callable | nn.Module | None): A compiled callable; its resume functions count too.  None: all compiled callables.

    Returns:
        dict[str, int]: Counts by name.

    Raises:
        ArgumentError: `fn` is not a compiled callable.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        for _ in range(3):
            compiled(torch.ones(4))
        found = pycompiler.counters(compiled)
        assert (found["compiles"], found["misses"], found["hits"]) == (1, 1, 2)
        ```
    """
    chosen = pipeline.families() if fn is None else [_compiled(fn, "counters()")._pycompiler_family]
    total = dict.fromkeys(("hits", "misses", "compiles", "eager_calls", "limit_hits", "guard_checks"), 0)
    for family in chosen:
        for member in family.members:
            for key, value in member.counters().items():
                total[key] = total.get(key, 0) + value
    return total


def explain_miss(fn: Any, /, *args: Any, **kwargs: Any) -> list[str]:
    """The reasons why a call with these arguments fits no entry.  Nothing is called or compiled.

    Args:
        fn (Callable | nn.Module): A compiled callable.
        *args: Positional arguments of the call.
        **kwargs: Keyword arguments of the call.

    Returns:
        list[str]: A line for each entry: its first guard that fails.  Empty if an entry fits, or if there is none.

    Raises:
        ArgumentError: `fn` is not a compiled callable.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        compiled(torch.ones(4))
        assert pycompiler.explain_miss(compiled, torch.ones(4)) == []
        print(pycompiler.explain_miss(compiled, torch.ones(4, dtype=torch.int32)))
        ```
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

    A compiled caller breaks its graph at the call.  A compiled callable gives its original, marked.  A class is changed in
    place.

    Args:
        fn (Callable | nn.Module | None): The function.  None: return a decorator.
        recursive: Functions that `fn` calls run eagerly too, unless they are compiled callables.
            False: they are compiled.
        reason: A text for reports of the graph break.

    Returns:
        Callable | nn.Module: The marked function; without `fn`, a decorator.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        @pycompiler.disable(reason="writes a file")
        def log(x):
            print(float(x.sum()))

        @pycompiler.compile
        def step(x):
            log(x)                                   # a graph break
            return x + 1

        step(torch.ones(3))
        ```
    """
    if fn is None:
        return lambda f: disable(f, recursive, reason=reason)
    if not callable(fn) and not isinstance(fn, (staticmethod, classmethod)):
        raise ArgumentError(f"disable() takes a function, class or module, got {_describe(fn)}")
    return wrapping.disabled(fn, reason, recursive)


def skip(fn: Any = None) -> Any:
    """The old form of `disable(fn, recursive=False)`: `fn` runs eagerly, its callees are compiled.  Usable as a decorator.

    Args:
        fn (Callable | nn.Module | None): The function.  None: return a decorator.

    Returns:
        Callable | nn.Module: The marked function; without `fn`, a decorator.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        @pycompiler.skip
        def outer(x):
            print("eager")
            return inner(x)

        def inner(x):
            return x + 1

        pycompiler.compile(outer)(torch.ones(3))     # prints; inner is compiled
        ```
    """
    return disable(fn, recursive=False)


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Wait until all background compiles (`compile(..., background=True)`) are done.

    Args:
        timeout: The longest wait in seconds.  None: no limit.

    Returns:
        bool: Whether all are done.

    Raises:
        ArgumentError: `timeout` is negative, or is not a number.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1, background=True)
        compiled(torch.ones(3))                      # runs eagerly, and a worker compiles
        assert pycompiler.wait_for_compiles(timeout=60)
        compiled(torch.ones(3))                      # runs compiled
        ```
    """
    if timeout is not None and (not isinstance(timeout, (int, float)) or timeout < 0):
        raise ArgumentError(
            f"wait_for_compiles() takes seconds, or None for as long as it takes; got {_describe(timeout)}"
        )
    return wait(timeout)


def graph_break(msg: str = "") -> None:
    """Break the graph here.  Outside of a capture it does nothing.

    Args:
        msg: A text for reports of the graph break.

    Example:
        ```python
        def step(x):
            y = x + 1
            pycompiler.graph_break("here")
            return y * 2

        assert pycompiler.explain(step)(torch.ones(3)).graph_count == 2
        ```
    """


graph_break._pycompiler_break = True  # type: ignore[attr-defined]


def cudagraph_mark_step_begin() -> None:
    """Accepted for programs of torch.compile, which overwrites the outputs of the step before.  It does nothing.

    Here an output of a CUDA graph keeps its value while the program refers to it.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1, mode="reduce-overhead")
        for _ in range(3):
            pycompiler.cudagraph_mark_step_begin()
            compiled(torch.ones(3))
        ```
    """


def is_compiling() -> bool:
    """Whether the caller is compiled: False in eager code.  Captured code sees the constant True instead of a call.

    Returns:
        bool: False.

    Example:
        ```python
        def step(x):
            return x + 1 if pycompiler.is_compiling() else x - 1

        assert step(torch.zeros(1)) == -1
        assert pycompiler.compile(step)(torch.zeros(1)) == 1
        ```
    """
    return False


is_compiling._pycompiler_constant = True  # type: ignore[attr-defined]


def is_dynamo_compiling() -> bool:
    """The old name of `is_compiling`.

    Returns:
        bool: False.  Captured code sees True.

    Example:
        ```python
        assert not pycompiler.is_dynamo_compiling()
        ```
    """
    return False


is_dynamo_compiling._pycompiler_constant = True  # type: ignore[attr-defined]


def is_exporting() -> bool:
    """Whether `torch.export` captures.  A compiled function is not an export: captured code sees the constant False.

    Returns:
        bool: The value of `torch.compiler.is_exporting()`.

    Example:
        ```python
        assert not pycompiler.is_exporting()
        ```
    """
    return bool(torch.compiler.is_exporting())


is_exporting._pycompiler_constant = False  # type: ignore[attr-defined]


def optimize(
    backend: str | Callable[..., Any] = "native",
    *,
    nopython: bool = False,
    dynamic: bool | None = None,
    disable: bool = False,
) -> Callable[[Any], Any]:
    """The old form of `compile`: a decorator.  It gives a `DeprecationWarning`.

    Args:
        backend: As in `compile`.
        nopython: The old name of `fullgraph`.
        dynamic: As in `compile`.
        disable: Return functions unchanged.

    Returns:
        Callable: A decorator for functions and modules.

    Raises:
        ArgumentError: As in `compile`, when the decorator is used.

    Example:
        ```python
        @pycompiler.optimize("eager", nopython=True)
        def step(x):
            return x + 1

        step(torch.ones(3))
        ```
    """
    warnings.warn("optimize() is the old form of compile()", DeprecationWarning, stacklevel=2)
    return lambda model: compile(model, backend=backend, fullgraph=nopython, dynamic=dynamic, disable=disable)


def reset(target: Any = None) -> None:
    """Drop entries and counters.  Policies (`set_policy`) are kept.

    Args:
        target (Callable | nn.Module | None): A compiled callable.  None: all compiled callables.

    Raises:
        ArgumentError: `target` is not a compiled callable.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        compiled(torch.ones(3))
        pycompiler.reset(compiled)
        assert pycompiler.counters(compiled)["compiles"] == 0
        ```
    """
    if target is None:
        for family in pipeline.families():
            family.reset()
    else:
        _compiled(target, "reset()")._pycompiler_family.reset()
