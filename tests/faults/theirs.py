"""The closest equivalents of the faults of `ours` in torch's compiler; only children of `python -m tests.faults
--peer` import this."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch._dynamo.guards as guards
import torch._dynamo.resume_execution as resume_execution
import torch._dynamo.side_effects as side_effects
import torch._functorch._aot_autograd.runtime_wrappers as runtime_wrappers
import torch._inductor.codecache as codecache
import torch._inductor.codegen.cpp as cpp
import torch._inductor.compile_fx as compile_fx
import torch._inductor.decomposition as decomposition
import torch._inductor.lowering as lowering
import torch._inductor.scheduler as scheduler
from torch._subclasses.fake_tensor import FakeTensorMode

from tests.faults.patch import Patch

aten, prims = torch.ops.aten, torch.ops.prims
LOWERINGS, DECOMPOSITIONS = lowering.lowerings, decomposition.decompositions


def wrong_lowering(patch: Patch) -> None:
    patch.setitem(LOWERINGS, aten.sin.default, LOWERINGS[aten.tanh.default])


def wrong_index_rule(patch: Patch) -> None:
    patch.setitem(LOWERINGS, prims.rev.default, lambda x, dims: x)


def wrong_neighbour(patch: Patch) -> None:
    roll = DECOMPOSITIONS[aten.roll.default]
    patch.setitem(DECOMPOSITIONS, aten.roll.default, lambda x, shifts, dims=(): roll(x, [shifts[0] + 1], dims))


def precision_lost(patch: Patch) -> None:
    exp = LOWERINGS[aten.exp.default]

    def lowered(x: Any) -> Any:
        return lowering.to_dtype(lowering.to_dtype(exp(x), torch.bfloat16), torch.float32)

    patch.setitem(LOWERINGS, aten.exp.default, lowered)


def missing_mutation(patch: Patch) -> None:
    patch.setitem(LOWERINGS, aten.copy_.default, lambda target, value, non_blocking=False: target)


def wrong_decomposition(patch: Patch) -> None:
    patch.setitem(DECOMPOSITIONS, aten.silu.default, lambda x: x * torch.sigmoid(x + 1))


def wrong_gradient_rule(patch: Patch) -> None:
    patch.setitem(DECOMPOSITIONS, aten.sigmoid_backward.default, lambda grad, y: grad * y)


def bad_partition(patch: Patch) -> None:
    cut = compile_fx.min_cut_rematerialization_partition

    def badly(*args: Any, **kwargs: Any) -> Any:
        forward, backward = cut(*args, **kwargs)
        for node in backward.graph.find_nodes(op="call_function", target=aten.cos.default):
            node.target = aten.sin.default
        backward.recompile()
        return forward, backward

    patch.setattr(compile_fx, "min_cut_rematerialization_partition", badly)


def wrong_alias(patch: Patch) -> None:
    again = runtime_wrappers.gen_alias_from_base
    patch.setattr(runtime_wrappers, "gen_alias_from_base", lambda *args, **kwargs: again(*args, **kwargs).clone())


def memory_reused_too_early(patch: Patch) -> None:
    """freed after its first use"""
    last = scheduler.Scheduler.compute_last_usage

    def early(self: Any) -> None:
        last(self)
        owner = {name: node for node in self.nodes for name in node.last_usage}
        for node in reversed(self.nodes):
            for name in [d.name for d in node.read_writes.reads if d.name in owner]:
                owner[name].last_usage.discard(name)
                node.last_usage.add(name)
                owner[name] = node

    patch.setattr(scheduler.Scheduler, "compute_last_usage", early)


def _sine(patch: Patch, text: str) -> None:
    for overrides in (cpp.CppOverrides, cpp.CppVecOverrides):
        patch.setattr(overrides, "sin", staticmethod(lambda x: text.format(x=x)))


def cpp_error(patch: Patch) -> None:
    _sine(patch, "eror({x})")


def crash_in_a_kernel(patch: Patch) -> None:
    _sine(patch, "([&]{{ __builtin_trap(); return {x}; }}())")


def hang_in_a_kernel(patch: Patch) -> None:
    _sine(patch, "([&]{{ for (volatile int i = 0; i == 0;) __builtin_ia32_pause(); return {x}; }}())")


def wrong_cache_entry(patch: Patch) -> None:
    digest = codecache.get_hash

    def same(content: Any, extra: str = "", hash_type: str = "code") -> str:
        return digest(content.replace("cos", "sin") if isinstance(content, str) else content, extra, hash_type)

    patch.setattr(codecache, "get_hash", same)
    patch.setattr(codecache.FxGraphCachePickler, "get_hash", lambda self, obj: code_of(self, obj))
    dumps = codecache.FxGraphCachePickler.dumps

    def code_of(self: Any, obj: Any) -> str:
        return codecache.sha256_hash(dumps(self, obj).replace(b"cos", b"sin"))


def _faked(patch: Patch, change: Any) -> None:
    dispatch = FakeTensorMode.dispatch

    def changed(self: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        made = dispatch(self, func, *args, **kwargs)
        return change(made) if func is aten.sin.default else made

    patch.setattr(FakeTensorMode, "dispatch", changed)


def wrong_dtype_of_a_fake(patch: Patch) -> None:
    _faked(patch, lambda made: made.double())


def wrong_stride(patch: Patch) -> None:
    _faked(patch, lambda made: made.contiguous())


def missed_effect(patch: Patch) -> None:
    patch.setattr(torch.fx.Node, "is_impure", lambda self, *args, **kwargs: False)


def wrong_resume(patch: Patch) -> None:
    generate = resume_execution.ContinueExecutionCache.generate.__func__

    def swapped(cls: Any, code: Any, *args: Any) -> Any:
        return generate(cls, code, *args[:5], args[5][1::-1] + args[5][2:], *args[6:])

    patch.setattr(resume_execution.ContinueExecutionCache, "generate", classmethod(swapped))


def wrong_effect_order(patch: Patch) -> None:
    modified = side_effects.SideEffects._get_modified_vars
    patch.setattr(side_effects.SideEffects, "_get_modified_vars", lambda self: modified(self)[::-1])


def weak_guard(patch: Patch) -> None:
    for name in ("EQUALS_MATCH", "CONSTANT_MATCH"):
        patch.setattr(guards.GuardBuilder, name, lambda self, guard, *rest: None)


def stale_global(patch: Patch) -> None:
    for name in ("EQUALS_MATCH", "CONSTANT_MATCH"):
        made = getattr(guards.GuardBuilder, name)

        def filtered(self: Any, guard: Any, *rest: Any, made: Any = made) -> None:
            if not guard.name.startswith("G["):
                made(self, guard, *rest)

        patch.setattr(guards.GuardBuilder, name, filtered)


def wrong_symbolic_guard(patch: Patch) -> None:
    patch.setattr(guards.GuardBuilder, "SHAPE_ENV", lambda self, guard: None)


def strict_guard(patch: Patch) -> None:
    match = guards.GuardBuilder.TENSOR_MATCH

    def strictly(self: Any, guard: Any, value: Any = None) -> None:
        match(self, guard, value)
        self.id_match_unchecked(guard)

    patch.setattr(guards.GuardBuilder, "TENSOR_MATCH", strictly)


def slow_pass(patch: Patch) -> None:
    plan = scheduler.Scheduler.compute_last_usage

    def slowly(self: Any) -> None:
        time.sleep(3)
        plan(self)

    patch.setattr(scheduler.Scheduler, "compute_last_usage", slowly)
