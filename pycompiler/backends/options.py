"""Modes and options of our own backends: what is known, of which type, and what has an effect.

In: `mode=` and `options=` of `compile` (and of torch.compile with our backend).  Out: `check` raises for what is unknown
or of a wrong type, and says in the log what nothing reads yet; `knobs` gives those that are knobs of `config`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pycompiler import config
from pycompiler.errors import ArgumentError, UnknownName, describe

MODES = ("default", "lite", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@dataclass(frozen=True)
class Option:
    """`holds`: the values that hold although nothing reads the option."""

    types: tuple[type, ...]
    holds: tuple[Any, ...]


UNREAD = {
    "epilogue_fusion": Option((bool,), (True,)),
    "max_autotune": Option((bool,), (False,)),
    "shape_padding": Option((bool,), (False,)),
    "size_asserts": Option((bool,), (False,)),
    "coordinate_descent_tuning": Option((bool,), (False,)),
}
KNOBS = (
    "fallback_random",
    "threads",
    "partition",
    "activation_memory_budget",
    "deterministic",
    "emulate_precision_casts",
    "triton.cudagraphs",
    *(row.name for row in config.KNOBS if row.name.startswith("trace.")),
)
OPTIONS = ("guard_filter_fn", *UNREAD, *KNOBS)


def check_mode(mode: object) -> None:
    """Raises UnknownName for a mode that does not exist."""
    if mode not in MODES:
        raise UnknownName.of("mode", mode, MODES)


def check(options: Mapping[str, Any]) -> None:
    """Raises for names and values that our backends do not take."""
    for key, value in options.items():
        if key in KNOBS:
            config.knob(key).check(value)
        elif key in UNREAD:
            types = UNREAD[key].types
            if type(value) not in types:
                raise ArgumentError(
                    f"option {key} takes {' or '.join(t.__name__ for t in types)}, got {describe(value)}"
                )
        elif key == "guard_filter_fn":
            check_filter(value)
        else:
            raise UnknownName.of("option", key, OPTIONS)


def check_filter(value: object) -> None:
    if not callable(value):
        raise ArgumentError(f"option guard_filter_fn must be callable, got {describe(value)}")


def say_unread(mode: str | None, options: Mapping[str, Any]) -> None:
    """Says in the log, once a process each, what has no effect yet."""
    if mode not in (None, "default"):
        config.say_once(f"mode {mode!r} has no effect: nothing reads it yet")
    for key, value in options.items():
        if key in UNREAD and value not in UNREAD[key].holds:
            config.say_once(f"option {key} = {value!r} has no effect: nothing reads it yet")


def knobs(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are knobs of `config`; they hold for compiles of one callable."""
    return {key: value for key, value in options.items() if key in KNOBS}
