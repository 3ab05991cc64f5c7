"""The records of an artefact, and the classes whose objects may be in it.

An artefact is a list of records.  A record is a tuple that `marshal` can write: a tag, then values.  A value is a
number, a string, bytes, None ..., or a 1-tuple: the position of another record.  Records only refer to earlier
records.  An object in a reference cycle is created empty first, and filled by a later record.  `encode` and `decode`
have one function per tag.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.autograd import joint, partition, replay, runtime, staged_backward, stages, views
from pycompiler.autograd import saved_tensors as saved_tensors
from pycompiler.capture.assumptions import recompute_checks
from pycompiler.capture.bytecode.resume import ResumeInfo
from pycompiler.capture.interpreter import calls
from pycompiler.capture.recipe.recipe import Recipe, Resume
from pycompiler.capture.recording.data_errors import EffectsBefore, ErrorsOfData, Visibility
from pycompiler.capture.semantics import lru_cache_calls
from pycompiler.capture.warnings import replay as replay_warnings
from pycompiler.ir import guards, source
from pycompiler.pipeline import EntryParts
from pycompiler.runtime import segments
from pycompiler.symbolic import unbacked_symbols
from pycompiler.torch_compat import warning_listener
from pycompiler.wrapping import original_of

FORMAT = 2
INLINE = (type(None), bool, int, float, complex, str, bytes, type(Ellipsis))


class Unsavable(Exception):
    """An object that means nothing in another process; the message names it."""


# saved parts of a compiled callable -----------------------------------------------------------------------------
@dataclass(frozen=True)
class SavedFunction:
    """A function with the parts of its code's entries, the most recently used first.

    resume: the place where it continues after a break, else None.
    digest: of its code, if the code is not in the file.
    """

    resume: Resume | None
    digest: str
    name: str
    entries: list[EntryParts] = field(default_factory=list)


@dataclass(frozen=True)
class SavedCallable:
    """The callable itself, its resume functions, and the functions that the frame hook met."""

    root: SavedFunction
    resumes: list[SavedFunction]
    hooked: list[SavedFunction]


# classes ---------------------------------------------------------------------------------------------------------
# Classes used by printed wrappers and generated code, besides the dataclasses of `ir` and of autograd.
CLASSES: frozenset[type] = frozenset({
    SavedFunction, SavedCallable, EntryParts, Recipe, ErrorsOfData, EffectsBefore, Visibility, ResumeInfo,
    views.ViewStep, joint.Mutation, joint.Output, joint.Path, joint.NodePlan,
    joint.Joint, partition.Partition, runtime.LazyBackward, runtime.AutogradNode, runtime._Variants, runtime._TangentMetadata,
    staged_backward.StagedBackward, staged_backward.TokenFactory, stages.Stage,
    replay.Replay, replay._Like, saved_tensors.SavedTensors, calls.QueryResult, lru_cache_calls.Cached,
    replay_warnings.TorchWarning, replay_warnings.TensorLike, recompute_checks.RecomputeCheck,
    unbacked_symbols.UnbackedCheck, warning_listener.SilencedGraph,
    segments.Run, segments.PythonCall, segments.CompiledPart, segments.ValueRef, segments.LazyNumber,
})  # fmt: skip


DATA = tuple(f"pycompiler.{room}." for room in ("ir", "operators", "symbolic", "torch_compat"))


def is_data(cls: type) -> bool:
    """Whether objects of a class are written: by their fields (dataclasses) or by their `__dict__`."""
    return cls in CLASSES or (dataclasses.is_dataclass(cls) and cls.__module__.startswith(DATA))


SHARED = (guards.UserFrame, source.Source)  # equal objects are written once

# Attributes whose value is rarely needed: they are decoded on first use.
DECODED_LATE: frozenset[tuple[type, str]] = frozenset(
    {(runtime._Variants, "_node"), (runtime.LazyBackward, "_pending")}
)


def fields_of(cls: type) -> tuple[str, ...] | None:
    return tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else None


# The fields by which a guard and a source are written: all of them, so that a new field cannot be lost.  A loaded
# guard would otherwise be weaker.
GUARD, SOURCE = (tuple(f.name for f in dataclasses.fields(cls)) for cls in (guards.Guard, source.Source))


def model_name(compiled: Any) -> str | None:
    """The class of a compiled module, since all modules have the same called function; None for a function."""
    cls = type(original_of(compiled))
    return f"{cls.__module__}.{cls.__qualname__}" if issubclass(cls, torch.nn.Module) else None
