"""Functions compiled ahead of their first call, and artefacts that find their function by its name.

In: a compiled function and example inputs, or an artefact.  Out: a compiled function whose calls never compile.
Example: `compiled.aot_compile(((x,), {})).save_compiled_function(path)`, elsewhere `load_compiled_function(file)`.

These are torch's names (`torch.compiler`), on the files of `save`.
"""

from __future__ import annotations

import inspect
import os
import types
from collections.abc import Callable, Mapping
from typing import Any

from pycompiler import _native, wrapping
from pycompiler._native import CompiledFunction
from pycompiler.artefacts import file
from pycompiler.artefacts.load import with_entries
from pycompiler.artefacts.save import SaveReport, save
from pycompiler.config import say_once
from pycompiler.errors import ArgumentError, ArtefactError, describe
from pycompiler.ir.persistent_names import NameGone, name_of, naming, resolve
from pycompiler.pipeline import Family
from pycompiler.pipeline.compiler import FrameCompiler
from pycompiler.runtime import private_files
from pycompiler.wrapping import original_of


# compile ------------------------------------------------------------------------------------------------------------
def aot_compile(made: CompiledFunction, example_inputs: Any) -> CompiledFunction:
    """A compiled function with the entry for a call with these inputs; the call itself does not take place.

    example_inputs: (positional arguments, keyword arguments).  A bound method adds its instance; calls of the result pass it.
    Calls that fit no entry raise `RecompileError`.  ArgumentError for a function that cannot be compiled so.
    """
    function: types.FunctionType = made.fn
    if not made._pycompiler_family.fullgraph:
        raise ArgumentError(f"aot_compile() of {made.name} needs one graph: compile it with fullgraph=True")
    if free := function.__code__.co_freevars:
        raise ArgumentError(
            f"aot_compile() of {made.name}, which uses {', '.join(free)} of the function around it: pass them as arguments"
        )
    args, kwargs = _arguments(made, example_inputs)
    values = _locals(made, args, kwargs)
    family: Family = made._pycompiler_family.copy()
    family.background = False
    compiled: CompiledFunction = wrapping.compiled(function, family, made.name)
    _native.pause_hook()  # as the engine does around a compile
    try:
        entry = FrameCompiler(family)(compiled, values, [])
    finally:
        _native.resume_hook()
    if entry is None or entry not in family.made:
        raise ArtefactError(f"{made.name} has no entry for these inputs: the log has the reason")
    compiled.install(entry)
    if misses := compiled.explain_miss(*args, **kwargs):
        raise ArtefactError(f"the entry of {made.name} does not fit its own example: {misses[0][2]}")
    family.set_policy("error")
    return compiled


def _arguments(made: CompiledFunction, example_inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call, with the instance of a bound method."""
    try:
        args, kwargs = example_inputs
        if not isinstance(args, (tuple, list)) or not isinstance(kwargs, Mapping):
            raise ValueError
    except (TypeError, ValueError):
        raise ArgumentError(
            f"aot_compile() takes (args, kwargs), a tuple and a dict, got {describe(example_inputs)}"
        ) from None
    bound = vars(made)
    instance = (bound[wrapping.INSTANCE],) if wrapping.INSTANCE in bound else ()
    return (*instance, *args), dict(kwargs)


def _locals(made: CompiledFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The locals of the function's frame when it begins, in the order of its code."""
    function: types.FunctionType = made.fn
    try:
        bound = inspect.signature(function, follow_wrapped=False).bind(*args, **kwargs)
    except TypeError as e:
        raise ArgumentError(
            f"aot_compile() of {made.name}: {e}; the instance of a method is its first argument"
        ) from None
    bound.apply_defaults()
    return {local: bound.arguments[local] for local in function.__code__.co_varnames if local in bound.arguments}


def save_compiled_function(
    made: CompiledFunction, path: str | os.PathLike[str], external_data: object = None
) -> SaveReport:
    """Write a compiled function to a file for `load_compiled_function`."""
    if external_data is not None:
        raise ArgumentError(
            "save_compiled_function() takes no external data: pass such objects as arguments of the call"
        )
    check_name(made.fn)
    return save(made, path)


def check_name(function: Any) -> None:
    """Raise ArtefactError if another process cannot find a function by a name."""
    with naming():
        found = name_of(function)
    if found is None:
        raise ArtefactError(
            f"no name leads another process to {getattr(function, '__qualname__', describe(function))}: define it at the top "
            "of a module, or use pycompiler.save(compiled, path) and pycompiler.load(path, function)"
        )


# load ---------------------------------------------------------------------------------------------------------------
def load_compiled_function(
    opened: Any, compile: Callable[..., Any], f_globals: Mapping[str, Any] | None, external_data: object
) -> CompiledFunction:
    """See `api.load_compiled_function`."""
    if external_data is not None:
        say_once("load_compiled_function(external_data=...) has no effect: artefacts here have none")
    what = str(getattr(opened, "name", "the file"))
    try:
        private_files.check_open(opened.fileno(), what)
    except private_files.Unsafe as e:
        raise ArtefactError(f"{e}; an artefact holds native code: pycompiler.load(..., trust=True) takes it") from None
    except (AttributeError, OSError):
        pass  # bytes in memory
    return load_frozen(opened.read(), what, compile, f_globals=f_globals)


def load_frozen(
    data: bytes,
    what: str,
    compile: Callable[..., Any],
    *,
    f_globals: Mapping[str, Any] | None = None,
    function: Callable[..., Any] | None = None,
) -> CompiledFunction:
    """The artefact's function with its entries; a call that fits none raises `RecompileError`.

    function: None: the function of the recorded name.
    """
    header, body = file.parse(data, what)
    if header.get("model") is not None:
        raise ArtefactError(
            f"{what} was saved from the module {header['model']}: pycompiler.load(path, module) takes it"
        )
    found = original_of(function if function is not None else _named(what, header, f_globals))
    if not isinstance(found, types.FunctionType):
        raise ArtefactError(
            f"{what} was saved from the function {header.get('callable')}, which is {describe(found)} here"
        )
    compiled: CompiledFunction = with_entries(what, header, body, compile(found, **header["settings"]))
    compiled._pycompiler_family.set_policy("error")
    return compiled


def _named(what: str, header: dict[str, Any], f_globals: Mapping[str, Any] | None) -> Any:
    path = str(header.get("callable"))
    first, *rest = path.split(".")
    if f_globals is not None and first in f_globals:
        found = f_globals[first]
        for part in rest:
            found = getattr(found, part, None)
        return found
    name = header.get("function")
    if not name:
        raise ArtefactError(f"{what} does not tell where {path} is: use pycompiler.load(path, function)")
    try:
        return resolve(tuple(name))
    except (NameGone, KeyError, TypeError) as e:
        raise ArtefactError(f"{what} was saved from {path}, which is not found: {e}") from None
