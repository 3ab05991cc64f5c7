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
from pycompiler.artefacts.data import SavedCallable, SavedFunction, model_name
from pycompiler.artefacts.decode import Decoder, read_names
from pycompiler.capture.recipe import Recipe
from pycompiler.capture.values.attributes import REGISTRATIONS
from pycompiler.errors import ArtefactError
from pycompiler.ir.mortal import strongly
from pycompiler.ir.names import code_digest
from pycompiler.logs import follow_torch
from pycompiler.pipeline import Family, Made, assemble
from pycompiler.wrapping import compiled_of


def load(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], Any], *, trust: bool = False) -> Any:
    """See `api.load`.  `make(settings)` compiles what the entries are given to."""
    follow_torch()
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
            check_abstract(entry.recipe)
    install(made, found.root, family)
    for saved in found.resumes:
        assert saved.resume is not None
        install(family.resume_function(saved.resume.code, saved.resume.namespace), saved, family)
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
        made.install(assemble(family, made.fn, current(entry)))


def check_abstract(recipe: Recipe) -> None:
    for *asked, answer in recipe.abstract:
        cls, base = map(strongly, asked)
        if issubclass(cls, base) != answer:
            now, then = ("no", "one") if answer else ("a", "none")
            raise ArtefactError(
                f"{cls.__name__} is {now} {base.__name__} here, and was {then} when the artefact was written"
            )


def current(entry: Made) -> Made:
    """With the guards that no class is registered with an abstract one any more, from now on."""
    recipe = entry.recipe
    if not recipe.abstract:
        return entry
    guards = [
        replace(guard, arg=abc.get_cache_token()) if guard.source.root.arg is REGISTRATIONS else guard
        for guard in recipe.guards
    ]
    return replace(entry, recipe=replace(recipe, guards=guards))
