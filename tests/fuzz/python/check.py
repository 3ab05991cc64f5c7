"""One program, eager and compiled: all observable state must agree.

In: the source of a program. Out: None, or the difference with the number of the call. Each side executes the source
in a namespace of its own. Compared after each call and each change: the result or the exception (class, message,
chain, line), the printed output, all globals with the objects below them; gradients after a backward through the
result, random state, grad mode.
"""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import random
import sys
import traceback
import types
from collections.abc import Callable
from typing import Any

import torch

import pycompiler
from fuzz.forks import UNSETTLED, compiled
from fuzz.python import rows
from fuzz.python.observe import Observer, chain, first_difference, without_addresses

NAME = "<fuzzed program>"
OWN = {"LOG", "GI", "GL", "GD", "GT"}
Compile = Callable[[Callable[..., Any]], Callable[..., Any]]


def load(text: str, breaks: types.ModuleType | types.SimpleNamespace = pycompiler) -> dict[str, Any]:
    """The namespace of a new module that executes the source; `breaks` stands for `pycompiler` in it."""
    module = types.ModuleType("fuzzed")
    namespace = vars(module)
    sys.modules["fuzzed"] = module
    before = sys.modules["pycompiler"]
    try:
        sys.modules["pycompiler"] = breaks  # type: ignore[assignment]
        exec(compile(text, NAME, "exec"), namespace)
    finally:
        sys.modules["pycompiler"] = before
    return namespace


def prelude_names() -> set[str]:
    """Names that are not observed: they are the same in all programs, and only `CHANGES` modify them."""
    return set(load(rows.PRELUDE)) - OWN


HIDDEN: set[str] = set()


def lines_of(error: BaseException) -> list[int | None]:
    """The lines of the program in the traceback, the outermost first."""
    return [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == NAME]


def call(fn: Callable[..., Any], namespace: dict[str, Any], versions: bool = True) -> dict[str, Any]:
    """The observations of one call, and the state after it."""
    code = namespace["program"].__code__
    arguments = [namespace[name] for name in code.co_varnames[: code.co_argcount]]
    torch.manual_seed(7)
    random.seed(7)
    seen: dict[str, Any] = {}
    result = None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        try:
            result = fn(*arguments)
        except Exception as error:
            seen["error"] = chain(error)
            seen["inside"] = lines_of(error)[-1:]
            # Quirk of CPython 3.11: a specialised load of an unbound local reports the line of the store before it.
            if sys.version_info >= (3, 12) or not isinstance(error, UnboundLocalError):
                seen["line"] = lines_of(error)[:1]
            error.__traceback__ = None
    seen["printed"] = without_addresses(printed.getvalue())
    seen["grad mode"] = torch.is_grad_enabled()
    seen["random"] = (torch.get_rng_state().numpy().tobytes(), hash(random.getstate()))
    torch.set_grad_enabled(True)
    observer = Observer(versions)
    with contextlib.redirect_stdout(io.StringIO()):
        if "error" not in seen:
            seen["result"] = observer.look(result)
        seen["state"] = state(observer, namespace)
        seen["gradients"] = gradients(observer, result, namespace)
    return seen


def state(observer: Observer, namespace: dict[str, Any]) -> Any:
    """All globals of the program."""
    return tuple(
        (name, observer.look(value))
        for name, value in namespace.items()
        if name not in HIDDEN and name != "program" and not name.startswith("__")
    )


def gradients(observer: Observer, result: Any, namespace: dict[str, Any]) -> Any:
    """The gradients of all leaves after a backward through the tensors of the result."""
    tensors = (
        result if isinstance(result, (tuple, list)) else list(result.values()) if type(result) is dict else [result]
    )
    ends = [t for t in tensors if isinstance(t, torch.Tensor) and t.requires_grad and t.is_floating_point()]
    if not ends:
        return None
    try:
        sum((t.sum() for t in ends[1:]), ends[0].sum()).backward()
    except RuntimeError as error:
        return ("error", str(error).partition("\n")[0][:60])
    leaves = [t for t in list(observer.held) if isinstance(t, torch.Tensor) and t.is_leaf]
    return tuple(None if t.grad is None else (tuple(t.grad.shape), t.grad.to(torch.float64).tolist()) for t in leaves)


def calls(text: str, compiles: Compile, breaks: Any = pycompiler, versions: bool = True) -> list[dict[str, Any]]:
    """The observations of a program's calls: two calls, and one after each change."""
    if not HIDDEN:
        HIDDEN.update(prelude_names())
    namespace = load(text, breaks)
    fn = compiles(namespace["program"])
    made = []
    for change in ("", "", *namespace.pop("CHANGES")):
        failed = None
        try:
            exec(compile(change, "<change>", "exec"), namespace)
        except Exception as error:
            failed = type(error).__name__
        torch.set_grad_enabled(True)
        made.append(call(fn, namespace, versions) | {"change": failed, "before": change})
    return made


def difference(text: str, backend: str = "eager", ended_by: set[str] | None = None) -> str | None:
    """The first difference between the compiled program and eager, or None; `ended_by` receives `UNSETTLED` if eager
    differs from itself, too."""
    ended_by = set() if ended_by is None else ended_by
    if backend == "peer":
        return differs(text, peer, peer_breaks(), False, ended_by)
    return differs(text, lambda fn: compiled(fn, backend), pycompiler, backend == "native", ended_by)


def differs(text: str, compiles: Compile, breaks: Any, near: bool, ended_by: set[str]) -> str | None:
    """The first difference under a way of compiling; `near`: kernels round, and kernel writes do not count tensor
    versions."""
    linecache.cache[NAME] = (len(text), None, text.splitlines(True), NAME)
    collecting = gc.isenabled()
    gc.disable()
    try:
        wanted = calls(text, lambda fn: fn, pycompiler, not near)
        what = _difference(wanted, calls(text, compiles, breaks, not near), near)
        if what is not None and not _is_settled(text, wanted, near):
            ended_by.add(UNSETTLED)
            return None
        return what
    finally:
        torch.set_grad_enabled(True)
        if collecting:
            gc.enable()
        linecache.cache.pop(NAME, None)


def _is_settled(text: str, wanted: list[dict[str, Any]], near: bool) -> bool:
    """Whether eager repeats its own behaviour: the order of a set may depend on addresses (`bag.pop()`)."""
    moved = []
    for size in range(1, 7):
        moved.append([bytearray(16 * size * n) for n in range(40)])  # later objects get other addresses
        if _difference(wanted, calls(text, lambda fn: fn, pycompiler, not near), near) is not None:
            return False
    return True


def _difference(wanted: list[dict[str, Any]], found: list[dict[str, Any]], near: bool) -> str | None:
    for place, (one, other) in enumerate(zip(wanted, found, strict=True)):
        for key in ("error", "result"):
            if (key in one) != (key in other):
                return f"call {place}, {key}: eager {one.get('error', one.get(key))}, compiled {other.get('error', other.get(key))}"
        for key in ("error", "printed", "line", "result", "grad mode", "change", "state", "random", "gradients"):
            what = first_difference(one.get(key), other.get(key), near)
            if what is not None:
                return f"call {place}, {key}: {what}"
    return None


def peer(fn: Callable[..., Any]) -> Callable[..., Any]:
    """torch.compile, as a check of the fuzzer: a working fuzzer finds differences in it."""
    import torch._dynamo

    torch._dynamo.reset()
    return torch.compile(fn, backend="eager")


def peer_breaks() -> types.SimpleNamespace:
    import torch._dynamo

    return types.SimpleNamespace(graph_break=torch._dynamo.graph_break)
