"""The guards of an entry: the guards that the user's filter keeps, assumptions on symbols, and guards that never
hold."""

from __future__ import annotations

import types
from collections.abc import Iterable

from pycompiler.capture.interpreter.frame import Captured
from pycompiler.capture.recording.input_symbols import SymbolPolicy
from pycompiler.errors import ArgumentError, InternalError, UserError
from pycompiler.ir.guard_entries import entries
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import Scope, const_source
from pycompiler.logs import stage
from pycompiler.pipeline.interface import Family
from pycompiler.symbolic.symbols import Specialise

log = stage("dynamo")


class _TrueOnce:
    """True at its first evaluation, when the new entry is checked."""

    asked = False

    def __bool__(self) -> bool:
        first, self.asked = not self.asked, True
        return first


def once() -> Guard:
    """A guard of an entry that serves one call."""
    return Guard("truth", const_source(_TrueOnce()), True)


class UsersError(BaseException):
    """Carries an exception of the user's own code (a backend, a guard filter) out of a compile unchanged."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def filtered(family: Family, guards: list[Guard], scope: Scope) -> list[Guard]:
    """The guards that the user's filter keeps; exceptions of the filter are the user's."""
    choose = family.guard_filter
    if choose is None:
        return guards
    name = getattr(choose, "__name__", choose)
    try:
        answers = choose(entries(guards, scope))
        keep = list(answers) if isinstance(answers, Iterable) else None
    except Exception as e:
        e.add_note(f"raised by the guard filter {name!r}")
        raise UsersError(e) from None
    if keep is None or len(keep) != len(guards):
        seen = repr(answers) if keep is None else f"{len(keep)} answers"
        raise ArgumentError(
            f"the guard filter {name!r} returned {seen} for {len(guards)} guards; expected one bool a guard, in order"
        )
    return [g for g, k in zip(guards, keep, strict=True) if k]


def size_guards(captured: Captured) -> list[Guard]:
    """The guard on symbols; called after the graph is compiled, since compiling may add assumptions."""
    sizes = captured.sizes
    if sizes is None or (guard := sizes.guard()) is None:
        return []
    if (wrong := sizes.specialised()) is not None:
        origin, relation = wrong
        where = f" at {relation.place[-1]}" if relation.place else ""
        why = f" {relation.why}" if relation.why else ""
        raise UserError(
            f"{origin.number} is marked dynamic, but must be one number: {relation} is assumed{why}{where}\n"
            "use maybe_mark_dynamic, or a computation that works for all sizes"
        )
    assert sizes.symbols is not None
    sizes.symbols.freeze()
    return [guard]


def specialise(code: types.CodeType, policy: SymbolPolicy, captured: Captured, wanted: Specialise) -> None:
    """Make symbols that a stage cannot handle numbers in later captures of `code`."""
    assert captured.sizes is not None
    origins = captured.sizes.origins_of(wanted)
    if not origins:
        raise InternalError(f"no symbols of this graph: {wanted}")
    policy.specialise(captured.sizes.unmarked(origins, wanted))
    log.info("%s: sizes become constants: %s", code.co_qualname, wanted)
