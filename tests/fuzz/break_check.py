"""One program of the break fuzzer, eager and compiled: all observable behaviour must agree.

In: the source of a program. Out: None, or the difference. Compared are the result, or the exception with its
message, its line and the classes of its chain; the log, the arguments after the call and `sys.exc_info()`. The
garbage collector is off, so the comparison includes whether the arguments die with the call.
"""

from __future__ import annotations

import gc
import linecache
import sys
import traceback
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from fuzz import break_world
from fuzz.break_programs import Block, Node, source
from fuzz.break_world import NAMESPACE, Box
from fuzz.forks import compiled

CALLS = ((2, True), (2, True), (0, False), (3, True))
"""(n, flag) of the calls of one compiled program, one after the other."""


def load(text: str, name: str) -> Callable[..., Any]:
    """The function `program` that the source defines."""
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = dict(NAMESPACE, __name__="fuzzed")
    exec(compile(text, name, "exec"), namespace)
    return namespace["program"]  # type: ignore[no-any-return]


def shown(value: Any) -> Any:
    """A value as plain data that can be compared."""
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), value.requires_grad, value.detach().double().tolist())
    if isinstance(value, Box):
        return ("box", shown(value.size), shown(value.label))
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, *(shown(v) for v in value))
    if isinstance(value, dict):
        return ("dict", *((shown(k), shown(v)) for k, v in value.items()))
    if isinstance(value, (types.FunctionType, types.GeneratorType)):
        return type(value).__name__
    if isinstance(value, float):
        return ("float", value)
    return (type(value).__name__, repr(value))


def chain(error: BaseException | None, depth: int = 0) -> Any:
    """Classes and messages of an exception and of its whole chain of causes and contexts."""
    if error is None or depth > 6:
        return None
    context = (chain(error.__cause__, depth + 1), chain(error.__context__, depth + 1), error.__suppress_context__)
    return (type(error).__name__, str(error), getattr(error, "code", None), *context)


def lines_of(error: BaseException, name: str) -> tuple[int | None, int | None]:
    """The outermost line of the program in the traceback, and the innermost line in the user's files."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame.lineno for frame in frames if frame.filename == name]
    users = [frame.lineno for frame in frames if frame.filename in (name, break_world.__file__)]
    return (own[0] if own else None, users[-1] if users else None)


class Sentinel(list):  # type: ignore[type-arg]
    """A list that a weak reference can point to."""


def call(fn: Callable[..., Any], n: int, flag: bool, name: str) -> dict[str, Any]:
    """All observable effects of one call, by name."""
    items, table, box, log = Sentinel([3, 1]), {"a": 1, "b": 2}, Box(3, "b"), []  # type: ignore[var-annotated]
    x = torch.arange(3.0) - 1
    watched = [weakref.ref(x), weakref.ref(box), weakref.ref(items)]
    seen: dict[str, Any] = {}
    try:
        seen["result"] = shown(fn(x, n, flag, items, table, box, log))
    except Exception as error:
        seen["error"] = chain(error)
        # Quirk of CPython 3.11: a specialised load of an unbound local (STORE_FAST__LOAD_FAST) reports the line of
        # the store before it.
        if sys.version_info >= (3, 12) or not isinstance(error, UnboundLocalError):
            seen["line"] = lines_of(error, name)
    seen["handled"] = sys.exc_info()
    seen["log"], seen["items"], seen["table"], seen["box"] = shown(log), shown(items), shown(table), shown(box)
    seen["grad mode"] = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    del x, items, table, box, log
    seen["alive"] = tuple(r() is not None for r in watched)
    return seen


def difference(text: str, backend: str = "eager", name: str = "<fuzzed program>") -> str | None:
    """The first difference between the compiled program and eager, or None."""
    program = load(text, name)
    collecting = gc.isenabled()
    gc.disable()
    try:
        wanted = [call(program, n, flag, name) for n, flag in CALLS]
        ours = compiled(program, backend)
        for position, (n, flag) in enumerate(CALLS):
            found = call(ours, n, flag, name)
            for key in wanted[position]:
                if key == "alive" and any(wanted[position][key]):
                    continue
                if not same(wanted[position].get(key), found.get(key), backend):
                    return (
                        f"call {position}, {key}: eager {wanted[position].get(key)}\n  compiled {found.get(key, found)}"
                    )
    finally:
        if collecting:
            gc.enable()
        linecache.cache.pop(name, None)
    return None


def same(a: Any, b: Any, backend: str) -> bool:
    """Equality; numbers may differ by rounding where kernels compute them."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or a != a and b != b or backend == "native" and abs(a - b) <= 1e-4 * (1 + abs(a))
    if isinstance(a, (tuple, list)) and type(a) is type(b) and len(a) == len(b):
        return all(same(x, y, backend) for x, y in zip(a, b, strict=True))
    return bool(a == b)


# reduction --------------------------------------------------------------------------------------------------------
def smaller(block: Block) -> list[Block]:
    """The programs that one cut makes of this one: a statement or a clause removed, or a statement replaced by its
    block."""
    made: list[Block] = []
    for position, node in enumerate(block):
        before, after = block[:position], block[position + 1 :]
        made.append([*before, *after])
        made += [[*before, *inner, *after] for _, inner in node.clauses if inner]
        if len(node.clauses) > 1:
            for cut in range(len(node.clauses)):
                made.append([*before, Node([c for i, c in enumerate(node.clauses) if i != cut]), *after])
        for place, (header, inner) in enumerate(node.clauses):
            for reduced in smaller(inner or []):
                clauses = [*node.clauses[:place], (header, reduced), *node.clauses[place + 1 :]]
                made.append([*before, Node(clauses), *after])
    return made


def reduced(program: Block, fails: Callable[[str], bool], tries: int = 400) -> Block:
    """A program that no single cut can make smaller without losing the failure (or the result after `tries`)."""
    progress = True
    while progress and tries > 0:
        progress = False
        for candidate in sorted(smaller(program), key=lambda b: len(source(b))):
            text = source(candidate)
            try:
                compile(text, "<candidate>", "exec")
            except SyntaxError:
                continue
            tries -= 1
            if fails(text):
                program, progress = candidate, True
                break
            if tries <= 0:
                break
    return program
