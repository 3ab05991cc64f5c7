"""Arguments of calls in a captured graph: how constants are written, and which results follow from metadata."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils import _pytree as pytree

from pycompiler.capture.breaks import Break
from pycompiler.operators import numpy_arrays

TENSOR_TYPE = type(torch.FloatTensor)
QUANTIZED = frozenset((torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4))
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def makes_tensors(fn: Any) -> bool:
    """Whether `fn` creates a tensor on the default device."""
    try:
        return fn in _device._device_constructors()
    except TypeError:  # not hashable
        return False


def mutable(value: Any) -> Any:
    """A copy with plain lists and dicts in place of fx's immutable ones."""
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        items = [mutable(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    return {k: mutable(v) for k, v in value.items()} if isinstance(value, dict) else value


class OwnTensors(TorchFunctionMode):
    """Breaks if a call uses a tensor that requires grad and is no argument."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) and leaf.requires_grad:
                raise Break(
                    "unsupported-operation",
                    "a function put into the graph uses a tensor that requires grad and is not an argument",
                )
        return func(*args, **(kwargs or {}))


def method_named(name: str) -> Callable[..., Any]:
    return lambda owner, /, *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def plain_constant(value: Any) -> Any:
    """The form of a constant in a graph, which must be printable.

    An enum member that is also a number or str becomes that.  A NumPy number becomes Python's.  A tensor type that
    stands for a dtype becomes its name.
    """
    if isinstance(value, torch.dtype) and value in QUANTIZED:  # shape functions report it as a float tensor
        raise Break("unsupported-operation", f"{value}: fake tensors do not support this dtype")
    if isinstance(value, TENSOR_TYPE):
        return f"{value.__module__}.{value.__name__}"  # type: ignore[attr-defined]
    if isinstance(value, enum.Enum):
        return next((base(value) for base in (int, float, str) if isinstance(value, base)), value)  # type: ignore[arg-type, call-overload]
    if numpy_arrays.is_number(value) and not numpy_arrays.is_taken(type(value)):
        raise Break("unsupported-operation", f"numpy.{type(value).__name__}, which torch treats as a float")
    return value.item() if numpy_arrays.is_number(value) else value


def dtype_of(argument: Any) -> Any:
    """The dtype that torch takes a Python number type for.  A type itself could not be printed in a graph."""
    return DTYPES.get(argument, argument) if type(argument) is type else argument


def follows_from_metadata(result: Any, op: str) -> bool:
    """Whether a result without tensors follows from the operands' metadata.

    The str of a method shows data, and an iterator holds tensors.
    """
    if isinstance(result, (tuple, list)):
        return all(follows_from_metadata(r, op) for r in result)
    return not hasattr(result, "__next__") and not (isinstance(result, str) and op == "call_method")
