"""What an artefact holds, and the classes whose objects may be in it.

An artefact is a list of records, each a tuple that `marshal` can write: a tag, then values.  A value is a number, a text,
bytes, None … or a 1-tuple, the position of the record that makes it.  Records only refer to earlier ones; what refers in a
circle is made empty first and filled by a later record.  `encode` and `decode` have one function a tag.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.autograd import joint, partition, replay, runtime, views
from pycompiler.autograd import saved as saved_tensors
from pycompiler.capture import again, cached, calls, shown
from pycompiler.capture.bytecode.resume import ResumeInfo
from pycompiler.capture.errors_of_data import Done, ErrorsOfData, Seen
from pycompiler.capture.recipe import Recipe, Resume
from pycompiler.ir import guards, late, source
from pycompiler.pipeline import Made
from pycompiler.runtime import segments
from pycompiler.wrapping import original_of

FORMAT = 1
INLINE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class Unsavable(Exception):
    """Something that means nothing in another process, in words."""


# what is saved of a compiled callable ---------------------------------------------------------------------------
@dataclass(frozen=True)
class SavedFunction:
    """A function with what the entries of its code are made of, the one used last first.

    resume: where it goes on after a break, else None. digest: of its code, where that is not in the file.
    """

    resume: Resume | None
    digest: str
    name: str
    entries: list[Made] = field(default_factory=list)


@dataclass(frozen=True)
class SavedCallable:
    """The callable itself, its resume functions, and the functions that the frame hook met."""

    root: SavedFunction
    resumes: list[SavedFunction]
    hooked: list[SavedFunction]


# classes ---------------------------------------------------------------------------------------------------------
# What printed wrappers and generated code hold, besides the dataclasses of `ir` and of autograd.
CLASSES: frozenset[type] = frozenset({
    SavedFunction, SavedCallable, Made, Recipe, ErrorsOfData, Done, Seen, ResumeInfo,
    views.Step, joint.Mutation, joint.Output, joint.Path, joint.Way,
    joint.Joint, partition.Partition, runtime.LazyBackward, runtime.Node, runtime._Variants, runtime._Like, replay.Replay,
    replay._Like, saved_tensors.Saved, calls.Kept, cached.Cached, shown.OfTorch, shown.Like, again.Again, late.Check,
    segments.Run, segments.Called, segments.Compiled, segments.Held, segments.Number,
})  # fmt: skip


def is_data(cls: type) -> bool:
    """Whether objects of a class are written: by their fields (dataclasses) or by their `__dict__`."""
    return cls in CLASSES or (dataclasses.is_dataclass(cls) and cls.__module__.startswith("pycompiler.ir."))


SHARED = (guards.UserFrame, source.Source)  # equal ones are written once

# Attributes whose value is only needed where something unusual is asked of a graph: read when it is.
LATER: frozenset[tuple[type, str]] = frozenset({(runtime._Variants, "_node"), (runtime.LazyBackward, "_pending")})


def fields_of(cls: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


# What a guard and a source are written by: all of their fields, so that one that is added cannot be lost (a loaded guard
# would be weaker).
GUARD, SOURCE = (tuple(f.name for f in dataclasses.fields(cls)) for cls in (guards.Guard, source.Source))


def model_name(compiled: Any) -> str | None:
    """The class of a compiled module: all modules have the same function that is called."""
    cls = type(original_of(compiled))
    return f"{cls.__module__}.{cls.__qualname__}" if issubclass(cls, torch.nn.Module) else None
