"""The loop IR: lowering produces it, scheduling transforms it, code generators print it.

In: a functional ATen graph, lowered.  Out: `Program`, an ordered list of nodes over named buffers.  Nothing here
knows a device's language.  `interpret.py` defines the meaning of every operation, `verify.py` the legal programs;
`printer.py` prints.

A `Loop` computes one value for every point of `ranges`; with `reduction`, it folds over `reduction.ranges` as
well.  Its body is a list of `Op` in SSA form (a value is the position of the op that computes it):

    loop b2[i0: 2048, i1: 1024] = max over ()            # pointwise: relu(x + 1)
      0 load in0 [1024*i0 + i1]        f32
      1 const 1.0                      f32
      2 add 0 1                        f32
      3 relu ...
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.float_bits import float_of, word_of
from pycompiler.symbolic.symbolic_node import Real

NUMBER = -1  # in place of a dimension in a symbol's origin: the input is the number
FLOAT = -2  # the input is a float, and the symbol's value is the float's word (`symbolic/float_bits.py`)
Size = Expr  # sizes and indices are expressions; a static size is a constant Expr (see symbolic/expr.py)


@dataclass(frozen=True)
class Buffer:
    """Storage of `shape` with `stride` (elements) and `offset` (elements) on `device`."""

    name: str
    dtype: torch.dtype
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    device: torch.device
    offset: Size = field(default_factory=lambda: Expr.of(0))


@dataclass(frozen=True)
class Op:
    """One SSA operation.  `args` are positions of earlier ops in the body; `dtype` is the result's.

    `attrs` by op:

    - load: buffer name, and index Expr into the flat storage, in elements, relative to the buffer's start.  Lowering includes
      an offset only for views: the consumer of the pointer applies Buffer.offset.
    - masked_load: attrs like load; args (predicate, other).  There is no memory access where the predicate is false.
    - const: a number.  index: an Expr, an integer value.  rand/randn: seed buffer name, offset Expr.
    - wrap_index: size Expr, name of a row of INDEX_RULES, dimension.  Its value is the int64 argument if 0 <= it <
      size, and the argument plus size if it is in -size..-1 and the rule wraps.  Otherwise the user's index is out of
      range.  The interpreter then raises; a kernel must not access memory with the index (it clamps the value, and
      reports the error if it can).
    - cast and all other ops: ().

    Indirect indexing: a Symbol named `%3` in an index Expr stands for the integer value of op 3 of this body.
    """

    name: str
    args: tuple[int, ...]
    dtype: torch.dtype
    attrs: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Reduction:
    """Fold over `vars`/`ranges` (at least one; a fold over one element is a pointwise Loop).

    `kind` is a row of REDUCTIONS.
    """

    kind: str
    vars: tuple[str, ...]
    ranges: tuple[Size, ...]


@dataclass(frozen=True)
class Loop:
    """Computes `out` (one buffer; two or more for multi-result reductions such as welford: mean and m2).

    vars/ranges: the output iteration space (no range is 1; outermost first, in order of falling output strides).

    dtypes: without a reduction `out[k].dtype` is the dtype of `results[k]`.  sum, prod, max, min and welford accumulate
    in the dtype of their input and return it.  Example: a bf16 sum is a cast to f32, a sum into an f32 buffer, then a
    Loop that casts.  argmax/argmin give int64, any/all bool.  A load has its buffer's dtype.

    Several Loops may write parts of one buffer (cat).  The first has `init` None and creates the buffer.  The later
    ones have `init` == out[0].name: they write (store_mode "set": a part that no other Loop writes) or add into it.
    All writers of a buffer precede its readers in `Program.nodes`; a reader depends on every writer.

    `results`: positions in `body`, one per input of the reduction, or, without a reduction, one per output.
    `store_index`: one Expr per output, over `vars` (and `%n` for scatters): where in the output's storage a result is
    written.  It is one-to-one, unless `store_mode` is "add": a scatter, whose output must be initialised, so has `init`.
    """

    out: tuple[Buffer, ...]
    vars: tuple[str, ...]
    ranges: tuple[Size, ...]
    body: tuple[Op, ...]
    results: tuple[int, ...]
    store_index: tuple[Expr, ...]
    reduction: Reduction | None = None
    store_mode: Literal["set", "add"] = "set"
    init: str | None = None
    origin: tuple[str, ...] = ()  # names of the ATen nodes that it computes


@dataclass(frozen=True)
class Extern:
    """A call of an ATen kernel.  `args`/`kwargs` hold plain constants, (nested) lists of them, and `Ref`s.

    `out` are fresh buffers that receive the results (strides from the fake trace; None for an unused or undefined result).
    `mutates` names argument buffers that the kernel writes.
    `checked`: earlier loops have already checked the data for which the kernel would raise.
    `by_engine`: the engine computes it (`ir.plan.Product`, `Convolution`, `GpuProduct`), into the memory of `out`, with so many
    bytes of `workspace`.
    """

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: tuple[Buffer | None, ...]
    mutates: tuple[str, ...] = ()
    origin: tuple[str, ...] = ()
    checked: bool = False
    by_engine: bool = False
    workspace: int = 0

    @property
    def is_convolution(self) -> bool:
        """Whether the engine convolves; its other calls are products of matrices."""
        return self.by_engine and self.op is torch.ops.aten.convolution.default


@dataclass(frozen=True)
class Ref:
    """A tensor argument: a view of a buffer with shape/stride/offset (elements, relative to the buffer's start)."""

    buffer: str
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size


Node = Loop | Extern


@dataclass
class Program:
    """A lowered graph.  `inputs` in call order (None: not a tensor or unused); `outputs` in return order.

    An output is a `Ref` (a view of a buffer, often the whole of it), an input index (`int`: returned unchanged), a
    constant in a 1-tuple, or None.  `constants`: tensors baked into the graph, by buffer name.
    `users`: ATen node name -> line of the user's program, for nodes with checks of user data (`checks`) or with large results.

    Symbolic sizes.  `hints`: symbol -> its value in the captured call.  `numbers`: symbol -> position, for symbols that
    are inputs themselves; `floats`: the ones among them that are floats.  Other symbols are dimensions of inputs (`origins`).
    `reals`: floats computed from symbols, by name, in an order in which they can be computed.  Loops and operators
    contain only their names (`Real.named`).
    """

    inputs: list[Buffer | None]
    nodes: list[Node]
    outputs: list[Ref | int | tuple[Any] | None]
    constants: dict[str, torch.Tensor] = field(default_factory=dict)
    buffers: dict[str, Buffer] = field(default_factory=dict)
    name: str = "graph"
    users: dict[str, str] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)
    reals: dict[str, Real] = field(default_factory=dict)

    def origins(self) -> dict[str, tuple[int, int]]:
        """Origin of each symbol's value in a call: (input, dimension of it), or (input, NUMBER or FLOAT) for a number itself."""
        found: dict[str, tuple[int, int]] = {}
        for position, b in enumerate(self.inputs):
            for dim, n in enumerate(b.shape if b is not None else ()):
                if n.symbol is not None:
                    found.setdefault(n.symbol, (position, dim))
        kinds = {name: FLOAT if name in self.floats else NUMBER for name in self.numbers}
        return {name: (position, kinds[name]) for name, position in self.numbers.items()} | found

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols in a call; for floats their words."""
        env = {name: read_symbol(inputs, *at) for name, at in self.origins().items()}
        for name, value in self.reals.items():
            env[name] = word_of(value.eval(values_of(env, self.floats | self.reals.keys())))
        return env


def read_symbol(inputs: Sequence[Any], position: int, dim: int) -> int:
    """The value of a symbol, by its origin."""
    value = inputs[position]
    if dim == FLOAT:
        return word_of(value)
    return int(value) if dim == NUMBER else int(value.shape[dim])


def values_of(env: Mapping[str, int], floats: Collection[str]) -> dict[str, Any]:
    """The arguments of `Real.eval`: words of floats are converted to floats."""
    return {name: float_of(value) if name in floats else value for name, value in env.items()}


def checks(op: Op) -> bool:
    """Whether a kernel checks the operation's arguments and raises for invalid ones."""
    return op.name == "wrap_index" or (
        op.name in ("floordiv", "truncdiv", "mod", "fmod") and not op.dtype.is_floating_point
    )


def refuses(body: Sequence[Op]) -> list[int]:
    """Positions of the checks that may fail.  A division by a known non-zero number cannot fail."""

    def divides_by_number(op: Op) -> bool:
        by = body[op.args[1]] if op.name != "wrap_index" else None
        return by is not None and by.name == "const" and by.attrs[0] != 0

    return [k for k, op in enumerate(body) if checks(op) and not divides_by_number(op)]


# name -> (number of inputs, number of outputs).  Accumulators: sum, prod, max, min, any, all, xor_sum as their names;
# argmax/argmin give the first position (flat over the reduction ranges; NaN wins), int64;
# welford gives (mean, m2): m2 = sum of squared distances to the mean.
REDUCTIONS: dict[str, tuple[int, int]] = {
    "sum": (1, 1), "prod": (1, 1), "max": (1, 1), "min": (1, 1), "any": (1, 1), "all": (1, 1),
    "argmax": (1, 1), "argmin": (1, 1), "welford": (1, 2),
}  # fmt: skip


@dataclass(frozen=True)
class IndexRule:
    """Eager's treatment of a user's index: whether a negative index counts from the end, and the error for a wrong one."""

    wraps: bool
    error: type[Exception]
    text: str  # {index}, {dim}, {size}


_OUT_OF_BOUNDS = "index {index} is out of bounds for dimension {dim} with size {size}"
# The order gives the numbers in kernels' error codes (`ir.plan.KERNEL_ERRORS`).
INDEX_RULES: dict[str, IndexRule] = {
    "index": IndexRule(True, IndexError, _OUT_OF_BOUNDS),  # x[i]
    "element": IndexRule(False, RuntimeError, _OUT_OF_BOUNDS),  # gather, scatter and similar
    "row": IndexRule(False, IndexError, "index out of range in self"),  # embedding, index_select (except of columns)
    "column": IndexRule(False, RuntimeError, "INDICES element is out of DATA bounds, id={index} axis_dim={size}"),
    "target": IndexRule(False, IndexError, "Target {index} is out of bounds."),  # losses
    # data checks, not indices: a valid element maps to the only index, an invalid one to the next
    "unit input": IndexRule(False, RuntimeError, "all elements of input should be between 0 and 1"),
    "unit target": IndexRule(False, RuntimeError, "all elements of target should be between 0 and 1"),
    "quantile": IndexRule(False, RuntimeError, "quantile() q values must be in the range [0, 1]"),
}

# Pointwise operations: name -> number of value arguments.  Meaning in interpret.py: torch's semantics on the args' dtype.
# Arithmetic is done in the op's dtype; bf16/f16 values are computed in f32 (lowering casts on load and before store).
POINTWISE: dict[str, int] = {
    # arithmetic
    "add": 2, "sub": 2, "mul": 2, "truediv": 2, "floordiv": 2, "truncdiv": 2, "mod": 2, "fmod": 2, "neg": 1, "abs": 1,
    "sign": 1, "maximum": 2, "minimum": 2, "fma": 3, "reciprocal": 1, "square": 1,
    # elementary functions
    "exp": 1, "exp2": 1, "expm1": 1, "log": 1, "log2": 1, "log10": 1, "log1p": 1, "sqrt": 1, "rsqrt": 1, "pow": 2,
    "sin": 1, "cos": 1, "tan": 1, "asin": 1, "acos": 1, "atan": 1, "atan2": 2, "sinh": 1, "cosh": 1, "tanh": 1,
    "asinh": 1, "acosh": 1, "atanh": 1, "erf": 1, "erfc": 1, "one_plus_erf": 1,
    "erfinv": 1, "lgamma": 1, "digamma": 1, "sigmoid": 1,
    "floor": 1, "ceil": 1, "round": 1, "trunc": 1, "copysign": 2, "nextafter": 2, "hypot": 2,
    # comparison, logic, selection
    "eq": 2, "ne": 2, "lt": 2, "le": 2, "gt": 2, "ge": 2, "isnan": 1, "isinf": 1, "signbit": 1,
    "and": 2, "or": 2, "xor": 2, "not": 1, "where": 3, "shl": 2, "shr": 2,
    # conversion
    "cast": 1, "bitcast": 1, "wrap_index": 1,
    # leaves (see Op)
    "load": 0, "masked_load": 2, "const": 0, "index": 0, "rand": 0, "randn": 0,
}  # fmt: skip
