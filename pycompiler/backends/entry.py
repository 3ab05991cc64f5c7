"""torch.compile(model, backend="pycompiler"): our compiler behind torch's own capture.

In: torch's captured graph and example inputs (real or fake tensors, ints and SymInts).  Out: a callable of the inputs.
Found through the entry-point group `torch_dynamo_backends`; nothing of torch's compiler is imported from here.
Example: `torch.compile(fn, backend="pycompiler")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from pycompiler import backends
from pycompiler.backends import options as known


def compile_fx(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: dict[str, Any] | None = None,
) -> Callable[..., Sequence[Any]]:
    """Compile a graph that torch captured, at its first call.  What cannot be compiled runs eagerly, with a line in the log.

    `mode` and `options` are those of `pycompiler.compile`; unknown ones raise.
    """
    known.check(options or {})
    if mode is not None:
        known.check_mode(mode)
    known.say_unread(mode, options or {})
    return backends.of_graph(gm, example_inputs, known.knobs(options or {}))
