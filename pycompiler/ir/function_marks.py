"""Marks of the program's functions: a call is one node of the graph, breaks the graph, or is a constant.

In: functions.  Out: the same functions, marked here by identity, so that builtins can be marked too.
torch's own marks (`torch.compiler.allow_in_graph` and similar) mean the same.  They are read from torch's tables.
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
_strong_references: list[Any] = []  # keeps marked objects without weak references alive, so that their ids stay valid
_TORCH_TABLES = {  # tables of ids in torch._dynamo.trace_rules
    "_nonstrict_trace_callable_ids": NONSTRICT,
    "_allowed_callable_ids": ALLOW,
    "_disallowed_callable_ids": DISALLOW,
}
CONSTANT_MARK = "_dynamo_marked_constant"  # torch's mark: an attribute of the function


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
            _strong_references.append(fn)
    _marks[key] = kind


def mark_of(fn: Any) -> str | None:
    """The mark of a function, set here or by torch; None without one."""
    if not _marks and "torch._dynamo.trace_rules" not in sys.modules:
        return None
    found = _marks.get(id(fn))
    return _torch_mark(fn) if found is None else found


def _torch_mark(fn: Any) -> str | None:
    rules = sys.modules.get("torch._dynamo.trace_rules")
    for table, kind in _TORCH_TABLES.items():
        if id(fn) in (getattr(getattr(rules, table, None), "function_ids", None) or ()):
            return kind
    return None


def is_constant(fn: Any) -> bool:
    """Whether the result of a call counts as a constant."""
    return _marks.get(id(fn)) == CONSTANT or (type(fn) is types.FunctionType and CONSTANT_MARK in fn.__dict__)


def substitute_of(fn: Any) -> Callable[..., Any] | None:
    """The function that is inlined in place of `fn`, or None."""
    return _substitutes.get(id(fn)) if _substitutes else None


# public functions
# ---------------------------------------------------------------------------------------------------------
def allow_in_graph(fn: Any) -> Any:
    """Make each call of a function one node of the graph.  Capture does not trace into the function.

    Every backend sees the function itself; backends of this package trace through it when they compile.
    Arguments and results are tensors, constants and containers of them.
    Other values that the function reads are not guarded, and its side effects are lost.

    Args:
        fn (Callable | list[Callable]): A function, or a list of functions.

    Returns:
        Callable | list[Callable]: `fn`.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        @pycompiler.allow_in_graph
        def double(x):
            return x * 2

        report = pycompiler.explain(lambda x: double(x) + 1)(torch.ones(3))
        assert report.op_count == 2                  # double, add
        ```
    """
    for f in _functions(fn, "allow_in_graph()"):
        _mark(f, ALLOW)
    return fn


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """A copy of a function whose calls are one node of the graph each, as with `allow_in_graph`.

    Args:
        traceable_fn: A function; it stays unmarked.

    Returns:
        Callable: The marked copy.

    Raises:
        ArgumentError: `traceable_fn` is not callable.

    Example:
        ```python
        def double(x):
            return x * 2

        node = pycompiler.nonstrict_trace(double)
        compiled = pycompiler.compile(lambda x: node(x) + double(x), fullgraph=True)
        compiled(torch.ones(3))
        ```
    """
    (given,) = _functions(traceable_fn, "nonstrict_trace()")

    @functools.wraps(given)
    def traced(*args: Any, **kwargs: Any) -> Any:
        return given(*args, **kwargs)

    _mark(traced, NONSTRICT)
    return traced


def disallow_in_graph(fn: Any) -> Any:
    """Break the graph at each call of a function.  `allow_in_graph` undoes this.

    Args:
        fn (Callable | list[Callable]): A function, or a list of functions.

    Returns:
        Callable | list[Callable]: `fn`.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        def double(x):
            return x * 2

        pycompiler.disallow_in_graph(double)
        report = pycompiler.explain(lambda x: double(x + 1) + 1)(torch.ones(3))
        assert report.graph_break_count == 1
        ```
    """
    for f in _functions(fn, "disallow_in_graph()"):
        _mark(f, DISALLOW)
    return fn


def assume_constant_result(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Take a function's result as a constant: the function runs at capture, with the arguments of that call.

    Args:
        fn: A function.

    Returns:
        Callable: `fn`.

    Raises:
        ArgumentError: `fn` is not callable.

    Example:
        ```python
        @pycompiler.assume_constant_result
        def scale():
            return 3

        compiled = pycompiler.compile(lambda x: x * scale(), fullgraph=True)
        assert compiled(torch.ones(1)) == 3
        ```
    """
    (given,) = _functions(fn, "assume_constant_result()")
    _mark(given, CONSTANT)
    return fn


def substitute_in_graph(
    original_fn: Callable[..., Any], *, can_constant_fold_through: bool = False, skip_signature_check: bool = False
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """A decorator: captured code that calls a C function inlines the decorated Python function instead.

    Args:
        original_fn: The C function.
        can_constant_fold_through: Accepted for compatibility: calls with constant arguments are always folded.
        skip_signature_check: Allow another signature than that of `original_fn`.

    Returns:
        Callable: A decorator for the Python function.

    Raises:
        ArgumentError: The signatures differ, `original_fn` has a substitute, or the substitute is not a Python function.

    Example:
        ```python
        import operator

        @pycompiler.substitute_in_graph(operator.length_hint)
        def length_hint(obj, default=0, /):
            return len(obj) if hasattr(obj, "__len__") else default

        compiled = pycompiler.compile(lambda x: x + operator.length_hint([x, x]), fullgraph=True)
        assert compiled(torch.ones(1)) == 3
        ```
    """
    (original,) = _functions(original_fn, "substitute_in_graph()")

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not inspect.isfunction(fn):
            raise ArgumentError(
                f"substitute_in_graph() takes a Python function in place of {original!r}, got {describe(fn)}"
            )
        if id(original) in _substitutes:
            raise ArgumentError(f"{original!r} already has a substitute")
        if not skip_signature_check:
            _compare(original, fn)
        _strong_references.append(original)
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
            f"{fn.__qualname__}{inspect.signature(fn)} cannot replace a function with the signature {wanted}"
        )


# graph breaks as errors
# ---------------------------------------------------------------------------------------------------
class _Errors(threading.local):
    raised = False


_errors = _Errors()


def switch_errors(error: bool) -> bool:
    """Set whether graph breaks are errors in this thread; returns the previous setting."""
    before, _errors.raised = _errors.raised, error
    return before


def breaks_are_errors() -> bool:
    return _errors.raised


class error_on_graph_break:
    """Context manager and decorator for captured code: graph breaks inside raise `Unsupported`, or do not.

    The setting is read when a frame is captured.  `compile(fullgraph=True)` overrides it.

    Args:
        error_on_graph_break: True: graph breaks raise.  False: they do not.

    Raises:
        ArgumentError: The argument is not a bool.

    Example:
        ```python
        @pycompiler.compile
        def step(x):
            print("a graph break")
            with pycompiler.error_on_graph_break(True):
                return x + 1                         # a graph break here would raise

        step(torch.ones(3))
        ```
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
            return call_with_break_errors(error, fn, *args, **kwargs)

        return within


def call_with_break_errors(error: bool, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call `fn` with graph breaks as errors (True) or not (False)."""
    before = switch_errors(error)
    try:
        return fn(*args, **kwargs)
    finally:
        switch_errors(before)
