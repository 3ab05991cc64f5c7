"""The plan: what a compiled graph does on a call, as data.

In: scheduled program and built kernels.  Out: `Plan`, executed by `_native.Plan` (Rust) and, step for step the
same, by `runtime/plan_python.py` (the oracle; its printed form is `output_code.py`).  Buffers are numbered slots.

Slots 0..n_inputs-1 hold the inputs.  A call with one list of them empties the list, and each input is freed after the
last step that reads it, unless it is an output.  Sizes are ints (static) or `Expr` over input sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from pycompiler.ir import registered
from pycompiler.ir.effects import TORCHS, draws, tells
from pycompiler.ir.expr import Expr
from pycompiler.ir.loops import FLOAT, INDEX_RULES, read_symbol
from pycompiler.ir.symbolic_node import Real

Size = int | Expr


@dataclass(frozen=True)
class Alloc:
    """slot = empty_strided(shape, stride, dtype, device).  `user`: the lines of the program that a large one is for."""

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

    With a dtype the storage's bytes are seen as that dtype; `offset` then counts items of it, from the base's start.
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
    `work` is the estimated number of element operations (decides whether the GIL is released).
    `user`: the lines of the program whose indices or divisors it checks, for the note on an error.
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
class Launch:
    """Starts a kernel of a GPU on the stream of `device` that torch works on, and does not wait for it.

    `grid`: how many programs, along three axes; none where one of them is 0.  `arguments`: an address (`SlotRef`), a size, a
    float or a bool each.  `constants` are part of the kernel's binary, which `Plan.binaries` has by its name.
    `checks`: the kernel asserts on the device that the program's indices are good.
    `work` as that of a Kernel.
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

    `image`: the file; `entry`: the function in it, which takes `parameters` ("u64", "f32", ...): the arguments, then
    addresses that stay 0.  `threads` and bytes of `shared` memory of each program.
    """

    image: bytes = field(repr=False)
    entry: str
    parameters: tuple[str, ...]
    threads: int
    shared: int


class KernelErrors(dict[int, tuple[type[Exception], str]]):
    """What a kernel's non-zero return value means: exception type and message, as eager raises them.

    The lowest 8 bits are a key.  Of a wrong index the code also has the dimension (4 bits), its size (20) and the index
    (31, with 2**30 added); numbers that do not fit are left out, which another key says.
    """

    def __missing__(self, code: int) -> tuple[type[Exception], str]:
        if code & 255 == code:
            raise KeyError(code)
        error, text = self[code & 255]
        return error, text.format(dim=code >> 8 & 15, size=code >> 12 & 0xFFFFF, index=(code >> 32) - (1 << 30))


WRONG_INDEX, UNTOLD = 16, 16  # key of the first of INDEX_RULES; what is added to it where numbers are left out
KERNEL_ERRORS = KernelErrors({
    1: (IndexError, "index out of range in self"),
    2: (RuntimeError, "ZeroDivisionError"),
    **{WRONG_INDEX + k: (rule.error, rule.text) for k, rule in enumerate(INDEX_RULES.values())},
    **{WRONG_INDEX + UNTOLD + k: (rule.error, "index out of range in self") for k, rule in enumerate(INDEX_RULES.values())},
})  # fmt: skip


@dataclass(frozen=True)
class SlotRef:
    slot: int


@dataclass(frozen=True)
class Aten:
    """Calls an ATen operator.  args/kwargs: constants, lists of them, `SlotRef`s.  Results go to `out` (None: drop)."""

    op: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: tuple[int | None, ...]

    @property
    def from_python(self) -> bool:
        """Whether it is called from Python alone: the dispatcher's C ABI loses what a kernel written in Python raises, and a call
        that is repeated for that would find what another library's operator has half written."""
        return self.op.namespace not in TORCHS and (self.op._schema.is_mutable or registered.is_of_python(self.op))


@dataclass(frozen=True)
class Expect:
    """The tensor in `slot`, an operator's result, is laid out as kernels will read it.

    Torch's fakes are wrong about a few operators: another dtype or other strides are copied into a tensor that is as
    expected; other sizes are an error.
    """

    slot: int
    shape: tuple[Size, ...]
    stride: tuple[Size, ...]
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class CountVersions:
    """The versions of the tensors in `slots` count a write: the kernels that follow store new values into them.

    Such an input shares memory with no other input of the plan; whoever calls a plan sees to that (`_native.unless_shared`).
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


# What `Expect` says of an operator's result: name, sizes, expected sizes.
OTHER_SIZES = (
    "an operator gave a tensor of sizes {0}, the graph was compiled for {1}; run this function without pycompiler"
)

# What eager says to a write into an inference tensor elsewhere than in inference mode.
INFERENCE_TENSOR = (
    "Inplace update to inference tensor outside InferenceMode is not allowed."
    "You can make a clone to get a normal tensor before doing inplace update."
    "See https://github.com/pytorch/rfcs/pull/17 for more details."
)


@dataclass(frozen=True)
class Compute:
    """The symbol `name`, a float, is `value` from now on."""

    name: str
    value: Real


Step = Alloc | View | Kernel | Launch | Aten | Expect | CountVersions | Free | CopyInto | Compute


@dataclass
class Plan:
    """`outputs`: per output a slot (int), or a 1-tuple holding a constant (None included), an `Expr`, whose value it is, or the
    name of a float (`Real.named`), as operators' arguments do.

    `constants`: slot -> tensor, filled before the first step and never freed.
    `symbols`: name of a symbol -> (input slot, dimension) that gives its value at a call; with NUMBER or FLOAT for dimension
    the input is the value.  Steps make others (`Compute`).  `hints`: what they were in the call that was captured.
    `library`: path of the library that holds the host's kernels, or None when there are none; `source`: its text.
    `module`: text of the Python module with the GPUs' kernels; `binaries`: what was compiled of it, by kernel.
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

    def sizes(self, inputs: Sequence[Any]) -> dict[str, int]:
        """The values of the symbols that are known when a call begins, of floats the words."""
        return {name: read_symbol(inputs, *at) for name, at in self.symbols.items()}

    @property
    def floats(self) -> set[str]:
        """The symbols whose values are words of floats."""
        made = {s.name for s in self.steps if isinstance(s, Compute)}
        return {n for n, (_, dim) in self.symbols.items() if dim == FLOAT} | made

    @property
    def lasting(self) -> int:
        """The first step that does what lasts: writes what may not be the plan's own, draws, or acts."""
        return next((i for i, step in enumerate(self.steps) if _lasts(step)), len(self.steps))


def _lasts(step: Step) -> bool:
    if isinstance(step, Aten):
        return step.op._schema.is_mutable or draws(step.op) or tells(step.op)
    return isinstance(step, CountVersions | CopyInto)


class StepNote(str):
    """The note of an error that arose in a step.  lasts: that step, or one before it, may have done what lasts."""

    lasts: bool

    @staticmethod
    def of(error: BaseException) -> StepNote | None:
        notes = getattr(error, "__notes__", ())
        return next((n for n in notes if isinstance(n, StepNote)), None) if isinstance(notes, list) else None


def step_failed(plan: Plan, at: int, place: str, error: BaseException) -> None:
    """Says so in a note."""
    note = StepNote(place)
    note.lasts = at >= plan.lasting
    error.add_note(note)


def behind_others(error: BaseException) -> None:
    """The plan that failed was not the first thing that its graph ran."""
    if (note := StepNote.of(error)) is not None:
        note.lasts = True
