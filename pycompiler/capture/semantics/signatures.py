"""Whether a call's arguments are what a callable takes, before a handler relies on them.

In: a callable that has a handler, and the arguments of a call.  Out: what the handler makes, or a graph break where the call
itself raises, so that the program's own handlers see eager's error.
Example: ``frozenset(a, b)`` and ``typing.cast(int)`` are left to CPython.
"""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dis
import functools
import inspect
import itertools
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.cached import describe_call
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import Capture, Value
from pycompiler.ir.source import mro_of

Handler = Callable[[Any, list[Value], dict[str, Value]], Value]


def handled(cx: Capture, fn: Any, handler: Handler, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """handler(cx, args, kwargs), where `fn` takes these arguments."""
    if not (_is_of(fn, args) and _takes(cx, fn, handler, args, kwargs)):
        raise Break("builtin-call", describe_call(fn, args))
    try:
        return handler(cx, args, kwargs)
    except Raised as e:
        if e.value.passed or not issubclass(e.value.python_type(), TypeError) or fn not in IN_OTHER_ORDER:
            raise
        raise Break("builtin-call", describe_call(fn, args)) from None
    except (LookupError, TypeError, ValueError, AttributeError):
        if _fits(fn, args, kwargs):
            raise
        raise Break("builtin-call", describe_call(fn, args)) from None


def _takes(cx: Capture, fn: Any, handler: Handler, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether so many arguments, and these keywords, are taken, as far as anybody tells."""
    if isinstance(fn, types.ClassMethodDescriptorType):  # whose signature leaves the class out, or not
        return _fits(fn.__get__(None, args[0].const()), args[1:], kwargs) is not False
    if kwargs:
        return _fits(fn, args, kwargs) is not False and _reads_keywords(fn, handler)
    takes = _takes_count(fn, len(args))
    if not takes and is_told(fn):
        cx.evaluate_raw(fn, *[()] * len(args))  # its error
    return takes


def _is_of(fn: Any, args: list[Value]) -> bool:
    """Whether the first argument is one that a method written in C takes, where `fn` is one."""
    if isinstance(fn, types.ClassMethodDescriptorType):
        return bool(args) and issubclass(args[0].python_type(), type) and issubclass(args[0].const(), fn.__objclass__)
    if isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType):
        return bool(args) and issubclass(args[0].python_type(), fn.__objclass__)
    return True


def _fits(fn: Any, args: list[Any], kwargs: dict[str, Any]) -> bool | None:
    """Whether the signature allows these arguments; None where there is none, and its text (whose defaults need not be Python's)
    does not say that there are no keywords."""
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return False if kwargs and (getattr(fn, "__text_signature__", None) or "").endswith("/)") else None
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


@functools.cache
def _reads_keywords(fn: Any, handler: Handler) -> bool:
    """Whether a handler looks at keywords, or the function takes any and reads none."""
    code = getattr(handler, "__code__", None)
    if (
        isinstance(fn, type)
        or code is None
        or any(_names(i.argval, code.co_varnames[2]) for i in dis.get_instructions(code))
    ):
        return True
    try:
        return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        return False


def _names(argument: Any, variable: str) -> bool:
    """From 3.13 on an instruction may load two variables."""
    return argument == variable or (isinstance(argument, tuple) and variable in argument)


def takes_keyword(cls: type, name: str) -> bool:
    """Whether a class written in C has a parameter of this name, by what it tells or, where it tells nothing, by its error."""
    return is_mutable(cls) or dict in mro_of(cls) or _takes_known(cls, name)


@functools.cache
def _takes_known(cls: type, name: str) -> bool:
    if cls.__text_signature__ is not None:
        with contextlib.suppress(TypeError, ValueError):  # the text need not be one of Python's
            taken = inspect.signature(cls).parameters
            return name in taken or any(p.kind is p.VAR_KEYWORD for p in taken.values())
    try:
        cls(**{name: None})
    except Exception as e:
        return not KEYWORD_REFUSED.search(str(e))
    return True


KEYWORD_REFUSED = re.compile(r"keyword arguments?( for |$)|unexpected keyword")

IN_C = types.MethodDescriptorType | types.WrapperDescriptorType | types.BuiltinFunctionType
MADE_EMPTY = frozenset(
    {list, dict, set, frozenset, tuple, collections.OrderedDict, collections.defaultdict, collections.deque}
)
TOLD_BY_ERRORS = frozenset((
    *MADE_EMPTY, slice, range, enumerate, filter, reversed, map, zip, bool, classmethod, staticmethod, types.MethodType,
    vars, dir, iter, next, getattr, max, min,
    *(cls for cls in vars(itertools).values() if isinstance(cls, type) and cls.__module__ == "itertools"),
))  # fmt: skip
"""What says how many arguments it takes when it refuses some, and may be called with anything."""
COUNT_REFUSED = re.compile(
    r" takes (no arguments|exactly one argument) \(|\bexpected (at (most|least) )?\d+ arguments?, got "
    r"| takes at most \d+ (positional )?arguments? \(|must have at least two arguments|missing required argument"
    r"|requires at least "
)


IN_OTHER_ORDER = frozenset((
    *(cls for cls in vars(itertools).values() if isinstance(cls, type)), str.join, tuple.index, list.index,
    collections.deque.index, collections.deque.insert, object.__init__, functools.reduce, operator.concat, operator.iconcat,
    operator.countOf, torch._C._has_torch_function, torch._C._disabled_torch_function_impl,
))  # fmt: skip
"""What looks at its arguments in another order than its handler, or refuses them with words of its own."""


FLAGS = {0x04: 0, 0x08: 1}
"""How many arguments a function takes that C declares by METH_NOARGS, METH_O."""


def _flags_of(fn: Any) -> int:
    return int(ctypes.pythonapi.PyCFunction_GetFlags(ctypes.py_object(fn)))


def is_told(fn: Any) -> bool:
    return isinstance(fn, type | types.BuiltinFunctionType) and fn in TOLD_BY_ERRORS


@functools.cache
def _takes_count(fn: Any, count: int) -> bool:
    """Whether so many arguments by position are taken, as far as the callable tells, or as CPython says of a call."""
    if is_told(fn):
        return not _is_refused(fn, [()] * count)
    if not isinstance(fn, IN_C | types.FunctionType | type):
        return True
    if isinstance(fn, types.BuiltinFunctionType) and (most := FLAGS.get(_flags_of(fn) & sum(FLAGS))) is not None:
        return count == most
    cls: Any = getattr(fn, "__objclass__", None)
    made = count and cls in (*MADE_EMPTY, torch.Size)
    if made and (fn.__name__ == "__init__" or getattr(fn, "__text_signature__", None) is None):
        return not _is_refused(fn, [cls(), *[None] * (count - 1)])
    return _fits(fn, [None] * count, {}) is not False


def _is_refused(fn: Callable[..., Any], args: list[Any]) -> bool:
    """Whether a call is refused for the number of its arguments."""
    try:
        fn(*args)
    except Exception as e:
        return bool(COUNT_REFUSED.search(str(e)))
    return False
