"""dtype -> C++ types, constants and conversions."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pycompiler.ir.kernel import Unsupported


@dataclass(frozen=True)
class CType:
    """`storage`: type of an array element; `compute`: type of a value in a register; `kind`: float, int or bool."""

    storage: str
    compute: str
    kind: str


CTYPES: dict[torch.dtype, CType] = {
    torch.float32: CType("float", "float", "float"),
    torch.float64: CType("double", "double", "float"),
    torch.bfloat16: CType("bf16", "float", "float"),
    torch.float16: CType("f16", "float", "float"),
    torch.int64: CType("int64_t", "int64_t", "int"),
    torch.int32: CType("int32_t", "int32_t", "int"),
    torch.int16: CType("int16_t", "int16_t", "int"),
    torch.int8: CType("int8_t", "int8_t", "int"),
    torch.uint8: CType("uint8_t", "uint8_t", "int"),
    torch.uint16: CType("uint16_t", "uint16_t", "int"),
    torch.uint32: CType("uint32_t", "uint32_t", "int"),
    torch.uint64: CType("uint64_t", "uint64_t", "int"),
    torch.bool: CType("uint8_t", "bool", "bool"),
}
HALF = (torch.bfloat16, torch.float16)
# Integer type -> the type through which ATen's kernels convert a float to it.
_CONVERTED_THROUGH = {
    "int8_t": "int32_t", "int16_t": "int32_t", "uint16_t": "int32_t", "int32_t": "int32_t",
    "uint8_t": "int64_t", "uint32_t": "int64_t", "int64_t": "int64_t", "uint64_t": "uint64_t",
}  # fmt: skip


def ctype(dtype: torch.dtype) -> CType:
    found = CTYPES.get(dtype)
    if found is None:
        raise Unsupported(f"no C++ type for {dtype}")
    return found


def load(dtype: torch.dtype, place: str) -> str:
    if dtype in HALF:
        return f"pyc_load({place})"
    return f"({place} != 0)" if dtype == torch.bool else place


def stored(dtype: torch.dtype, value: str) -> str:
    return f"pyc_store<{ctype(dtype).storage}>({value})"


def cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """C text that converts a value computed for `source` into one for `target`."""
    a, b = ctype(source), ctype(target)
    if target in HALF:
        return f"pyc_round_{'bf16' if target == torch.bfloat16 else 'f16'}((float)({value}))"
    if a.compute == b.compute:
        return value
    if b.kind == "bool":
        return f"pyc_cast<bool>({value})"
    if (a.kind, b.kind) == ("float", "int"):
        return f"pyc_float_to_int<{b.compute}, {_CONVERTED_THROUGH[b.compute]}>({value})"
    return f"({b.compute}){value}"


def bitcast(value: str, source: torch.dtype, target: torch.dtype, *, exact: bool = False) -> str:
    """The bits of `value` as another dtype.  `exact`: a value of half precision is exactly a number of its dtype."""
    if source in HALF:
        value = f"pyc_{'narrow' if exact else 'to'}_{'bf16' if source == torch.bfloat16 else 'f16'}({value}).bits"
    if target in HALF:
        kind = "bf16" if target == torch.bfloat16 else "f16"
        return f"pyc_from_{kind}({kind}{{(uint16_t)({value})}})"
    return f"pyc_bits<{ctype(target).compute}>({value})"


def constant(value: object, dtype: torch.dtype) -> str:
    """A literal of the compute type, with torch's value of the number in `dtype`."""
    t = ctype(dtype)
    number = torch.tensor(value, dtype=dtype).item()
    if t.kind == "bool":
        return "true" if number else "false"
    if t.kind == "int":
        if number == -(2**63):
            return "(-9223372036854775807l - 1)"
        suffix = "ul" if number > 2**63 - 1 else "l" if abs(number) > 2**31 - 1 else ""
        return f"({t.compute}){number}{suffix}"
    if math.isnan(number):
        return f"({t.compute})PYC_NAN"
    if math.isinf(number):
        return f"({t.compute}){'-' if number < 0 else ''}PYC_INF"
    return f"({number!r})" if t.compute == "double" else f"(float){number!r}"


# reduction kind -> initial value; the extremes start from the lowest/highest value of the type
def identity(kind: str, dtype: torch.dtype) -> str:
    t = ctype(dtype)
    if kind in ("sum", "any", "xor_sum"):
        return f"({'int32_t' if t.kind == 'bool' else t.compute})0"
    if kind in ("prod", "all"):
        return f"({'int32_t' if t.kind == 'bool' else t.compute})1"
    low = kind in ("max", "argmax")
    if t.kind == "float":
        return f"({t.compute}){'-' if low else ''}PYC_INF"
    if t.kind == "bool":
        return "(int32_t)0" if low else "(int32_t)1"
    info = torch.iinfo(dtype)
    return constant(info.min if low else info.max, dtype)
