"""The writer: a compiled callable → a file.

In: the result of `compile`, after calls that compiled it.
Out: a file with all its entries, and the entries of its resume functions and of the functions that the frame hook
met.  Their graphs are included, forward and backward.  `SaveReport` lists omissions.
"""

from __future__ import annotations

import os
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pycompiler._native import CompiledFunction
from pycompiler.artefacts import file
from pycompiler.artefacts.data import SavedCallable, SavedFunction, Unsavable, model_name
from pycompiler.artefacts.encode import Encoder
from pycompiler.capture.recipe.recipe import Resume
from pycompiler.errors import ArtefactError
from pycompiler.ir.persistent_names import code_digest, name_of, naming
from pycompiler.logs import stage
from pycompiler.pipeline import Family
from pycompiler.wrapping import compiled_of

log = stage("dynamo")


@dataclass(frozen=True)
class SaveReport:
    """The result of `save`.

    Attributes:
        entries: The number of entries in the file.
        left_out: A line, with the reason, for each omission.
        size: The file's size in bytes.
    """

    entries: int
    left_out: tuple[str, ...]
    size: int


def save(compiled: Any, path: str | os.PathLike[str]) -> SaveReport:
    """See `api.save`."""
    made = compiled_of(compiled)
    if made is None:
        raise ArtefactError("save() takes a result of pycompiler.compile")
    family: Family = made._pycompiler_family
    if not family.ours:
        raise ArtefactError(
            f"graphs of backend {family.backend_name!r} cannot be saved; graphs of pycompiler's own backends can"
        )
    writer = _Writer(made, family)
    if family.guard_filter is not None:
        writer.left_out.append("the guard filter: entries that are compiled after load() keep all their guards")
    with naming():
        top = writer.encoder.value(writer.callable())
        function = name_of(made.fn)
    if not writer.count:
        first = "no entry can be saved:" if writer.left_out else "nothing to save: call the compiled callable first"
        raise ArtefactError("\n".join([first, *writer.left_out]))
    modules = [name[1] for name, _ in writer.encoder.names if name[0] != "operator"]
    encoder, target = writer.encoder, Path(os.path.abspath(os.fspath(path)))
    header = {
        "callable": made.name,
        "function": function,
        "entries": writer.count,
        "model": model_name(compiled),
        "code": code_digest(made.fn.__code__),
        "settings": settings(family),
        **file.facts([made.fn.__module__ or "", *modules]),
    }
    try:
        size = file.write(target, header, (encoder.names, encoder.records, top, encoder.libraries))
    except OSError as e:
        raise ArtefactError(f"{target} cannot be written: {e.strerror or e}") from e
    for line in writer.left_out:
        log.warning("not saved: %s", line)
    return SaveReport(writer.count, tuple(writer.left_out), size)


class _Writer:
    def __init__(self, made: CompiledFunction, family: Family) -> None:
        self.made, self.family = made, family
        self.encoder = Encoder(made.fn)
        self.count = 0
        self.left_out: list[str] = []

    def callable(self) -> SavedCallable:
        """All functions of the family."""
        resumes = [(made, Resume.of(code, made.fn.__globals__)) for code, made in list(self.family.resumes.items())]
        return SavedCallable(
            self.function(self.made, None),
            [self.function(made, resume) for made, resume in resumes if self.knows(resume)],
            [self.function(made, None) for made in self.hooked()],
        )

    def hooked(self) -> list[CompiledFunction]:
        """Functions that the frame hook met, without results of torch.compiler.disable, which the hook recognises in any
        process."""
        members = set(map(id, self.family.members))
        return [made for made in list(self.family.hooked.values()) if id(made) in members and made.entries]

    def knows(self, resume: Resume) -> bool:
        try:
            with self.encoder.whole_or_nothing():
                self.encoder.value(resume)
                return True
        except Unsavable as e:
            self.left_out.append(f"resume function {resume.code.co_qualname}: {e}")
            return False

    def function(self, made: CompiledFunction, resume: Resume | None) -> SavedFunction:
        code: types.CodeType = made.fn.__code__
        found = SavedFunction(resume, "" if resume is not None else code_digest(code), made.name)
        self.encoder.namespace = made.fn.__globals__
        for place, entry in enumerate(made.entries_of(code)):
            saved = self.family.made.get(entry)
            if saved is None:
                continue  # an entry that runs the original, not a compile's
            try:
                with self.encoder.whole_or_nothing():
                    if saved.recipe.process:
                        raise Unsavable("; ".join(saved.recipe.process))
                    self.encoder.value(saved)
            except Unsavable as e:
                self.left_out.append(f"{made.name}, entry {place}: {e}")
                continue
            self.count += 1
            found.entries.append(saved)
        return found


def settings(family: Family) -> dict[str, Any]:
    """The arguments of `compile`."""
    return {
        "backend": family.backend_name, "fullgraph": family.fullgraph, "dynamic": family.dynamic,
        "recompile_limit": family.recompile_limit, "options": dict(family.knobs), "background": family.background,
    }  # fmt: skip
