"""Filters of guards by name, for ``options={"guard_filter_fn": ...}``: what they drop is no longer compared, so they are unsafe.

In: the entries of `guard_entries.py`.  Out: for each of them whether it is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Flags = list[bool]


def keep_portable_guards_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """Tensors that are no globals, their sizes, and torch's state."""
    state = ("GLOBAL_STATE", "SHAPE_ENV")
    return [e.guard_type in state or (e.guard_type == "TENSOR_MATCH" and not e.is_global) for e in guard_entries]


def keep_tensor_guards_unsafe(guard_entries: Sequence[Any], keep_parameters: bool = False) -> Flags:
    """Tensors, parameters only with `keep_parameters`."""
    return [
        e.guard_type == "TENSOR_MATCH" and (keep_parameters or not isinstance(e.value, torch.nn.Parameter))
        for e in guard_entries
    ]


def skip_guard_on_inbuilt_nn_modules_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """All but what is read through a module of torch's."""
    return [not e.orig_guard.source.is_unspecialized_builtin_nn_module() for e in guard_entries]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """All but what is read through a module."""
    return [not e.orig_guard.source.is_unspecialized_nn_module() for e in guard_entries]


def skip_guard_on_globals_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """All but what is read through a global."""
    return [not e.is_global for e in guard_entries]


def skip_all_guards_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """None."""
    return [False for _ in guard_entries]
