"""The family of a compiled callable: shared state of its frames, limits and modes, and the functions that belong
to it."""

from __future__ import annotations

import types
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from pycompiler import _native, backends, config
from pycompiler._native import CompiledFunction, Entry
from pycompiler.capture.recording.input_symbols import SymbolPolicy
from pycompiler.ir import compile_names
from pycompiler.ir.compile_names import CompileName
from pycompiler.ir.guard_entries import GuardEntry
from pycompiler.ir.guards import Guard
from pycompiler.operators import registered_kernels
from pycompiler.pipeline import stance
from pycompiler.pipeline.compiler import FrameCompiler
from pycompiler.pipeline.hook import FrameLookup, original, with_empty_cells
from pycompiler.pipeline.records import BackendObserver, EntryParts, GraphRecord
from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.process_settings import Lock

NO_LIMIT = 2**31
T = TypeVar("T")
BACKEND = ("backend", "backend_name", "ours", "backend_options", "knobs")  # the fields that describe the backend


class Members(Generic[T]):
    """A weak set of compiled functions or families; threads may add to it while others iterate."""

    def __init__(self) -> None:
        self._set: weakref.WeakSet[T] = weakref.WeakSet()
        self._lock = Lock()

    def add(self, member: T) -> None:
        with self._lock():
            self._set.add(member)

    def __iter__(self) -> Iterator[T]:
        with self._lock():
            return iter(list(self._set))


@dataclass(eq=False)
class Family:
    """The shared state of one compiled callable's frames: backend, flags, resume functions, records."""

    backend: Callable[..., Any]
    backend_name: str
    fullgraph: bool = False
    recompile_limit: int | None = None
    guard_filter: Callable[[Sequence[GuardEntry]], Sequence[bool]] | None = None
    listener: Callable[[GraphRecord], None] | None = None
    resumes: dict[types.CodeType, CompiledFunction] = field(default_factory=dict)
    members: Members[CompiledFunction] = field(default_factory=Members)
    ours: bool = True
    dynamic: bool | None = None
    backend_options: dict[str, Any] = field(default_factory=dict)  # keyword arguments of each call of the backend
    knobs: dict[str, Any] = field(default_factory=dict)  # knobs of `config` that hold during compiles
    policy: _native.Mode = "compile"
    background: bool = False  # a call that misses runs eagerly, and a worker compiles its graph
    verify: float = 0.0  # share of the calls that are compared with eager
    # functions reached through the frame hook
    hooked: dict[types.CodeType, CompiledFunction] = field(default_factory=dict)
    # digest of a hooked function → loads its entries
    shelf: dict[str, Callable[[CompiledFunction], None]] = field(default_factory=dict)
    made: weakref.WeakKeyDictionary[Entry, EntryParts] = field(default_factory=weakref.WeakKeyDictionary)  # by entry
    sizes: dict[types.CodeType, SymbolPolicy] = field(default_factory=dict)  # which sizes are symbols

    forced: Any = None  # the backend that a stance puts in place of the requested one
    aside: dict[Any, tuple[dict[str, Any], weakref.WeakKeyDictionary[CompiledFunction, list[Entry]]]] = field(
        default_factory=dict
    )
    waited: set[types.CodeType] = field(default_factory=set)  # codes with an eager call before their first compile
    unwrapped: set[types.CodeType] = field(default_factory=set)  # codes without a graph under transforms and in kernels
    # number of the frame, and of its next compile
    frames: dict[types.CodeType, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _families.add(self)
        self.frame_hook = _native.FrameHook(FrameLookup(weakref.ref(self)))
        self.take_stance()

    def copy(self) -> Family:
        """A new family with the same settings."""
        asked = self.aside[None][0] if self.forced is not None else {}  # without the stance's backend
        fresh: dict[str, Any] = {
            "resumes": {}, "hooked": {}, "sizes": {}, "shelf": {}, "aside": {}, "waited": set(), "unwrapped": set(), "frames": {},
            "members": Members(), "made": weakref.WeakKeyDictionary(), "listener": None, "forced": None,
        }  # fmt: skip
        return replace(self, **asked, **fresh)

    def reset(self) -> None:
        """Drop all entries of all members, and the resume functions. The policy stays."""
        for member in self.members:
            member.reset()
        self.resumes.clear()
        self.hooked.clear()
        self.shelf.clear()
        self.sizes.clear()
        self.waited.clear()
        self.unwrapped.clear()
        self.frames.clear()
        for _, entries in self.aside.values():
            entries.clear()

    def title_of(self, fn: CompiledFunction, values: dict[str, Any]) -> CompileName:
        """The name of the compile that a call of `fn` needs."""
        code: types.CodeType = fn.fn.__code__
        frame, entry = self.frames.setdefault(code, [-1, 0])
        if frame < 0:
            frame = self.frames[code][0] = next(compile_names.frames)
        return compile_names.name_of_compile(frame, entry, fn.name, code, values)

    def begun(self, code: types.CodeType) -> None:
        """Count a compile of `code`: the next one has another number."""
        if code in self.frames:
            self.frames[code][1] += 1

    def sizes_of(self, code: types.CodeType) -> SymbolPolicy:
        """The policy of symbolic sizes in captures of `code`."""
        found = self.sizes.get(code)
        if found is None:
            allowed = config.dynamic_shapes and self.dynamic is not False
            dynamic = True if self.dynamic is None and not config.assume_static_by_default else self.dynamic
            changing = allowed and config.automatic_dynamic_shapes
            everything = allowed and dynamic is True
            integers, floats = not config.specialize_int, not config.specialize_float
            made = SymbolPolicy(everything, changing, marked=allowed, integers=integers, floats=floats)
            found = self.sizes.setdefault(code, made)
        return found

    def set_policy(self, policy: _native.Mode) -> None:
        """Set the behaviour at a miss in all members, including resume functions: see `CompiledFunction.set_mode`."""
        self.policy = policy
        self.apply_policy()

    @property
    def observer(self) -> BackendObserver | None:
        """The backend, if it wants reports of compiles."""
        return self.backend if isinstance(self.backend, BackendObserver) else None

    @property
    def mode(self) -> _native.Mode:
        """The policy, unless `config.disable` or a stance forbids it."""
        return "eager" if config.disable else stance.current().mode(self.policy)

    def apply_policy(self) -> None:
        for member in self.members:
            member.set_mode(self.mode)

    def take_stance(self) -> None:
        """Follow the current stance. Entries of other backends are set aside until their backend is current again."""
        wanted = stance.current().backend
        if wanted is not self.forced:
            entries = weakref.WeakKeyDictionary({member: member.entries for member in self.members})
            self.aside[self.forced] = ({name: getattr(self, name) for name in BACKEND}, entries)
            for member in self.members:
                member.reset()
            known, kept = self.aside.pop(wanted, None) or (_settings(wanted), {})
            for name, value in known.items():
                setattr(self, name, value)
            for member, entries_ in kept.items():
                for entry in reversed(entries_):
                    member.install(entry)
            self.forced = wanted
        self.apply_policy()

    # limits ---------------------------------------------------------------------------------------------------
    @property
    def raises_at_limit(self) -> bool:
        """Whether a miss at the limit raises; then `FrameCompiler` checks the limit, else the engine does."""
        return self.fullgraph or config.fail_on_recompile_limit_hit

    @property
    def limit(self) -> int:
        return config.recompile_limit if self.recompile_limit is None else self.recompile_limit

    def set_limits(self, member: CompiledFunction) -> None:
        unlimited = self.raises_at_limit or self.observer is not None
        member.recompile_limit = NO_LIMIT if unlimited else min(self.limit, NO_LIMIT)
        member.accumulated_limit = NO_LIMIT if unlimited else min(config.accumulated_recompile_limit, NO_LIMIT)

    # members --------------------------------------------------------------------------------------------------
    def compiled(
        self, function: Callable[..., Any], *, positional: bool = False, name: str | None = None
    ) -> CompiledFunction:
        """A `CompiledFunction` for `function` in this family."""
        made = CompiledFunction(
            function,
            FrameCompiler(self),
            positional=positional,
            name=name or getattr(function, "__qualname__", None),
        )
        self.set_limits(made)
        self.members.add(made)
        made.set_mode(self.mode)
        return made

    def resume_function(self, code: types.CodeType, namespace: dict[str, Any]) -> CompiledFunction:
        """The compiled function that continues with `code` after a break, one per family."""
        found = self.resumes.get(code)
        if found is None:
            function = with_empty_cells(torch_compile.skip_frames_of(code), namespace)  # the cells come as arguments
            made = self.compiled(function, positional=True)
            found = self.resumes.setdefault(code, made)  # a worker may have been quicker
        return found

    def function_entry(
        self,
        guards: Sequence[Guard],
        code: types.CodeType,
        namespace: dict[str, Any],
        *,
        hook: bool,
        title: str | None = None,
    ) -> Entry:
        """The entry that runs generated code; with a `hook`, the frame hook sees the functions that it calls.

        title: id and name of the compile.
        """
        function = with_empty_cells(torch_compile.skip_frames_of(code), namespace)
        return _native.Entry(guards, function, "function", frame_hook=self.frame_hook if hook else None, title=title)

    def original_entry(self, function: types.FunctionType) -> Entry:
        """The entry that runs a function as it is; the frame hook sees the functions that it calls."""
        return self.function_entry([], original(function.__code__), function.__globals__, hook=True)


_families: Members[Family] = Members()


def _settings(backend: Any) -> dict[str, Any]:
    """The fields of `BACKEND` for a backend without options."""
    values: tuple[Any, ...] = (
        backends.lookup(backend),
        backends.name_of(backend),
        backends.is_builtin_backend(backend),
        {},
        {},
    )
    return dict(zip(BACKEND, values, strict=True))


def families() -> list[Family]:
    """The families of all live compiled callables."""
    return list(_families)


def _limits_changed() -> None:
    for family in _families:
        for member in family.members:
            family.set_limits(member)


def _disable_changed() -> None:
    for family in _families:
        family.apply_policy()


def _stance_changed() -> None:
    for family in _families:
        family.take_stance()


def _kernels_changed() -> None:
    for family in families():
        family.reset()


stance.listeners.append(_stance_changed)
registered_kernels.on_register(_kernels_changed)
config.on_change("disable", _disable_changed)
for _name in ("recompile_limit", "accumulated_recompile_limit", "fail_on_recompile_limit_hit"):
    config.on_change(_name, _limits_changed)
