"""Modes and options of this package's backends: their names, types and effects.

In: `mode=` and `options=` of `compile` (and of torch.compile with this backend).
Out: `check` raises for an unknown option or a wrong type.  `log_without_effect` logs options without an effect.  `knobs`
returns the options that are knobs of `config`.
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
    """`holds`: the values that are true although no code reads the option."""

    types: tuple[type, ...]
    holds: tuple[Any, ...]


WITHOUT_EFFECT = {
    "epilogue_fusion": Option((bool,), (True,)),
    "max_autotune": Option((bool,), (False,)),
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
    "engine_products",
    "pack_weights",
    "shape_padding",
    "freezing",
    "triton.batch_launches",
    "triton.cudagraphs",
    "triton.cudagraph_dynamic_shape_rerecord_limit",
    *(row.name for row in config.KNOBS if row.name.startswith("trace.")),
)
# Modes that stand for options.
OF_MODES: dict[str | None, dict[str, Any]] = {"reduce-overhead": {"triton.cudagraphs": True}}
OPTIONS = ("guard_filter_fn", *WITHOUT_EFFECT, *KNOBS)


def check_mode(mode: object) -> None:
    """Raise UnknownName for a mode that does not exist."""
    if mode not in MODES:
        raise UnknownName.of("mode", mode, MODES)


def check(options: Mapping[str, Any]) -> None:
    """Raise for names and values that the backends do not take."""
    for key, value in options.items():
        if key in KNOBS:
            config.knob(key).check(value)
        elif key in WITHOUT_EFFECT:
            types = WITHOUT_EFFECT[key].types
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


def log_without_effect(mode: str | None, options: Mapping[str, Any]) -> None:
    """Log settings without an effect, once per process each."""
    if mode not in (None, "default", *OF_MODES):
        config.say_once(f"mode {mode!r} has no effect: nothing reads it yet")
    for key, value in options.items():
        if key in WITHOUT_EFFECT and value not in WITHOUT_EFFECT[key].holds:
            config.say_once(f"option {key} = {value!r} has no effect: nothing reads it yet")


def knobs(mode: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Knobs of `config` that mode and options set for compiles of one callable."""
    return {**OF_MODES.get(mode, {}), **{key: value for key, value in options.items() if key in KNOBS}}
