"""Source text of Python that was made at run time: tracebacks show it as long as what it belongs to lives, and no longer.

Example: `keep_text(fn, filename, text)`; `drop_text_with(gm)` for what torch generates for a graph.
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


def keep_text(owner: object, filename: str, text: str) -> None:
    """`text` is the source of `filename` until `owner` is freed."""
    linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
    weakref.finalize(owner, linecache.cache.pop, filename, None).atexit = False


def drop_text(graph_class: type) -> None:
    """torch keeps the text of every graph that ever ran; this drops the one of a graph's class."""
    code: Any = getattr(graph_class.__dict__.get("forward"), "__code__", None)
    if code is not None and code.co_filename.startswith("<eval_with_key>"):
        _loader.eval_cache.pop(code.co_filename, None)
        linecache.cache.pop(code.co_filename, None)


def drop_text_with(gm: fx.GraphModule) -> None:
    """As `drop_text`, when `gm` is freed: each GraphModule has a class of its own."""
    weakref.finalize(gm, drop_text, type(gm)).atexit = False


@contextlib.contextmanager
def with_lines(gm: fx.GraphModule) -> Iterator[None]:
    """While torch prints a graph: the program's lines stand where it looks for them, as `stack_trace`."""
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
    """A graph as code with types, under the program's lines."""
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
