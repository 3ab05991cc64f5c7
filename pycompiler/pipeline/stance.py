"""What all compiled callables of the process do, whatever each was told: the stance.

In: a name of `MODES`, or a backend that takes the place of each callable's own.  Out: `current`, which families look at when
they set the modes of their functions (`family.py`): a call reads no more than its function's mode.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pycompiler import _native, backends, config
from pycompiler.errors import ArgumentError, UnknownName, describe
from pycompiler.ir import guards

# What a miss does under each stance (see `_native.CompiledFunction.set_mode`).
MODES: dict[str, _native.Mode] = {
    "default": "compile",
    "force_eager": "eager",
    "eager_on_recompile": "run",
    "fail_on_recompile": "error",
    "eager_then_compile": "compile",
}


@dataclass(frozen=True, eq=False)
class Stance:
    """`backend`: what compiles all graphs, in place of the backends that were asked for."""

    name: str = "default"
    backend: Any = None

    def mode(self, policy: _native.Mode) -> _native.Mode:
        """The mode of a function with this policy, which is stronger where it says not to compile."""
        if self.name == "force_eager":
            return "eager"
        return MODES[self.name] if policy == "compile" else policy

    @property
    def waits(self) -> bool:
        """Whether the first call that fits nothing runs eagerly."""
        return self.name == "eager_then_compile"


DEFAULT = Stance()
listeners: list[Callable[[], None]] = []
_current = [DEFAULT]


def current() -> Stance:
    return _current[0]


def foreign_state() -> str | None:
    """`guards.foreign_state`, which is asked where no entry fits; and, where such calls raise, what is around one that mostly has
    no graph: it was compiled for calls outside."""
    found = guards.foreign_state()
    if found is None and current().name == "fail_on_recompile" and (guards.levels() or guards.in_kernel()):
        return "a transform, or the kernel of an operator"
    return found


def take(stance: Stance) -> Stance:
    """Let `stance` hold from now on; the one before."""
    before, _current[0] = _current[0], stance
    for listener in listeners:
        listener()
    return before


class set_stance:
    """Set the stance of the process; also a context manager and a decorator, which put back the one before.

    "default"; "force_eager": nothing that was compiled is used; "eager_on_recompile": what was compiled is used, other calls run
    eagerly; "fail_on_recompile": other calls raise `RecompileError`; "eager_then_compile": the first call of each function runs
    eagerly.  force_backend, with "default" only: graphs are compiled by it; what other backends made is put aside meanwhile.
    skip_guard_eval_unsafe: accepted; all guards are evaluated.
    """

    def __init__(
        self,
        stance: str = "default",
        *,
        skip_guard_eval_unsafe: bool = False,
        force_backend: str | Callable[..., Any] | None = None,
    ) -> None:
        if stance not in MODES:
            raise UnknownName.of("stance", stance, tuple(MODES))
        if force_backend is not None:
            if stance != "default":
                raise ArgumentError("a stance that is not 'default' cannot have force_backend")
            backends.lookup(force_backend)
        if type(skip_guard_eval_unsafe) is not bool:
            raise ArgumentError(f"skip_guard_eval_unsafe must be True or False, got {describe(skip_guard_eval_unsafe)}")
        if skip_guard_eval_unsafe:
            config.say_once("skip_guard_eval_unsafe=True has no effect: all guards are evaluated")
        self.stance = Stance(stance, force_backend)
        self.before = take(self.stance)

    def __enter__(self) -> None:
        take(self.stance)

    def __exit__(self, *exc: object) -> None:
        take(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        take(self.before)
        if not isinstance(fn, types.FunctionType):
            raise ArgumentError(f"set_stance() as a decorator takes a function, got {describe(fn)}")
        stance = self.stance

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            before = take(stance)
            try:
                return fn(*args, **kwargs)
            finally:
                take(before)

        return within
