"""Exceptions created during capture: their C-level attributes and messages.

In: an `Object` of an exception class with its constructor arguments.  Out: `e.value`, `e.errno`, `e.exceptions`,
`str(e)`, ... as CPython computes them.  A real exception is built from the constant arguments and from placeholders for
the others.  The attributes read from it are translated back to values.
"""

from __future__ import annotations

import types
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.values.attributes import is_mutable, lookup
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.enum_members import Member
from pycompiler.capture.values.objects import Object
from pycompiler.ir.source import mro_of

INITIALISED = (OSError, StopIteration, SystemExit, ImportError, SyntaxError, UnicodeError, NameError, AttributeError)
"""Exceptions whose `__init__` reads its arguments."""
GROUP = ("message", "exceptions")
MEMBER = types.MemberDescriptorType


class StandIns(dict[int, tuple[Any, Value]]):
    """id of a stand-in -> the stand-in (a strong reference) and its value.  `made`: the stand-in of each value."""

    def __init__(self) -> None:
        super().__init__()
        self.made: dict[int, Any] = {}


class Placeholder:
    """Stands for a value that has no real counterpart during capture."""


def builtin_base(cls: type) -> type:
    """The most derived class of the mro that is not written in Python."""
    return next(c for c in mro_of(cls) if not is_mutable(c))


def keeps_arguments(cls: type) -> bool:
    """Whether the C `__init__` of an exception only stores its arguments."""
    return not issubclass(cls, INITIALISED)


def extra_attributes(error: BaseException) -> dict[str, Any]:
    """C-level attributes set in addition to the arguments, such as the position of a SyntaxError."""
    cls = builtin_base(type(error))
    if keeps_arguments(cls):
        return {}
    plain = cls(*error.args)
    found = {
        name: getattr(error, name)
        for base in mro_of(cls)
        for name, member in vars(base).items()
        if type(member) is MEMBER
    }
    return {name: value for name, value in found.items() if value != getattr(plain, name)}


def stand_in(value: Value, back: StandIns) -> Any:
    value = value.settle("for the text of an exception")
    if value.is_const():
        return value.const()
    if id(value) in back.made:  # members of a group are among its arguments, too
        return back.made[id(value)]
    real: Any = Placeholder()
    if isinstance(value, Object) and value.args is not None:
        real = build(value, back)
    elif issubclass(type(existing := getattr(value, "real", None)), BaseException):
        real = existing
    elif isinstance(value, (List, Tuple)) and value.cls in (list, tuple):
        real = value.cls(stand_in(v, back) for v in value.items)
    back[id(real)] = (real, value)
    back.made[id(value)] = real
    return real


def build(exception: Object, back: StandIns) -> BaseException:
    """A real exception of the same class; Python-level `__new__` and `__init__` do not run."""
    base = builtin_base(exception.cls)
    args = [stand_in(a, back) for a in exception.args or ()]
    made_of = args if exception.group is None else [stand_in(a, back) for a in exception.group]
    try:
        real: BaseException = base.__new__(exception.cls, *made_of)
        if isinstance(real, exception.cls):
            base.__init__(real, *args)  # type: ignore[misc]
    except TypeError:
        if any(type(a) is Placeholder for a in (*args, *made_of)):  # the real argument may have the required class
            raise Break("builtin-call", f"{exception.describe()} of an argument that is not a constant") from None
        raise
    return real


def translate(cx: Capture, found: Any, back: StandIns) -> Value:
    if id(found) in back:
        return back[id(found)][1]
    if type(found) in (tuple, list):
        return cx.sequence([translate(cx, v, back) for v in found], type(found))
    if isinstance(found, Placeholder):
        raise Break("unsupported-attribute", "attribute of an exception")
    return cx.make(found)


def attribute(cx: Capture, exception: Object, name: str) -> Value:
    """A C-level attribute of an exception created during capture."""
    if exception.group is not None and name in GROUP:
        return exception.group[GROUP.index(name)]
    back = StandIns()
    real = cx.evaluate_raw(build, exception, back)
    return translate(cx, cx.evaluate_raw(getattr, real, name), back)


def text(cx: Capture, exception: Object, how: Any) -> Value:
    """str(e) or repr(e) by the C-level methods of its class."""
    back = StandIns()
    real = build(exception, back)
    members = [v for v in map(cx.realize, exception.args or ()) if isinstance(v, Member)]
    if not all(_has_own_str(cx, v) for _, v in back.values()) or any(v.says_texts() for v in members):
        raise Break(
            "unsupported-operation", f"{how.__name__}({exception.describe()}) with arguments that are not constants"
        )
    return cx.evaluate(how, real)


def _has_own_str(cx: Capture, value: Value) -> bool:
    """Whether the str of an argument's stand-in is the argument's own."""
    if not isinstance(value, Object):
        return isinstance(value, (List, Tuple)) and value.cls in (list, tuple)
    written = (lookup(cx, value.cls, name) for name in ("__repr__", "__str__"))
    return value.args is not None and not value.exists and not any(isinstance(m, types.FunctionType) for m in written)


def new(cx: Capture, cls: type, args: list[Value]) -> Object:
    """cls.__new__(cls, *args).  OSError chooses a subclass by its errno, BaseExceptionGroup by its members."""
    made = Object(cls, args=args)
    if issubclass(cls, BaseExceptionGroup):
        if len(args) == 2:
            members = cx.realize(args[1])
            if not isinstance(members, (List, Tuple)) or members.cls not in (list, tuple):
                raise Break("builtin-call", f"{cls.__qualname__}(...) of {members.describe()}")
            made.group = (args[0], Tuple(list(cx.elements(members))))
    elif builtin_base(cls).__new__ is BaseException.__new__:
        return made
    back = StandIns()
    for member in () if made.group is None else made.group[1].iterate(cx):
        if isinstance(member, Object) and member.group is not None:  # the contents of an inner group do not matter
            inner = Exception() if issubclass(member.cls, Exception) else BaseException()
            back.made[id(member)] = BaseExceptionGroup("", [inner])
    made.cls = type(cx.evaluate_raw(build, made, back))
    return made
