"""Shapes, strides and dtypes of results: FakeTensorMode's answer, computed on a short path for ordinary operators.

In: an operator and FakeTensor arguments.  Out: FakeTensors.

Example: for ``aten.mm`` with (2, 3) and (3, 4) the result is a (2, 4) FakeTensor.

An operator with a rule in `static_shape_rules.py` needs no kernel.  Otherwise the short path runs the operator's meta
kernel on plain meta tensors and wraps the result.  It is right for operators whose result is on the one device of their
tensor arguments, and whose shape does not depend on data.  All other operators go through the mode, which takes about
five times as long (it hashes the arguments for its cache).

The meta tensors are plain, because an operator called with a tensor subclass imports `torch.distributed.tensor`.
torch's meta kernels import sympy by themselves (`torch.empty(3, device="meta") + 1` does).
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from pycompiler.operators import operator_table as operator_table  # fills the rows
from pycompiler.operators import value_checks as value_checks  # adds rows
from pycompiler.operators.kernel_probe import probe_results, probe_write, with_bits_of
from pycompiler.operators.kernel_type_checks import tensors_of
from pycompiler.operators.operator_facts import facts_of, overload_by_generator
from pycompiler.operators.static_shape_rules import (
    factory_result,
    lies_apart,
    results_by_rule,
    writes_alike,
    writes_itself,
)
from pycompiler.operators.symbolic_shape_rules import Layout, agree, has_rule, layouts_of, same
from pycompiler.operators.tensor_iterator import dense_strides, with_kernel_strides
from pycompiler.symbolic.concretize import symbols_in
from pycompiler.symbolic.symbols import Symbols, symbols_of

aten = torch.ops.aten


@cache
def is_ordinary(op: OpOverload) -> bool:
    """Whether the meta kernel alone gives the result (see the module docstring)."""
    facts = facts_of(op)
    if facts.ordinary or facts.view in ("meta", "reshape"):
        return True
    if not isinstance(op, OpOverload):  # a higher-order operator
        return False
    if torch.Tag.pointwise not in op.tags or op.namespace != "aten" or facts.draws:
        return False
    arguments, returns = op._schema.arguments, op._schema.returns
    makes_device = any(a.name in ("device", "dtype", "memory_format") for a in arguments)
    return not makes_device and not op._schema.is_mutable and len(returns) == 1 and str(returns[0].type) == "Tensor"


def propagate(
    mode: FakeTensorMode, op: OpOverload, types: Sequence[type], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """The result of `op` for these arguments (all tensors are FakeTensors of `mode`)."""
    if "generator" in kwargs:
        op, kwargs = without_generator(op, kwargs)
    out = None if getattr(mode, "symbolic", False) else short_path(mode, op, args, kwargs)
    return mode.dispatch(op, types, args, kwargs) if out is None else out


def without_generator(op: OpOverload, kwargs: Mapping[str, Any]) -> tuple[OpOverload, dict[str, Any]]:
    """The same call without a generator: shape functions draw nothing, and some refuse a generator."""
    kwargs, plain = dict(kwargs), overload_by_generator(op, taken=False) or op
    del kwargs["generator"]
    return plain, kwargs if plain is not op else {**kwargs, "generator": None}


@cache
def _makes_memory(op: OpOverload) -> bool:
    """Whether the operator's results are fresh, with strides that the caller did not choose."""
    if not isinstance(op, OpOverload) or "empty_strided" in op._schema.name:
        return False
    return all(r.alias_info is None for r in op._schema.returns)


def with_kernel_layout(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], out: Any) -> Any:
    """`out`, a shape function's answer, with the strides and the dtype of the kernel.

    torch's shape functions keep an input's strides for batch norms, but not for kernels that start with a copy of the input.
    """
    corrected = facts_of(op).corrected
    if corrected == "dtype" and out.dtype is not args[0].dtype:
        return FakeTensor(mode, torch.empty_like(_twin(out), dtype=args[0].dtype), out.device)
    if isinstance(out, FakeTensor) and out.layout is torch.strided and 0 in out.stride() and _makes_memory(op):
        apart = _apart(out)
        out = out if apart is out else FakeTensor(mode, apart, out.device)
    if corrected == "packed" and not out.is_contiguous():
        return FakeTensor(mode, torch.empty(out.shape, dtype=out.dtype, device="meta"), out.device)
    if corrected == "copy" and torch.ops.aten.is_non_overlapping_and_dense.default(args[0]):
        x = args[0]
        copy = torch.empty_strided(x.shape, x.stride(), dtype=out.dtype, device="meta")
        return out if out.stride() == x.stride() else FakeTensor(mode, copy, x.device)
    if corrected != "norm":
        return out
    x = args[0]
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    if x.is_contiguous() or (last is not None and x.is_contiguous(memory_format=last)):
        return out
    first = FakeTensor(mode, torch.empty(x.shape, dtype=out[0].dtype, device="meta"), x.device)
    return (first, *out[1:])


def counted(op: OpOverload, args: Sequence[Any]) -> Sequence[Any]:
    """`args` with non-negative dimensions, the only ones that torch 2.11's shape function accepts."""
    if op is not aten.linalg_vector_norm.default or len(args) < 3 or not args[2] or not args[0].dim():
        return args
    rank = args[0].dim()
    return (*args[:2], [d + rank if -rank <= d < 0 else d for d in args[2]], *args[3:])


MaybeResults = list[tuple[Layout, torch.dtype] | None]  # None: a result that is not needed
Ask = Callable[[Any, OpOverload, Sequence[Any], Mapping[str, Any]], Any]


def by_rule(mode: FakeTensorMode, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], ask: Ask) -> Any:
    """The result of `op` for symbolic sizes, if one of our rules covers it (`symbolic_shape_rules.py`); else None.

    `ask(mode, op, args, kwargs)` is torch's own answer for the hints.  It gives the results' dtypes, and the rule must
    agree with it.
    """
    if not isinstance(op, OpOverload) or not (has_rule(op) or op._schema.is_mutable):
        return None
    if (symbols := _symbols_in(args)) is None or any(isinstance(v, torch.Tensor) for v in kwargs.values()):
        return None
    device = _one_device(args)
    if device is None or op._schema.is_mutable:
        return args[0] if device is not None and writes_alike(op, args, kwargs) else None

    def results() -> MaybeResults | None:
        found = layouts_of(op, args, kwargs)
        return None if found is None else _with_types(found, _tensors(ask, mode, op, args, kwargs))

    known: MaybeResults | None = _once(symbols, (op, args, kwargs), results)
    if known is None:
        return None
    made = [None if one is None else wrapped(mode, _fresh(*one), device) for one in known]
    return made[0] if len(op._schema.returns) == 1 else tuple(made)


def _symbols_in(value: Any) -> Symbols | None:
    """The `Symbols` of the first symbolic number or size among the arguments."""
    if isinstance(value, torch.Tensor):
        return symbols_in(value)
    if type(value) in (list, tuple):
        return next(filter(None, map(_symbols_in, value)), None)
    return symbols_of(value)


def _once(symbols: Symbols, question: Any, answer: Callable[[], Any]) -> Any:
    """The answer to a query about layouts, stored until a new assumption is made."""
    try:
        key = _described(question)
        if key in symbols.answers:
            return symbols.answers[key]
        symbols.answers[key] = found = answer()
    except TypeError:  # an argument without a hash
        found = answer()
    return found


def _described(value: Any) -> Any:
    """A key of a value: equal for values that agree in all that shapes depend on.  A symbolic number is keyed by its node."""
    kind = type(value)
    if kind is FakeTensor:
        return (value.dtype, value.device, _described(value.shape), _described(value.stride()))
    if kind in (tuple, list, torch.Size):
        return (*map(_described, value),)
    if kind is dict:
        return (*((k, _described(v)) for k, v in value.items()),)
    return value.node if kind in (torch.SymInt, torch.SymFloat) else value if kind is int else (kind, value)


def _tensors(ask: Ask, mode: Any, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    try:
        out = ask(mode, op, args, kwargs)
    except Exception:  # the mode raises it again
        return []
    return [out] if isinstance(out, torch.Tensor) else list(out) if isinstance(out, (list, tuple)) else []


def _with_types(found: Sequence[Layout], today: Sequence[Any]) -> MaybeResults | None:
    """A rule's layouts with dtypes; None if they disagree with the layouts for the hints."""
    given = [t for t in today if t is not None]
    plain = all(type(t) is FakeTensor and t.layout is torch.strided and not t.storage_offset() for t in given)
    if not plain or not agree(found, [(tuple(t.shape), t.stride()) for t in given]):
        return None
    layouts = iter(found)
    return [None if t is None else (next(layouts), t.dtype) for t in today]


def _fresh(layout: Layout, dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor with this layout, without gaps.  A view of memory is created without queries about its sizes."""
    sizes, strides = layout
    if all(type(n) is int for n in (*sizes, *strides)):
        return torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
    room = functools.reduce(operator.mul, sizes, 1)
    return torch.empty((room,), dtype=dtype, device="meta").as_strided(sizes, strides)


def wrapped(mode: FakeTensorMode, plain: torch.Tensor, device: torch.device) -> Any:
    """The FakeTensor of a meta tensor.  It remembers the meta tensor, for views of its memory."""
    made: Any = FakeTensor(mode, plain, device)
    made.plain = plain
    return made


def static_path(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of a non-ordinary operator for static sizes, if a rule covers it; else None."""
    if mode.shape_env is not None or not isinstance(op, OpOverload):
        return None
    if op is aten._nnpack_available.default:  # ATen calls it to choose a convolution
        return op()
    fresh = factory_result(op, args, kwargs)
    if fresh is not None:
        return wrapped(mode, _fresh(*fresh), torch.device("cpu"))
    if any(isinstance(v, torch.Tensor) for v in kwargs.values()):
        return _written(mode, op, args, kwargs)
    if (device := _one_device(args, _is_strided if _forgets(op, args) else _knows_no_value)) is None:
        return None
    if facts_of(op).view not in ("", "split"):
        out = op(*[_replaced(a, _view_twin) for a in args])
        return wrapped(mode, out, device) if isinstance(out, torch.Tensor) else [wrapped(mode, o, device) for o in out]
    if _one_device(args) is not None:
        if writes_itself(op, args, kwargs):
            return args[0]
        known = _view(mode, op, args, device)
        known = _ruled(mode, op, args, kwargs, device) if known is None else known
        if known is not None:
            return known
    if device.type != "cpu":
        return None
    if probe_write(op, args, kwargs):
        return args[0]
    return _made_of(mode, op, probe_results(op, args, kwargs), device)


def _written(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """`out`, if the operator's result has the same layout; else None."""
    out, fresh = kwargs.get("out"), _without_out(op)
    if fresh is None or type(out) is not FakeTensor or (device := _one_device((*args, out))) is None:
        return None
    made = _ruled(mode, fresh, args, {k: v for k, v in kwargs.items() if k != "out"}, device)
    alike = type(made) is FakeTensor and (made.shape, made.dtype) == (out.shape, out.dtype)
    return out if alike and lies_apart(out) else None


@cache
def _without_out(op: OpOverload) -> OpOverload | None:
    """The overload that returns a fresh result, for an overload that writes `out`."""
    *given, last = op._schema.arguments
    if op.namespace != "aten" or last.name != "out" or not last.is_write or any(a.is_write for a in given):
        return None
    found = (getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads())
    wanted = [(a.name, str(a.type)) for a in given]
    return next((f for f in found if [(a.name, str(a.type)) for a in f._schema.arguments] == wanted), None)


def _ruled(
    mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], device: torch.device
) -> Any:
    return _made_of(mode, op, results_by_rule(mode, op, args, kwargs, device), device)


def _made_of(mode: FakeTensorMode, op: OpOverload, found: Any, device: torch.device) -> Any:
    if found is None:
        return None
    results = [None if r is None else wrapped(mode, _fresh(*r), device) for r in found]
    returns = op._schema.returns
    if len(returns) != 1:
        return tuple(results)
    return results if str(returns[0].type) == "List[Tensor]" else results[0]


def _view(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], device: torch.device) -> Any:
    """The result of a view operator whose shape function is Python, or None."""
    kind = facts_of(op).view
    if kind == "reshape" and all(type(n) is int and n >= -1 for n in args[1]):
        try:
            return wrapped(mode, _view_twin(args[0], *_reshaped(*args)), device)
        except (RuntimeError, ZeroDivisionError):  # torch reports the error in its own words
            return None
    if kind != "split" or not all(map(_is_plain, args[1:])):
        return None
    x, sizes, dim = (*args, 0)[:3]
    if not -x.dim() <= dim < x.dim():
        return None
    n, step = x.shape[dim], x.stride(dim)
    if type(sizes) is int:
        if sizes < 1:
            return None
        sizes = [min(sizes, n - at) for at in range(0, n, sizes)] or [0]
    if sum(sizes) != n or min(sizes, default=-1) < 0:
        return None
    plain, found, at = _view_twin(x), [], 0
    for size in sizes:
        shape = [size if d == dim % x.dim() else m for d, m in enumerate(x.shape)]
        part = plain.as_strided(shape, x.stride(), plain.storage_offset() + at * step)
        found.append(wrapped(mode, part, device))
        at += size
    return found


def _is_plain(value: Any) -> bool:
    return type(value) is int or (type(value) in (list, tuple) and all(type(n) is int for n in value))


def short_path(mode: FakeTensorMode, op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of `op`, or None if only the mode knows it."""
    if not is_ordinary(op) or mode.shape_env is not None or (device := _one_device(args)) is None:
        return None
    if any(isinstance(v, torch.Tensor) for v in kwargs.values()):
        return None
    view = facts_of(op).view
    if not getattr(mode, "symbolic", False):
        known = _view(mode, op, args, device) if view else _ruled(mode, op, args, kwargs, device)
        if known is not None:
            return known
    if view == "reshape" and (symbols := _symbols_in(args)) is not None:
        x, shape = args
        return wrapped(mode, _view_twin(x, *_once(symbols, (op, args), lambda: _reshaped(x, shape))), device)
    twin = _view_twin if view else _twin
    out = op(*[_replaced(a, twin) for a in args], **kwargs)
    if isinstance(out, torch.Tensor):
        out = with_kernel_strides(op, args, out, copies=device.type == "cpu")
        return wrapped(mode, out if view else _apart(out), device)
    return type(out)([wrapped(mode, o, device) for o in out])


def _reshaped(x: torch.Tensor, shape: Sequence[Any]) -> Layout:
    """The layout of `x` viewed with another shape, computed as ATen does.  torch's shape function makes more queries
    than needed."""
    known = [n for n in shape if not (type(n) is int and n == -1)]
    wanted, numel = functools.reduce(operator.mul, known, 1), functools.reduce(operator.mul, x.shape, 1)
    if len(known) < len(shape):
        shape = [numel // wanted if type(n) is int and n == -1 else n for n in shape]
        wanted = functools.reduce(operator.mul, shape, 1)
    if not _equal(numel, wanted):
        raise RuntimeError(f"shape '{list(shape)}' is invalid for input of size {numel}")
    strides = view_strides(x.shape, x.stride(), shape)
    if strides is None:
        raise RuntimeError("view size is not compatible with input tensor's size and stride")
    return tuple(shape), tuple(strides)


def _equal(a: Any, b: Any) -> bool:
    return same(a, b) or bool(a == b)


def view_strides(sizes: Sequence[Any], strides: Sequence[Any], shape: Sequence[Any]) -> list[Any] | None:
    """ATen's `computeStride`: the strides of a view of `shape` with the same elements; None if no such view exists."""
    if not sizes:
        return [1] * len(shape)
    made: list[Any] = [1] * len(shape)
    if any(n == 0 for n in sizes):
        for d in reversed(range(len(shape) - 1)):
            made[d] = torch.sym_max(shape[d + 1], 1) * made[d + 1]
        return list(strides) if len(sizes) == len(shape) and all(map(_equal, sizes, shape)) else made
    at, base, numel, taken = len(shape) - 1, strides[-1], 1, 1
    for d in reversed(range(len(sizes))):
        numel *= sizes[d]
        if d and (sizes[d - 1] == 1 or _equal(strides[d - 1], numel * base)):
            continue
        while at >= 0 and (shape[at] == 1 or not same(taken, numel) and taken < numel):
            made[at] = taken * base
            taken *= shape[at]
            at -= 1
        if not _equal(taken, numel):
            return None
        base, numel, taken = strides[d - 1], 1, 1
    return made if at == -1 else None


def _apart(out: torch.Tensor) -> torch.Tensor:
    """A fresh result whose elements do not overlap.

    Some shape functions of torch 2.11 (they write into a part of a copy) keep an input's strides of 0.
    """
    if 0 not in out.stride() or not any(s == 0 and n > 1 for n, s in zip(out.shape, out.stride(), strict=True)):
        return out
    return torch.empty_strided(out.shape, dense_strides(tuple(out.shape), out.stride()), dtype=out.dtype, device="meta")


def _twin(fake: torch.Tensor) -> torch.Tensor:
    """A meta tensor with the sizes, strides and dtype of `fake`."""
    if fake._has_symbolic_sizes_strides:
        return _view_twin(fake)
    return torch.empty_strided(fake.size(), fake.stride(), dtype=fake.dtype, device="meta")


def _view_twin(fake: torch.Tensor, sizes: Any = None, strides: Any = None) -> torch.Tensor:
    """A meta tensor that also has the storage of `fake`, with other sizes and strides if given."""
    sizes, strides = (fake.size(), fake.stride()) if sizes is None else (sizes, strides)
    plain = fake.__dict__.get("plain")
    if plain is not None and plain.untyped_storage()._cdata == fake.untyped_storage()._cdata:
        return with_bits_of(fake, plain.as_strided(sizes, strides, fake.storage_offset()))
    empty = torch.empty(0, dtype=fake.dtype, device="meta")
    return with_bits_of(fake, empty.set_(fake.untyped_storage(), fake.storage_offset(), sizes, strides))


def _replaced(value: Any, twin: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    kind = type(value)
    if kind is FakeTensor:
        return twin(value)
    return [_replaced(v, twin) for v in value] if kind is list else value


def _is_strided(t: FakeTensor) -> bool:
    return t.layout is torch.strided


def _knows_no_value(t: FakeTensor) -> bool:
    return t.constant is None and _is_strided(t)


def _is_bare(t: FakeTensor) -> bool:
    return _knows_no_value(t) and not (t.is_neg() or t.is_conj())


def _forgets(op: OpOverload, args: Sequence[Any]) -> bool:
    """Whether the results have no known value, and no argument loses its value.

    A result has a known value only if all arguments have one; an argument loses it by a write.
    """
    return not op._schema.is_mutable and any(getattr(t, "constant", None) is None for t in tensors_of(args))


def _one_device(args: Sequence[Any], is_plain: Callable[[FakeTensor], bool] = _is_bare) -> torch.device | None:
    """The device of every tensor in `args`; None for several devices or none, or if a tensor is more than its metadata."""
    found = None
    for a in args:
        kind = type(a)
        if kind is FakeTensor:
            device = a.fake_device if is_plain(a) else None
        elif kind is list and a and type(a[0]) is FakeTensor:
            device = _one_device(a, is_plain)
        elif isinstance(a, torch.Tensor):
            return None
        else:
            continue
        if device is None or (found is not None and device != found):
            return None
        found = device
    return found
