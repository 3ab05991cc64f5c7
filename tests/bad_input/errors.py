"""Calls that must fail with an error that names the value seen, the expectation and the remedy."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

import pycompiler
from tests.bad_input.more import Fight, double
from tests.bad_input.table import x


class Wrong(NamedTuple):
    """`call()` raises `error`, whose message has all `words`: value seen, expectation, remedy."""

    call: Callable[[], Any]
    error: type[BaseException]
    words: tuple[str, ...]


def backend_giving(result: Any) -> Callable[..., Any]:
    def gives(gm: Any, inputs: Any) -> Any:
        return result

    return gives


def raising(error: BaseException) -> Callable[..., Any]:
    def raises(gm: Any, inputs: Any) -> Any:
        raise error

    return raises


def first(**arguments: Any) -> Callable[[], Any]:
    """The first call of a function of two outputs."""
    return lambda: pycompiler.compile(lambda t: (t + 1, t * 2), **arguments)(x())


def breaks(t: Any) -> Any:
    pycompiler.graph_break("as asked")
    return t + 1


errors = pycompiler.errors
WRONG: dict[str, Wrong] = {
    "unknown backend": Wrong(first(backend="natve"), errors.UnknownName, ("'natve'", "known:", "native", "aot_eager")),
    "backend of another type": Wrong(first(backend=3), errors.UserError, ("a name or a callable", "got 3")),
    "backend that raises": Wrong(first(backend=raising(Fight("mine"))), Fight, ("mine",)),
    "backend that returns None": Wrong(
        first(backend=backend_giving(None)), errors.BadBackendResult, ("'gives'", "returned None", "expected a callable", "gm.forward")
    ),
    "backend that returns a number": Wrong(
        first(backend=backend_giving(3)), errors.BadBackendResult, ("'gives'", "returned 3", "expected a callable", "gm.forward")
    ),
    "one output too few": Wrong(
        first(backend=backend_giving(lambda t: (t,))), errors.BadBackendResult, ("1 outputs", "expected a tuple of the graph's 2")
    ),
    "one output too many": Wrong(
        first(backend=backend_giving(lambda t: [t] * 3)), errors.BadBackendResult, ("3 outputs", "expected a tuple of the graph's 2")
    ),
    "a number as outputs": Wrong(
        first(backend=backend_giving(lambda t: 7)), errors.BadBackendResult, ("returned 7", "expected a tuple of the graph's 2")
    ),
    "one tensor for two outputs": Wrong(
        first(backend=backend_giving(lambda t: t)), errors.BadBackendResult, ("1 outputs", "expected a tuple of the graph's 2")
    ),
    "graph that raises": Wrong(first(backend=backend_giving(lambda t: 1 // 0)), ZeroDivisionError, ("division",)),
    "unknown mode": Wrong(first(mode="fast"), errors.UnknownName, ("'fast'", "known:", "max-autotune")),
    "unknown option": Wrong(first(options={"nope": 1}), errors.UnknownName, ("'nope'", "known:", "fallback_random")),
    "option of another type": Wrong(first(options={"threads": "2"}), errors.ConfigError, ("threads", "takes int", "'2'", "str")),
    "options that are no mapping": Wrong(first(options=[1]), errors.ArgumentError, ("must be a mapping", "[1]", "list")),
    "mode and options": Wrong(first(mode="default", options={}), errors.ArgumentError, ("either mode or options",)),
    "dynamic of another type": Wrong(first(dynamic=1), errors.ArgumentError, ("None, True or False", "got 1", "int")),
    "recompile limit of zero": Wrong(first(recompile_limit=0), errors.ArgumentError, ("positive integer", "got 0")),
    "name of another type": Wrong(first(name=b"a"), errors.ArgumentError, ("string or None", "b'a'", "bytes")),
    "number compiled": Wrong(lambda: pycompiler.compile(3), errors.ArgumentError, ("a function or an nn.Module", "got 3", "int")),
    "None compiled as a decorator": Wrong(
        lambda: pycompiler.compile(backend="eager")(None), errors.ArgumentError, ("takes a function or an nn.Module", "None")
    ),
    "generator object compiled": Wrong(
        lambda: pycompiler.compile((t for t in [x()])), errors.ArgumentError, ("a function or an nn.Module", "generator")
    ),
    "tensor compiled": Wrong(lambda: pycompiler.compile(x()), errors.ArgumentError, ("a function or an nn.Module", "Tensor")),
    "reset of a plain function": Wrong(
        lambda: pycompiler.reset(double), errors.ArgumentError, ("a result of pycompiler.compile", "double")
    ),
    "counters of a plain function": Wrong(
        lambda: pycompiler.counters(double), errors.ArgumentError, ("a result of pycompiler.compile", "double")
    ),
    "unknown policy": Wrong(
        lambda: pycompiler.set_policy(pycompiler.compile(double), "freeze"), errors.UnknownName, ("'freeze'", "known:", "run")
    ),
    "frozen callable without an entry": Wrong(
        lambda: pycompiler.set_policy(pycompiler.compile(double, name="mine"), "error")(x()),
        errors.RecompileError, ("mine", "nothing is compiled yet", "forbids"),
    ),
    "graph break under fullgraph": Wrong(
        lambda: pycompiler.compile(breaks, fullgraph=True)(x()), errors.Unsupported, ("as asked", "what to do", "errors.py")
    ),
    "unknown knob": Wrong(
        lambda: setattr(pycompiler.config, "recompile_limt", 3), errors.ConfigError, ("recompile_limt", "did you mean 'recompile_limit'")
    ),
    "knob of another type": Wrong(
        lambda: setattr(pycompiler.config, "recompile_limit", "3"), errors.ConfigError, ("takes int", "'3'", "str")
    ),
    "knob outside of its choices": Wrong(
        lambda: setattr(pycompiler.config, "partition", "x"), errors.ConfigError, ("takes one of", "min_cut", "'x'")
    ),
    "backend registered twice": Wrong(
        lambda: pycompiler.register_backend(double, name="native"), errors.UserError, ("'native'", "registered already", "another name")
    ),
    "backend misspelt": Wrong(first(backend="aot_eagr"), errors.UnknownName, ("did you mean 'aot_eager'", "known:")),
    "option misspelt": Wrong(first(options={"max_autotun": True}), errors.UnknownName, ("did you mean 'max_autotune'", "known:")),
    "stance misspelt": Wrong(lambda: pycompiler.set_stance("force_eagr"), errors.UnknownName, ("did you mean 'force_eager'",)),
    "mark of a dimension that is not there": Wrong(
        lambda: pycompiler.mark_dynamic(torch.ones(3, 4), 2), errors.ArgumentError, ("sizes [3, 4]", "from -2 to 1", "got 2")
    ),
    "mark of a number": Wrong(
        lambda: pycompiler.mark_dynamic(torch.tensor(1.0), 0), errors.ArgumentError, ("sizes []", "no dimension can be marked")
    ),
    "level of a log that is a word": Wrong(
        lambda: pycompiler.logs.set_logs(dynamo="loud"), errors.ArgumentError, ("'dynamo'", "a level (logging.DEBUG) or a bool", "'loud'")
    ),
    "artefact switched by a word": Wrong(
        lambda: pycompiler.logs.set_logs(guards="yes"), errors.ArgumentError, ("'guards'", "takes a bool", "'yes'")
    ),
    "number wrapped for NumPy": Wrong(lambda: pycompiler.wrap_numpy(3), TypeError, ("a function of arrays", "got 3")),
    "number as a region": Wrong(
        lambda: pycompiler.nested_compile_region(3), errors.ArgumentError, ("takes a function", "got 3")
    ),
    "compile times in another form": Wrong(lambda: pycompiler.compile_times("xml"), errors.UnknownName, ("'xml'", "csv, str")),
    "timeout that is a word": Wrong(lambda: pycompiler.wait_for_compiles("1"), errors.ArgumentError, ("takes seconds", "'1'")),
    "breaks that are errors by a word": Wrong(
        lambda: pycompiler.error_on_graph_break("x"), errors.ArgumentError, ("True or False", "'x'")
    ),
    "compiled function pickled": Wrong(
        lambda: pickle.dumps(pycompiler.compile(lambda t: t)), Exception, ("local object",)
    ),
}  # fmt: skip
