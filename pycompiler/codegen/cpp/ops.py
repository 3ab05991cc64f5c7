"""Pointwise operations as C++ text: one row per operation, by the kind of its arguments.

{0} {1} {2} are the argument values (names), {T} the compute type of the result, {E} the address of the error code.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pycompiler.codegen.cpp.types import bitcast, cast, ctype
from pycompiler.ir.kernel import Unsupported

_WRAP = "({T})((uint64_t){0} %s (uint64_t){1})"  # signed overflow wraps, as torch's


def _calls(*names: str) -> dict[str, str]:
    return {n: f"pyc_{n}({{0}})" for n in names}


FLOAT: dict[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "truediv": "{0} / {1}",
    "floordiv": "pyc_floordiv({0}, {1})", "truncdiv": "pyc_trunc({0} / {1})", "mod": "pyc_mod({0}, {1})",
    "fmod": "pyc_fmod({0}, {1})", "neg": "pyc_neg({0})", "maximum": "pyc_max({0}, {1})", "minimum": "pyc_min({0}, {1})",
    "fma": "pyc_fma({0}, {1}, {2})", "reciprocal": "({T})1 / {0}", "square": "{0} * {0}", "pow": "pyc_pow({0}, {1})",
    "copysign": "pyc_copysign({0}, {1})", "nextafter": "pyc_nextafter({0}, {1})", "hypot": "pyc_hypot({0}, {1})",
    "atan2": "pyc_atan2({0}, {1})",
    **_calls(
        "abs", "sign", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan",
        "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "one_plus_erf", "erfc",
        "erfinv", "lgamma",
        "digamma", "sigmoid", "floor", "ceil", "round", "trunc", "isnan", "isinf", "signbit",
    ),
}  # fmt: skip

INT: dict[str, str] = {
    "add": _WRAP % "+", "sub": _WRAP % "-", "mul": _WRAP % "*",
    "truediv": "({T}){0} / ({T}){1}",
    "floordiv": "pyc_floordiv({0}, {1}, {E})", "truncdiv": "pyc_truncdiv({0}, {1}, {E})",
    "mod": "pyc_mod({0}, {1}, {E})", "fmod": "pyc_fmod({0}, {1}, {E})", "neg": "({T})(0 - (uint64_t){0})",
    "abs": "pyc_abs({0})", "sign": "pyc_sign({0})", "maximum": "({0} > {1} ? {0} : {1})",
    "minimum": "({0} < {1} ? {0} : {1})", "fma": "({T})((uint64_t){0} * (uint64_t){1} + (uint64_t){2})",
    "square": "({T})((uint64_t){0} * (uint64_t){0})", "pow": "pyc_ipow({0}, {1})",
    "floor": "{0}", "ceil": "{0}", "round": "{0}", "trunc": "{0}",
    "isnan": "false", "isinf": "false", "signbit": "pyc_signbit({0})",
    "and": "({T})({0} & {1})", "or": "({T})({0} | {1})", "xor": "({T})({0} ^ {1})", "not": "({T})~{0}",
    "shl": "pyc_shl({0}, {1})", "shr": "pyc_shr({0}, {1})",
}  # fmt: skip

BOOL: dict[str, str] = {
    "and": "(bool)({0} & {1})", "or": "(bool)({0} | {1})", "xor": "(bool)({0} ^ {1})", "not": "!{0}",
    "add": "(bool)({0} | {1})", "mul": "(bool)({0} & {1})", "maximum": "(bool)({0} | {1})",
    "minimum": "(bool)({0} & {1})", "abs": "{0}", "sign": "{0}", "square": "{0}", "isnan": "false", "isinf": "false",
    "signbit": "false", "pow": "({0} | !{1})",
}  # fmt: skip

ANY: dict[str, str] = {
    "eq": "{0} == {1}", "ne": "{0} != {1}", "lt": "{0} < {1}", "le": "{0} <= {1}", "gt": "{0} > {1}",
    "ge": "{0} >= {1}", "where": "({0} ? {1} : {2})",
}  # fmt: skip

BY_KIND = {"float": FLOAT, "int": INT, "bool": BOOL}
# integer division cannot be in one vector loop with its error code
SCALAR_ONLY = ("floordiv", "truncdiv", "mod", "fmod")


def pointwise(name: str, args: Sequence[str], arg_dtypes: Sequence[torch.dtype], dtype: torch.dtype) -> str:
    """C++ text of one operation on values (names)."""
    if name == "cast":
        return cast(args[0], arg_dtypes[0], dtype)
    if name == "bitcast":
        return bitcast(args[0], arg_dtypes[0], dtype)
    form = ANY.get(name) or BY_KIND[ctype(arg_dtypes[0]).kind].get(name)
    if form is None:
        raise Unsupported(f"operation {name} on {arg_dtypes[0]}")
    return form.format(*args, T=ctype(dtype).compute, E="&error")
