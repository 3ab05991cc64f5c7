"""torch.compile(model, backend="pycompiler"): this compiler behind torch's own capture.

In: torch's captured graph and example inputs (real or fake tensors, ints and SymInts).
Out: a callable of the inputs. torch finds it through the entry-point group `torch_dynamo_backends`; this package
imports nothing of torch's compiler.
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
    """Compile a graph that torch captured, at its first call.  A graph that cannot be compiled runs eagerly, with a log
    line.

    `mode` and `options` are those of `pycompiler.compile`; unknown ones raise.
    """
    known.check(options or {})
    if mode is not None:
        known.check_mode(mode)
    known.log_without_effect(mode, options or {})
    return backends.of_graph(gm, example_inputs, known.knobs(mode, options or {}))
