"""dtype -> Triton types, constants and conversions.  bf16 and f16 are computed in f32, as in every code generator."""

from __future__ import annotations

import math

import torch

from pycompiler.ir.kernel import Unsupported

HALF = (torch.bfloat16, torch.float16)

# dtype -> (type of an array element, type of a value in a register)
TYPES: dict[torch.dtype, tuple[str, str]] = {
    torch.float32: ("tl.float32", "tl.float32"),
    torch.float64: ("tl.float64", "tl.float64"),
    torch.bfloat16: ("tl.bfloat16", "tl.float32"),
    torch.float16: ("tl.float16", "tl.float32"),
    torch.int64: ("tl.int64", "tl.int64"),
    torch.int32: ("tl.int32", "tl.int32"),
    torch.int16: ("tl.int16", "tl.int16"),
    torch.int8: ("tl.int8", "tl.int8"),
    torch.uint8: ("tl.uint8", "tl.uint8"),
    torch.bool: ("tl.int1", "tl.int1"),
}


# Narrow integer -> the type through which eager's kernels convert a float to it.
_BY_WAY_OF = {torch.uint8: "tl.int64", torch.int8: "tl.int32", torch.int16: "tl.int32"}


def storage(dtype: torch.dtype) -> str:
    return _row(dtype)[0]


def compute(dtype: torch.dtype) -> str:
    return _row(dtype)[1]


def _row(dtype: torch.dtype) -> tuple[str, str]:
    found = TYPES.get(dtype)
    if found is None:
        raise Unsupported(f"no Triton type for {dtype}")
    return found


def cast(value: str, source: torch.dtype, target: torch.dtype) -> str:
    """Triton text that converts a value computed for `source` into one for `target` (rounded to it)."""
    if target in HALF:  # through float32, as in eager: a double is rounded twice
        if source in (torch.int32, torch.int64):
            single = f"pyc_to_single({value})"
        else:
            single = value if compute(source) == "tl.float32" else f"({value}).to(tl.float32)"
        return value if source == target else f"({single}).to({storage(target)}).to(tl.float32)"
    if target == torch.bool:
        return value if source == torch.bool else f"({value} != 0)"
    if compute(source) == compute(target):
        return value
    if target.is_floating_point:
        return f"({value}).to({compute(target)})"
    if source.is_floating_point:
        via = _BY_WAY_OF.get(target, compute(target))
        whole = f"pyc_to_{via.removeprefix('tl.')}({value})"
        return whole if via == compute(target) else f"{whole}.to({compute(target)})"
    return f"({value}).to({compute(target)})"


def constant(value: object, dtype: torch.dtype) -> str:
    """A literal with torch's value of the number in `dtype`."""
    number = torch.tensor(value, dtype=dtype).item()
    if isinstance(number, float) and not math.isfinite(number):
        return f'float("{number}")'
    if dtype == torch.bool:
        return f"tl.full((1, 1), {int(bool(number))}, tl.int1)"
    if isinstance(number, float) and number == 0 and math.copysign(1, number) < 0:
        return f"(tl.full((1, 1), 0.0, {compute(dtype)}) * -1.0)"  # `tl.full` makes 0.0 of -0.0
    return f"tl.full((1, 1), {number!r}, {compute(dtype)})"


def constant_element(text: str, dtype: torch.dtype) -> str:
    """The text of `constant`, converted to the type of an element in memory."""
    if text.startswith("float("):
        return f"tl.full((1, 1), {text}, {storage(dtype)})"
    return f"{text}.to({storage(dtype)})"


def identity(kind: str, dtype: torch.dtype) -> str:
    """The initial value of a fold."""
    if kind in ("sum", "any", "xor_sum", "welford"):
        return "0"
    if kind in ("prod", "all"):
        return "1"
    low = kind in ("max", "argmax")
    if dtype.is_floating_point:
        return 'float("-inf")' if low else 'float("inf")'
    if dtype == torch.bool:
        return "0" if low else "1"
    info = torch.iinfo(dtype)
    return str(info.min if low else info.max)
