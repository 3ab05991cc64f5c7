"""Checks whether a callable accepts a call's arguments, before its handler relies on them.

In: a callable with a handler, and the arguments of a call.  Out: the handler's result.  A graph break if the call
itself raises, so that the program sees eager's error.
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
from pycompiler.capture.semantics.lru_cache_calls import describe_call
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import Capture, Value
from pycompiler.ir.source import mro_of

FunctionHandler = Callable[[Any, list[Value], dict[str, Value]], Value]


CONSTANT_ARGUMENTS: dict[FunctionHandler, str] = {}
"""Handlers that take symbolic numbers as constants, with the reason."""


def constant_arguments(why: str) -> Callable[[FunctionHandler], FunctionHandler]:
    """Declare that a handler takes symbolic numbers among its arguments as constants."""

    def declare(handler: FunctionHandler) -> FunctionHandler:
        CONSTANT_ARGUMENTS[handler] = why
        return handler

    return declare


def call_handler(cx: Capture, fn: Any, handler: FunctionHandler, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """handler(cx, args, kwargs) if `fn` accepts these arguments; else a graph break."""
    if not (_is_of(fn, args) and _takes(cx, fn, handler, args, kwargs)):
        raise Break("builtin-call", describe_call(fn, args))
    if (why := CONSTANT_ARGUMENTS.get(handler)) is not None:
        cx.realize_all(args, kwargs, why)
    try:
        return handler(cx, args, kwargs)
    except Raised as e:
        if e.value.passed or not issubclass(e.value.python_type(), TypeError) or fn not in SPECIAL_ERRORS:
            raise
        raise Break("builtin-call", describe_call(fn, args)) from None
    except (LookupError, TypeError, ValueError, AttributeError):
        if _fits(fn, args, kwargs):
            raise
        raise Break("builtin-call", describe_call(fn, args)) from None


def _takes(cx: Capture, fn: Any, handler: FunctionHandler, args: list[Value], kwargs: dict[str, Value]) -> bool:
    """Whether this number of arguments and these keywords are accepted, as far as signatures and errors show."""
    if isinstance(fn, types.ClassMethodDescriptorType):  # some signatures include the class, some do not
        return _fits(fn.__get__(None, args[0].const()), args[1:], kwargs) is not False
    if kwargs:
        return _fits(fn, args, kwargs) is not False and _reads_keywords(fn, handler)
    takes = _takes_count(fn, len(args))
    if not takes and has_counting_errors(fn):
        cx.evaluate_raw(fn, *[()] * len(args))  # raises CPython's error
    return takes


def _is_of(fn: Any, args: list[Value]) -> bool:
    """Whether the first argument has the class that a method written in C requires."""
    if isinstance(fn, types.ClassMethodDescriptorType):
        return bool(args) and issubclass(args[0].python_type(), type) and issubclass(args[0].const(), fn.__objclass__)
    if isinstance(fn, types.MethodDescriptorType | types.WrapperDescriptorType):
        return bool(args) and issubclass(args[0].python_type(), fn.__objclass__)
    return True


def _fits(fn: Any, args: list[Any], kwargs: dict[str, Any]) -> bool | None:
    """Whether the signature accepts these arguments; None if it is unknown.

    False for keywords if the text signature ends in "/": its defaults need not be Python, so only the end is parsed.
    """
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
def _reads_keywords(fn: Any, handler: FunctionHandler) -> bool:
    """Whether a handler reads its keywords, or the function accepts arbitrary ones and reads none."""
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
    """Since 3.13 an instruction may load two variables."""
    return argument == variable or (isinstance(argument, tuple) and variable in argument)


def takes_keyword(cls: type, name: str) -> bool:
    """Whether a C class has a parameter of this name, according to its signature or, without one, its error message."""
    return is_mutable(cls) or dict in mro_of(cls) or _takes_known(cls, name)


@functools.cache
def _takes_known(cls: type, name: str) -> bool:
    if cls.__text_signature__ is not None:
        with contextlib.suppress(TypeError, ValueError):  # a text signature need not be valid Python
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
ERRORS_STATE_COUNT = frozenset((
    *MADE_EMPTY, slice, range, enumerate, filter, reversed, map, zip, bool, classmethod, staticmethod, types.MethodType,
    vars, dir, iter, next, getattr, max, min,
    *(cls for cls in vars(itertools).values() if isinstance(cls, type) and cls.__module__ == "itertools"),
))  # fmt: skip
"""Callables whose errors state the number of arguments, and which are harmless to call with any arguments."""
COUNT_REFUSED = re.compile(
    r" takes (no arguments|exactly one argument) \(|\bexpected (at (most|least) )?\d+ arguments?, got "
    r"| takes at most \d+ (positional )?arguments? \(|must have at least two arguments|missing required argument"
    r"|requires at least "
)


SPECIAL_ERRORS = frozenset((
    *(cls for cls in vars(itertools).values() if isinstance(cls, type)), str.join, tuple.index, list.index,
    collections.deque.index, collections.deque.insert, object.__init__, functools.reduce, operator.concat, operator.iconcat,
    operator.countOf, torch._C._has_torch_function, torch._C._disabled_torch_function_impl,
))  # fmt: skip
"""Callables that check their arguments in another order than their handlers, or raise special messages."""


FLAGS = {0x04: 0, 0x08: 1}
"""The number of arguments of a C function declared with METH_NOARGS, METH_O."""


def _flags_of(fn: Any) -> int:
    return int(ctypes.pythonapi.PyCFunction_GetFlags(ctypes.py_object(fn)))


def has_counting_errors(fn: Any) -> bool:
    return isinstance(fn, type | types.BuiltinFunctionType) and fn in ERRORS_STATE_COUNT


@functools.cache
def _takes_count(fn: Any, count: int) -> bool:
    """Whether this number of positional arguments is accepted, according to the signature or to CPython's error."""
    if has_counting_errors(fn):
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
    """Whether a call raises because of the number of its arguments."""
    try:
        fn(*args)
    except Exception as e:
        return bool(COUNT_REFUSED.search(str(e)))
    return False
