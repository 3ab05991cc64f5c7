"""Loops that mostly move memory, in blocks whose loads all come before their stores.

In: an innermost loop with one store of floats.  Out: the same loop, or if it is cheap

    for (j0_at...; j0_at += 128) {
        float block[128];
        for (k...) block[k] = ...;
        for (k...) p1[...] = block[k];
    }

A load waits for an earlier store whose address is equal modulo 4096.  Tensors allocated one after the other are often
4096 n + 64 bytes apart, and then each load of a plain loop waits for the last store.
"""

from __future__ import annotations

import re

from pycompiler.codegen.cpp.lines import InnerLoop, indent, nested

FEW_LINES = 6  # longest body for which memory is the bottleneck
# Operations that make arithmetic the bottleneck instead.
EXPENSIVE = re.compile(r"\bpyc_(?!store|load|max|min|abs|sign\b)|[/%]")
ACCESS = re.compile(r"\bp\d+(\[[^][]+\])")
STORE = re.compile(r"(p\d+\[[^][]+\]) = (pyc_store<float>\(\w+\));")


def in_blocks(loop: InnerLoop, lines: list[str], size: int | None, block: int) -> list[str] | None:
    """The loop in blocks, or None if it stays as it is.  `size`: a divisor of the number of points.  `block`: floats
    per block."""
    store = STORE.fullmatch(lines[-1]) if lines else None
    if size is None or size % block or store is None or len(lines) > FEW_LINES:
        return None
    if any(not line.startswith("const ") or EXPENSIVE.search(line) for line in lines[:-1]):
        return None
    # Reads and writes do not advance side by side.
    if len({place for line in lines for place in ACCESS.findall(line)}) > 1:
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
