"""A file → a compiled callable.

In: what `save` wrote, and the function or module that was compiled, from the same sources.  Out: it, compiled, with the
entries of the file: a call that fits one of their guards runs it, and nothing is compiled.
"""

from __future__ import annotations

import abc
import functools
import os
import types
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pycompiler import _native
from pycompiler.artefacts import file
from pycompiler.artefacts.data import SavedCallable, SavedEntry, SavedFunction, model_name
from pycompiler.artefacts.decode import Decoder, read_names
from pycompiler.capture.values.attributes import REGISTRATIONS
from pycompiler.errors import ArtefactError
from pycompiler.ir.guards import Guard
from pycompiler.ir.names import code_digest
from pycompiler.pipeline import Family, Remarks
from pycompiler.wrapping import compiled_of


def load(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], Any], *, trust: bool = False) -> Any:
    """See `api.load`.  `make(settings)` compiles what the entries are given to."""
    what = os.fspath(path)
    header, body = file.parse(file.open_safely(Path(what), trust), what)
    compiled = make(header["settings"])
    made = compiled_of(compiled)
    if made is None:
        raise ArtefactError("load() takes the function or module that was compiled")
    model, digest = model_name(compiled), code_digest(made.fn.__code__)
    if header.get("model") != model:
        raise ArtefactError(
            f"{what} is of {header.get('model') or header.get('callable')}, not of {model or made.name}"
        )
    if header.get("code") != digest:
        raise ArtefactError(
            f"{what} is of {header.get('callable')}, whose code is another than that of {made.name} here"
        )
    family: Family = made._pycompiler_family
    found = decoded(what, made.fn, family, body)
    for saved in (found.root, *found.resumes, *found.hooked):
        for entry in saved.entries:
            check_abstract(entry)
    for saved in (found.root, *found.resumes):
        install(made if saved.made is None else saved.made, saved, family)
    for saved in found.hooked:
        family.shelf[saved.digest] = functools.partial(install, saved=saved, family=family)
    return compiled


def decoded(what: str, function: types.FunctionType, family: Family, body: tuple[Any, ...]) -> SavedCallable:
    names, records, top, libraries = body
    try:
        objects = read_names([(tuple(name), text) for name, text in names])
        decoder = Decoder(function, family, objects, libraries)
        decoder.all(records)
        found = decoder.value(top)
    except ArtefactError:
        raise
    except Exception as e:  # whatever records give that nobody wrote so
        raise ArtefactError(f"{what} is damaged: {type(e).__name__}: {e}") from e
    if not isinstance(found, SavedCallable):
        raise ArtefactError(f"{what} is damaged: it holds no callable")
    return found


def install(made: _native.CompiledFunction, saved: SavedFunction, family: Family) -> None:
    for entry in reversed(saved.entries):
        ready = entry_of(entry, made.fn, family)
        family.remarks[ready] = Remarks((), entry.abstract)
        made.install(ready)


def entry_of(saved: SavedEntry, function: types.FunctionType, family: Family) -> _native.Entry:
    guards = [current(guard) for guard in saved.guards] if saved.abstract else saved.guards
    if saved.kind == "function":
        return family.function_entry(guards, saved.target, function.__globals__, hook=saved.hook)
    if saved.kind == "eager":
        return _native.Entry(guards, function, "eager")
    return _native.Entry(guards, saved.target, "plan", saved.outputs, saved.inputs)


def check_abstract(saved: SavedEntry) -> None:
    for cls, base, answer in saved.abstract:
        if issubclass(cls, base) != answer:
            now, then = ("no", "one") if answer else ("a", "none")
            raise ArtefactError(
                f"{cls.__name__} is {now} {base.__name__} here, and was {then} when the artefact was written"
            )


def current(guard: Guard) -> Guard:
    """The guard that no class is registered with an abstract one any more, from now on."""
    return replace(guard, arg=abc.get_cache_token()) if guard.source.root.arg is REGISTRATIONS else guard
