"""Nests that write parts of one buffer (cat, stack), joined in one loop.

In: nests in order and their code.  Out: the same, with neighbours of equal outer loops joined.  A row of the result is
written as a whole, and values that several parts read stay in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from pycompiler.codegen.cpp.lines import indent
from pycompiler.codegen.cpp.nest import NestCode, around_rows
from pycompiler.ir.kernel import Nest


def join_parts(nests: Sequence[Nest], codes: Sequence[NestCode], *, parallel: bool) -> list[NestCode]:
    """The nests do not depend on each other."""
    out: list[NestCode] = []
    last: set[str] = set()
    for nest, code in zip(nests, codes, strict=True):
        writes = {name for s in nest.stages for name in s.outputs}
        before = out[-1] if out else None
        if before is not None and before.loops and before.loops == code.loops and writes & last:
            rows = [*before.rows, "{", *indent(code.rows), "}"]
            body = ["{", *indent(around_rows(code.loops, rows, parallel, collapse=True)), "}"]
            out[-1] = NestCode([*before.comments, *code.comments], [], body, [], code.loops, rows)
        else:
            out.append(code)
        last = writes
    return out
