"""Guards as `guard_filter_fn` receives them: our fields plus the attributes that torch.compile's filters read.

In: guards, and the frame's locals and globals.  Out: one `GuardEntry` per guard.
torch's named filters (`torch.compiler.skip_guard_on_all_nn_modules_unsafe` and similar) then select the guards that
their names say.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Scope, Source, read_root, step

# torch's name for a guard of each kind.  Kinds without a name in torch are not listed.
TORCH_TYPES = {
    "tensor": "TENSOR_MATCH", "type_is": "TYPE_MATCH", "id_is": "ID_MATCH", "equals": "EQUALS_MATCH",
    "length": "SEQUENCE_LENGTH", "dict_keys": "DICT_KEYS_MATCH", "dict_contains": "DICT_CONTAINS",
    "dict_absent": "DICT_CONTAINS", "instance_absent": "NOT_PRESENT_IN_GENERIC_DICT", "truth": "BOOL_MATCH",
    "global_state": "GLOBAL_STATE", "no_alias": "DUPLICATE_INPUT", "same_object": "DUPLICATE_INPUT",
    "sizes": "SHAPE_ENV",
}  # fmt: skip
ABSENT = object()


@dataclass(frozen=True)
class EntrySource:
    """The source of a guard, with the classes of the modules on the way to it."""

    source: Source
    modules: tuple[type, ...]

    @property
    def name(self) -> str:
        return self.source.name

    def is_unspecialized_nn_module(self) -> bool:
        return bool(self.modules)

    def is_unspecialized_builtin_nn_module(self) -> bool:
        return any(cls.__module__.startswith(("torch.nn.", "torch.ao.")) for cls in self.modules)


@dataclass(frozen=True)
class GuardEntry:
    """One guard.  `kind`, `source`, `arg`, `others` and `user` are as in `Guard`; the rest as in torch's `GuardFilterEntry`."""

    guard: Guard
    has_value: bool
    value: Any
    entry_source: EntrySource

    def __getattr__(self, name: str) -> Any:
        if name in ("kind", "source", "arg", "others", "user"):
            return getattr(self.guard, name)
        raise AttributeError(f"a guard has no attribute {name!r}")

    def __str__(self) -> str:
        return str(self.guard)

    @property
    def name(self) -> str:
        return "" if self.guard.kind == "global_state" else self.guard.source.name

    @property
    def guard_type(self) -> str:
        return TORCH_TYPES.get(self.guard.kind, self.guard.kind.upper())

    @property
    def derived_guard_types(self) -> tuple[str, ...]:
        return ()

    @property
    def code_parts(self) -> tuple[str, ...]:
        return (str(self.guard),)

    @property
    def is_global(self) -> bool:
        """Whether the guard is on a global, or on a class or module that the program reached through a global."""
        return self.guard.kind != "global_state" and self.guard.source.root.kind != "local"

    @property
    def orig_guard(self) -> Any:
        return _OriginalGuard(self.guard, self.entry_source)


@dataclass(frozen=True)
class _OriginalGuard:
    guard: Guard
    source: EntrySource

    @property
    def name(self) -> str:
        return self.source.name


def entries(guards: Sequence[Guard], scope: Scope) -> list[GuardEntry]:
    """One entry per guard, in order."""
    known: dict[Source, tuple[Any, tuple[type, ...]]] = {}

    def visit(source: Source) -> tuple[Any, tuple[type, ...]]:
        """The value at `source` (ABSENT if there is none), and the classes of the modules on the way to it."""
        found = known.get(source)
        if found is None:
            value, modules = (ABSENT, ()) if source.base is None else visit(source.base)
            try:
                value = _step(source, value, scope)
            except Exception:  # some guards state that a value is absent
                value = ABSENT
            cls = value if isinstance(value, type) else type(value)
            found = known[source] = (value, (*modules, cls) if issubclass(cls, torch.nn.Module) else modules)
        return found

    made = []
    for guard in guards:
        value, modules = visit(guard.source) if guard.kind != "global_state" else (ABSENT, ())
        made.append(GuardEntry(guard, value is not ABSENT, value, EntrySource(guard.source, modules)))
    return made


def _step(source: Source, base: Any, scope: Scope) -> Any:
    if source.base is not None:
        return step(source, base, scope)
    return read_root(source, scope)
