"""Faults of this compiler, each a few lines that make a stage do the wrong thing."""

from __future__ import annotations

import dataclasses
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from pycompiler import background, regions
from pycompiler.autograd import compile as autograd
from pycompiler.autograd import runtime
from pycompiler.autograd.decompositions import default_decompositions
from pycompiler.capture.interpreter import frame
from pycompiler.capture.recipe import effect_replay
from pycompiler.codegen import cpp
from pycompiler.ir import loops, plan
from pycompiler.ir.guards import Guard
from pycompiler.ir.source import local
from pycompiler.lowering import LOWERINGS
from pycompiler.lowering.elementwise import Kind, elementwise
from pycompiler.operators import operator_facts, propagate
from pycompiler.pipeline import compiler
from pycompiler.runtime import build, plan_builder
from pycompiler.scheduling import fuse, memory, stores
from pycompiler.torch_compat import fake_mode
from tests.faults.patch import Patch

aten = torch.ops.aten
schedule = sys.modules["pycompiler.scheduling.schedule"]  # the package has a function of this name


# lowering and decompositions -------------------------------------------------------------------------------------------
def wrong_lowering(patch: Patch) -> None:
    """a sine is lowered as a tanh"""
    patch.setitem(LOWERINGS, aten.sin.default, LOWERINGS[aten.tanh.default])


def wrong_index_rule(patch: Patch) -> None:
    """flip reads its input in order"""
    patch.setitem(LOWERINGS, aten.flip.default, lambda low, x, dims: x)


def wrong_neighbour(patch: Patch) -> None:
    """roll reads one element too far to the left"""
    roll = LOWERINGS[aten.roll.default]
    patch.setitem(LOWERINGS, aten.roll.default, lambda low, x, shifts, dims=(): roll(low, x, [shifts[0] + 1], dims))


def missing_mutation(patch: Patch) -> None:
    """the write of an argument is dropped in lowering"""
    patch.setitem(LOWERINGS, aten.copy_.default, lambda low, target, value, non_blocking=False: target)


def wrong_decomposition(patch: Patch) -> None:
    """silu is taken apart into another function"""
    patch.setitem(default_decompositions()._known, aten.silu.default, lambda x: x * torch.sigmoid(x + 1))


def wrong_gradient_rule(patch: Patch) -> None:
    """the rule for the gradient of a sigmoid forgets a factor"""
    patch.setitem(default_decompositions()._known, aten.sigmoid_backward.default, lambda grad, y: grad * y)


def precision_lost(patch: Patch) -> None:
    """an exponential is computed in bfloat16"""

    def lowered(low: Any, x: Any) -> Any:
        return elementwise(low, lambda x: x.op("exp").to(torch.bfloat16).to(torch.float32), [x], Kind.FLOAT)

    patch.setitem(LOWERINGS, aten.exp.default, lowered)


# scheduling -----------------------------------------------------------------------------------------------------------
def wrong_fusion(patch: Patch) -> None:
    """fusing two kernels turns an addition into a subtraction"""
    sort = fuse.sort_stages

    def sorted_wrongly(stages: list[Any]) -> list[Any]:
        made = []
        for stage in sort(stages):
            body = tuple(dataclasses.replace(op, name="sub") if op.name == "add" else op for op in stage.loop.body)
            made.append(dataclasses.replace(stage, loop=dataclasses.replace(stage.loop, body=body)))
        return made

    patch.setattr(fuse, "sort_stages", sorted_wrongly)


def memory_reused_too_early(patch: Patch) -> None:
    """a buffer is put into memory whose values are read later"""
    take = memory._take

    def early(whole: Any, dead: list[str], name: str) -> Any:
        home = take(whole, dead, name)
        if home is not None:
            return home
        need = memory.storage_bytes(whole.buffers[name])
        alive = [n for n, b in whole.buffers.items() if whole.storage.get(n) == n and n != name and n.startswith("b")]
        return next((n for n in alive if memory.is_covered(need, memory.storage_bytes(whole.buffers[n]))), None)

    patch.setattr(memory, "_take", early)


def wrong_order_of_stores(patch: Patch) -> None:
    """an argument is overwritten in place while other points of it are still to be read"""

    def always(steps: Any, copies: Any, begins: Any, buffers: Any) -> dict[str, str]:
        return {value: stores.target_of(copy) for value, copy in copies.items()}

    patch.setattr(schedule, "stored_in_place", always)


def wrong_stride(patch: Patch) -> None:
    """results lie in memory as if they were contiguous"""
    made = plan_builder.Alloc

    def contiguous(slot: int, shape: Any, stride: Any, *rest: Any) -> Any:
        return made(slot, shape, torch.empty(shape, device="meta").stride(), *rest)

    patch.setattr(plan_builder, "Alloc", contiguous)


# generated code ---------------------------------------------------------------------------------------------------------
def _generated(patch: Patch, change: Callable[[str], str]) -> None:
    """Changes the C++ of kernels that compute a sine."""
    generate = cpp.generate

    def changed(whole: Any) -> Any:
        made = generate(whole)
        return dataclasses.replace(made, text=change(made.text)) if "pyc_sin" in made.text else made

    patch.setattr(cpp, "generate", changed)


def cpp_error(patch: Patch) -> None:
    """the generated C++ does not compile"""
    _generated(patch, lambda text: text.replace("return error;", "return eror;"))


def crash_in_a_kernel(patch: Patch) -> None:
    """a kernel ends the process"""
    _generated(patch, lambda text: text.replace("return error;", "__builtin_trap(); return error;"))


def hang_in_a_kernel(patch: Patch) -> None:
    """a kernel never ends"""
    _generated(patch, lambda text: 'extern "C" int pause();\n' + text.replace("return error;", "for (;;) pause();"))


# stored state -------------------------------------------------------------------------------------------------------
def wrong_cache_entry(patch: Patch) -> None:
    """kernels of a sine and of a cosine have one key in the disk cache"""
    key = build.cache_key
    patch.setattr(build, "cache_key", lambda text, chain: key(text.replace("cos", "sin"), chain))


def wrong_region_sharing(patch: Patch) -> None:
    """two captured graphs that differ in a constant are taken for one"""
    argument = regions._argument

    def without_numbers(value: Any, place: Any) -> Any:
        return float if type(value) is float else argument(value, place)

    patch.setattr(regions, "_argument", without_numbers)


# autograd ---------------------------------------------------------------------------------------------------------------
def bad_partition(patch: Patch) -> None:
    """the min-cut partition puts another operator into the backward"""
    cut = autograd.cut_joint

    def badly(joint: Any, how: Any = "min_cut", *rest: Any) -> Any:
        part = cut(joint, how, *rest)
        if how == "min_cut":
            for node in part.backward.graph.find_nodes(op="call_function", target=aten.cos.default):
                node.target = aten.sin.default
            part.backward.recompile()
        return part

    patch.setattr(autograd, "cut_joint", badly)


def wrong_alias(patch: Patch) -> None:
    """a view of an argument is returned as a copy"""
    lines = runtime._output_lines

    def copied(k: int, output: Any, *rest: Any) -> list[str]:
        return [*lines(k, output, *rest), *([f"    r{k} = r{k}.clone()"] if output.kind == "view" else [])]

    patch.setattr(runtime, "_output_lines", copied)


def wrong_random_stream(patch: Patch) -> None:
    """random numbers are drawn twice, and the second ones are used"""

    def twice(x: torch.Tensor, p: float, generator: Any = None) -> torch.Tensor:
        aten.bernoulli.p(x, p)
        return (aten.bernoulli.p(x, p) != 0).to(x.dtype)

    patch.setitem(default_decompositions()._known, aten.bernoulli.p, twice)


# fakes ------------------------------------------------------------------------------------------------------------------
def _faked(patch: Patch, wanted: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    short = fake_mode.short_path

    def path(mode: Any, op: Any, args: Any, kwargs: Any) -> Any:
        made = short(mode, op, args, kwargs)
        return propagate.wrapped(mode, change(made.plain), made.fake_device) if op is wanted else made

    patch.setattr(fake_mode, "short_path", path)


def wrong_dtype_of_a_fake(patch: Patch) -> None:
    """while a frame is captured, a sine is said to be float64"""
    _faked(patch, aten.sin.default, lambda plain: plain.double())


# capture ----------------------------------------------------------------------------------------------------------------
def missed_effect(patch: Patch) -> None:
    """calls of a custom operator that returns nothing are taken for pure"""
    patch.setattr(fake_mode, "describe", lambda op, args, kwargs: operator_facts.NONE)
    patch.setattr(operator_facts.Facts, "stays", False)


def wrong_resume(patch: Patch) -> None:
    """after a graph break, two locals are given to the rest of the function the other way round"""
    tail_call = frame.tail_call

    def swapped(tail: Any, fn: Any, names: tuple[str, ...], *rest: Any, **more: Any) -> Any:
        first, second, *others = names
        return tail_call(tail, fn, (second, first, *others), *rest, **more)

    patch.setattr(frame, "tail_call", swapped)


def wrong_effect_order(patch: Patch) -> None:
    """what a frame does besides its graph is done in the wrong order"""
    replay = effect_replay.replay_effects

    def reversed_(head: Any) -> Any:
        head.cx.effects.journal.reverse()
        return replay(head)

    patch.setattr(frame, "replay_effects", reversed_)
    patch.setattr(effect_replay, "replay_effects", reversed_)


# guards -----------------------------------------------------------------------------------------------------------------
def _guards(patch: Patch, change: Callable[[list[Guard]], list[Guard]]) -> None:
    filtered = compiler.filtered
    patch.setattr(compiler, "filtered", lambda *a: change(filtered(*a)))


def weak_guard(patch: Patch) -> None:
    """values of numbers are not guarded"""
    _guards(patch, lambda guards: [g for g in guards if g.kind != "equals"])


def stale_global(patch: Patch) -> None:
    """what is read from the module's globals is not guarded"""
    _guards(patch, lambda guards: [g for g in guards if not str(g.source).startswith("G[")])


def strict_guard(patch: Patch) -> None:
    """a guard asks for the very object that a call passed"""
    compile_frame = compiler.FrameCompiler.compile_frame

    def strictly(self: Any, function: Any, values: dict[str, Any]) -> Any:
        with_id = Guard("id_is", local("x"), values["x"])
        filtered = compiler.filtered
        compiler.filtered = lambda *a: [*filtered(*a), with_id]
        try:
            return compile_frame(self, function, values)
        finally:
            compiler.filtered = filtered

    patch.setattr(compiler.FrameCompiler, "compile_frame", strictly)


def wrong_symbolic_guard(patch: Patch) -> None:
    """what a graph assumes of symbolic sizes is not guarded"""
    patch.setattr(compiler, "size_guards", lambda captured: [])


def wrong_exception(patch: Patch) -> None:
    """an index that is out of bounds is said to be the one before it"""
    key = plan.WRONG_INDEX + list(loops.INDEX_RULES).index("index")
    patch.setitem(plan.KERNEL_ERRORS, key, (IndexError, "index {size} is out of bounds"))


# threads and time ---------------------------------------------------------------------------------------------------
def deadlock_of_a_worker(patch: Patch) -> None:
    """the worker that compiles in the background never comes back"""
    submit = background.submit
    patch.setattr(background, "submit", lambda name, job: submit(name, threading.Event().wait))


def slow_pass(patch: Patch) -> None:
    """scheduling takes three seconds more"""
    plan_memory = schedule.plan_memory

    def slowly(*args: Any) -> None:
        time.sleep(3)
        plan_memory(*args)

    patch.setattr(schedule, "plan_memory", slowly)
