"""Handlers of `json` for known values, and of imports in a function."""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin
from pycompiler.capture.values.base import Capture, Value
from pycompiler.ir.source import const_source

PLAIN = {"skipkeys", "ensure_ascii", "check_circular", "allow_nan", "indent", "separators", "sort_keys"}
"""Arguments of `json.dumps` that run no code of the program."""


@builtin(json.dumps)
def dumps(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1 or not kwargs.keys() <= PLAIN:
        raise Break("skipped-call", "json.dumps with several positional arguments, or with keywords that may run code")
    return cx.evaluate(json.dumps, cx.snapshot(args[0]), **{k: cx.snapshot(v) for k, v in kwargs.items()})


@builtin(json.loads)
def loads(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    text: Any = cx.snapshot(args[0]) if len(args) == 1 and not kwargs else None
    if not isinstance(text, (str, bytes)):
        raise Break("skipped-call", "json.loads with several arguments, or of a value that is not str or bytes")
    try:
        known = json.loads(text)
    except ValueError:
        raise Break("skipped-call", "json.loads of a string that is not valid JSON") from None
    return cx.make(known)


@builtin(importlib.import_module)
def import_module(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    name = (args[0] if args else kwargs["name"]).const()
    if type(name) is not str or name.startswith("."):  # an absolute name needs no package
        raise Break("import", f"importlib.import_module of {name!r}, which is not an absolute name")
    if name not in sys.modules:
        raise Break("import", f"importlib.import_module of {name}, which is not loaded yet")
    return cx.wrap(sys.modules[name], const_source(sys.modules).dict_item(name))
