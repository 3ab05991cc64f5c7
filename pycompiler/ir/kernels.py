"""Which element types the kernels take: shape functions and decompositions are more lenient than they are.

In: an operator and FakeTensors. Out: nothing, or the exception that the kernel raises.
Example: ``aten.mm`` of float32 and float64 raises, ``aten._softmax`` of int64 raises; the shape functions of both answer.

The kernel itself is asked, on tensors of ones and zeros with few elements, once for each combination of element types.
Only what it says about types counts: its other complaints may be about these tensors.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.ir.effects import acts, draws

# Of one of these types throughout, a kernel takes all arguments or none, whatever their shapes and the numbers beside.
_COMMON = frozenset((torch.float32, torch.float64, torch.bfloat16))
_ABOUT_TYPES = re.compile(
    r"not (yet )?(implemented|supported)|support|dtype|scalar type|type of|same type|[Bb]ool|complex|converted|cast\b|[Ii]nteger"
)
_FEW = 4096
_MOST_ANSWERS = 20_000

# Kernels that refuse an empty tensor; their shape functions do not, and a result that nobody reads would go unnoticed.
_NOT_OF_NOTHING = {
    op: f"{name}(): Expected reduction dim to be specified for input.numel() == 0. Specify the reduction dim with the "
    "'dim' argument."
    for op, name in ((torch.ops.aten.max.default, "max"), (torch.ops.aten.min.default, "min"))
}

_answers: dict[Any, Exception | None] = {}


def check_types(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises what the kernel of `op` raises for arguments of these types; for what it would raise otherwise see above."""
    if op in _NOT_OF_NOTHING and isinstance(args[0], torch.Tensor) and not args[0].numel():
        raise RuntimeError(_NOT_OF_NOTHING[op])
    if not is_asked(op):
        return
    types: dict[torch.dtype, None] = {}
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            types[value.dtype] = None
        elif type(value) in (list, tuple) and value and isinstance(value[0], torch.Tensor):
            types.update((v.dtype, None) for v in value if isinstance(v, torch.Tensor))
    key: tuple[Any, ...] = (op, *types)
    if len(types) != 1 or next(iter(types)) not in _COMMON:
        key = (op, *(_key(a) for a in args), *((k, _key(v)) for k, v in kwargs.items()))
    try:
        answer = _answers.get(key, _answers)
    except TypeError:  # an argument without a hash
        return
    if answer is _answers:
        tensors = list(tensors_of((args, kwargs)))
        if not tensors or not all(type(t) is FakeTensor and on_host(t) for t in tensors):
            return
        if len(_answers) > _MOST_ANSWERS:
            _answers.clear()
        answer = _answers[key] = _ask(op, args, kwargs, sum(t.numel() for t in tensors) <= _FEW)
    if isinstance(answer, Exception) and all(on_host(t) for t in tensors_of((args, kwargs))):
        raise type(answer)(*answer.args)


# Kernels behind functions check nothing, and crash: only those are asked that programs call themselves, or nearly so.
_INNER = re.compile(r"_|mkldnn|cudnn|miopen|fbgemm|quantized|.*backward")
_NEARLY_OUTER = frozenset(("_softmax", "_log_softmax", "_to_copy", "_unsafe_index", "__lshift__", "__rshift__"))


@cache
def is_asked(op: OpOverload) -> bool:
    name = op.overloadpacket.__name__
    if op.namespace != "aten" or draws(op) or acts(op) or (_INNER.match(name) and name not in _NEARLY_OUTER):
        return False
    return not any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)  # no view


def on_host(t: torch.Tensor) -> bool:
    return t.layout is torch.strided and t.device.type == "cpu"


def _ask(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], as_it_is: bool) -> Exception | None:
    def stand_in(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            shape = value.shape if as_it_is else [min(n, 2) for n in value.shape]
            return (torch.ones if value.dtype.is_floating_point else torch.zeros)(shape, dtype=value.dtype)
        if isinstance(value, (list, tuple)):
            return type(value)(stand_in(v) for v in value) if not isinstance(value, torch.Size) else value
        return value

    try:
        with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
            op(*map(stand_in, args), **{k: stand_in(v) for k, v in kwargs.items()})
    except Exception as error:
        of_few = as_it_is or isinstance(error, NotImplementedError)
        return error if of_few and _ABOUT_TYPES.search(str(error)) else None
    return None


def tensors_of(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from tensors_of(v)
    elif isinstance(value, Mapping):
        yield from tensors_of(list(value.values()))


def _key(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.dim())
    if isinstance(value, (list, tuple)):
        return tuple(_key(v) for v in value)
    return (type(value), value)
