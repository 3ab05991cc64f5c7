"""Distributed tensors: creation, redistribution and conversion are calls of the graph.

In: a call of torch's own functions.
Out: one node, which calls the function on tensors.  Mesh and placements are constants of the call.
Example: ``x.redistribute(mesh, [Replicate()])`` is ``making(x)``.  Collectives inside appear where the graph is
traced below the class (`autograd/subclasses/compile.py`).
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import LATE_BUILTINS, Args, Kwargs
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.distributed_objects import Fixed, fixed, guard_groups, known
from pycompiler.capture.values.tensor import Tensor
from pycompiler.torch_compat.distributed_tensors import dtensor, is_distributed, is_known
from pycompiler.torch_compat.tensor_subclasses import SubclassConstructor

API = "torch.distributed.tensor._api"


def _constant(cx: Capture, value: Value) -> Any:
    found = cx.snapshot(value)
    for part in found if isinstance(found, (list, tuple)) else (found,):
        if fixed(part) is not None:
            guard_groups(cx, part)
    return found


def _call(name: str) -> Any:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        fn = getattr(dtensor(), name)
        given = [cx.realize(v) for v in (*args, *kwargs.values())]
        tensors = [v for v in given if isinstance(v, Tensor)]
        if cx.graph.levels or cx.functions.concerns(args, kwargs) or len(tensors) != 1 or tensors[0] is not given[0]:
            raise Break(
                "tensor-subclass",
                f"DTensor.{name} under a transform or mode, or without one tensor as its first argument",
            )
        if "run_check" in kwargs and cx.truth(kwargs["run_check"]):
            raise Break("tensor-subclass", f"DTensor.{name} with {', '.join(kwargs)}")
        first = tensors[0]
        if name == "from_local":
            mesh = given[1] if len(args) > 1 else kwargs.get("device_mesh", Const(None))
            if (
                first.cls not in (torch.Tensor, torch.nn.Parameter)
                or not isinstance(cx.realize(mesh), Fixed)
                or len(args) > 3
            ):
                raise Break("tensor-subclass", "DTensor.from_local without a device mesh, or of a tensor subclass")
        elif not is_distributed(first.cls):
            raise Break("tensor-subclass", f"DTensor.{name} of a value that is not a DTensor")
        else:
            guard_groups(cx, first.spec.mesh)  # type: ignore[attr-defined]
        constants = [None if v is first else _constant(cx, v) for v in given]
        made = cx.graph.call_inner(SubclassConstructor(fn, constants, [0], tuple(kwargs)), [], [first])
        return _checked(made, name)

    return handler


def _checked(made: Value, name: str) -> Value:
    """The result, checked to be of a kind that inputs may have."""
    if not isinstance(made, Tensor):
        raise Break("tensor-subclass", f"DTensor.{name}, which does not return a tensor")
    if made.wrapper and not (is_distributed(made.cls) and is_known(made.fake)):
        raise Break("tensor-subclass", f"DTensor.{name}, which returns a {made.cls.__qualname__}")
    return made


for _name in ("from_local", "to_local", "redistribute", "full_tensor"):
    LATE_BUILTINS[API, f"DTensor.{_name}"] = _call(_name)


def _attribute_handler(name: str) -> Any:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        first = cx.realize(args[0])
        if not isinstance(first, Tensor) or not is_distributed(first.cls):
            raise Break("tensor-subclass", f"DTensor.{name} of a value that is not a DTensor")
        guard_groups(cx, first.spec.mesh)  # type: ignore[attr-defined]
        return known(cx, getattr(first.fake, name))

    return handler


for _name in ("device_mesh", "placements"):
    LATE_BUILTINS[API, f"DTensor.{_name}"] = _attribute_handler(_name)


# placements ---------------------------------------------------------------------------------------------------
PLACEMENTS = "torch.distributed.tensor.placement_types"


def _placed(name: str) -> Any:
    """``Shard(0)``: an immutable object."""

    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given, named = [cx.snapshot(a) for a in args], {k: cx.snapshot(v) for k, v in kwargs.items()}
        return known(cx, cx.evaluate_raw(getattr(sys.modules[PLACEMENTS], name), *given, **named))

    return handler


for _name in ("Shard", "Replicate", "Partial"):
    LATE_BUILTINS[PLACEMENTS, _name] = _placed(_name)
