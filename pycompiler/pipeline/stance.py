"""The stance: one behaviour for all compiled callables of the process, above their own settings.

In: a name of `MODES`, or a backend that replaces each callable's own.
Out: `current`, which families read when they set the modes of their functions (`family.py`).  A call reads only its
function's mode.
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

# The behaviour at a miss under each stance (see `_native.CompiledFunction.set_mode`).
MODES: dict[str, _native.Mode] = {
    "default": "compile",
    "force_eager": "eager",
    "eager_on_recompile": "run",
    "fail_on_recompile": "error",
    "eager_then_compile": "compile",
}


@dataclass(frozen=True, eq=False)
class Stance:
    """`backend`: the backend of all graphs, in place of the requested backends."""

    name: str = "default"
    backend: Any = None

    def mode(self, policy: _native.Mode) -> _native.Mode:
        """The mode of a function with this policy; a policy that forbids compiling is stronger."""
        if self.name == "force_eager":
            return "eager"
        return MODES[self.name] if policy == "compile" else policy

    @property
    def waits(self) -> bool:
        """Whether the first call that fits no entry runs eagerly."""
        return self.name == "eager_then_compile"


DEFAULT = Stance()
listeners: list[Callable[[], None]] = []
_current = [DEFAULT]


def current() -> Stance:
    return _current[0]


def foreign_state() -> str | None:
    """`guards.foreign_state`, called when no entry fits.

    If such calls raise, also the transform or kernel around the call: mostly such a call has no graph, and the
    entries were compiled for calls outside.
    """
    found = guards.foreign_state()
    if found is None and current().name == "fail_on_recompile" and (guards.transform_levels() or guards.in_kernel()):
        return "a transform, or the kernel of an operator"
    return found


def take(stance: Stance) -> Stance:
    """Make `stance` current; returns the previous one."""
    before, _current[0] = _current[0], stance
    for listener in listeners:
        listener()
    return before


class set_stance:
    """Set the stance: one behaviour for all compiled callables of the process.

    It is also a context manager and a decorator, which restore the previous stance.

    | stance | effect |
    | --- | --- |
    | `"default"` | each callable follows its own settings |
    | `"force_eager"` | compiled code is not used |
    | `"eager_on_recompile"` | entries are used; calls that fit none run eagerly |
    | `"fail_on_recompile"` | entries are used; calls that fit none raise `RecompileError` |
    | `"eager_then_compile"` | the first call of each function runs eagerly |

    Args:
        stance: A name of the table.
        skip_guard_eval_unsafe: Accepted for compatibility: all guards are evaluated.
        force_backend: A backend for all graphs, as in `compile`; only with "default".  Entries of other backends are set
            aside meanwhile.

    Raises:
        UnknownName: The stance or the backend does not exist.
        UserError: `force_backend` is neither a name nor callable.
        ArgumentError: Another stance has `force_backend`, or an argument has a wrong type.

    Example:
        ```python
        compiled = pycompiler.compile(lambda x: x + 1)
        with pycompiler.set_stance("force_eager"):
            compiled(torch.ones(3))
        assert pycompiler.counters(compiled)["compiles"] == 0
        ```
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
