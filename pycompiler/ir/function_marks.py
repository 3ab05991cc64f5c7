"""What a program says about its functions: which calls go into graphs whole, which break them, which are constants.

In: functions.  Out: the same functions, marked here by identity, so that builtins can be marked as well.  torch's own marks
(`torch.compiler.allow_in_graph` and its like) mean the same; they are read where torch keeps them.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

from pycompiler.errors import ArgumentError, describe

ALLOW, NONSTRICT, DISALLOW, CONSTANT = "allow", "nonstrict", "disallow", "constant"
_marks: dict[int, str] = {}
_substitutes: dict[int, Callable[..., Any]] = {}
_kept: list[Any] = []  # marked objects without weak references
_PEER = {  # tables of ids in torch._dynamo.trace_rules
    "_nonstrict_trace_callable_ids": NONSTRICT,
    "_allowed_callable_ids": ALLOW,
    "_disallowed_callable_ids": DISALLOW,
}
CONSTANT_MARK = "_dynamo_marked_constant"  # torch's, an attribute of the function


def _functions(given: Any, caller: str) -> list[Any]:
    found = list(given) if isinstance(given, (list, tuple)) else [given]
    for fn in found:
        if not callable(fn):
            raise ArgumentError(f"{caller} takes a function, or a list of functions, got {describe(fn)}")
    return found


def _mark(fn: Any, kind: str) -> None:
    key = id(fn)
    if key not in _marks:
        try:
            weakref.finalize(fn, _marks.pop, key, None)
        except TypeError:
            _kept.append(fn)
    _marks[key] = kind


def mark_of(fn: Any) -> str | None:
    """The mark of a function, ours or torch's."""
    if not _marks and "torch._dynamo.trace_rules" not in sys.modules:
        return None
    found = _marks.get(id(fn))
    return _peers(fn) if found is None else found


def _peers(fn: Any) -> str | None:
    rules = sys.modules.get("torch._dynamo.trace_rules")
    for table, kind in _PEER.items():
        if id(fn) in (getattr(getattr(rules, table, None), "function_ids", None) or ()):
            return kind
    return None


def is_constant(fn: Any) -> bool:
    """Whether what a function gives is taken for a constant."""
    return _marks.get(id(fn)) == CONSTANT or (type(fn) is types.FunctionType and CONSTANT_MARK in fn.__dict__)


def substitute_of(fn: Any) -> Callable[..., Any] | None:
    """The function that is inlined in the place of `fn`."""
    return _substitutes.get(id(fn)) if _substitutes else None


# the public functions -----------------------------------------------------------------------------------------------------
def allow_in_graph(fn: Any) -> Any:
    """Calls of a function, or of each in a list, are one node of the graph each: capture does not look inside.

    Each backend meets the function itself; backends of this package trace through it when they compile.  Its arguments and
    results are tensors, constants and containers of them.  What else it reads is not guarded; what it does besides is lost.
    """
    for f in _functions(fn, "allow_in_graph()"):
        _mark(f, ALLOW)
    return fn


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function like `traceable_fn`, which is not changed; calls of it are one node of the graph each (see `allow_in_graph`)."""
    (given,) = _functions(traceable_fn, "nonstrict_trace()")

    @functools.wraps(given)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return given(*args, **kwargs)

    _mark(traced, NONSTRICT)
    return traced


def disallow_in_graph(fn: Any) -> Any:
    """Calls of a function, or of each in a list, break the graph.  `allow_in_graph` takes it back."""
    for f in _functions(fn, "disallow_in_graph()"):
        _mark(f, DISALLOW)
    return fn


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function is called when a graph is captured, with the arguments that are there then; what it gives is a constant."""
    (given,) = _functions(fn, "assume_constant_result()")
    _mark(given, CONSTANT)
    return fn


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: where captured code calls `original_fn`, a function of C, the decorated Python function is inlined.

    can_constant_fold_through: accepted; what can be folded is.  Raises `ArgumentError` when the signatures differ (unless
    skip_signature_check) or there is one already.
    """
    (original,) = _functions(original_fn, "substitute_in_graph()")

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isfunction(fn):
            raise ArgumentError(
                f"substitute_in_graph() takes a Python function in place of {original!r}, got {describe(fn)}"
            )
        if id(original) in _substitutes:
            raise ArgumentError(f"{original!r} has a function in its place already")
        if not skip_signature_check:
            _compare(original, fn)
        _kept.append(original)
        _substitutes[id(original)] = fn
        return fn

    return register


def _compare(original: Any, fn: Any) -> None:
    try:
        wanted = inspect.signature(original)
    except (TypeError, ValueError):
        return
    a, b = ([(p.name, p.kind) for p in s.parameters.values()] for s in (wanted, inspect.signature(fn)))
    if a != b:
        raise ArgumentError(
            f"{fn.__qualname__}{inspect.signature(fn)} stands for a function with the signature {wanted}"
        )


# breaks that are errors ---------------------------------------------------------------------------------------------------
class _Errors(threading.local):
    raised = False


_errors = _Errors()


def switch_errors(error: bool) -> bool:
    """Whether graph breaks are errors, in this thread from now on; what was before."""
    before, _errors.raised = _errors.raised, error
    return before


def breaks_are_errors() -> bool:
    return _errors.raised


class error_on_graph_break:
    """Context manager and decorator, for captured code: graph breaks inside raise `Unsupported` (True), or do not (False).

    It is looked at when frames are captured; `compile(fullgraph=True)` is stronger.
    """

    def __init__(self, error_on_graph_break: bool) -> None:
        if type(error_on_graph_break) is not bool:
            raise ArgumentError(f"error_on_graph_break() takes True or False, got {describe(error_on_graph_break)}")
        self.error = error_on_graph_break

    def __enter__(self) -> None:
        self.before = switch_errors(self.error)

    def __exit__(self, *exc: object) -> None:
        switch_errors(self.before)

    def __call__(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        error = self.error

        @functools.wraps(fn)
        def within(*args: Any, **kwargs: Any) -> Any:
            return call_within(error, fn, *args, **kwargs)

        return within


def call_within(error: bool, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """A call in which graph breaks are errors, or are not."""
    before = switch_errors(error)
    try:
        return fn(*args, **kwargs)
    finally:
        switch_errors(before)
