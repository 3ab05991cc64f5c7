"""The loader: a file → a compiled callable.

In: a file of `save`, and the same function or module, from the same sources.
Out: it, compiled, with the entries of the file.  A call that fits the guards of an entry runs the entry, and no
compile takes place.
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
from pycompiler.capture.recipe.recipe import Recipe
from pycompiler.capture.values.attributes import REGISTRATIONS
from pycompiler.errors import ArtefactError
from pycompiler.ir.persistent_names import code_digest
from pycompiler.ir.weak_guards import strongly
from pycompiler.logs import follow_torch
from pycompiler.pipeline import EntryParts, Family, assemble
from pycompiler.wrapping import compiled_of


def load(path: str | os.PathLike[str], make: Callable[[dict[str, Any]], Any], *, trust: bool = False) -> Any:
    """See `api.load`. `make(settings)` compiles the function that receives the entries."""
    what = os.fspath(path)
    header, body = file.parse(file.open_safely(Path(what), trust), what)
    return with_entries(what, header, body, make(header["settings"]))


def with_entries(what: str, header: dict[str, Any], body: tuple[Any, ...], compiled: Any) -> Any:
    """`compiled`, with the entries of the artefact `what`."""
    follow_torch()
    made = compiled_of(compiled)
    if made is None:
        raise ArtefactError("load() takes the function or nn.Module that was compiled for save()")
    model, digest = model_name(compiled), code_digest(made.fn.__code__)
    if header.get("model") != model:
        raise ArtefactError(
            f"{what} was saved from {header.get('model') or header.get('callable')}, not from {model or made.name}"
        )
    if header.get("code") != digest:
        raise ArtefactError(f"{what} was saved from {header.get('callable')}, whose code differs from {made.name} here")
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
    except Exception as e:  # foreign records may raise any exception
        raise ArtefactError(f"{what} is damaged: {type(e).__name__}: {e}") from e
    if not isinstance(found, SavedCallable):
        raise ArtefactError(f"{what} is damaged: it does not hold a callable")
    return found


def install(made: _native.CompiledFunction, saved: SavedFunction, family: Family) -> None:
    for entry in reversed(saved.entries):
        made.install(assemble(family, made.fn, with_current_registrations(entry)))


def check_abstract(recipe: Recipe) -> None:
    for *asked, answer in recipe.abstract:
        cls, base = map(strongly, asked)
        if issubclass(cls, base) != answer:
            now, then = ("no", "one") if answer else ("a", "none")
            raise ArtefactError(
                f"{cls.__name__} is {now} {base.__name__} here, and was {then} when the artefact was written"
            )


def with_current_registrations(entry: EntryParts) -> EntryParts:
    """The entry with guards on the present registrations of abstract classes."""
    recipe = entry.recipe
    if not recipe.abstract:
        return entry
    guards = [
        replace(guard, arg=abc.get_cache_token()) if guard.source.root.arg is REGISTRATIONS else guard
        for guard in recipe.guards
    ]
    return replace(entry, recipe=replace(recipe, guards=guards))
