"""The protocol that the parts of a compile use of their compiled callable; `family.Family` is the only
implementation."""

from __future__ import annotations

import types
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any, Protocol

from pycompiler import _native
from pycompiler._native import CompiledFunction, Entry
from pycompiler.capture.recording.input_symbols import SymbolPolicy
from pycompiler.ir.compile_names import CompileName
from pycompiler.ir.guard_entries import GuardEntry
from pycompiler.ir.guards import Guard
from pycompiler.pipeline.records import BackendObserver, EntryParts, GraphRecord


class Family(Protocol):
    backend_name: str
    backend_options: dict[str, Any]
    knobs: dict[str, Any]
    ours: bool
    fullgraph: bool
    dynamic: bool | None
    background: bool
    verify: float
    guard_filter: Callable[[Sequence[GuardEntry]], Sequence[bool]] | None
    listener: Callable[[GraphRecord], None] | None
    hooked: dict[types.CodeType, CompiledFunction]
    shelf: dict[str, Callable[[CompiledFunction], None]]
    waited: set[types.CodeType]
    unwrapped: set[types.CodeType]

    @property
    def backend(self) -> Callable[..., Any]: ...
    @property
    def made(self) -> MutableMapping[Entry, EntryParts]: ...
    @property
    def observer(self) -> BackendObserver | None: ...
    @property
    def mode(self) -> _native.Mode: ...
    @property
    def raises_at_limit(self) -> bool: ...
    @property
    def limit(self) -> int: ...
    def title_of(self, fn: CompiledFunction, values: dict[str, Any]) -> CompileName: ...

    def begun(self, code: types.CodeType) -> None: ...

    def sizes_of(self, code: types.CodeType) -> SymbolPolicy: ...
    def compiled(
        self, function: Callable[..., Any], *, positional: bool = False, name: str | None = None
    ) -> CompiledFunction: ...
    def resume_function(self, code: types.CodeType, namespace: dict[str, Any]) -> CompiledFunction: ...
    def function_entry(
        self,
        guards: Sequence[Guard],
        code: types.CodeType,
        namespace: dict[str, Any],
        *,
        hook: bool,
        title: str | None = None,
    ) -> Entry: ...
    def original_entry(self, function: types.FunctionType) -> Entry: ...
