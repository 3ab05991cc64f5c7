"""Exception groups: matching and re-raising by `except*`, and the methods of groups.

In: an exception of the captured program, and the classes or function to match.  Out: the group of matching exceptions
and the group of the rest, built by the group's own `derive` as in CPython.  Both share the group's traceback, context
and cause; `rest_to_raise` recognises them by these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import guard_mro, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.objects import Object

Test = Callable[[Value], bool]
DEEPEST = 50  # nesting of groups
SHARED = ("__cause__", "__context__")


def _wraps_with_traceback() -> bool:
    """Whether this Python sets a traceback on the group around a lone exception."""
    found = []
    try:
        raise ValueError
    except* ValueError as group:
        found.append(group.__traceback__)
    return found != [None]


def _takes_callables() -> bool:
    """Whether `split` accepts any callable as a test in this Python, or functions only."""
    try:
        ExceptionGroup("", [ValueError()]).split(str)  # type: ignore[type-var]
    except TypeError as e:
        return "callable" in str(e)
    return False


WRAPPED, CALLABLES = _wraps_with_traceback(), _takes_callables()


def is_group(value: Value) -> bool:
    return issubclass(value.python_type(), BaseExceptionGroup)


def classes_of(cx: Capture, given: Value, *, star: bool = False) -> list[type]:
    """The classes of `except given`, or of `except* given`.  Raises TypeError for other objects."""
    if isinstance(given, Object) and isinstance(given.storage, Tuple):
        given = given.storage  # its elements, whatever the class overrides
    options = list(given.iterate(cx)) if isinstance(given, Tuple) else [given]
    classes = [cx.realize(v) for v in options]
    if not all(isinstance(c, Class) and issubclass(c.cls, BaseException) for c in classes):
        cx.throw(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    found = [c.cls for c in classes if isinstance(c, Class)]
    if star and any(issubclass(c, BaseExceptionGroup) for c in found):
        cx.throw(TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.")
    return found


def is_of(cx: Capture, exception: Value, classes: list[type]) -> bool:
    cls = exception.python_type()
    guard_mro(cx, cls)
    return any(issubclass(cls, c) for c in classes)


def match(cx: Capture, exception: Value, given: Value) -> tuple[Value, Value]:
    """(caught, rest) of `except* given`, for an exception or None."""
    classes = classes_of(cx, given, star=True)
    if cx.is_none(exception):
        return Const(None), Const(None)
    if is_of(cx, exception, classes):
        return exception if is_group(exception) else _wrapped(cx, exception), Const(None)
    if not is_group(exception):
        return Const(None), exception
    pair = cx.call(exception.getattr(cx, "split"), [given], {})
    if not isinstance(pair, Tuple) or pair.cls is not tuple or len(pair.items) != 2:
        raise Break("unsupported-operation", f"except* of {exception.describe()}, whose split() does not return a pair")
    return pair.at(cx, 0), pair.at(cx, 1)


def _wrapped(cx: Capture, exception: Value) -> Value:
    if WRAPPED:
        raise Break("unsupported-operation", "except* of an exception that is not a group")
    return _made(cx, Const(""), Tuple([exception]), exception)


def _made(cx: Capture, message: Value, exceptions: Value, of: Value) -> Value:
    made = cx.call(cx.make(BaseExceptionGroup), [message, exceptions], {})
    assert isinstance(made, Object)
    made.raised_at = getattr(of, "raised_at", None)
    return made


def rest_to_raise(cx: Capture, caught: Value, left: Value) -> Value:
    """The exception to raise at the end of `except*` clauses, or None.

    `left`: the exceptions that handlers raised and the parts that no handler caught.
    """
    raised = [v for v in left.iterate(cx) if not cx.is_none(v)]
    if not is_group(caught):
        return raised[0] if raised else Const(None)
    again = [v for v in raised if _is_part(caught, v)]
    leaves = {id(leaf) for v in again for leaf in _leaves(cx, v)}
    rest = _split(cx, _of(caught), lambda v: id(v) in leaves, whole=False)[0] if again else Const(None)
    new = [v for v in raised if not any(v is a for a in again)]
    if not new:
        return rest
    new += [] if cx.is_none(rest) else [rest]
    return new[0] if len(new) == 1 else _made(cx, Const(""), List(new), caught)


def _is_part(group: Value, value: Value) -> bool:
    """Whether an exception is a part into which `except*` split a group, not raised anew."""
    if value is group:
        return True
    a, b = _of(group), value
    return isinstance(b, Object) and a.passed is b.passed and all(a.overlay.get(n) is b.overlay.get(n) for n in SHARED)


def _of(value: Value) -> Object:
    if not isinstance(value, Object) or value.exists:
        raise Break("unsupported-operation", f"split of {value.describe()}, an existing exception group")
    return value


def _members(cx: Capture, group: Value) -> list[Value]:
    return list(cx.elements(group.getattr(cx, "exceptions")))


def _leaves(cx: Capture, exception: Value) -> Iterator[Value]:
    if not is_group(exception):
        yield exception
        return
    for member in _members(cx, exception):
        yield from _leaves(cx, member)


def _split(cx: Capture, exception: Value, test: Test, *, whole: bool, depth: int = 0) -> tuple[Value, Value]:
    """(passed, rest), each a group, an exception or None.  The rest is computed only for `whole`."""
    if test(exception):
        return exception, Const(None)
    if not is_group(exception):
        return Const(None), exception if whole else Const(None)
    if depth == DEEPEST:  # CPython's recursion ends at the stack limit
        raise Break("recursion", f"nested groups in {exception.describe()}")
    parts = [_split(cx, member, test, whole=whole, depth=depth + 1) for member in _members(cx, exception)]
    passed, rest = ([v for v in side if not cx.is_none(v)] for side in zip(*parts, strict=True))
    return _derived(cx, exception, passed), _derived(cx, exception, rest)


def _derived(cx: Capture, group: Value, exceptions: list[Value]) -> Value:
    if not exceptions:
        return Const(None)
    origin = _of(group)
    made = cx.realize(cx.call(origin.getattr(cx, "derive"), [List(exceptions)], {}))
    if not is_group(made):
        cx.throw(TypeError, "derive must return an instance of BaseExceptionGroup")
    part = _of(made)
    part.passed, part.raised_at = origin.passed, origin.raised_at
    for name in SHARED:
        if name in origin.overlay:
            cx.effects.set_attr(part, name, origin.overlay[name])
    cx.effects.set_attr(part, "__suppress_context__", Const(True))
    notes = origin.overlay.get("__notes__")
    if isinstance(notes, (List, Tuple)):
        cx.effects.set_attr(part, "__notes__", List(list(notes.items)))
    elif notes is not None:
        raise Break("unsupported-operation", f"{group.describe()}, whose __notes__ is not a list")
    return part


def split(cx: Capture, group: Value, matcher: Value, *, whole: bool = True) -> tuple[Value, Value]:
    """`group.split(matcher)`.  Without `whole` only the first part is created."""
    matcher = cx.realize(matcher)
    test = _test_of(cx, matcher)
    if test is not None:
        return _split(cx, _of(group), test, whole=whole)
    cx.evaluate_raw(ExceptionGroup("", [ValueError()]).split, cx.snapshot(matcher))
    raise Break("unsupported-operation", f"split of an exception group by {matcher.describe()}")


def _test_of(cx: Capture, matcher: Value) -> Test | None:
    options = list(matcher.iterate(cx)) if isinstance(matcher, Tuple) else [matcher]
    classes = [c.cls for c in map(cx.realize, options) if isinstance(c, Class) and issubclass(c.cls, BaseException)]
    if len(classes) == len(options):
        return lambda exception: is_of(cx, exception, classes)
    called = lookup(cx, matcher.python_type(), "__call__") if CALLABLES and not isinstance(matcher, Class) else None
    if isinstance(matcher, Function) or callable(called):
        return lambda exception: cx.truth(cx.call(matcher, [exception], {}))
    return None
