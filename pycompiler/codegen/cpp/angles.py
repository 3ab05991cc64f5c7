"""sin and cos in a vector loop: first a check of all arguments, then one of two loops.

In: the innermost loop.  Out: the same loop, or if it computes sines of floats

    int32_t far1 = 0;
    #pragma omp simd reduction(|:far1)
    for (...) { what the arguments need; far1 |= pyc_is_far(t3); }
    if (far1) the loop; else the loop with pyc_sin_near

The reduction of large angles needs doubles and a table.  A vector loop computes it for every element or for none.
"""

from __future__ import annotations

import re

from pycompiler.codegen.cpp.lines import InnerLoop, indent, nested

CALL = re.compile(r"\bpyc_(sin|cos)\((t\d+)\)")
DEFINITION = re.compile(r"const (\w+) (t\d+) = ")
NAME = re.compile(r"\bt\d+\b")


def split_by_angle(simd: list[str], loop: InnerLoop, lines: list[str]) -> list[str]:
    """`simd`: the pragma of a loop that can be vectorised, or an empty list."""
    whole = [*simd, *nested([loop], lines)]
    arguments = {m[2] for line in lines if line.startswith("const float ") for m in CALL.finditer(line)}
    if not simd or not arguments:
        return whole
    needed = slice_for(arguments, lines)
    if any(CALL.search(line) for line in needed):  # the sine of a sine: its argument is not known before the loop
        return whole
    far = f"far_{min(arguments)}"
    tests = [f"{far} |= pyc_is_far({a});" for a in sorted(arguments)]
    near = [CALL.sub(r"pyc_\1_near(\2)", line) if line.startswith("const float ") else line for line in lines]
    return [
        "{",
        f"    int32_t {far} = 0;",
        *indent([f"#pragma omp simd reduction(|:{far})", *nested([loop], [*needed, *tests])]),
        f"    if ({far}) {{",
        *indent(whole, 2),
        "    } else {",
        *indent([*simd, *nested([loop], near)], 2),
        "    }",
        "}",
    ]


def slice_for(names: set[str], lines: list[str]) -> list[str]:
    """The definitions that the names depend on, in order."""
    wanted, kept = set(names), list[str]()
    for line in reversed(lines):
        m = DEFINITION.match(line)
        if m and m[2] in wanted:
            wanted |= set(NAME.findall(line))
            kept.append(line)
    return kept[::-1]
