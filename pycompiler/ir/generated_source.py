"""Source strings of Python code generated at run time: tracebacks print them as long as their owner lives, and no longer.

Example: `register_source(fn, filename, text)`; `drop_source_when_freed(gm)` for the code that torch generates for a graph.
"""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import fx
from torch.fx.graph_module import _loader

from pycompiler.ir.guards import own_frame


def register_source(owner: object, filename: str, text: str) -> None:
    """Register `text` as the source of `filename` until `owner` is freed."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    weakref.finalize(owner, linecache.cache.pop, filename, None).atexit = False


def drop_source(graph_class: type) -> None:
    """Drop the source that torch stored for a graph's class; torch itself stores the source of every graph for ever."""
    code: Any = getattr(graph_class.__dict__.get("forward"), "__code__", None)
    if code is not None and code.co_filename.startswith("<eval_with_key>"):
        _loader.eval_cache.pop(code.co_filename, None)
        linecache.cache.pop(code.co_filename, None)


def drop_source_when_freed(gm: fx.GraphModule) -> None:
    """Call `drop_source` when `gm` is freed.  Each GraphModule has a class of its own."""
    weakref.finalize(gm, drop_source, type(gm)).atexit = False


@contextlib.contextmanager
def with_lines(gm: fx.GraphModule) -> Iterator[None]:
    """While torch prints a graph, its nodes carry the program's lines as `stack_trace`, where torch reads them."""
    named = [n for n in gm.graph.nodes if n.meta.get("user") and not n.meta.get("stack_trace")]
    for node in named:
        frame = own_frame(node.meta["user"])
        what = f"{'gradient of ' if node.meta.get('gradient') else ''}{frame.function}"
        node.meta["stack_trace"] = f'File "{frame.filename}", line {frame.lineno}, in {what}\n    {frame.line or "?"}'
    try:
        yield
    finally:
        for node in named:
            del node.meta["stack_trace"]


def readable(gm: fx.GraphModule) -> str:
    """The graph as Python code with types, under the program's lines."""
    with with_lines(gm):
        return gm.print_readable(print_output=False)


def forward_of(gm: fx.GraphModule) -> Callable[..., Any]:
    """The function that torch generates for a graph.

    `forward` of a lazy GraphModule would call the module each time: slowly, and through global module hooks.
    """
    generate = getattr(gm, "real_recompile", None)
    if generate is not None:
        generate()
    return gm.forward  # type: ignore[no-any-return]
