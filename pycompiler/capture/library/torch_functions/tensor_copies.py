"""Copies of tensors (`copy.deepcopy(t)`, `copy.copy(t)`), also inside copies of modules and containers.

In a deepcopy, eager copies the memory of a plain tensor once, for all tensors in that memory.  So tensors are assumed
not to share memory.  A shallow copy is another tensor in the same memory.
"""

from __future__ import annotations

import copy

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs
from pycompiler.capture.library.gradients import parameters
from pycompiler.capture.semantics.polyfills import same_data
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.tensor import METHODS, Tensor
from pycompiler.operators.kernel_type_checks import deep_copied

NO_LEAF = (
    "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment.  "
    "If you were attempting to deepcopy a module, this may be because of a torch.nn.utils.weight_norm usage, "
    "see https://github.com/pytorch/pytorch/pull/103001"
)


def _refuse(name: str, tensor: Value) -> Break:
    return Break("unsupported-operation", f"Tensor.{name}() of {tensor.describe()}")


def _is_bare(cx: Capture, tensor: Tensor) -> bool:
    """Whether the tensor is a plain strided tensor, without attributes and gradient."""
    fake = tensor.fake
    plain = tensor.cls is torch.Tensor and not (tensor.is_special or tensor.overlay or tensor.parted)
    if not plain or fake.layout is not torch.strided or fake.device.type not in ("cpu", "cuda"):
        return False
    if fake.is_conj() or fake.is_neg() or cx.graph.is_inner or not cx.is_none(tensor.getattr(cx, "grad")):
        return False
    if tensor.real is None:
        return True
    assert tensor.source is not None
    if tensor.real.is_inference() or tensor.real.__dict__:
        return False
    held = cx.wrap(tensor.real.__dict__, tensor.source.then("instance_dict"))
    return isinstance(held, Dict) and not held.truth(cx)


def deepcopy(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    tensor, memo = args[0], cx.realize(args[1]) if len(args) == 2 else None
    if not isinstance(tensor, Tensor) or not isinstance(memo, Dict) or memo.source is not None or kwargs:
        raise _refuse("__deepcopy__", tensor if isinstance(tensor, Value) else Const(None))
    if tensor.cls is torch.nn.Parameter and not tensor.is_special:
        return cx.inline(cx.make(torch.nn.Parameter.__deepcopy__), [tensor, memo], {})  # type: ignore[attr-defined]
    if tensor.cls is torch.Tensor and not tensor.is_special and not cx.truth(tensor.getattr(cx, "is_leaf")):
        cx.throw(RuntimeError, NO_LEAF)
    if not _is_bare(cx, tensor):
        raise _refuse("__deepcopy__", tensor)
    copied = cx.graph.copied.setdefault(id(memo), (memo, []))[1]
    given = {t.memory for t in cx.graph.inputs if t.layout is torch.strided}
    for other in copied:  # existing tensors, or views of them, may share memory in the next call
        if other.memory == tensor.memory or given >= {other.memory, tensor.memory}:
            raise Break("unsupported-operation", "Tensor.__deepcopy__() of several tensors that may share memory")
    trains = tensor.requires_grad
    data = cx.graph.call_method("detach", [tensor], {}) if trains else tensor
    assert isinstance(data, Tensor)
    made = cx.graph.call_function(deep_copied, [data], {})
    assert isinstance(made, Tensor)
    if made.strides != tensor.strides:  # eager's copy has the same gaps, or several elements in one place
        raise _refuse("__deepcopy__", tensor)
    copied.append(tensor)
    return parameters.make(cx, made, torch.Tensor) if trains else made


def reduce_ex(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`__reduce_ex__` as `copy.copy` calls it; other callers would see the difference."""
    tensor = args[0]
    if cx.frames[-1].code is not copy.copy.__code__ or not isinstance(tensor, Tensor) or not _is_bare(cx, tensor):
        raise _refuse("__reduce_ex__", tensor)
    if tensor.requires_grad:
        raise _refuse("__reduce_ex__", tensor)
    return Tuple([cx.make(same_data), Tuple([tensor])])


METHODS["__deepcopy__"] = deepcopy
METHODS["__reduce_ex__"] = reduce_ex
