"""Capture of one frame, from its first instruction to its return or first graph break.

In: a code object, its globals, and the values in its locals array.
Out: `Captured`, plain data: the graph and a `Recipe`.  A recipe has the guards, and either a return template for the
native plan, or generated code.  Generated code calls the graph and, after a break, tail-calls a resume function.  The
graph is not compiled here.  A frame that cannot be captured at all raises `SkipFrame`.

A break is found by running.  The capture then runs again, up to the instruction that broke.  So no half-done work of
that instruction is left in graph, guards or side effects.  Where breaks are errors, the first one is the result.
"""

from __future__ import annotations

import contextlib
import types
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from pycompiler.capture.assumptions import alias_guards
from pycompiler.capture.breaks import Break, BreakRecord, NotCaptured, Raised, RestartCapture, SkipFrame
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.bytecode.code_facts import last_of_group
from pycompiler.capture.bytecode.decode import slot_names
from pycompiler.capture.bytecode.frames import (
    Failed,
    FrameLayout,
    continuation,
    exits,
    loads_method,
    resume,
    resume_info,
    tail_call,
    whole,
)
from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction
from pycompiler.capture.bytecode.resume import (
    ERROR,
    cell_parameters,
    entered,
    has_active_handler,
    origin_of,
    raise_at_entry,
)
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.interpreter.context import Capture
from pycompiler.capture.interpreter.evaluation import Frame, breaking_frame
from pycompiler.capture.interpreter.recursion_limit import DEEP_STACK
from pycompiler.capture.interpreter.torch_function import write_state
from pycompiler.capture.library.gradients import backward_hooks, gradients, parameters, requires_grad
from pycompiler.capture.library.torch_functions import tensor_data, torch_api
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recipe.codegen import Head, as_graph_output, return_template
from pycompiler.capture.recipe.effect_replay import (
    check_caches,
    check_drops,
    check_loggers,
    check_warnings,
    replay_effects,
)
from pycompiler.capture.recipe.recipe import GRAPH, TAIL_CALL, Recipe, Resume
from pycompiler.capture.recording import nodes
from pycompiler.capture.recording.graph import GraphBuilder
from pycompiler.capture.recording.input_symbols import RestartWithSymbols, Sizes, SymbolPolicy
from pycompiler.capture.semantics import tracebacks
from pycompiler.capture.semantics.lru_cache_calls import RestartAfterTrial
from pycompiler.capture.semantics.operators import NULL_AFTER_CALLABLE
from pycompiler.capture.values import exceptions
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import NULL, Cell, LazyObject, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.iterators import holds_ends, runs_code_at_end
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.containers.sets import Set, values_in
from pycompiler.capture.values.finalizers import is_ended, is_quiet, names_ends
from pycompiler.capture.values.functions import Builtin, Function, Method
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.tensor import Tensor
from pycompiler.capture.values.weak_references import locals_observe_end
from pycompiler.ir import cuda_graph_override, function_marks
from pycompiler.ir.control_flow_exceptions import LeavesCompile
from pycompiler.ir.guards import (
    function_modes,
    function_modes_off,
    global_state,
    in_checkpoint,
    in_kernel,
    outside_transforms,
    transform_levels,
)
from pycompiler.ir.source import Source, local
from pycompiler.ir.weak_guards import may_be_freed
from pycompiler.logs import stage
from pycompiler.symbolic.symbols import Specialise
from pycompiler.torch_compat import torch_state
from pycompiler.torch_compat.autocast_regions import step_nesting
from pycompiler.torch_compat.fake_mode import Layout
from pycompiler.torch_compat.warning_listener import CapturedWarning, Listening

log = stage("dynamo")


@dataclass(frozen=True)
class Example:
    """The stand-in for one graph input during capture. The input's real value of this call is found at its source."""

    fake: Any  # a fake tensor, or a symbolic number
    layout: Layout | None = None  # symbolic sizes and strides
    aliased: bool = False  # the graph gets an alias of class torch.Tensor
    make: Callable[[Any], Any] | None = None  # creates an input that has no source, in the scope of a call


@dataclass
class Captured:
    """The result of a capture. `examples` describes the graph's inputs; no tensor of the call is stored."""

    recipe: Recipe
    graph: fx.GraphModule | None
    examples: list[Example]
    broke: BreakRecord | None = None  # the break at which the capture ends
    breaks: tuple[BreakRecord, ...] = ()  # all breaks met: a break in a callee may have become a break at its call
    op_count: int = 0
    inlined: set[types.CodeType] = field(default_factory=set)
    sizes: Sizes | None = None  # symbols and assumptions on them; compiling the graph may add more


class _AtBreak(LeavesCompile):
    """The capture has reached the instruction that must run natively."""


def capture_frame(
    code: types.CodeType,
    namespace: dict[str, Any],
    values: dict[str, Any],
    *,
    fullgraph: bool = False,
    policy: SymbolPolicy | None = None,
    unused: bool = False,
) -> Captured | BreakRecord:
    """Capture the frame of `code` with the locals array `values` (by name, cells as cells) and globals `namespace`.

    Returns the `BreakRecord` where a break is not allowed: with `fullgraph`, or where the program says so.
    `unused`: calls with unread results stay in the graph.  With `fullgraph`, even a frame that only returns a tensor
    of its caller then has a graph.
    """
    if (reason := inlining_rules.why_frame_skipped(code)) is not None:
        raise SkipFrame(reason)
    state, seen = torch_state.read_state(), global_state()
    try:
        with DEEP_STACK, function_modes_off(), outside_transforms(), Listening(in_c=False) as heard:
            session = _CaptureAttempts(
                code, namespace, values, policy or SymbolPolicy(), function_modes(), seen, unused, fullgraph
            )
            session.heard = heard
            try:
                return session.run()
            except NotCaptured as e:
                e.breaks = tuple(session.breaks)
                raise
    finally:
        torch_api.restore_state(state)


class _CaptureAttempts:
    """One capture with its retries."""

    def __init__(
        self,
        code: types.CodeType,
        namespace: dict[str, Any],
        values: dict[str, Any],
        policy: SymbolPolicy,
        modes: list[Any],
        seen: tuple[Any, ...],
        unused: bool,
        fullgraph: bool,
    ) -> None:
        self.code = code
        self.unused = unused
        self.fullgraph = fullgraph
        self.modes = modes  # function modes active around the call
        self.seen = seen  # torch's state around the call
        self.policy = policy
        self.symbolic = policy.symbolic
        self.namespace = namespace
        self.values = values
        self.layout = FrameLayout.of(code)
        info = resume_info(code)
        raw = set(code.co_freevars) | set(cell_parameters(info))
        self.value_cells = frozenset(n for n in self.layout.cells if n not in raw and n in self.layout.params)
        self.raw_cells = raw
        self.state = torch_state.read_state()
        self.levels, self.kernel, self.again = transform_levels(), in_kernel(), in_checkpoint()
        # calls of cached functions, for all attempts (`semantics/lru_cache_calls.py`)
        self.tried: dict[Any, Any] = {}
        self.verdicts: dict[Any, bool] = {}
        self.rests_on: tuple[tuple[Any, Any], ...] = ()
        self.breaks: list[BreakRecord] = []
        self.heard: list[CapturedWarning] = []
        # the breaking instruction, or a call around it, gives an object whose end the program sees
        self.gives_end = False

    def run(self) -> Captured | BreakRecord:
        record: BreakRecord | None = None
        stop: int | None = None
        while True:
            torch_api.restore_state(self.state)
            cx, frame = self.start(stop)
            cx.errors_of_data.whole = self.fullgraph
            last, ends, reads_frame = stop, self.fullgraph, cx.reads_frame
            try:
                try:
                    _, result = frame.run()
                except _AtBreak:
                    assert record is not None
                    if any(in_head(f) for f in cx.stopped):
                        raise SkipFrame(
                            f"a graph break while the frame's locals are restored: {record.reason}"
                        ) from None
                    cx.effects.looks.end(broke=True)
                    try:
                        return self.finish_break(cx, cx.stopped, record)
                    # A value alive below the call cannot be rebuilt, so the call itself becomes the break.
                    except SkipFrame as e:
                        if len(cx.stopped) == 1:
                            raise
                        log.info("%s: the call around the graph break becomes the break: %s", self.code.co_qualname, e)
                        stop = cx.stopped[-2].begin
                        continue
                cx.effects.looks.end(broke=False)
                return self.finish_return(cx, frame, result)
            except RestartWithSymbols:
                self.symbolic = True
                continue
            except RestartCapture:
                stop = record = None
                continue
            except RestartAfterTrial:
                continue
            except Specialise as e:
                origins = cx.sizes.origins_of(e)
                if not origins or cx.sizes.is_read(e.names):
                    raise SkipFrame(str(e)) from None
                self.policy.specialise(cx.sizes.unmarked(origins, e))
                log.info("%s: symbols become constants: %s", self.code.co_qualname, e)
                continue
            except Break as b:
                record = BreakRecord(b.kind, b.reason, b.hint, b.stack or (frame.user_frame(),))
                self.gives_end, self.rests_on = b.gives_end, b.rests_on
                stop = breaking_frame(b.frames or (frame,)).begin if b.step is None else b.step
                b.__traceback__ = b.__context__ = (
                    # A frame on the way may hold the exception, and the exception would hold the program's frame.
                    None
                )
                # no instruction breaks, but a value left at the end does
                if last is not None and stop >= last:
                    raise SkipFrame(b.reason) from None
                ends |= cx.errors  # the program wants no break here
            except Raised as r:
                self.rests_on = ()
                broke = Break("uncaught-exception", exception_text(cx, r.value))
                record = BreakRecord(broke.kind, broke.reason, broke.hint, (frame.user_frame(),))
                stop = r.value.raised_at if isinstance(r.value, Object) and r.value.raised_at else frame.begin
            finally:
                cx.release()
            stop = step_around_own_frames(reads_frame, stop)
            if ends:
                return record
            self.breaks.append(record)
            if record.kind == "trace-budget":  # resuming would spend the budget again and again
                raise SkipFrame(record.reason)

    def start(self, stop: int | None) -> tuple[Capture, Frame]:
        cx = Capture(self.namespace, self.policy, symbolic=self.symbolic, modes=self.modes, state=self.seen)
        cx.stop_at, cx.tried, cx.verdicts = stop, self.tried, self.verdicts
        cx.stopper, cx.heard = _AtBreak, self.heard
        if self.levels or self.kernel:
            cx.run_under(self.levels, as_captured=bool(self.levels) or self.unused)
        values: dict[str, Value] = {}
        for name, real in self.values.items():
            source = local(name)
            if type(real) is types.CellType and name in self.raw_cells:
                values[name] = cx.wrap_cell(real, source)
            else:
                values[name] = cx.lazy(real, source)
        free: list[Cell] = []
        for name in self.code.co_freevars:
            cell = values.pop(name)
            assert isinstance(cell, Cell)
            free.append(cell)
        frame = Frame(cx, self.code, self.namespace, values, free, root=True)
        cx.effects.restoring = lambda: in_head(frame)
        # A checkpoint is run again and may end anywhere, so its effects happen in place.
        cx.effects.begin(self.again)
        return cx, frame

    # results --------------------------------------------------------------------------------------------------
    def finish_return(self, cx: Capture, frame: Frame, result: Value) -> Captured:
        held = [v for v in frame.locals.values() if runs_code_at_end(v) and v.source is not None]
        if cx.suspended:
            frame.leave()
        cx.nothing_suspended()
        head = Head(cx, self.value_cells)
        changed = self.state_changes()
        if (
            not cx.effects.journal
            and not cx.effects.may_raise()
            and not changed
            and cx.functions.is_plain()
            and cx.errors == function_marks.breaks_are_errors()
            and cx.cuda_graphs == cuda_graph_override.now()
            and not cx.graph.is_wrapped()
            and not cx.effects.looks.watches
        ):
            template = return_template(head, result)
            if template is not None and self.unused and self.fullgraph and not self.has_graph(cx, head):
                template = as_graph_output(head, template)
            if template is not None:
                return self.captured(cx, head, template=template)
            head = Head(cx, self.value_cells)
        for iterator in held:  # an iterator ends with this frame, after the frame's effects
            head.store(head.load_item(iterator), head.temp())
        load = head.load(cx.realize(result))
        effects = replay_effects(head)
        cells = self.returned_cells(head)
        tail = [*effects, *cells, *self.restore_state(head), *load, *build.return_value()]
        return self.captured(cx, head, tail=tail)

    def returned_cells(self, head: Head) -> Code:
        """Stores into the root frame's own cells that outlive it in a closure. One cell may lead to another."""
        code: Code = []
        done: set[str] = set()
        while todo := [n for n in head.own_cells if n not in done]:
            for name in todo:
                done.add(name)
                cell = head.own_cells[name]
                if cell.changed and cell.contents is not None:
                    code += [*head.load_item(cell.contents), *build.store_deref(name)]
                elif cell.changed and name in self.value_cells:
                    code += build.delete_deref(name)
        return code

    def finish_break(self, cx: Capture, frames: list[Frame], record: BreakRecord) -> Captured:
        """Generated code for the frame up to the breaking instruction, in the root or in a chain of direct calls below
        it."""
        cx.nothing_suspended()
        for source, real in self.rests_on:
            cx.guard("equals", source, real)
        if any(map(locals_observe_end, frames)):
            raise SkipFrame("the dict of locals() holds an object whose end runs code")
        head = Head(cx, self.value_cells)
        root = frames[0]
        self.gives_end = self.gives_end or any(map(reaches_finalizer, frames))
        mark_weakly_referable(frames[-1].stack)
        if len(frames) > 1:
            let_go = build.nop()
            tail = self.leave_calls(head, frames, let_go)
            return self.captured(cx, head, tail=tail, let_go=let_go, broke=record)
        else:
            instruction = root.instructions[root.ip]
            assert instruction.offset is not None
            names = self.live(root, instruction)
            cells = self.frame_cells(head, root)
            stores = self.store_locals(head, root, names)
            pushes = self.push_stack(head, root, instruction)
            deletes = self.delete_locals(root, names)
            # The stack is pushed first: an item on it may be a local that gets another value.
            tail = [*replay_effects(head), *self.restore_state(head), *pushes, *cells, *stores, *deletes]
            return self.captured(cx, head, tail=tail, at=instruction.offset, frame=root, broke=record)

    def leave_calls(self, head: Head, frames: list[Frame], let_go: Code) -> Code:
        """Resume the innermost frame at its instruction, then each caller after its call, with the result.

        `let_go` is placed where all arguments are on the stack.
        """
        result: Code = []
        cells: Code = []
        passed: Code = []
        for depth, frame in reversed([*enumerate(frames)]):
            instruction = frame.instructions[frame.ip]
            inner = frame is frames[-1]
            if not inner:
                instruction = frame.current
            assert instruction.offset is not None
            at = instruction.offset if inner else exits(frame.code, instruction.offset)["next"].offset
            entry = next(i for i in frame.instructions if i.offset == at)
            fn, loads = self.suspend(head, frame, entry, [] if inner else [result])
            if frame is frames[0]:
                cells = self.frame_cells(head, frame)
                final = build.call_function(build.load_const(TAIL_CALL), build.load_const(fn), *loads)
                effects = [*replay_effects(head), *self.restore_state(head)]
                tail = distinct([*effects, *cells, *final, *build.return_value()])
                for i in tail:  # in a traceback the callee's resume function takes the place of the call
                    i.positions, i.lineno = instruction.positions, instruction.lineno
                return [*tail, *passed]
            if inner:
                loads = [*loads[:-1], [*loads[-1], *let_go]] if loads else loads
            result = build.call_function(build.call_function(build.load_const(TAIL_CALL), build.load_const(fn), *loads))
            passed += add_waiting_frames(head, result[-1], frames[depth - 1 : 0 : -1])
        raise AssertionError

    def suspend(self, head: Head, frame: Frame, entry: Instruction, extra: list[Code]) -> tuple[Resume, list[Code]]:
        """The resume function that continues `frame` at `entry`, and the loads of its arguments."""
        names = [n for n in self.live(frame, entry) if n in frame.locals or n in frame.free]
        kinds = frame.reading.kinds[entry]
        if "exc" in kinds or "lasti" in kinds or len(kinds) != len(frame.stack) + len(extra):
            raise SkipFrame("a graph break below a call inside of an exception handler")
        result = "boxed" if self.gives_end else "value"
        layout = [*map(self.stack_kind, frame.stack), *[result for _ in extra]]
        boxed = tuple(n for n in names if n in frame.locals and self.is_boxed(frame.locals[n]))
        assert entry.offset is not None  # an instruction of the original frame
        code = resume(frame.code, entry.offset, locals=tuple(names), stack=tuple(layout), boxed=boxed)
        loads: list[Code] = []
        for name in names:
            value = frame.free[name] if name in frame.free else frame.locals[name]
            load = head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
            loads.append([*load, *build.build_list(1)] if name in boxed else load)
        for value, kind in zip(frame.stack, layout, strict=False):
            if value is not NULL:
                load = head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
                loads.append([*load, *build.build_list(1)] if kind == "boxed" else load)
        given = [[*load, *(build.build_list(1) if self.gives_end else [])] for load in extra]
        return Resume.of(code, frame.globals), [*loads, *given]

    def live(self, frame: Frame, entry: Instruction) -> list[str]:
        """Variables of a frame that are read at or after `entry`, or whose end is seen, in slot order."""
        # This comes first: it records the reads of containers.
        ending = {n for n, v in frame.locals.items() if runs_code_at_end(v)}
        code = frame.code
        kept = {n for n, v in frame.locals.items() if holds_ends(v) or is_known_to_others(v)}
        wanted = {*frame.reading.live[entry], *ending, *kept}
        original = origin_of(code)[0]
        # Parameters that pass cells and stack items to a resume function are no variables.
        if original is not code:
            wanted &= {*slot_names(original)}
        return [n for n in dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars, *sorted(wanted)])
                if n in wanted]  # fmt: skip

    def frame_cells(self, head: Head, frame: Frame) -> Code:
        """Stores into the cells that the root frame owns.  While an inlined comprehension runs, some cells are on the
        stack."""
        code: Code = []
        for cell in (*frame.locals.values(), *frame.stack):
            if isinstance(cell, Cell) and cell.frame_name is not None and cell.changed:
                if cell.contents is not None:
                    code += [*head.load_item(cell.contents), *build.store_deref(cell.frame_name)]
                elif cell.frame_name in self.value_cells:
                    code += build.delete_deref(cell.frame_name)
        return code

    def store_locals(self, head: Head, frame: Frame, names: list[str]) -> Code:
        """Stores of the live locals that changed; all are loaded before the first is stored."""
        loads: Code = []
        stores: Code = []
        for name in names:
            value = frame.locals.get(name)
            if value is None or value.source == local(name):
                continue
            if isinstance(value, Cell) and value.frame_name == name:
                continue
            loads += head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
            stores = [*build.store_raw(name), *stores]
        return [*loads, *stores]

    def delete_locals(self, frame: Frame, stored: list[str]) -> Code:
        """Deletions of parameters whose variable no longer has the parameter's value.

        This is the last step, since other values may be loaded from the parameters.  The old values may have to end
        here.  An exception among them would hold this frame by its traceback.
        """

        def is_stale(name: str) -> bool:
            value = frame.locals.get(name)
            if value is None:
                return name not in frame.free
            return name not in stored and not isinstance(value, Cell) and value.source != local(name)

        return [i for n in self.values if is_stale(n) for i in build.delete_fast(n)]

    def push_stack(self, head: Head, frame: Frame, instruction: Any) -> Code:
        kinds = frame.reading.kinds[instruction]
        if len(kinds) != len(frame.stack):
            raise SkipFrame(f"the stack at {instruction!r} differs from the layout of its bytecode")
        code: Code = []
        level = 0
        for depth, (kind, value) in enumerate(zip(kinds, frame.stack, strict=True)):
            if value is NULL:
                code += build.push_null()
            elif kind == "exc":
                code += build.enter_handler(head.load(frame.handled[level]))
                level += 1
            elif kind == "lasti":
                code += build.load_lasti(instruction, depth)
            else:
                code += head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
        return code

    def state_changes(self) -> list[str]:
        return torch_api.changes(self.state)

    def restore_state(self, head: Head) -> Code:
        """Code that restores global state that the program changed and that outlives this part of the frame."""
        code: Code = []
        for name in self.state_changes():
            read, write = torch_state.STATE[name]
            if name == torch_state.NESTING:
                step = build.load_const(read() - self.state[name])
                code += [*head.call(step_nesting, step), *build.pop_top()]
                continue
            code += [*head.call(write, build.load_const(read())), *build.pop_top()]
        return [*code, *self.restore_functions(head)]

    def restore_functions(self, head: Head) -> Code:
        """Code that enters or leaves function modes as the program did, and switches `__torch_function__` on or off."""
        functions = head.cx.functions
        state, begun = functions.begun
        common = 0
        while common < min(len(begun), len(functions.modes)) and begun[common] is functions.modes[common]:
            common += 1
        code = [i for _ in begun[common:] for i in (*head.call(torch._C._pop_torch_function_stack), *build.pop_top())]
        for mode in functions.modes[common:]:
            code += [*head.call(torch._C._push_on_torch_function_stack, head.load(mode)), *build.pop_top()]
        if head.cx.errors != function_marks.breaks_are_errors():
            code += [*head.call(function_marks.switch_errors, build.load_const(head.cx.errors)), *build.pop_top()]
        for kind, value in head.cx.cuda_graphs.items():
            if value != cuda_graph_override.now()[kind]:
                arguments = (build.load_const(kind), build.load_const(value))
                code += [*head.call(cuda_graph_override.switch, *arguments), *build.pop_top()]
        if functions.state != state:
            code += [*head.call(write_state, build.load_const(functions.state)), *build.pop_top()]
        return code

    def has_graph(self, cx: Capture, head: Head) -> bool:
        """Whether a graph has to run."""
        graph = cx.graph
        needed = (
            bool(head.outputs)
            or bool(graph.mutated_inputs())
            or nodes.has_effects(graph.graph)
            or graph.bound.must_check()
        )
        return needed or (self.unused and nodes.computes(graph.graph))

    def captured(
        self,
        cx: Capture,
        head: Head,
        *,
        template: Any = None,
        tail: Code | None = None,
        at: int | None = None,
        frame: Frame | None = None,
        let_go: Code | None = None,
        broke: BreakRecord | None = None,
    ) -> Captured:
        mutated = cx.graph.mutated_inputs()
        sources = [t.source for t in cx.graph.inputs if t.source is not None]
        if (mutated or cx.graph.turned) and len(sources) > 1:  # a write to one tensor must not be a write to another
            cx.guard("no_alias", sources[0], None, tuple(sources[1:]))
        if (decided := cx.items.guard()) is not None:
            cx.guards["data",] = decided
        alias_guards.guard_mutated(cx)
        cx.guard_keys_apart()
        head.only_referred()
        head.counts_alone()
        requires_grad.check(cx, [t.fake for t in head.outputs])
        leaving = [*(t.fake for t in head.outputs), *(cx.graph.inputs[i].fake for i in mutated)]
        tensor_data.check(cx, head.outputs)
        gradients.check_leaves(cx, leaving)
        backward_hooks.check(cx, leaving)
        parameters.check(cx, [t.fake for t in head.outputs])
        cx.facts.check_copies(cx.facts.known(t.fake for t in head.outputs))
        # in a kernel, a view of an argument depends on too much
        if self.kernel and any(map(cx.graph.is_given, head.outputs)):
            raise SkipFrame("a result that shares memory with an argument, in the kernel of an operator")
        has_graph = self.has_graph(cx, head)
        gm: fx.GraphModule | None = None
        inputs: list[Source] = []
        examples: list[Example] = []
        if has_graph:
            gm = cx.graph.finish(head.outputs, unused=self.unused)
            inputs = [t.source for t in cx.graph.used]
            examples = [Example(t.fake, t.layout, t.aliased, t.make) for t in cx.graph.used]
        errors = cx.errors_of_data
        errors.done.writes = cx.facts.lasts
        errors.done.written = tuple(cx.graph.positions(mutated)) if gm is not None else ()
        errors.done.given = bool(cx.graph.generators)
        code: types.CodeType | None = None
        if tail is not None:
            start = self.call_graph(head, inputs, cx.graph) if has_graph else []
            code = self.code_of(head, start, tail, at, frame, let_go)
        recipe = Recipe(
            list(cx.guards.values()), tuple(inputs), None if gm is None else template, code, broke is not None, errors,
            tuple(cx.process), tuple(cx.abstract.values()),
        )  # fmt: skip
        op_count = nodes.op_count(cx.graph.graph) if gm is not None else 0
        return Captured(recipe, gm, examples, broke, tuple(self.breaks), op_count, cx.inlined, cx.sizes)

    def code_of(
        self, head: Head, start: Code, tail: Code, at: int | None, frame: Frame | None, let_go: Code | None
    ) -> types.CodeType:
        """Generated code: the graph's call (`start`), then `tail`.

        With `at`, the instruction there runs natively, and a resume function continues after it.
        """
        asked = [*check_loggers(head), *check_warnings(head), *check_caches(head), *check_drops(head)]
        classes = head.weakly(head.first, asked, head.entry, start, head.prepare, tail)
        made_here = dict.fromkeys(
            i.argval for i in (*classes, *head.first, *head.entry, *start, *head.prepare) if i.opname == "STORE_FAST"
        )
        # these may have to end before the frame returns
        left = [i for name in made_here for i in build.delete_fast(name)]
        if let_go:
            tail = [i for j in tail for i in (left if j is let_go[0] else (j,))]
        start = [i.copy() for i in start]
        failed = self.failed(head, start)
        # after `before` the frame can no longer be run again from its start
        before = [*classes, *head.first, *asked, *head.entry, *start, *head.prepare]
        begun = [] if resume_info(self.code) is None else entered()
        code = distinct([*before, *begun, *tail, *(left if at is not None else [])])
        if at is None:
            return whole(self.code, code, failed=failed)
        assert frame is not None
        return continuation(self.code, code, at, self.tails(frame, at), failed=failed)

    def failed(self, head: Head, start: Code) -> Failed | None:
        """The code that handles an exception of the graph.

        The frame runs again as it is written, or the exception gets the program's line.  A resume function with an
        active handler raises it where the function continues.
        """
        errors = head.cx.errors_of_data
        ours = not self.unused  # errors of a user's backend reach the user
        again = errors.again(ours=ours)
        inside = has_active_handler(self.code)
        if not start or not (ours or again or inside or head.states is not None):
            return None
        # a local would close a reference cycle
        given = [
            [*build.load_fast(ERROR), *build.delete_fast(ERROR)],
            build.load_const(again),
            build.load_const(ours),
            build.load_const(None) if head.states is None else build.load_fast(head.states),
        ]
        ask = build.call_function(build.load_const(runtime_helpers.failed), *given)
        first = [*build.store_fast(ERROR), *build.load_fast(ERROR), *ask, *build.pop_top()]
        for instruction in start:
            instruction.handler = ExceptionHandler(first[0], 0, False)
        return lambda body: [*first, *(raise_at_entry(self.code, body) if inside else build.op("RERAISE", 0))]

    def call_graph(self, head: Head, inputs: list[Source], graph: GraphBuilder) -> Code:
        loads = head.follow_all(inputs)
        code = build.call_function(build.load_const(GRAPH), *loads)
        if graph.is_wrapped() or head.cx.functions.begun[1]:
            aliased = tuple(i.aliased for i in graph.used)
            code = head.call(runtime_helpers.call_graph, build.load_const(GRAPH), build.load_const(aliased), *loads)
        if not head.outputs:
            return [*code, *build.pop_top()]
        code = [*code, *build.unpack_sequence(len(head.outputs))]
        return [*code, *(i for n in range(len(head.outputs)) for i in build.store_fast(f"__out{n}"))]

    def stack_kind(self, value: Value) -> str:
        """How a resume function receives a stack item (see `bytecode.resume`)."""
        if value is NULL:
            return "null"
        if isinstance(value, Cell):
            return "cell"
        return "boxed" if self.is_boxed(value) else "value"

    def is_boxed(self, value: Value) -> bool:
        """Whether a value is passed in a box, so that only the resume function holds it.

        True if its end is seen, or if it can hold an object with such an end that the breaking instruction gives.
        """
        holds = (
            not is_quiet(value.real)
            if isinstance(value, LazyObject)
            else isinstance(value, (List, Tuple, Dict, Set, Object))
        )
        return runs_code_at_end(value) or (self.gives_end and holds)

    def tails(self, frame: Frame, at: int) -> dict[str, Code]:
        """For each exit of the native instruction, a call of the resume function that continues there."""
        result: dict[str, Code] = {}
        kinds = [self.stack_kind(v) for v in frame.stack]
        instruction = frame.instructions[frame.ip]
        if instruction.opname == "GET_ITER":
            kinds[-1] = "value" if isinstance(frame.stack[-1], (Const, List, Tuple, Dict, Set)) else "boxed"
        bound = {*frame.locals, *frame.free}
        if instruction.opname in ("STORE_FAST", "DELETE_FAST"):
            # NULL: the end of a comprehension
            stored = instruction.opname == "STORE_FAST" and frame.stack[-1] is not NULL
            bound = bound | {instruction.argval} if stored else bound - {instruction.argval}
        boxed = {n for n, v in frame.locals.items() if self.is_boxed(v)}
        for key, exit_ in exits(self.code, at).items():
            entry = next(i for i in frame.instructions if i.offset == exit_.offset)
            names = [n for n in self.live(frame, entry) if n in bound]
            depth = len(kinds) + exit_.effect
            layout = (kinds + ["value"] * max(0, exit_.effect))[:depth]
            if layout and pushes_result(last_of_group(self.code, at).opname, key) and instruction.opname != "GET_ITER":
                layout[-1] = "boxed" if self.gives_end else "value"
            if loads_method(instruction) or instruction.opname == "LOAD_GLOBAL" and instruction.flag:
                layout[-2:] = ["value", "null"] if NULL_AFTER_CALLABLE else ["null", "value"]
            given = tuple(n for n in names if n in boxed)
            code = resume(self.code, exit_.offset, locals=tuple(names), stack=tuple(layout), boxed=given)
            info = resume_info(code)
            assert info is not None
            fn = Resume.of(code, self.namespace)
            prefix = f"__tail_{key}_"
            result[key] = tail_call(TAIL_CALL, fn, tuple(names), info.stack, boxed=given, prefix=prefix)
        return result


def add_waiting_frames(head: Head, call: Instruction, frames: list[Frame]) -> Code:
    """Handler code that adds the waiting frames to the traceback of an exception out of a call.

    These frames wait for the call's result and are no Python frames meanwhile.
    """
    at = [(f, f.current) for f in frames if not tracebacks.is_ours(f.code)]
    places = [tracebacks.place_of(f.code, f.globals, i.offset, i.lineno or f.code.co_firstlineno) for f, i in at]
    if not places:
        return []
    given = [*build.load_fast(ERROR), *build.delete_fast(ERROR)]
    add = head.call(tracebacks.insert_places, given, build.load_const(tuple(tracebacks.entries(places))))
    first = [*build.store_fast(ERROR), *build.load_fast(ERROR), *add, *build.pop_top()]
    call.handler = ExceptionHandler(first[0], 0, False)
    return [*first, *build.op("RERAISE", 0)]


def step_around_own_frames(reads_frame: dict[int, int | None], stop: int | None) -> int | None:
    """The step to stop at instead, if the instruction reads the variables of a real frame."""
    while stop in reads_frame:
        stop = reads_frame[stop]
        if stop is None:
            raise SkipFrame("a graph break inside of a call that reads the frame's own variables (eval, exec)")
    return stop


def exception_text(cx: Capture, exception: Value) -> str:
    """An exception and its message, if the message is known without running code of the program."""
    text = exception.python_type().__qualname__
    if (
        isinstance(exception, Object)
        and not exception.exists
        and not isinstance(exception.cls.__str__, types.FunctionType)
    ):
        with contextlib.suppress(Break, Raised, Specialise):
            text += f": {exceptions.text(cx, exception, str).const()}"
    return text


def reaches_finalizer(frame: Frame) -> bool:
    """Whether a frame names or holds a class whose instances have a finalizer: its results may be instances."""
    if names_ends(frame.code, frame.globals):
        return True
    held = (*frame.locals.values(), *frame.free.values(), *frame.stack)
    values = [v.contents if isinstance(v, Cell) else v for v in held]
    classes: list[Any] = [v.cls if isinstance(v, (Class, Object)) else getattr(v, "real", None) for v in values]
    return any(issubclass(type(c), type) and is_ended(c) for c in classes)


def is_known_to_others(value: Value) -> bool:
    """Whether a variable holds a class that may end: its bases refer to it, and show its end."""
    held = value.contents if isinstance(value, Cell) else value
    return may_be_freed(held.cls if isinstance(held, Class) else getattr(held, "real", None))


def in_head(frame: Frame) -> bool:
    """Whether a resume function is still in the head that restores its locals and stack."""
    info = resume_info(frame.code)
    return info is not None and frame.instructions[frame.ip].offset not in info.offsets


def distinct(code: Code) -> Code:
    """`code` with each instruction object at one place only (a load may be used for several values)."""
    seen: set[int] = set()
    result: Code = []
    for instruction in code:
        result.append(instruction.copy() if id(instruction) in seen else instruction)
        seen.add(id(instruction))
    return result


# Instructions that push nothing new: the item on top afterwards was there before.
NO_RESULT = ("POP_TOP", "POP_ITER", "POP_JUMP", "STORE_", "DELETE_", "NOP", "NOT_TAKEN", "RESUME", "JUMP", "END_FOR", "LIST_",
             "SET_", "MAP_ADD", "DICT_", "POP_EXCEPT", "KW_NAMES", "PRECALL")  # fmt: skip


def pushes_result(opname: str, key: str) -> bool:
    """Whether the instruction leaves a new value on top when it leaves through `key`."""
    if opname == "FOR_ITER" and key == "jump":
        return False
    return not opname.startswith(NO_RESULT)


WEAK = {weakref.ref, weakref.proxy, weakref.finalize, weakref.WeakMethod, weakref.WeakSet}


def mark_weakly_referable(stack: list[Value]) -> None:
    """Mark arguments of a native callee that it may refer to weakly: variables then hold them, read again or not.

    Tensors and functions are marked only for callees that create weak references: most calls have such arguments.
    """
    called = [v.fn if isinstance(v, Builtin) else v.cls for v in stack if isinstance(v, (Builtin, Class))]
    weakly = any(fn is known for fn in called for known in WEAK)
    given = [v.receiver if isinstance(v, Method) and weakly else v for v in stack]
    inside = [v for c in given if weakly for v in values_in(c)]
    for value in [*given, *inside]:
        if isinstance(value, Object) or (weakly and isinstance(value, (Tensor, Function))) or _is_referable(value):
            value.ends = True


def _is_referable(value: Value) -> bool:
    """Whether instances of this opaque value's class can have weak references: a program's subclass of an unmodelled
    class."""
    if not isinstance(value, Opaque):
        return False
    cls = type(value.real)
    return is_mutable(cls) and bool(type.__getattribute__(cls, "__weakrefoffset__"))
