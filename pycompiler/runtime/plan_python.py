"""The oracle of the native executor: a plan, step by step, in plain Python.

In: an `ir.plan.Plan`.  Out: `PythonPlan`, called like `_native.Plan`: with the inputs, returns a tuple.  A single list
of inputs is emptied, and its tensors are freed after their last use.  Kernels are called through cffi in ABI mode.
Slow and obvious.  Tests compare `_native.Plan` with it, and it runs plans where the engine cannot.

    PythonPlan(plan)(x, y)    # (output, ...)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import cffi
import torch

from pycompiler import _native
from pycompiler.ir.loops import values_of
from pycompiler.ir.plan import (
    INFERENCE_TENSOR,
    KERNEL_ERRORS,
    OTHER_SIZES,
    READS,
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
    Size,
    SlotRef,
    Step,
    View,
    step_failed,
)
from pycompiler.runtime import triton_build
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.float_bits import float_of, word_of
from pycompiler.symbolic.symbolic_node import Real

KERNEL_SIGNATURE = "int64_t {symbol}(void** ptrs, const int64_t* scalars, int32_t threads);"

Slots = dict[int, Any]
Env = dict[str, int]


def open_library(path: str, symbols: list[str]) -> tuple[cffi.FFI, Any]:
    """The built library with its kernels declared."""
    ffi = cffi.FFI()
    ffi.cdef("\n".join(KERNEL_SIGNATURE.format(symbol=s) for s in symbols))
    return ffi, ffi.dlopen(path)


def kernel_symbols(plan: Plan) -> list[str]:
    """The kernel symbols of the plan, each once, in order."""
    return list(dict.fromkeys(step.symbol for step in plan.steps if isinstance(step, Kernel)))


_IN_PLACE_OR_VIEW = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView)


@contextmanager
def below_autograd(mutates: bool) -> Iterator[None]:
    """Operators called here record no history, use no autocast and create plain aliases, as under the native executor.

    An operator that mutates an argument keeps the layer that counts the versions of tensors.
    """
    with ExitStack() as stack:
        stack.enter_context(torch._C._AutoDispatchBelowAutograd())
        stack.enter_context(torch._C._DisableAutocast())
        if not mutates:
            stack.enter_context(torch._C._ExcludeDispatchKeyGuard(_IN_PLACE_OR_VIEW))
        yield


def mutates(step: Step) -> bool:
    """Whether the step writes to a tensor that it did not create."""
    return isinstance(step, CopyInto) or (isinstance(step, Aten) and step.op._schema.is_mutable)


def label(step: Step) -> str:
    """A short description of the step."""
    if isinstance(step, Kernel | Product | Convolution | GpuProduct | Launch | Pack):
        return step.label
    return str(step.op) if isinstance(step, Aten) else type(step).__name__.lower()


def cast_view(base: torch.Tensor, dtype: torch.dtype, shape: list[int], stride: list[int], offset: int) -> torch.Tensor:
    """The bytes of `base`'s storage as `dtype`; `offset` in elements of `dtype`, relative to the start of `base`."""
    start, rest = divmod(int(base.storage_offset()) * base.dtype.itemsize, dtype.itemsize)
    if rest:
        raise RuntimeError(f"a view of {dtype} starts at byte {start * dtype.itemsize + rest} of {base.dtype} storage")
    empty = torch.empty(0, dtype=dtype, device=base.device)
    return empty.set_(base.untyped_storage(), start + offset, shape, stride)


class PythonPlan:
    """See the module docstring."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.name = plan.name
        self.n_inputs = plan.n_inputs
        symbols = kernel_symbols(plan)
        if symbols and plan.library is None:
            raise ValueError(f"graph {plan.name}: kernel {symbols[0]}, but the plan has no library")
        self._ffi: cffi.FFI | None = None
        self._library: Any = None
        if plan.library and symbols:
            self._ffi, self._library = open_library(plan.library, symbols)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        ends: dict[int, list[int]] = {}
        if len(inputs) == 1 and type(inputs[0]) is list:
            given = inputs[0]
            inputs, ends = tuple(given), input_ends(self.plan)
            given.clear()
        if len(inputs) != self.n_inputs:
            raise TypeError(f"graph {self.name}: {self.n_inputs} inputs expected, {len(inputs)} given")
        slots: Slots = {**dict(enumerate(inputs)), **self.plan.constants}
        env = self.plan.sizes(inputs)
        del inputs
        for i, step in enumerate(self.plan.steps):
            try:
                with below_autograd(mutates(step)):
                    STEPS[type(step)](self, step, slots, env)
            except Exception as error:
                step_failed(self.plan, i, f"in the compiled graph {self.name}, step {i} ({label(step)})", error)
                raise
            for slot in ends.get(i, ()):
                del slots[slot]
        return tuple(fill(out[0], slots, env) if isinstance(out, tuple) else slots[out] for out in self.plan.outputs)

    def _alloc(self, step: Alloc, slots: Slots, env: Env) -> None:
        shape, stride = numbers(step.shape, env), numbers(step.stride, env)
        slots[step.slot] = torch.empty_strided(shape, stride, dtype=step.dtype, device=step.device)

    def _view(self, step: View, slots: Slots, env: Env) -> None:
        base, offset = slots[step.base], number(step.offset, env)
        shape, stride = numbers(step.shape, env), numbers(step.stride, env)
        if step.dtype is None:
            slots[step.slot] = torch.as_strided(base, shape, stride, base.storage_offset() + offset)
        else:
            slots[step.slot] = cast_view(base, step.dtype, shape, stride, offset)

    def _kernel(self, step: Kernel, slots: Slots, env: Env) -> None:
        assert self._ffi is not None
        given = [t.clone() if _native.kind_of(t) else t for t in map(slots.__getitem__, step.slots)]
        pointers = self._ffi.new("void*[]", [self._ffi.cast("void*", t.data_ptr()) for t in given])
        scalars = self._ffi.new("int64_t[]", numbers(step.scalars, env))
        code = getattr(self._library, step.symbol)(pointers, scalars, torch.get_num_threads())
        if code:
            error, text = KERNEL_ERRORS[code]
            raise error(text)

    def _product(self, step: Product, slots: Slots, env: Env) -> None:
        given = [t.clone() if _native.kind_of(t) else t for t in map(slots.__getitem__, step.slots)]
        _native.matrix_product([t.data_ptr() for t in given], numbers(step.scalars, env), torch.get_num_threads())

    def _convolution(self, step: Convolution, slots: Slots, env: Env) -> None:
        given = [t.clone() if _native.kind_of(t) else t for t in map(slots.__getitem__, step.slots)]
        _native.convolution([t.data_ptr() for t in given], numbers(step.scalars, env), torch.get_num_threads())

    def _gpu_product(self, step: GpuProduct, slots: Slots, env: Env) -> None:
        views = [cast_view(slots[s], step.dtype, list(n), list(strides), at) for s, n, strides, at in step.views]
        left, right, out, *bias = views
        out.copy_(torch.addmm(bias[0], left[0], right[0]) if bias else torch.bmm(left, right))

    def _launch(self, step: Launch, slots: Slots, env: Env) -> None:
        grid = numbers(step.grid, env)
        if 0 not in grid:
            triton_build.start(self.plan.module, step, grid, fill(step.arguments, slots, env))

    def _aten(self, step: Aten, slots: Slots, env: Env) -> None:
        args = [fill(a, slots, env) for a in step.args]
        kwargs = {k: fill(a, slots, env) for k, a in step.kwargs.items()}
        result = step.op(*args, **kwargs)
        results = list(flat(result)) if step.op._schema.returns else []
        if len(results) != len(step.out):
            raise ValueError(f"{step.op} gave {len(results)} results, the plan names {len(step.out)}")
        slots.update((slot, value) for slot, value in zip(step.out, results, strict=True) if slot is not None)

    def _pack(self, step: Pack, slots: Slots, env: Env) -> None:
        slots[step.slot] = step.op(slots[step.weight], *step.args)

    def _free(self, step: Free, slots: Slots, env: Env) -> None:
        for slot in step.slots:
            if slot >= self.n_inputs and slot not in self.plan.constants:
                slots.pop(slot, None)

    def _expect(self, step: Expect, slots: Slots, env: Env) -> None:
        given, shape, stride = slots[step.slot], numbers(step.shape, env), numbers(step.stride, env)
        if list(given.shape) != shape:
            raise RuntimeError(OTHER_SIZES.format(list(given.shape), shape))
        far = any(n > 1 and s != t for n, s, t in zip(shape, given.stride(), stride, strict=True))
        if given.dtype != step.dtype or (far and given.numel()):
            made = torch.empty_strided(shape, stride, dtype=step.dtype, device=step.device)
            slots[step.slot] = made.copy_(given)

    def _count_versions(self, step: CountVersions, slots: Slots, env: Env) -> None:
        for t in (slots[s] for s in step.slots):
            if t.is_inference() and not torch.is_inference_mode_enabled():
                raise RuntimeError(INFERENCE_TENSOR)
            torch.autograd.graph.increment_version(t)

    def _copy(self, step: CopyInto, slots: Slots, env: Env) -> None:
        slots[step.target].copy_(slots[step.source])

    def _compute(self, step: Compute, slots: Slots, env: Env) -> None:
        env[step.name] = word_of(step.value.eval(values_of(env, self.plan.floats)))


STEPS: dict[type[Step], Callable[[PythonPlan, Any, Slots, Env], None]] = {
    Alloc: PythonPlan._alloc,
    View: PythonPlan._view,
    Kernel: PythonPlan._kernel,
    Product: PythonPlan._product,
    Convolution: PythonPlan._convolution,
    GpuProduct: PythonPlan._gpu_product,
    Launch: PythonPlan._launch,
    Aten: PythonPlan._aten,
    Pack: PythonPlan._pack,
    Expect: PythonPlan._expect,
    CountVersions: PythonPlan._count_versions,
    Free: PythonPlan._free,
    CopyInto: PythonPlan._copy,
    Compute: PythonPlan._compute,
}


def input_ends(plan: Plan) -> dict[int, list[int]]:
    """Step -> inputs that no later step reads and that are no outputs."""
    last = {slot: i for i, step in enumerate(plan.steps) for slot in READS[type(step)](step)}
    ends: dict[int, list[int]] = {}
    for slot, i in last.items():
        if slot < plan.n_inputs and slot not in plan.outputs:
            ends.setdefault(i, []).append(slot)
    return ends


def number(size: Size, env: Env) -> int:
    return size.eval(env) if isinstance(size, Expr) else size


def numbers(sizes: tuple[Size, ...], env: Env) -> list[int]:
    return [number(s, env) for s in sizes]


def fill(value: Any, slots: Slots, env: Env) -> Any:
    """An argument with slots and sizes replaced by their values."""
    if isinstance(value, SlotRef):
        return slots[value.slot]
    if isinstance(value, Expr):
        return number(value, env)
    if isinstance(value, Real):
        return float_of(env[str(value)])
    if isinstance(value, list):
        return [fill(v, slots, env) for v in value]
    if type(value) is tuple:
        return tuple(fill(v, slots, env) for v in value)
    return value


def flat(result: Any) -> Iterator[Any]:
    """Results in order, with lists and tuples flattened."""
    if isinstance(result, (tuple, list)):
        for item in result:
            yield from flat(item)
    else:
        yield result
