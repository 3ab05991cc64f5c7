"""The plan: the steps of a call of a compiled graph, as data.

In: scheduled program and built kernels.  Out: `Plan`.  `_native.Plan` (Rust) executes it.  `runtime/plan_python.py`
executes the same steps as the oracle; its printed form is `output_code.py`.  Buffers are numbered slots.

Slots 0..n_inputs-1 hold the inputs.  A call with a single list of inputs empties the list.  Each input is then freed
after its last read, unless it is an output.  Sizes are ints (static) or `Expr` over input sizes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.ir.loops import FLOAT, INDEX_RULES, Buffer, Ref, read_symbol
from pycompiler.operators import registered_kernels
from pycompiler.operators.operator_facts import TORCHS, facts_of
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import Real

Size = int | Expr


@dataclass(frozen=True)
class Alloc:
    """slot = empty_strided(shape, stride, dtype, device).  `user`: for a large buffer, the lines of the program that
    need it."""

    slot: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device
    user: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"alloc slot {self.slot}" + (f", for {' and '.join(self.user)}" if self.user else "")


@dataclass(frozen=True)
class View:
    """slot = as_strided(base, shape, stride, base.storage_offset + offset); dtype unchanged unless given.

    With a dtype, the storage's bytes are reinterpreted; `offset` then counts items of that dtype from the base's start.
    """

    slot: int
    base: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    offset: Size
    dtype: torch.dtype | None = None


@dataclass(frozen=True)
class Kernel:
    """Calls symbol(void* args...): the data pointer of each slot in `slots`, then each of `scalars` as int64.

    CPU signature: `int64_t symbol(void** ptrs, const int64_t* scalars, int32_t threads)`.  It returns 0, or a key of
    KERNEL_ERRORS, which the executor raises (outputs are then undefined, but nothing was read out of bounds).
    `work`: estimated number of element operations (decides whether the GIL is released).
    `user`: the lines of the program whose indices or divisors the kernel checks, for the note on an error.
    """

    symbol: str
    slots: tuple[int, ...]
    scalars: tuple[Size, ...] = ()
    work: int = 0
    user: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        return f"kernel {self.symbol}" + (f", of {' and '.join(self.user)}" if self.user else "")


@dataclass(frozen=True)
class Product:
    """out = left @ right, matrices of float32, by the engine's kernel (`guards-rs/src/ffi/product.rs`).

    Each result is a sum of chains of fused multiply-adds in the order of the folded dimension.  `slots`: left, right, out.
    `offsets`: of left and right; `strides`: of left (rows, then along the folded dimension), of right (along the folded
    dimension, then columns), and of the rows of out, whose columns are adjacent.  `sizes`: rows, columns, depth.
    `work`: as in Kernel.
    """

    slots: tuple[int, int, int]
    offsets: tuple[Size, Size]
    strides: tuple[Size, Size, Size, Size, Size]
    sizes: tuple[Size, Size, Size]
    work: int = 0

    @property
    def scalars(self) -> tuple[Size, ...]:
        """The kernel's numbers, in its order."""
        left, right = self.offsets
        return (left, *self.strides[:2], right, *self.strides[2:], *self.sizes)

    @property
    def label(self) -> str:
        return "matrix product"


@dataclass(frozen=True)
class Convolution:
    """A convolution of an image in float32, by the engine's kernels (`guards-rs/src/ffi/convolution.rs`).

    `filters`: channels of the result; 0 for a convolution of depth, where each channel has a window of its own (its result
    is a chain of fused multiply-adds in the order of the window).  `slots`: image, weight, out, and the bias if
    there is one; `offsets`: of image, weight and bias.  `shape`: of the image (batch, channels, rows, columns);
    `out_sizes`: rows and columns of the result.  `strides`: of batch, rows and columns in the image, then in the result;
    channels are adjacent in both.  The weight is contiguous; `panel`: the lanes of its panels if it is packed (`panels_of`),
    else 0.  `window`, `stride`, `padding`, `dilation`: of rows and columns.  `work`: as in Kernel.
    """

    slots: tuple[int, ...]
    offsets: tuple[Size, Size, Size]
    shape: tuple[Size, Size, Size, Size]
    out_sizes: tuple[Size, Size]
    strides: tuple[Size, Size, Size, Size, Size, Size]
    window: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    filters: int = 0
    work: int = 0
    panel: int = 0

    @property
    def scalars(self) -> tuple[Size, ...]:
        """The kernel's numbers, in its order."""
        batch, channels, *sizes = self.shape
        of_image, of_out = self.strides[:3], self.strides[3:]
        rows, columns = zip(sizes, self.out_sizes, self.window, self.stride, self.padding, self.dilation, of_image[1:],
                            of_out[1:], strict=True)  # fmt: skip
        has_bias = int(len(self.slots) > 3)
        return (
            has_bias,
            *self.offsets,
            batch,
            channels,
            of_image[0],
            of_out[0],
            *rows,
            *columns,
            self.filters,
            self.panel,
        )

    @property
    def label(self) -> str:
        return "convolution" if self.filters else "convolution of depth"


WORKSPACE = 32 << 20  # most bytes for products on a GPU; torch gives cuBLASLt as many on Hopper
CUDA_DTYPES = {torch.float32: 0, torch.float16: 2, torch.bfloat16: 14}  # cudaDataType_t


@dataclass(frozen=True)
class GpuProduct:
    """out = left @ right, plus `bias[j]` in column j, for each batch, by cuBLASLt (`guards-rs/src/ffi/cublas.rs`).

    Sums are in float32, and are rounded once, after the bias.  `slots`: left, right, out, `workspace` bytes that nothing
    else uses meanwhile, and bias if there is one; `offsets` of each, in elements.  `sizes`: batch, rows, columns, depth.
    `strides`: of left (batch, rows, depth), of right (batch, depth, columns), and of out (batch, rows), whose columns are
    adjacent.  In left and in right, one of the last two strides is 1.  `work`: as in Kernel.
    """

    device: torch.device
    dtype: torch.dtype
    slots: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, int, int, int]
    strides: tuple[tuple[int, int, int], tuple[int, int, int], tuple[int, int]]
    workspace: int
    work: int = 0

    @staticmethod
    def of(operands: Sequence[Ref], out: Buffer) -> GpuProduct:
        """The product into `out`, with slots that are not decided.  `operands`: as ATen's operator has them, a bias first."""
        *bias, left, right = operands
        refs = (left, right, Ref(out.name, out.shape, out.stride, Expr.of(0)), *bias)
        sizes = [1] * (3 - len(left.shape)) + [n.as_int() for n in (*left.shape[:-1], right.shape[-1], left.shape[-1])]
        a, b, c = ([0] * (3 - len(r.shape)) + [n.as_int() for n in r.stride] for r in refs[:3])
        at = [r.offset.as_int() for r in refs]
        return GpuProduct(
            out.device, out.dtype, tuple(range(4 + len(bias))), (*at[:3], 0, *at[3:]), (sizes[0], sizes[1], sizes[2], sizes[3]),
            ((a[0], a[1], a[2]), (b[0], b[1], b[2]), (c[0], c[1])), WORKSPACE, math.prod(sizes),
        )  # fmt: skip

    @property
    def views(self) -> list[tuple[int, tuple[int, ...], tuple[int, ...], int]]:
        """Slot, shape, strides and offset of left, right, out and bias."""
        batch, rows, columns, depth = self.sizes
        left, right, out = self.strides
        shapes = ((batch, rows, depth), (batch, depth, columns), (batch, rows, columns), None, (columns,))
        strides = (left, right, (*out, 1), None, (1,))
        return [v for v in zip(self.slots, shapes, strides, self.offsets, strict=False) if v[1] is not None]  # type: ignore[misc]

    @property
    def cuda_dtype(self) -> tuple[int, int]:
        """CUDA's number of the dtype, and its bytes."""
        return CUDA_DTYPES[self.dtype], self.dtype.itemsize

    @property
    def label(self) -> str:
        return "matrix product"


@dataclass(frozen=True)
class Launch:
    """Starts a GPU kernel on torch's current stream of `device`, without waiting for it.

    `grid`: number of programs along three axes; a 0 starts none.  `arguments`: an address (`SlotRef`), a size, a
    float or a bool each.  `constants` are part of the kernel's binary, found by name in `Plan.binaries`.
    `checks`: the kernel asserts on the device that the program's indices are in range.
    `work`: as in Kernel.
    """

    kernel: str
    device: torch.device
    grid: tuple[Size, Size, Size]
    arguments: tuple[Any, ...]
    types: tuple[str, ...]  # of the arguments, as Triton names them: "*fp32", "i64"
    constants: dict[str, int]
    checks: bool = False
    work: int = 0

    @property
    def label(self) -> str:
        return f"kernel {self.kernel}"


@dataclass(frozen=True)
class Binary:
    """A kernel as its GPU's driver loads it.

    `image`: the file; `entry`: the function in it.  `parameters` ("u64", "f32", ...): the arguments, then addresses
    that stay 0.
    `threads` and `shared` (bytes of shared memory) are per program.
    """

    image: bytes = field(repr=False)
    entry: str
    parameters: tuple[str, ...]
    threads: int
    shared: int


class KernelErrors(dict[int, tuple[type[Exception], str]]):
    """Meaning of a kernel's non-zero return value: exception type and message, equal to eager's.

    The lowest 8 bits are a key.  For a wrong index the code also has the dimension (4 bits), its size (20) and the index
    (31, with 2**30 added).  Numbers that do not fit are omitted, and another key says so.
    """

    def __missing__(self, code: int) -> tuple[type[Exception], str]:
        if code & 255 == code:
            raise KeyError(code)
        error, text = self[code & 255]
        return error, text.format(dim=code >> 8 & 15, size=code >> 12 & 0xFFFFF, index=(code >> 32) - (1 << 30))


WRONG_INDEX, WITHOUT_NUMBERS = 16, 16  # key of the first of INDEX_RULES; offset of the keys without numbers
KERNEL_ERRORS = KernelErrors({
    1: (IndexError, "index out of range in self"),
    2: (RuntimeError, "ZeroDivisionError"),
    3: (MemoryError, "out of memory: no room to pack a matrix"),
    4: (RuntimeError, "a product of matrices was compiled for a processor with AVX2, and this one has none; compile anew here"),
    5: (RuntimeError, "a weight or an input has elements, but its data is not allocated yet"),
    6: (RuntimeError, "internal error of the engine in a kernel (a panic; its message went to stderr)"),
    7: (RuntimeError, "a weight was packed for a processor with vectors of another length; compile anew here"),
    **{WRONG_INDEX + k: (rule.error, rule.text) for k, rule in enumerate(INDEX_RULES.values())},
    **{WRONG_INDEX + WITHOUT_NUMBERS + k: (rule.error, "index out of range in self")
       for k, rule in enumerate(INDEX_RULES.values())},
})  # fmt: skip


@dataclass(frozen=True)
class SlotRef:
    slot: int


@dataclass(frozen=True)
class Aten:
    """Calls an ATen operator.  args/kwargs: constants, lists of them, `SlotRef`s.  Results go to `out` (None: dropped)."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: tuple[int | None, ...]

    @property
    def from_python(self) -> bool:
        """Whether the operator must be called from Python, not through the dispatcher's C ABI.

        The C ABI loses exceptions of kernels written in Python.  A repeated call, made to obtain the exception, would
        find a half-done write of another library's operator.
        """
        return self.op.namespace not in TORCHS and (
            self.op._schema.is_mutable or registered_kernels.is_of_python(self.op)
        )


@dataclass(frozen=True)
class Pack:
    """slot = op(weight, *args): the tensor in slot `weight` in the memory layout that the next operator reads fastest.

    The engine keeps the result across calls.  It packs again when the bytes of the weight differ: it compares a 64-bit
    hash, since writes through `.data` or NumPy do not count versions.  `frozen`: the bytes are not compared while the
    weight has the same address.  `args` are constants.
    """

    slot: int
    weight: int
    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    frozen: bool = False

    @property
    def call(self) -> Aten:
        """The call that packs: a copy of the weight lies in `slot` before it."""
        return Aten(self.op, (SlotRef(self.slot), *self.args), {}, (self.slot,))

    @property
    def label(self) -> str:
        return f"pack slot {self.weight}"


@dataclass(frozen=True)
class Expect:
    """Check that the tensor in `slot`, an operator's result, has the layout that kernels expect.

    torch's fake tensors are wrong for a few operators.  Another dtype or other strides: the tensor is copied into the
    expected layout.  Other sizes: an error.
    """

    slot: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class CountVersions:
    """Count a write in the versions of the tensors in `slots`: the kernels that follow store new values into them.

    Such an input must share memory with no other input of the plan; the plan's caller ensures this (`_native.unless_shared`).
    """

    slots: tuple[int, ...]


@dataclass(frozen=True)
class Free:
    slots: tuple[int, ...]


@dataclass(frozen=True)
class CopyInto:
    """target.copy_(source): the epilogue of a mutated input."""

    target: int
    source: int


# Message of a failed `Expect`.  {0}: actual sizes; {1}: expected sizes.
OTHER_SIZES = (
    "an operator returned a tensor of sizes {0}, the graph was compiled for {1}; run this function without pycompiler"
)

# Eager's message for a write into an inference tensor outside of inference mode.
INFERENCE_TENSOR = (
    "Inplace update to inference tensor outside InferenceMode is not allowed."
    "You can make a clone to get a normal tensor before doing inplace update."
    "See https://github.com/pytorch/rfcs/pull/17 for more details."
)


@dataclass(frozen=True)
class Compute:
    """Sets the symbol `name`, a float, to `value`."""

    name: str
    value: Real


Step = (
    Alloc
    | View
    | Kernel
    | Product
    | Convolution
    | GpuProduct
    | Launch
    | Aten
    | Pack
    | Expect
    | CountVersions
    | Free
    | CopyInto
    | Compute
)


def slots_of(value: Any) -> Iterator[int]:
    """The slots that an argument refers to."""
    if isinstance(value, SlotRef):
        yield value.slot
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from slots_of(item)


# The slots that a step reads.  `Free` reads none.
READS: dict[type[Step], Callable[[Any], tuple[int, ...]]] = {
    Alloc: lambda step: (),
    View: lambda step: (step.base,),
    Kernel: lambda step: step.slots,
    Product: lambda step: step.slots,
    Convolution: lambda step: step.slots,
    GpuProduct: lambda step: step.slots,
    Launch: lambda step: tuple(slots_of(step.arguments)),
    Aten: lambda step: (*slots_of(step.args), *slots_of(tuple(step.kwargs.values()))),
    Pack: lambda step: (step.weight,),
    Expect: lambda step: (step.slot,),
    CountVersions: lambda step: step.slots,
    Free: lambda step: (),
    CopyInto: lambda step: (step.target, step.source),
    Compute: lambda step: (),
}


@dataclass
class Plan:
    """`outputs`: per output a slot (int), or a 1-tuple.  The tuple holds a constant (None included), an `Expr`, or the
    name of a float (`Real.named`), as operators' arguments do.
    `constants`: slot -> tensor, filled before the first step and never freed.
    `symbols`: symbol -> (input slot, dimension) that gives its value in a call.  With NUMBER or FLOAT as dimension
    the input is the value.  `Compute` steps define further symbols.  `hints`: symbol -> its value in the captured call.
    `library`: path of the library with the host's kernels, or None; `source`: its source.
    `module`: source of the Python module with the GPU kernels; `binaries`: its compiled kernels by name.
    `batches_launches`: launches that follow each other on a GPU may start together (knob `triton.batch_launches`).
    """

    n_inputs: int
    n_slots: int
    steps: list[Step]
    outputs: list[int | tuple[Any]]
    constants: dict[int, torch.Tensor] = field(default_factory=dict)
    library: str | None = None
    source: str = ""
    name: str = "graph"
    symbols: dict[str, tuple[int, int]] = field(default_factory=dict)
    module: str = ""
    binaries: dict[str, Binary] = field(default_factory=dict)
    hints: dict[str, int] = field(default_factory=dict)
    batches_launches: bool = True

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols that are known when a call begins; for floats their words."""
        return {name: read_symbol(inputs, *at) for name, at in self.symbols.items()}

    @property
    def floats(self) -> set[str]:
        """The symbols whose values are words of floats."""
        made = {s.name for s in self.steps if isinstance(s, Compute)}
        return {n for n, (_, dim) in self.symbols.items() if dim == FLOAT} | made

    @property
    def lasting(self) -> int:
        """Index of the first step with a lasting effect: a write to memory outside the plan, a random draw, or a side effect."""
        return next((i for i, step in enumerate(self.steps) if _lasts(step)), len(self.steps))


def _lasts(step: Step) -> bool:
    if isinstance(step, Aten):
        return step.op._schema.is_mutable or facts_of(step.op).draws or facts_of(step.op).lasts
    return isinstance(step, CountVersions | CopyInto)


class StepNote(str):
    """The note of an error in a step.  lasts: this step, or an earlier one, may have had a lasting effect."""

    lasts: bool

    @staticmethod
    def of(error: BaseException) -> StepNote | None:
        notes = getattr(error, "__notes__", ())
        return next((n for n in notes if isinstance(n, StepNote)), None) if isinstance(notes, list) else None


def step_failed(plan: Plan, at: int, place: str, error: BaseException) -> None:
    """Add a note to an error that a step raised."""
    note = StepNote(place)
    note.lasts = at >= plan.lasting
    error.add_note(note)


def mark_lasting(error: BaseException) -> None:
    """Mark the note of an error as lasting: the graph ran other code before the failed plan."""
    if (note := StepNote.of(error)) is not None:
        note.lasts = True
