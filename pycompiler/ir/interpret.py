"""An interpreter of the loop IR: runs a `Program` with torch tensors on the CPU.  Exact, not fast.

In: a program and its inputs.  Out: the outputs, as tensors.  Every loop is computed on its whole iteration space at
once: a value is a tensor that broadcasts to (ranges + reduction ranges).

    interpret(lower(gm), [x, y])

The interpreter raises for errors that a kernel would not notice: an access outside a buffer, two writes of one element,
an Extern whose result has another layout than declared.  Unwritten storage holds NaN (or -77).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from pycompiler.ir.loops import INDEX_RULES, Buffer, Extern, Loop, Op, Program, Ref
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.float_bits import float_of
from pycompiler.symbolic.symbolic_node import Real


class InterpretError(Exception):
    """The program does something illegal."""


# name -> torch function on tensors of the args' dtypes; the result is cast to the op's dtype
POINTWISE_MEANING: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "truediv": torch.true_divide,
    "floordiv": torch.floor_divide, "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
    "mod": torch.remainder, "fmod": torch.fmod, "neg": torch.neg, "abs": torch.abs, "sign": torch.sign,
    "maximum": torch.maximum, "minimum": torch.minimum, "fma": lambda a, b, c: a * b + c,
    "reciprocal": torch.reciprocal, "square": lambda a: a * a,
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2,
    "log10": torch.log10, "log1p": torch.log1p, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "pow": torch.pow,
    "sin": torch.sin, "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "atan2": torch.atan2, "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh,
    "acosh": torch.acosh, "atanh": torch.atanh, "erf": torch.erf, "one_plus_erf": lambda a: 1 + torch.erf(a),
    "erfc": torch.erfc, "erfinv": torch.erfinv,
    "lgamma": torch.lgamma, "digamma": torch.digamma, "sigmoid": torch.sigmoid,
    "floor": torch.floor, "ceil": torch.ceil, "round": torch.round, "trunc": torch.trunc,
    "copysign": torch.copysign, "nextafter": torch.nextafter, "hypot": torch.hypot,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "isnan": torch.isnan, "isinf": torch.isinf, "signbit": torch.signbit,
    "and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor, "not": torch.bitwise_not,
    "where": torch.where, "shl": torch.bitwise_left_shift, "shr": torch.bitwise_right_shift,
}  # fmt: skip


def _arg(f: Callable[..., Tensor]) -> Callable[[Tensor], tuple[Tensor, ...]]:
    return lambda x: (f(x.to(torch.uint8) if x.dtype == torch.bool else x, dim=-1),)


def _welford(x: Tensor) -> tuple[Tensor, ...]:
    near = x.mean(-1)
    gaps = x - near.unsqueeze(-1)
    rest = gaps.mean(-1)  # the rounding error of the mean
    return near + rest, (gaps.square().sum(-1) - gaps.sum(-1) * rest).clamp_min(0)


# kind -> function of the values with all reduction dimensions flattened into the last
REDUCTION_MEANING: dict[str, Callable[[Tensor], tuple[Tensor, ...]]] = {
    "sum": lambda x: (x.sum(-1, dtype=x.dtype),), "prod": lambda x: (x.prod(-1, dtype=x.dtype),),
    "max": lambda x: (x.amax(-1),), "min": lambda x: (x.amin(-1),),
    "any": lambda x: (x.any(-1),), "all": lambda x: (x.all(-1),),
    "argmax": _arg(torch.argmax), "argmin": _arg(torch.argmin), "welford": _welford,
}  # fmt: skip


class Memory(Protocol):
    """The memory that a body loads from."""

    def load(self, op: Op, at: Tensor, mask: Tensor | None) -> Tensor:
        """The elements `at` of the buffer that a load names.  Where `mask` is false, there is no access and any value
        is allowed."""


@dataclass
class _Machine:
    """`storage`: buffer name -> flat tensor; `sizes`: symbol -> value."""

    sizes: dict[str, int]
    storage: dict[str, Tensor] = field(default_factory=dict)

    def load(self, op: Op, at: Tensor, mask: Tensor | None) -> Tensor:
        source = self.storage[op.attrs[0]]
        if mask is None:
            check_range(f"load {op.attrs[0]}", at, source)
            return source[at.reshape(-1)].reshape(at.shape)  # for a single element, indexing alone would return a view
        check_range(f"masked_load {op.attrs[0]}", at[mask], source)
        result = source.new_zeros(at.shape)
        result[mask] = source[at[mask]]
        return result

    def ints(self, exprs: Sequence[Expr]) -> list[int]:
        return [e.eval(self.sizes) for e in exprs]

    def allocate(self, buffer: Buffer) -> Tensor:
        extent = storage_extent(self.ints(buffer.shape), self.ints(buffer.stride))
        filler = float("nan") if buffer.dtype.is_floating_point else 1 if buffer.dtype == torch.bool else 77
        self.storage[buffer.name] = torch.full((extent,), filler, dtype=buffer.dtype)
        return self.storage[buffer.name]

    def tensor(self, ref: Ref) -> Tensor:
        flat = self.storage[ref.buffer]
        start = flat.storage_offset() + ref.offset.eval(self.sizes)
        return flat.as_strided(self.ints(ref.shape), self.ints(ref.stride), start)


def storage_extent(shape: Sequence[int], stride: Sequence[int]) -> int:
    """Elements from the first to the last, both included; 0 for an empty tensor."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True))


def _flat(t: Tensor) -> Tensor:
    return t.detach().as_strided((storage_extent(t.shape, t.stride()),), (1,), t.storage_offset())


def interpret(program: Program, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of `program` on `inputs`.  Mutated inputs are written in place, as a plan would do."""
    m = _Machine(program.sizes(inputs))
    for buffer, value in zip(program.inputs, inputs, strict=True):
        if buffer is not None:
            m.storage[buffer.name] = _flat(value)
    for name, constant in program.constants.items():
        m.storage[name] = _flat(constant)
    for node in program.nodes:
        if isinstance(node, Loop):
            _run_loop(m, node)
        else:
            run_extern(m, node)
    return [_output(m, o, inputs) for o in program.outputs]


def _output(m: _Machine, output: Ref | int | tuple[Any] | None, inputs: Sequence[Any]) -> Any:
    if isinstance(output, Ref):
        return m.tensor(output)
    if isinstance(output, tuple):
        return number_of(output[0], m.sizes)
    return None if output is None else inputs[output]


@dataclass
class Grid:
    """The iteration space of one loop: `index[v]` holds the values of variable v, shaped to broadcast to `shape`."""

    shape: tuple[int, ...]
    index: dict[str, Tensor | int]

    @classmethod
    def of(cls, names: Sequence[str], shape: tuple[int, ...], sizes: dict[str, int]) -> Grid:
        index: dict[str, Tensor | int] = dict(sizes)
        for d, (name, n) in enumerate(zip(names, shape, strict=True)):
            index[name] = torch.arange(n).reshape([n if k == d else 1 for k in range(len(shape))])
        return cls(shape, index)

    def eval(self, e: Expr, values: Sequence[Tensor]) -> Tensor:
        return torch.as_tensor(self._eval(e, values), dtype=torch.int64)

    def _eval(self, e: Expr, values: Sequence[Tensor]) -> Any:
        total: Any = 0
        for mono, c in e.terms:
            product: Any = c
            for atom in mono:
                if atom.kind == "sym":
                    name = atom.key
                    product = product * (values[int(name[1:])].to(torch.int64) if name[0] == "%" else self.index[name])
                    continue
                a, b = (torch.as_tensor(self._eval(x, values)) for x in atom.args)
                product = product * _INTEGER[atom.kind](a, b)
            total = total + product
        return total


_INTEGER: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "//": torch.floor_divide, "%": torch.remainder, "min": torch.minimum, "max": torch.maximum,
}  # fmt: skip


def _run_loop(m: _Machine, node: Loop) -> None:
    red = node.reduction
    shape = tuple(m.ints(node.ranges + (red.ranges if red else ())))
    grid = Grid.of(node.vars + (red.vars if red else ()), shape, m.sizes)
    values = run_body(m, grid, node.body)
    results = tuple(values[r] for r in node.results)
    outer = shape[: len(node.ranges)]
    if red is not None:
        results = reduce(red.kind, results[0].expand(shape), len(outer))
    for buffer, result, where in zip(node.out, results, node.store_index, strict=True):
        target = m.storage[buffer.name] if node.init else m.allocate(buffer)
        if 0 in outer:
            continue
        at = grid.eval(where, values)
        if red is not None:
            at = at.reshape(at.shape[: len(outer)])
        _store(node, target, at.expand(outer).reshape(-1), result.expand(outer).reshape(-1))


def reduce(kind: str, value: Tensor, outer: int) -> tuple[Tensor, ...]:
    inner = value.shape[outer:]
    if 0 in inner and kind not in ("sum", "prod", "any", "all"):
        raise InterpretError(f"{kind} over an empty range has no value")
    return REDUCTION_MEANING[kind](value.reshape(*value.shape[:outer], math.prod(inner)))


def _store(node: Loop, target: Tensor, at: Tensor, value: Tensor) -> None:
    check_range(f"{node.out[0].name}: store", at, target)
    if value.dtype != target.dtype:
        raise InterpretError(f"{node.out[0].name}: a {value.dtype} is stored into {target.dtype}")
    if node.store_mode == "add":
        target.index_put_((at,), value, accumulate=True)
        return
    if torch.unique(at).numel() != at.numel():
        raise InterpretError(f"{node.out[0].name}: two points of the loop write one element")
    target[at] = value


def check_range(what: str, at: Tensor, target: Tensor) -> None:
    if at.numel() and (int(at.min()) < 0 or int(at.max()) >= target.numel()):
        raise InterpretError(
            f"{what}: index {int(at.min())}..{int(at.max())} outside a storage of {target.numel()} elements"
        )


def run_body(m: Memory, grid: Grid, body: Sequence[Op]) -> list[Tensor]:
    """The value of each operation, shaped to broadcast to the grid's shape."""
    values: list[Tensor] = []
    for op in body:
        values.append(_run_op(m, grid, op, values))
    return values


def _run_op(m: Memory, grid: Grid, op: Op, values: list[Tensor]) -> Tensor:
    args = [values[a] for a in op.args]
    match op.name:
        case "load":
            at = grid.eval(op.attrs[1], values)
            return torch.zeros(at.shape, dtype=op.dtype) if 0 in grid.shape else m.load(op, at, None)
        case "masked_load":
            at, mask, other = (t.expand(grid.shape) for t in (grid.eval(op.attrs[1], values), *args))
            return torch.where(mask, m.load(op, at, mask), other) if bool(mask.any()) else other
        case "const":
            return torch.tensor(op.attrs[0], dtype=op.dtype)
        case "index":
            return grid.eval(op.attrs[0], values).to(op.dtype)
        case "cast":
            return args[0].to(op.dtype)
        case "bitcast":
            return args[0].contiguous().view(op.dtype)
        case "wrap_index":
            size, rule = int(grid.eval(op.attrs[0], values)), INDEX_RULES[op.attrs[1]]
            wrong = (args[0] < (-size if rule.wraps else 0)) | (args[0] >= size)
            if 0 not in grid.shape and bool(wrong.any()):
                raise rule.error(rule.text.format(index=int(args[0][wrong][0]), dim=op.attrs[2], size=size))
            return torch.where(args[0] < 0, args[0] + size, args[0])
        case "rand" | "randn":
            raise InterpretError(f"{op.name} has no reference value: random numbers come from ATen kernels")
    return POINTWISE_MEANING[op.name](*args).to(op.dtype)


def number_of(value: Any, sizes: Mapping[str, int]) -> Any:
    """A constant, or the value of an expression or of a named float."""
    if isinstance(value, Real):
        assert value.name is not None, value
        return float_of(sizes[value.name])
    return value.eval(sizes) if isinstance(value, Expr) else value


def run_extern(m: Any, node: Extern) -> None:
    """Call the operator.  `m` is a machine with `tensor(ref)`, `allocate(buffer)`, `ints(sizes)` and `sizes`."""

    def real(x: Any) -> Any:
        if isinstance(x, Ref):
            return m.tensor(x)
        if isinstance(x, list | tuple):
            return type(x)(real(v) for v in x)
        return number_of(x, m.sizes)

    with torch.no_grad():
        result = node.op(*[real(a) for a in node.args], **{k: real(v) for k, v in node.kwargs.items()})
    flat = flatten_results(result)
    if len(flat) < len(node.out):
        raise InterpretError(f"{node.op} returned {len(flat)} results, {len(node.out)} were declared")
    for buffer, value in zip(node.out, flat, strict=False):
        if buffer is None:
            continue
        shape, stride = m.ints(buffer.shape), m.ints(buffer.stride)
        differs = [s for s, n, t in zip(stride, shape, value.stride(), strict=True) if n > 1 and s != t]
        if list(value.shape) != shape or value.dtype != buffer.dtype or (differs and 0 not in shape):
            raise InterpretError(
                f"{node.op} returned {value.dtype}{list(value.shape)} strides {value.stride()}; "
                f"{buffer.name} was declared {buffer.dtype}{shape} strides {stride}"
            )
        m.allocate(buffer)
        m.tensor(Ref(buffer.name, buffer.shape, buffer.stride, Expr.of(0))).copy_(value)


def flatten_results(result: Any) -> list[Any]:
    """An operator's results as a flat list of tensors (a list result is spliced in)."""
    if isinstance(result, list | tuple):
        return [t for r in result for t in flatten_results(r)]
    return [result]
