"""A scheduled program and its kernels as a `Plan`.

In: `Schedule`, the built library of CPU kernels and the source text of GPU kernels (None, "" without any).  Out:
`ir.plan.Plan`: slots numbered, memory allocated before its first use, views created where ATen needs them, everything
freed after its last use.
"""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch

from pycompiler import _native, config
from pycompiler.ir.kernel import DeviceKernel, KernelGroup, Schedule
from pycompiler.ir.loops import Buffer, Extern, Ref, checks
from pycompiler.ir.plan import (
    Alloc,
    Aten,
    Compute,
    Convolution,
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
)
from pycompiler.operators.packed_weights import packing, panels
from pycompiler.operators.propagate import is_ordinary
from pycompiler.runtime.build import BuiltLibrary
from pycompiler.runtime.heap import keep_freed_memory
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.hints import likely_product

MUCH_WORK = 1 << 20  # assumed for a product of unknown sizes: the GIL is released


def make_plan(schedule: Schedule, library: BuiltLibrary | None, module: str = "") -> Plan:
    """The plan of `schedule`, whose kernels are in `library` and `module`."""
    keep_freed_memory()
    plan = _PlanBuilder(schedule).build(library)
    plan.module = module
    return plan


def _size(e: Expr) -> Size:
    return e.as_int() if e.is_const else e


def _is_channels_last(b: Buffer) -> bool:
    """Whether an operator's result is an image whose layout is a choice of the operator's kernel."""
    return len(b.shape) == 4 and b.stride[1] == 1 and b.stride[3] != 1


def _has_all_memory(ref: Ref, b: Buffer) -> bool:
    """Whether both lie row after row from the same element, with equally many elements."""
    (rows, size), (rows_of_b, size_of_b) = map(_rows, (ref.shape, b.shape))
    return (ref.offset, ref.stride, b.stride, size) == (Expr.of(0), rows, rows_of_b, size_of_b)


def _rows(shape: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr]:
    """Strides of rows that follow each other, and the number of elements."""
    *steps, size = itertools.accumulate(reversed(shape), operator.mul, initial=Expr.of(1))
    return tuple(reversed(steps)), size


def _sizes(exprs: Sequence[Expr]) -> tuple[Size, ...]:
    return tuple(map(_size, exprs))


@dataclass
class _PlanBuilder:
    schedule: Schedule
    steps: list[Step] = field(default_factory=list)
    slot_of: dict[str, int] = field(default_factory=dict)  # memory (a buffer's name) -> slot
    by_address: set[str] = field(default_factory=set)  # buffers that kernels read, or views by strides
    doubtful: set[str] = field(
        default_factory=set
    )  # results whose strides, in dimensions of size 1, may differ from the fakes'
    workspaces: dict[torch.device, int] = field(default_factory=dict)  # of products on GPUs
    n_slots: int = 0

    def build(self, library: BuiltLibrary | None) -> Plan:
        program = self.schedule.program
        self.by_address = {name for group in self.schedule.kernels for name in group.reads}
        calls = [(step.args, step.kwargs) for step in self.schedule.steps if isinstance(step, Extern)]
        self.by_address |= {ref.buffer for ref in _refs((calls, program.outputs)) if not self.is_whole(ref)}
        by_engine = [step for step in self.schedule.steps if isinstance(step, Extern) and step.by_engine]
        self.by_address |= {ref.buffer for step in by_engine for ref in _refs(step.args)}
        for b in program.inputs:
            slot = self.new_slot()
            if b is not None:
                self.slot_of[b.name] = slot
        constants = {}
        for name, tensor in program.constants.items():
            self.slot_of[name] = self.new_slot()
            constants[self.slot_of[name]] = tensor
        fixed = self.n_slots
        self.steps += [Compute(name, value) for name, value in program.reals.items()]
        for step, frees in zip(self.schedule.steps, self.schedule.frees, strict=True):
            temporary = self.extern(step) if isinstance(step, Extern) else self.kernel(step)
            dead = tuple(temporary) + tuple(self.slot_of[n] for n in frees if n in self.slot_of)
            dead = tuple(s for s in dead if s >= fixed)
            if dead:
                self.steps.append(Free(dead))
        outputs = [self.output(o) for o in program.outputs]
        plan = Plan(len(program.inputs), self.n_slots, self.steps, outputs, constants)
        plan.library, plan.source = (library.path, library.source) if library else (None, "")
        plan.name, plan.symbols, plan.hints = program.name, program.origins(), program.hints
        # A user who waits for each kernel looks for the one that fails.
        plan.batches_launches = config.triton.batch_launches and os.environ.get("CUDA_LAUNCH_BLOCKING") != "1"
        return plan

    def new_slot(self) -> int:
        self.n_slots += 1
        return self.n_slots - 1

    def home(self, name: str) -> str:
        return self.schedule.storage.get(name, name)

    def slot(self, name: str) -> int:
        """The slot of a buffer's memory, allocated now if it is not yet."""
        home = self.home(name)
        if home not in self.slot_of:
            b = self.schedule.buffers[home]
            self.slot_of[home] = self.new_slot()
            of = self.only_views.get(home, b)
            shape, stride = _sizes(of.shape), _sizes(of.stride)
            self.steps.append(Alloc(self.slot_of[home], shape, stride, b.dtype, b.device, self.makers(home)))
        return self.slot_of[home]

    def makers(self, name: str) -> tuple[str, ...]:
        """The lines of the program whose result a buffer is, if they are known."""
        known = self.schedule.program.users
        return tuple(dict.fromkeys(known[o] for o in self.origins.get(name, ()) if o in known)) if known else ()

    @cached_property
    def returned(self) -> set[str]:
        """The buffers of outputs."""
        return {ref.buffer for ref in _refs(self.schedule.program.outputs)}

    @cached_property
    def only_views(self) -> dict[str, Ref]:
        """Buffers that kernels alone read and write -> the output that has all their memory in another shape.

        Such a buffer is allocated with the shape of the output, which then needs no view.
        """
        called = _refs([(s.args, s.kwargs) for s in self.schedule.steps if isinstance(s, Extern)])
        made = [b.name for s in self.schedule.steps if isinstance(s, Extern) for b in s.out if b is not None]
        taken = {self.home(name) for name in (*(ref.buffer for ref in called), *made)}
        taken |= {*self.schedule.program.constants, *(b.name for b in self.schedule.program.inputs if b is not None)}
        found: dict[str, Ref] = {}
        for ref in _refs(self.schedule.program.outputs):
            home = self.home(ref.buffer)
            fits = home == ref.buffer and home not in taken and _has_all_memory(ref, self.schedule.buffers[home])
            if fits:
                found[home] = ref
            else:
                found.pop(home, None)
            taken.add(home)
        return found

    @cached_property
    def origins(self) -> dict[str, tuple[str, ...]]:
        """Buffers computed by kernels -> the nodes that they come from."""
        nests = [n for step in self.schedule.steps if isinstance(step, KernelGroup) for n in step.nests]
        products = [step for step in self.schedule.steps if isinstance(step, Extern) and step.by_engine]
        made = {b.name: step.origin for step in products for b in step.out if b is not None}
        return made | {b.name: s.loop.origin for n in nests for s in n.stages for b in s.loop.out}

    def kernel(self, group: KernelGroup) -> list[int]:
        for kernel in group.kernels or ():
            self.schedule.buffers.update((b.name, b) for b in kernel.workspaces)
        names = group.pointers if group.kernels is None else [a for k in group.kernels for a in k.arguments]
        slots = tuple(
            self.slot(n) for n in names if isinstance(n, str)
        )  # if memory runs out, no version has been counted yet
        if counted := [self.slot(target) for value, target in group.stores.items() if value in self.schedule.stores]:
            self.steps.append(CountVersions(tuple(counted)))
        if group.kernels is not None:
            return [slot for kernel in group.kernels for slot in self.launch(kernel, group.work)]
        scalars = tuple(Expr.sym(s) for s in group.scalars)
        self.steps.append(Kernel(group.symbol, slots, scalars, group.work, self.users(group)))
        return []

    def launch(self, kernel: DeviceKernel, work: int) -> list[int]:
        """Append a launch; returns the slots of its workspaces."""
        arguments = tuple(SlotRef(self.slot(a)) if isinstance(a, str) else _size(a) for a in kernel.arguments)
        device = next(self.schedule.buffers[a].device for a in kernel.arguments if isinstance(a, str))
        x, y, z = _sizes(kernel.grid)
        self.steps.append(
            Launch(kernel.name, device, (x, y, z), arguments, kernel.types, kernel.constants, kernel.checks, work)
        )
        return [self.slot(b.name) for b in kernel.workspaces]

    def users(self, group: KernelGroup) -> tuple[str, ...]:
        """The lines of the program for which the kernel checks a condition."""
        known = self.schedule.program.users
        loops = [s.loop for nest in group.nests for s in nest.stages if any(checks(op) for op in s.loop.body)]
        return tuple(dict.fromkeys(known[name] for loop in loops for name in loop.origin if name in known))

    def convolution(self, node: Extern) -> list[int]:
        """Append a convolution by the engine; returns the slot of a packed weight."""
        (out,), (image, weight, bias, stride, padding, dilation, *_, groups) = node.out, node.args
        assert out is not None
        slots: tuple[int, ...] = (self.slot(image.buffer), self.slot(weight.buffer), self.slot(out.name))
        if bias is not None:
            slots += (self.slot(bias.buffer),)
        window: Any = tuple(n.as_int() for n in weight.shape[2:])
        sizes = (*out.shape, *weight.shape[1:])
        filters = weight.shape[0].as_int() if groups == 1 else 0
        work = math.prod(n.as_int() for n in sizes) if all(n.is_const for n in sizes) else MUCH_WORK
        offsets = [Expr.of(0) if ref is None else ref.offset for ref in (image, weight, bias)]
        strides = [s for t in (image, out) for s in (t.stride[0], *t.stride[2:])]
        layout = map(_sizes, (offsets, image.shape, out.shape[2:], strides))
        given: Any = (*layout, window, *map(tuple, (stride, padding, dilation)), filters, work)
        step, panel = Convolution(slots, *given), self.panel(image, weight, filters)
        if not panel:
            self.steps.append(step)
            return []
        packing, packed = panels([n.as_int() for n in weight.shape], panel), self.new_slot()
        self.steps.append(Pack(packed, slots[1], packing.op, packing.args, frozen=True))
        self.steps.append(replace(step, slots=(slots[0], packed, *slots[2:]), panel=panel))
        return [packed]

    def panel(self, image: Ref, weight: Ref, filters: int) -> int:
        """Lanes of the panels in which a weight is kept; 0 if it is not kept.

        A kept weight would have to be compared in each call, unless it is promised to stay.  A small one is not worth its
        memory: the places of a large image share the time for packing.
        """
        lanes = 2 * (_native.matrix_product_vectors(torch.get_num_threads()) // torch.float32.itemsize)
        if not (config.freezing and config.pack_weights and filters and lanes) or filters % lanes:
            return 0
        inputs = {b.name for b in self.schedule.program.inputs if b is not None}
        places = likely_product(image.shape[1:])
        is_small = places is not None and math.prod(n.as_int() for n in weight.shape) <= places
        return 0 if is_small or weight.buffer not in inputs or not self.is_whole(weight) else lanes

    def product(self, node: Extern) -> list[int]:
        """Append a product of matrices; returns the slot of a workspace that no later product needs."""
        (out,) = node.out
        assert out is not None
        if out.device.type != "cpu":
            return self.gpu_product(node, out)
        left, right = node.args
        slots = (self.slot(left.buffer), self.slot(right.buffer), self.slot(out.name))
        sizes = (*left.shape, right.shape[1])
        rows, depth, columns = map(_size, sizes)
        strides = _sizes((*left.stride, *right.stride, out.stride[0]))
        offsets = _sizes((left.offset, right.offset))
        work = math.prod(n.as_int() for n in sizes) if all(n.is_const for n in sizes) else MUCH_WORK
        self.steps.append(Product(slots, offsets, strides, (rows, columns, depth), work))  # type: ignore[arg-type]
        return []

    def gpu_product(self, node: Extern, out: Buffer) -> list[int]:
        *bias, left, right = node.args  # as the operator has them
        product, bytes_needed = GpuProduct.of(node.args, out), self.workspace_bytes[out.device]
        workspace = self.workspaces.get(out.device)
        if workspace is None:
            workspace = self.workspaces[out.device] = self.new_slot()
            self.steps.append(Alloc(workspace, (bytes_needed,), (1,), torch.uint8, out.device))
        a, b, c, *d = (self.slot(name) for name in (left.buffer, right.buffer, out.name, *(r.buffer for r in bias)))
        self.steps.append(replace(product, slots=(a, b, c, workspace, *d), workspace=bytes_needed))
        return [self.workspaces.pop(out.device)] if node is self.last_products[out.device] else []

    @cached_property
    def workspace_bytes(self) -> dict[torch.device, int]:
        """The most bytes of workspace that a call needs, by device."""
        found: dict[torch.device, int] = {}
        for step in self.schedule.steps:
            if isinstance(step, Extern) and step.workspace and (out := step.out[0]) is not None:
                found[out.device] = max(found.get(out.device, 0), step.workspace)
        return found

    @cached_property
    def last_products(self) -> dict[torch.device, Extern]:
        """The last product of the schedule on each device."""
        return {b.device: s for s in self.schedule.steps if isinstance(s, Extern) and s.by_engine for b in s.out if b}

    def extern(self, node: Extern) -> list[int]:
        if node.by_engine:
            return self.convolution(node) if node.is_convolution else self.product(node)
        temporary: list[int] = []
        args = self.argument(node.args, temporary)
        kwargs = {k: self.argument(v, temporary) for k, v in node.kwargs.items()}
        out: list[int | None] = []
        for b in node.out:
            if b is None:
                out.append(None)
                continue
            self.slot_of[b.name] = self.new_slot()
            out.append(self.slot_of[b.name])
            if 1 in b.shape and not is_ordinary(node.op):
                self.doubtful.add(b.name)
        parts = [r.buffer for r in _refs(node.args) if r.buffer in node.mutates and not self.is_whole(r)]
        if counted := [self.slot(name) for name in parts if name in self.schedule.stores]:
            # The call counts the versions of the view only, which has no other holder.
            self.steps.append(CountVersions(tuple(counted)))
        self.steps.append(Aten(node.op, self.packed(node, args, temporary), kwargs, tuple(out)))
        for b in node.out:
            if b is not None and (b.name in self.by_address or b.name in self.doubtful & self.returned
                                  or (b.name in self.returned and _is_channels_last(b))):  # fmt: skip
                self.steps.append(Expect(self.slot_of[b.name], _sizes(b.shape), _sizes(b.stride), b.dtype, b.device))
        return temporary

    def packed(self, node: Extern, args: Any, temporary: list[int]) -> Any:
        """The call's arguments.  A weight that is an input is packed by a step of its own."""
        found = packing(node.op, node.args, self.schedule.program.hints)
        if found is None:
            return args
        slot = self.new_slot()
        temporary.append(slot)
        weight = args[found.position].slot
        self.steps.append(Pack(slot, weight, found.op, found.args, config.freezing))
        return (*args[: found.position], SlotRef(slot), *args[found.position + 1 :])

    def argument(self, value: Any, temporary: list[int]) -> Any:
        if isinstance(value, Ref):
            slot, made = self.view(value)
            if made:
                temporary.append(slot)
            return SlotRef(slot)
        if isinstance(value, Expr):
            return _size(value)
        if isinstance(value, list | tuple):
            return type(value)(self.argument(v, temporary) for v in value)
        return value

    def view(self, ref: Ref, *, again: bool = False) -> tuple[int, bool]:
        """(slot, whether a view was created).  `again`: create a view even if the layout seems to be the buffer's."""
        base = self.slot(ref.buffer)
        if (self.is_whole(ref) or self.only_views.get(ref.buffer) is ref) and not again:
            return base, False
        slot = self.new_slot()
        self.steps.append(View(slot, base, _sizes(ref.shape), _sizes(ref.stride), _size(ref.offset)))
        return slot, True

    def is_whole(self, ref: Ref) -> bool:
        own, allocated = (self.schedule.buffers[name] for name in (ref.buffer, self.home(ref.buffer)))
        return all(ref.shape == b.shape and ref.offset == 0 and ref.stride == b.stride for b in (own, allocated))

    def output(self, output: Ref | int | tuple[Any] | None) -> int | tuple[Any]:
        if isinstance(output, Ref):
            return self.view(output, again=output.buffer in self.doubtful)[0]
        if isinstance(output, tuple) and isinstance(output[0], Expr):
            return (_size(output[0]),)
        return (None,) if output is None else output


def _refs(value: Any) -> Iterator[Ref]:
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, list | tuple):
        for v in value:
            yield from _refs(v)
    elif isinstance(value, dict):
        yield from _refs(list(value.values()))
