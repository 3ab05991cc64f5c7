"""Handlers of `strftime` and `strptime` for numeric formats, which depend neither on the locale nor on the time
zone."""

from __future__ import annotations

import datetime
import re
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.semantics.lru_cache_calls import describe_call
from pycompiler.capture.values.base import Capture, Value

NUMBERS = re.compile(r"(?:[^%]|%[YmdHMSfjUWuwGV%])*")


def _is_of_numbers(form: Any) -> bool:
    return type(form) is str and NUMBERS.fullmatch(form) is not None and "\0" not in form


def _text(fn: Any) -> None:
    @builtin(fn)
    def strftime(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        known, form = (cx.snapshot(v) for v in args) if len(args) == 2 else (None, None)
        if kwargs or not _is_of_numbers(form) or getattr(known, "tzinfo", None) is not None:
            raise Break("builtin-call", describe_call(fn, args))
        return cx.evaluate(fn, known, form)


for _fn in (datetime.date.strftime, datetime.time.strftime):
    _text(_fn)
_OF_TEXT = vars(datetime.datetime)["strptime"]


@builtin(_OF_TEXT, datetime.datetime.strptime)
def strptime(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    said, form = (cx.snapshot(v) for v in args[-2:]) if len(args) in (2, 3) else (None, None)
    of = args[0].const() if len(args) == 3 else datetime.datetime
    if kwargs or not _is_of_numbers(form) or type(said) is not str or of is not datetime.datetime:
        raise Break("builtin-call", describe_call(_OF_TEXT, args))
    return cx.evaluate(datetime.datetime.strptime, said, form)
