"""`output_code.py`: a plan as a Python file that people read and run.

In: an `ir.plan.Plan` and, for the file's `__main__`, a description of its inputs.  Out: the text of a module with the
C++ source of the kernels, their declarations for cffi, and `call(args)`.  It has one line per step, in the order of the
native executor.

    print(output_code(plan, example_inputs))
    # buf1 = torch.empty_strided((4,), (1,), dtype=torch.float32, device='cpu')
    # run(lib.graph_k0, [arg0, buf1], [])
    # return (buf1,)
"""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from pycompiler.ir.loops import FLOAT, NUMBER
from pycompiler.ir.plan import (
    KERNEL_ERRORS,
    Alloc,
    Aten,
    Compute,
    Convolution,
    CopyInto,
    CountVersions,
    Expect,
    Free,
    GpuProduct,
    Kernel,
    Launch,
    Pack,
    Plan,
    Product,
    SlotRef,
    Step,
    View,
)
from pycompiler.runtime.plan_python import KERNEL_SIGNATURE, kernel_symbols
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.number_nodes import real_text
from pycompiler.symbolic.symbolic_node import Real

ERRORS = tuple(KERNEL_ERRORS.items())
GUESS = 8  # a symbolic size without a hint
EMBED_BYTES = 1 << 20  # constants up to this size are part of the file


def output_code(plan: Plan, inputs: Sequence[Any] = (), prelude: str = "") -> str:
    """The module's text.  `inputs`: tensors (also fake), or buffers (shape, stride, dtype, device), or None.

    `prelude`: code that defines operators outside of torch (`debug.render.operators`).
    """
    return "\n".join(_Printer(plan).module(inputs, prelude))


HEAD = '''\
"""Graph {name}: {n_inputs} inputs, {n_steps} steps, {n_kernels} kernels, {n_operators} ATen calls.

Printed by pycompiler.  `call(args)` runs the steps of the compiled graph; run the file for a call on random inputs.
"""

import base64
import math
import os
import struct
import zlib

import torch

inf, nan = float("inf"), float("nan")
'''

HOST = '''
# The kernels ---------------------------------------------------------------------------------------------------------

import cffi

SOURCE = r"""{source}"""

LIBRARY = {library!r}
if not os.path.exists(LIBRARY):  # the cache was emptied: build the source again
    from pycompiler.runtime.build import build

    LIBRARY = build(SOURCE).path

ffi = cffi.FFI()
ffi.cdef("""
{declarations}
""")
lib = ffi.dlopen(LIBRARY)
ERRORS = {{{errors}}}


def run(kernel, tensors, scalars):
    """Calls a kernel on the tensors' memory."""
    pointers = ffi.new("void*[]", [ffi.cast("void*", t.data_ptr()) for t in tensors])
    code = kernel(pointers, ffi.new("int64_t[]", scalars), torch.get_num_threads())
    if code:
        error, text = ERRORS[code & 255]
        raise error(text.format(dim=code >> 8 & 15, size=code >> 12 & 0xFFFFF, index=(code >> 32) - (1 << 30)))
'''

TRITON = """
# The kernels of GPUs --------------------------------------------------------------------------------------------------

{source}
"""

WORD_OF = '''

def word_of(value):
    """The bits of a float."""
    return struct.unpack("<q", struct.pack("<d", value))[0]
'''

VIEW_AS = '''

def view_as(base, shape, stride, offset, dtype):
    """The bytes of the base's storage as `dtype`; the offset in items of it, from where the base starts."""
    start = base.storage_offset() * base.itemsize // dtype.itemsize
    return torch.empty(0, dtype=dtype, device=base.device).set_(base.untyped_storage(), start + offset, shape, stride)
'''

LAID_OUT = """

def laid_out(t, shape, stride, dtype):
    \"\"\"An operator's result as kernels read it: a copy if the operator returned another layout or dtype than expected.\"\"\"
    if t.dtype == dtype and all(n < 2 or s == u for n, s, u in zip(shape, t.stride(), stride, strict=True)):
        return t
    return torch.empty_strided(shape, stride, dtype=dtype, device=t.device).copy_(t)
"""

UNPRINTABLE = """

def unprintable(text):
    raise RuntimeError(f"this argument has no printed form: {text}")
"""

MAIN = """

def random_inputs():
    def fill(shape, stride, dtype, device):
        t = torch.empty_strided(shape, stride, dtype=dtype, device=device)
        items = (t.untyped_storage().nbytes() // t.itemsize,)  # elements may lie on each other
        if dtype.is_floating_point or dtype.is_complex:
            values = torch.randn(items, dtype=torch.complex64 if dtype.is_complex else torch.float32)
        else:
            values = torch.randint(0, 2, items)
        t.as_strided(items, (1,)).copy_(values)
        return t

    torch.manual_seed(0)
    return [
{inputs}
    ]


if __name__ == "__main__":
    inputs = random_inputs()
    try:
        outputs = call(inputs)
    except Exception as error:
        outputs = ()
        print(f"the graph does not accept these random inputs: {{type(error).__name__}}: {{error}}")
    for i, out in enumerate(outputs):
        shown = f"{{tuple(out.shape)}} {{out.dtype}} {{out.device}}" if isinstance(out, torch.Tensor) else repr(out)
        print(f"output {{i}}: {{shown}}")
"""


class _Printer:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.helpers: set[str] = set()

    def module(self, inputs: Sequence[Any], prelude: str) -> Iterable[str]:
        plan, symbols = self.plan, kernel_symbols(self.plan)
        body = list(self.body())
        launches, operators = (sum(isinstance(s, kind) for s in plan.steps) for kind in (Launch, Aten))
        yield HEAD.format(name=plan.name, n_inputs=plan.n_inputs, n_steps=len(plan.steps),
                          n_kernels=len(symbols) + launches, n_operators=operators)  # fmt: skip
        if prelude:
            yield prelude
        if symbols:
            yield HOST.format(
                source=plan.source.replace('"""', '\\"\\"\\"'),
                library=plan.library,
                declarations="\n".join(KERNEL_SIGNATURE.format(symbol=s) for s in symbols),
                errors=", ".join(f"{code}: ({error.__name__}, {text!r})" for code, (error, text) in ERRORS),
            )
        if plan.module:
            yield TRITON.format(source=plan.module)
        if "word_of" in self.helpers:
            yield WORD_OF
        if "view_as" in self.helpers:
            yield VIEW_AS
        if "laid_out" in self.helpers:
            yield LAID_OUT
        if "unprintable" in self.helpers:
            yield UNPRINTABLE
        for slot, tensor in plan.constants.items():
            yield f"{self.name(slot)} = {self.tensor(tensor)}"
        yield "\n\n# The plan " + "-" * 109 + "\n\n\n@torch.no_grad()\ndef call(args):"
        yield from (f"    {line}" for line in body)
        if len(inputs) == plan.n_inputs:
            guesses = {NUMBER: GUESS, FLOAT: 0.5}
            numbers: dict[int, Any] = {
                slot: plan.hints.get(n, guesses[dim]) for n, (slot, dim) in plan.symbols.items() if dim in guesses
            }
            given = [numbers.get(k) if t is None else t for k, t in enumerate(inputs)]
            values = [
                repr(t) if isinstance(t, int | float | None) else f"fill({described(t, plan.hints)})" for t in given
            ]
            yield MAIN.format(inputs="\n".join(f"        {v}," for v in values))

    def body(self) -> Iterable[str]:
        plan = self.plan
        names = ", ".join(self.name(i) for i in range(plan.n_inputs))
        if names:
            yield f"{names}{',' if plan.n_inputs == 1 else ''} = args"
        for symbol, (slot, dim) in plan.symbols.items():
            yield f"{symbol} = {self.name(slot)}" + (f".size({dim})" if dim >= 0 else "")
        for step in plan.steps:
            line = STEPS[type(step)](self, step)
            if line:
                yield line
        outputs = [self.value(o[0]) if isinstance(o, tuple) else self.name(o) for o in plan.outputs]
        yield f"return ({', '.join(outputs)}{',' if len(outputs) == 1 else ''})"

    def name(self, slot: int) -> str:
        if slot < self.plan.n_inputs:
            return f"arg{slot}"
        return f"const{slot}" if slot in self.plan.constants else f"buf{slot}"

    # -- steps

    def alloc(self, step: Alloc) -> str:
        where = f"dtype={step.dtype}, device={str(step.device)!r}"
        layout = f"{self.value(step.shape)}, {self.value(step.stride)}"
        return f"{self.name(step.slot)} = torch.empty_strided({layout}, {where})"

    def view(self, step: View) -> str:
        name, base, offset = self.name(step.slot), self.name(step.base), self.value(step.offset)
        layout = f"{self.value(step.shape)}, {self.value(step.stride)}"
        if step.dtype is not None:
            self.helpers.add("view_as")
            return f"{name} = view_as({base}, {layout}, {offset}, {step.dtype})"
        start = f"{base}.storage_offset()" + (f" + {offset}" if offset != "0" else "")
        return f"{name} = torch.as_strided({base}, {layout}, {start})"

    def kernel(self, step: Kernel) -> str:
        tensors = ", ".join(map(self.name, step.slots))
        return f"run(lib.{step.symbol}, [{tensors}], [{', '.join(map(self.scalar, step.scalars))}])"

    def product(self, step: Product) -> str:
        self.helpers.add("view_as")  # the memory may be that of a buffer of another dtype
        rows, columns, depth = map(self.value, step.sizes)
        views = (
            (step.slots[0], (rows, depth), step.strides[:2], step.offsets[0]),
            (step.slots[1], (depth, columns), step.strides[2:4], step.offsets[1]),
            (step.slots[2], (rows, columns), (step.strides[4], 1), 0),
        )
        left, right, out = (
            f"view_as({self.name(slot)}, ({', '.join(shape)}), {self.value(stride)}, {self.value(offset)}, torch.float32)"
            for slot, shape, stride, offset in views
        )
        return f"{out}.copy_({left} @ {right})  # the engine's kernel"

    def convolution(self, step: Convolution) -> str:
        self.helpers.add("view_as")  # as in `product`
        batch, channels = step.shape[:2]
        a, b, c, *out_strides = step.strides
        windows = step.window[0] * step.window[1]
        filters, each, groups = (step.filters, channels, 1) if step.filters else (channels, 1, channels)
        layouts = {
            "image": (step.slots[0], step.shape, (a, 1, b, c), step.offsets[0]),
            "weight": (
                step.slots[1],
                (filters, each, *step.window),
                (each * windows, windows, step.window[1], 1),
                step.offsets[1],
            ),
            "out": (step.slots[2], (batch, filters, *step.out_sizes), (out_strides[0], 1, *out_strides[1:]), 0),
            "bias": (step.slots[-1], (filters,), (1,), step.offsets[2]),
        }
        views = {
            name: f"view_as({self.name(slot)}, {self.value(shape)}, {self.value(stride)}, {self.value(offset)}, torch.float32)"
            for name, (slot, shape, stride, offset) in layouts.items()
        }
        bias = views["bias"] if len(step.slots) > 3 else "None"
        options = (
            f"{list(step.stride)}, {list(step.padding)}, {list(step.dilation)}, False, [0, 0], {self.value(groups)}"
        )
        weight = views["weight"]
        if step.panel:
            shape = f"({filters}, {self.value(each)}, {', '.join(map(str, step.window))})"
            weight = f"{self.name(step.slots[1])}.permute(0, 2, 1).reshape{shape}"
        convolution = f"torch.convolution({views['image']}, {weight}, {bias}, {options})"
        return f"{views['out']}.copy_({convolution})  # the engine's kernel"

    def gpu_product(self, step: GpuProduct) -> str:
        self.helpers.add("view_as")  # as in `product`
        left, right, out, *bias = (
            f"view_as({self.name(slot)}, {shape}, {strides}, {offset}, {step.dtype})"
            for slot, shape, strides, offset in step.views
        )
        made = f"torch.addmm({bias[0]}, {left}[0], {right}[0])" if bias else f"{left} @ {right}"
        return f"{out}.copy_({made})  # by cuBLASLt"

    def scalar(self, value: Any) -> str:
        """A scalar argument of a kernel; a float is passed as its bits."""
        if isinstance(value, Expr) and value.symbol in self.plan.floats:
            self.helpers.add("word_of")
            return f"word_of({value})"
        return self.value(value)

    def compute(self, step: Compute) -> str:
        return f"{step.name} = {real_text(step.value, {})}"

    def launch(self, step: Launch) -> str:
        given = [self.value(a) for a in step.arguments] + [f"{k}={v}" for k, v in step.constants.items()]
        where = f"with torch.cuda.device({step.device.index}): " if step.device.index else ""
        return f"{where}{step.kernel}[{self.value(step.grid)}]({', '.join(given)})"

    def aten(self, step: Aten) -> str:
        args = [self.value(a) for a in step.args] + [f"{k}={self.value(v)}" for k, v in step.kwargs.items()]
        call = f"torch.ops.{step.op}({', '.join(args)})"
        names = ["_" if slot is None else self.name(slot) for slot in step.out]
        returns = step.op._schema.returns
        if not any(slot is not None for slot in step.out):
            return call
        if len(returns) == 1 and str(returns[0].real_type) == "Tensor":
            return f"{names[0]} = {call}"
        return f"{', '.join(names)}{',' if len(names) == 1 else ''} = {call}"

    def pack(self, step: Pack) -> str:
        given = ", ".join([self.name(step.weight), *map(self.value, step.args)])
        return f"{self.name(step.slot)} = torch.ops.{step.op}({given})"

    def expect(self, step: Expect) -> str:
        self.helpers.add("laid_out")
        layout = f"{self.value(step.shape)}, {self.value(step.stride)}, {step.dtype}"
        return f"{self.name(step.slot)} = laid_out({self.name(step.slot)}, {layout})"

    def count_versions(self, step: CountVersions) -> str:
        return f"torch.autograd.graph.increment_version([{', '.join(map(self.name, step.slots))}])"

    def free(self, step: Free) -> str:
        own = [self.name(s) for s in step.slots if s >= self.plan.n_inputs and s not in self.plan.constants]
        return f"del {', '.join(own)}" if own else ""

    def copy(self, step: CopyInto) -> str:
        return f"{self.name(step.target)}.copy_({self.name(step.source)})"

    # -- values

    def value(self, value: Any) -> str:
        """An argument as Python source."""
        if isinstance(value, SlotRef):
            return self.name(value.slot)
        if isinstance(value, Expr):
            return value.to_py()
        if isinstance(value, Real):
            return str(value)
        if isinstance(value, list):
            return f"[{', '.join(map(self.value, value))}]"
        if type(value) is tuple:
            return f"({', '.join(map(self.value, value))}{',' if len(value) == 1 else ''})"
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        if isinstance(value, (bool, int, str, type(None), torch.dtype, torch.layout, torch.memory_format)):
            return repr(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else str(value)
        if isinstance(value, complex):
            return f"complex({self.value(value.real)}, {self.value(value.imag)})"
        self.helpers.add("unprintable")
        return f"unprintable({repr(value)!r})"

    def tensor(self, t: torch.Tensor) -> str:
        """A constant: its bytes, or random values of its dtype if it is large."""
        size, where = t.numel() * t.dtype.itemsize, f"dtype={t.dtype}, device={str(t.device)!r}"
        flat = f"torch.empty_strided({tuple(t.shape)}, {tuple(t.stride())}, {where})"
        if size > EMBED_BYTES:
            return f"{flat}.random_(0, 2)  # {size} bytes, left out: random values instead"
        raw = t.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes() if size else b""
        if not raw:
            return flat
        data = base64.b85encode(zlib.compress(raw)).decode()
        read = f"torch.frombuffer(bytearray(zlib.decompress(base64.b85decode({data!r}))), dtype={t.dtype})"
        return f"{flat}.copy_({read}.view({tuple(t.shape)}))"


STEPS: dict[type[Step], Callable[[_Printer, Any], str]] = {
    Alloc: _Printer.alloc,
    View: _Printer.view,
    Kernel: _Printer.kernel,
    Product: _Printer.product,
    Convolution: _Printer.convolution,
    GpuProduct: _Printer.gpu_product,
    Launch: _Printer.launch,
    Aten: _Printer.aten,
    Pack: _Printer.pack,
    Expect: _Printer.expect,
    CountVersions: _Printer.count_versions,
    Free: _Printer.free,
    CopyInto: _Printer.copy,
    Compute: _Printer.compute,
}


def described(t: Any, hints: Mapping[str, int]) -> str:
    """Shape, stride, dtype and device of a tensor or buffer; symbolic sizes have the values of the captured call."""
    shape, stride = tuple(t.shape), tuple(t.stride() if callable(t.stride) else t.stride)
    return f"{concrete(shape, hints)}, {concrete(stride, hints)}, {t.dtype}, {str(t.device)!r}"


def concrete(sizes: tuple[Any, ...], hints: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(
        s.eval(dict.fromkeys(s.symbols, GUESS) | dict(hints)) if isinstance(s, Expr) else int(s) for s in sizes
    )
