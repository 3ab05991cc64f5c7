"""Pointwise operations as Triton text: one row per operation.

{0} {1} {2} are the argument values (names), {T} the compute type of the result.  The functions `pyc_*` are in
`kernels/triton/helpers.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from pycompiler.codegen.triton.types import HALF, cast, compute
from pycompiler.ir.kernel import Unsupported


def _calls(prefix: str, *names: str) -> dict[str, str]:
    return {n: f"{prefix}{n}({{0}})" for n in names}


FLOAT: dict[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "truediv": "pyc_divide({0}, {1})",
    "floordiv": "pyc_floordiv_float({0}, {1})", "truncdiv": "pyc_trunc(pyc_divide({0}, {1}))",
    "mod": "pyc_mod_float({0}, {1})",
    "fmod": "pyc_fmod({0}, {1})", "neg": "({0} * -1.0)", "abs": "tl.abs({0})", "sign": "pyc_sign({0})",
    "maximum": "tl.maximum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "minimum": "tl.minimum({0}, {1}, propagate_nan=tl.PropagateNan.ALL)",
    "fma": "tl.fma({0}, {1}, {2})", "reciprocal": "pyc_reciprocal({0})", "square": "{0} * {0}",
    "pow": "libdevice.pow({0}, {1})",
    "copysign": "libdevice.copysign({0}, {1})", "nextafter": "libdevice.nextafter({0}, {1})",
    "hypot": "libdevice.hypot({0}, {1})", "atan2": "libdevice.atan2({0}, {1})",
    "round": "pyc_round({0})", "trunc": "pyc_trunc({0})", "isnan": "({0} != {0})",
    "isinf": '(tl.abs({0}) == float("inf"))',
    "signbit": "(libdevice.signbit({0}) != 0)", "one_plus_erf": "1.0 + pyc_erf({0})",
    "sqrt": "tl.sqrt_rn({0})",
    **_calls("pyc_", "floor", "ceil", "exp", "exp2", "log", "log2", "rsqrt", "sin", "cos", "tanh", "erf", "sigmoid"),
    **_calls(
        "libdevice.", "expm1", "log10", "log1p", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh",
        "atanh", "erfc", "erfinv", "lgamma",
    ),
}  # fmt: skip

INT: dict[str, str] = {
    "add": "{0} + {1}", "sub": "{0} - {1}", "mul": "{0} * {1}", "truediv": "pyc_divide({0}.to({T}), {1}.to({T}))",
    "floordiv": "pyc_floordiv_checked({0}, {1})", "truncdiv": "pyc_truncdiv_checked({0}, {1})",
    "mod": "pyc_mod_checked({0}, {1})", "fmod": "pyc_fmod_checked({0}, {1})",
    "neg": "-{0}", "abs": "tl.abs({0})", "sign": "pyc_sign_int({0})",
    "maximum": "tl.maximum({0}, {1})", "minimum": "tl.minimum({0}, {1})", "fma": "{0} * {1} + {2}",
    "square": "{0} * {0}", "floor": "{0}", "ceil": "{0}", "round": "{0}", "trunc": "{0}",
    "isnan": "({0} != {0})", "isinf": "({0} != {0})", "signbit": "({0} < 0)",
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "~{0}", "shl": "pyc_shl({0}, {1})",
    "shr": "pyc_shr({0}, {1})",
}  # fmt: skip

BOOL: dict[str, str] = {
    "and": "{0} & {1}", "or": "{0} | {1}", "xor": "{0} ^ {1}", "not": "({0} == 0)", "add": "{0} | {1}",
    "mul": "{0} & {1}", "maximum": "{0} | {1}", "minimum": "{0} & {1}", "abs": "{0}", "sign": "{0}", "square": "{0}",
}  # fmt: skip

FLOAT64: dict[str, str] = {"sqrt": "tl.sqrt({0})"}  # differences from FLOAT

ANY: dict[str, str] = {
    "eq": "({0} == {1})", "ne": "({0} != {1})", "lt": "({0} < {1})", "le": "({0} <= {1})", "gt": "({0} > {1})",
    "ge": "({0} >= {1})", "where": "tl.where({0}, {1}, {2})",
}  # fmt: skip


def pointwise(name: str, args: Sequence[str], arg_dtypes: Sequence[torch.dtype], dtype: torch.dtype) -> str:
    """Triton text of one operation on values (names)."""
    if name == "cast":
        return cast(args[0], arg_dtypes[0], dtype)
    if name == "bitcast" and not {arg_dtypes[0], dtype} & {*HALF, torch.bool}:
        return f"({args[0]}).to({compute(dtype)}, bitcast=True)"
    subject = arg_dtypes[-1] if name == "where" else arg_dtypes[0]
    kind = FLOAT if subject.is_floating_point else BOOL if subject == torch.bool else INT
    form = ANY.get(name) or (FLOAT64.get(name) if subject == torch.float64 else None) or kind.get(name)
    if form is None:
        raise Unsupported(f"operation {name} on {subject}")
    return form.format(*args, T=compute(dtype))
