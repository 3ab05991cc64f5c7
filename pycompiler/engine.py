"""Python functions and classes that the engine needs, passed to it when the package is imported.

The engine imports nothing of the package by name.  The rows correspond to `guards-rs/src/registered_object.rs`.
"""

from __future__ import annotations

from pycompiler import _native
from pycompiler.errors import BadBackendResult, RecompileError, Unfit
from pycompiler.ir import guards, iterator_state, plan
from pycompiler.ir.source import Scope
from pycompiler.logs import stage
from pycompiler.operators import numpy_arrays
from pycompiler.pipeline import stance
from pycompiler.pipeline.reports import on_limit
from pycompiler.runtime import triton_build
from pycompiler.symbolic.expr import Expr
from pycompiler.symbolic.symbolic_node import Real


def initialise() -> None:
    _native.hand_in(
        same_constant=guards.same_constant,
        keys_of=guards.keys_of,
        set_holds=guards.set_holds,
        tensor_holds=guards.tensor_holds,
        global_state=guards.global_state,
        foreign_state=stance.foreign_state,
        tensor_of=numpy_arrays.tensor_of,
        begun=iterator_state.read,
        explain=guards.explain,
        Scope=Scope,
        SlotRef=plan.SlotRef,
        Expr=Expr,
        Real=Real,
        KERNEL_ERRORS=plan.KERNEL_ERRORS,
        OTHER_SIZES=plan.OTHER_SIZES,
        INFERENCE_TENSOR=plan.INFERENCE_TENSOR,
        plan_log=stage("runtime").info,
        warn=stage("runtime").warning,
        step_failed=plan.step_failed,
        unaligned=triton_build.unaligned,
        RecompileError=RecompileError,
        BadOutputs=BadBackendResult,
        Unfit=Unfit,
        on_limit=on_limit,
    )
    _native.PlainState(bool)  # finds torch's state in memory now: a first call's thread may have hooks on
