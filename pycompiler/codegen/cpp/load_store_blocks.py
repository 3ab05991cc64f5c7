"""Loops that mostly move memory, in blocks whose loads all come before their stores.

In: an innermost loop with one store of floats.  Out: the same, where it is cheap

    for (j0_at...; j0_at += 128) {
        float block[128];
        for (k...) block[k] = ...;
        for (k...) p1[...] = block[k];
    }

A load waits for a store before it whose address is equal modulo 4096, and tensors that were allocated one after the
other often are 4096 n + 64 bytes apart: then each load of a plain loop waits for the last store.
"""

from __future__ import annotations

import re

from pycompiler.codegen.cpp.lines import InnerLoop, indent, nested

FEW_LINES = 6  # of a body that memory keeps waiting
DEAR = re.compile(r"\bpyc_(?!store|load|max|min|abs|sign\b)|[/%]")  # what keeps memory waiting instead
ACCESS = re.compile(r"\bp\d+(\[[^][]+\])")
STORE = re.compile(r"(p\d+\[[^][]+\]) = (pyc_store<float>\(\w+\));")


def in_blocks(loop: InnerLoop, lines: list[str], size: int | None, block: int) -> list[str] | None:
    """`size`: what the number of the loop's points is a multiple of; `block`: floats in a block.  None: the loop stays."""
    store = STORE.fullmatch(lines[-1]) if lines else None
    if size is None or size % block or store is None or len(lines) > FEW_LINES:
        return None
    if any(not line.startswith("const ") or DEAR.search(line) for line in lines[:-1]):
        return None
    if len({place for line in lines for place in ACCESS.findall(line)}) > 1:  # reads and writes do not run side by side
        return None
    at = f"{loop.var}_at"
    points = InnerLoop(loop.var, at, f"{at} + {block}")
    simd, kept = "#pragma omp simd", f"block[{loop.var} - {at}]"
    body = [
        f"alignas(64) float block[{block}];",
        *[simd, *nested([points], [*lines[:-1], f"{kept} = {store[2]};"])],
        *[simd, *nested([points], [f"{store[1]} = {kept};"])],
    ]
    return [f"for (int64_t {at} = {loop.start}; {at} < {loop.end}; {at} += {block}) {{", *indent(body), "}"]
