"""How calls are written in a captured graph: what stands there for a constant argument, and which results metadata tell."""

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
from pycompiler.ir import arrays

TENSOR_TYPE = type(torch.FloatTensor)
QUANTIZED = frozenset((torch.quint8, torch.qint8, torch.qint32, torch.quint4x2, torch.quint2x4))
DTYPES = {bool: torch.bool, int: torch.int64, float: torch.float64, complex: torch.complex128}


def makes_tensors(fn: Any) -> bool:
    """Whether `fn` makes a tensor on the default device."""
    try:
        return fn in _device._device_constructors()
    except TypeError:  # not hashable
        return False


def mutable(value: Any) -> Any:
    """A copy with plain lists and dicts in the place of the graph's."""
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        items = [mutable(v) for v in value]
        return items if isinstance(value, list) else tuple(items)
    return {k: mutable(v) for k, v in value.items()} if isinstance(value, dict) else value


class OwnTensors(TorchFunctionMode):
    """Looks for tensors that are no arguments."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for leaf in pytree.tree_leaves((args, kwargs)):
            if isinstance(leaf, torch.Tensor) and not isinstance(leaf, FakeTensor) and leaf.requires_grad:
                raise Break(
                    "unsupported-operation", "a function that is put into the graph uses a parameter of its own"
                )
        return func(*args, **(kwargs or {}))


def method_named(name: str) -> Callable[..., Any]:
    return lambda owner, /, *args, **kwargs: getattr(owner, name)(*args, **kwargs)


def plain_constant(value: Any) -> Any:
    """An enum member that is also a number or text goes into the graph as that, a number of NumPy's as Python's, and a class of
    tensors that stands for a dtype as its name, which is what graphs can be written with."""
    if (
        isinstance(value, torch.dtype) and value in QUANTIZED
    ):  # what has it is told to be a float tensor by shape functions
        raise Break("unsupported-operation", f"{value}, whose tensors no fake stands for")
    if isinstance(value, TENSOR_TYPE):
        return f"{value.__module__}.{value.__name__}"  # type: ignore[attr-defined]
    if isinstance(value, enum.Enum):
        return next((base(value) for base in (int, float, str) if isinstance(value, base)), value)  # type: ignore[arg-type, call-overload]
    if arrays.is_number(value) and not arrays.is_taken(type(value)):
        raise Break("unsupported-operation", f"numpy.{type(value).__name__}, which torch takes for a float")
    return value.item() if arrays.is_number(value) else value


def dtype_of(argument: Any) -> Any:
    """Python's types of numbers mean dtypes to torch, which is what graphs can be written with."""
    return DTYPES.get(argument, argument) if type(argument) is type else argument


def is_told_by_fakes(result: Any, op: str) -> bool:
    """Whether a result without tensors of a call on tensors is what their metadata say: a method's text shows data, an
    iterator holds tensors."""
    if isinstance(result, (tuple, list)):
        return all(is_told_by_fakes(r, op) for r in result)
    return not hasattr(result, "__next__") and not (isinstance(result, str) and op == "call_method")
