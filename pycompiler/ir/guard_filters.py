"""Named guard filters for ``options={"guard_filter_fn": ...}``.  A dropped guard is no longer checked, so they are unsafe.

In: the entries of `guard_entries.py`.  Out: for each entry, whether the guard is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Flags = list[bool]


def keep_portable_guards_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """A guard filter that keeps guards on tensors that are not globals, on their sizes, and on torch's global state.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        options = {"guard_filter_fn": pycompiler.keep_portable_guards_unsafe}
        compiled = pycompiler.compile(lambda x: x + 1, options=options)
        compiled(torch.ones(3))
        ```
    """
    state = ("GLOBAL_STATE", "SHAPE_ENV")
    return [e.guard_type in state or (e.guard_type == "TENSOR_MATCH" and not e.is_global) for e in guard_entries]


def keep_tensor_guards_unsafe(guard_entries: Sequence[Any], keep_parameters: bool = False) -> Flags:
    """A guard filter that keeps guards on tensors.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.
        keep_parameters: Keep guards on parameters, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        options = {"guard_filter_fn": pycompiler.keep_tensor_guards_unsafe}
        compiled = pycompiler.compile(torch.nn.Linear(3, 3), options=options)
        compiled(torch.ones(3))
        ```
    """
    return [
        e.guard_type == "TENSOR_MATCH" and (keep_parameters or not isinstance(e.value, torch.nn.Parameter))
        for e in guard_entries
    ]


def skip_guard_on_inbuilt_nn_modules_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """A guard filter that drops guards on values read through one of torch's own modules.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        options = {"guard_filter_fn": pycompiler.skip_guard_on_inbuilt_nn_modules_unsafe}
        compiled = pycompiler.compile(torch.nn.Linear(3, 3), options=options)
        compiled(torch.ones(3))
        ```
    """
    return [not e.orig_guard.source.is_unspecialized_builtin_nn_module() for e in guard_entries]


def skip_guard_on_all_nn_modules_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """A guard filter that drops guards on values read through a module.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        options = {"guard_filter_fn": pycompiler.skip_guard_on_all_nn_modules_unsafe}
        compiled = pycompiler.compile(torch.nn.Linear(3, 3), options=options)
        compiled(torch.ones(3))
        ```
    """
    return [not e.orig_guard.source.is_unspecialized_nn_module() for e in guard_entries]


def skip_guard_on_globals_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """A guard filter that drops guards on values read through a global.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        SCALE = 2
        options = {"guard_filter_fn": pycompiler.skip_guard_on_globals_unsafe}
        compiled = pycompiler.compile(lambda x: x * SCALE, options=options)
        compiled(torch.ones(3))
        ```
    """
    return [not e.is_global for e in guard_entries]


def skip_all_guards_unsafe(guard_entries: Sequence[Any]) -> Flags:
    """A guard filter that drops all guards.

    Args:
        guard_entries: The guards of a compile; torch's attributes are there, too.

    Returns:
        list[bool]: For each guard, whether it is checked.

    Example:
        ```python
        options = {"guard_filter_fn": pycompiler.skip_all_guards_unsafe}
        compiled = pycompiler.compile(lambda x: x + 1, options=options)
        compiled(torch.ones(3))
        ```
    """
    return [False for _ in guard_entries]
