"""Capture of one frame, from its first instruction to its return or first graph break.

In: a code object, its globals, and the values in its locals array.  Out: `Captured`, data: the graph and a
`Recipe`: guards, and either a return template for the native plan, or generated code that calls the graph and, after a break,
tail-calls a resume function.  The graph is not compiled here.  What cannot be captured at all raises `SkipFrame`.

A break is found by running; then the capture runs again, up to the instruction that broke, so that no half-done
work of that instruction is left in graph, guards or side effects.  Where breaks are errors, the first one is the result.
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

from pycompiler.capture import apart, nodes, rebuild, skip, tracebacks
from pycompiler.capture.breaks import Again, Break, BreakRecord, NotCaptured, Raised, SkipFrame
from pycompiler.capture.builtins import backward_hooks, data, flags, gradients, parameters, torch_api
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
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
from pycompiler.capture.bytecode.instruction import Handler, Instruction
from pycompiler.capture.bytecode.reading import last_of_group
from pycompiler.capture.bytecode.resume import ERROR, cell_parameters, entered, landing, lands, origin_of
from pycompiler.capture.cached import Tried
from pycompiler.capture.codegen import Head, given_back, return_template
from pycompiler.capture.context import Capture
from pycompiler.capture.deep import DEEP_STACK
from pycompiler.capture.funnel import write_state
from pycompiler.capture.graph import GraphBuilder
from pycompiler.capture.interpreter import Frame, breaking_frame
from pycompiler.capture.operators import NULL_AFTER_CALLABLE
from pycompiler.capture.recipe import GRAPH, TAIL_CALL, Recipe, Resume
from pycompiler.capture.replays import ask_drops, ask_loggers, ask_tables, ask_warnings, replay_effects
from pycompiler.capture.sizes import NeedsSymbols, Policy, Sizes
from pycompiler.capture.values import exceptions
from pycompiler.capture.values.attributes import is_mutable
from pycompiler.capture.values.base import NULL, Cell, Lazy, Value
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.finalizers import is_ended, is_quiet, names_ends
from pycompiler.capture.values.functions import Builtin, Function, Method
from pycompiler.capture.values.iterators import ends_others, holds_ends
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.references import shows_an_end
from pycompiler.capture.values.sequences import List, Tuple
from pycompiler.capture.values.sets import Set, values_in
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir import control, torch_state
from pycompiler.ir.autocast import step_nesting
from pycompiler.ir.fake import Layout
from pycompiler.ir.guards import as_usual, function_modes, global_state, in_checkpoint, in_kernel, levels, modes_off
from pycompiler.ir.heard import Heard, Listening
from pycompiler.ir.leaves import Leaves
from pycompiler.ir.mortal import may_end
from pycompiler.ir.source import Source, local
from pycompiler.ir.symbols import Specialise
from pycompiler.logs import stage

log = stage("dynamo")


@dataclass(frozen=True)
class Example:
    """What stood for an input of a graph during its capture; what it was in this call is at its source."""

    fake: Any  # a fake tensor, or a symbolic number
    layout: Layout | None = None  # symbolic sizes and strides
    aliased: bool = False  # the graph gets an alias of class torch.Tensor
    make: Callable[[Any], Any] | None = None  # where it has no source: makes one, in the scope of a call


@dataclass
class Captured:
    """The result of a capture.  `examples` says what stood for the graph's inputs; no tensor of the call's is kept."""

    recipe: Recipe
    graph: fx.GraphModule | None
    examples: list[Example]
    broke: BreakRecord | None = None  # where it ends
    breaks: tuple[BreakRecord, ...] = ()  # all that were met: that of a callee may have become that of its call
    op_count: int = 0
    inlined: set[types.CodeType] = field(default_factory=set)
    sizes: Sizes | None = None  # symbols, and what is assumed of them: more may be while the graph is compiled


class _AtBreak(Leaves):
    """The capture has reached the instruction that must run natively."""


def capture_frame(
    code: types.CodeType,
    namespace: dict[str, Any],
    values: dict[str, Any],
    *,
    fullgraph: bool = False,
    policy: Policy | None = None,
    unused: bool = False,
) -> Captured | BreakRecord:
    """Capture the frame of `code` with the locals array `values` (by name, cells as cells) and globals `namespace`.

    A break is the result where it may not be: with `fullgraph`, or where the program says so.  `unused`: calls
    whose result nobody reads stay in the graph, and with `fullgraph` a frame that returns a tensor of its caller's has one.
    """
    if (reason := skip.why_frame_skipped(code)) is not None:
        raise SkipFrame(reason)
    state, seen = torch_state.read_state(), global_state()
    try:
        with DEEP_STACK, modes_off(), as_usual(), Listening(in_c=False) as heard:
            session = _Session(code, namespace, values, policy or Policy(), function_modes(), seen, unused, fullgraph)
            session.heard = heard
            try:
                return session.run()
            except NotCaptured as e:
                e.breaks = tuple(session.breaks)
                raise
    finally:
        torch_api.put_back(state)


class _Session:
    """One capture with its retries."""

    def __init__(
        self,
        code: types.CodeType,
        namespace: dict[str, Any],
        values: dict[str, Any],
        policy: Policy,
        modes: list[Any],
        seen: tuple[Any, ...],
        unused: bool,
        fullgraph: bool,
    ) -> None:
        self.code = code
        self.unused = unused
        self.fullgraph = fullgraph
        self.modes = modes  # function modes that are on around the call
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
        self.levels, self.kernel, self.again = levels(), in_kernel(), in_checkpoint()
        self.tried: dict[Any, Any] = {}  # calls of cached functions, for all attempts: `cached.py`
        self.verdicts: dict[Any, bool] = {}
        self.rests_on: tuple[tuple[Any, Any], ...] = ()
        self.breaks: list[BreakRecord] = []
        self.heard: list[Heard] = []
        self.gives_end = False  # of the instruction that breaks, or of calls around it

    def run(self) -> Captured | BreakRecord:
        record: BreakRecord | None = None
        stop: int | None = None
        while True:
            torch_api.put_back(self.state)
            cx, frame = self.start(stop)
            cx.errors_of_data.whole = self.fullgraph
            last, ends, reads_frame = stop, self.fullgraph, cx.reads_frame
            try:
                try:
                    _, result = frame.run()
                except _AtBreak:
                    assert record is not None
                    if any(in_head(f) for f in cx.stopped):
                        raise SkipFrame(f"a break while its locals are restored: {record.reason}") from None
                    cx.effects.looks.end(broke=True)
                    try:
                        return self.finish_break(cx, cx.stopped, record)
                    except SkipFrame as e:  # below a call: what is alive there cannot be made, so the call is the break
                        if len(cx.stopped) == 1:
                            raise
                        log.info("%s: the call around a break is the break: %s", self.code.co_qualname, e)
                        stop = cx.stopped[-2].begin
                        continue
                cx.effects.looks.end(broke=False)
                return self.finish_return(cx, frame, result)
            except NeedsSymbols:
                self.symbolic = True
                continue
            except Again:
                stop = record = None
                continue
            except Tried:
                continue
            except Specialise as e:
                origins = cx.sizes.origins_of(e)
                if not origins or cx.sizes.is_read(e.names):
                    raise SkipFrame(str(e)) from None
                self.policy.specialise(cx.sizes.unmarked(origins, e))
                log.info("%s: sizes are numbers again: %s", self.code.co_qualname, e)
                continue
            except Break as b:
                record = BreakRecord(b.kind, b.reason, b.hint, b.stack or (frame.user_frame(),))
                self.gives_end, self.rests_on = b.gives_end, b.rests_on
                stop = breaking_frame(b.frames or (frame,)).begin if b.step is None else b.step
                b.__traceback__ = b.__context__ = (
                    None  # a frame on its way may hold it, and would hold the program's own
                )
                if last is not None and stop >= last:  # not the instructions, but what they leave behind
                    raise SkipFrame(b.reason) from None
                ends |= cx.errors  # the program wants none here
            except Raised as r:
                self.rests_on = ()
                broke = Break("uncaught-exception", told(cx, r.value))
                record = BreakRecord(broke.kind, broke.reason, broke.hint, (frame.user_frame(),))
                stop = r.value.raised_at if isinstance(r.value, Object) and r.value.raised_at else frame.begin
            finally:
                cx.release()
            stop = around_own_frames(reads_frame, stop)
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
        cx.effects.begin(self.again)  # what a checkpoint runs again it ends anywhere: effects happen where they stand
        return cx, frame

    # results --------------------------------------------------------------------------------------------------
    def finish_return(self, cx: Capture, frame: Frame, result: Value) -> Captured:
        held = [v for v in frame.locals.values() if ends_others(v) and v.source is not None]
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
            and cx.errors == control.breaks_are_errors()
            and not cx.graph.is_wrapped()
            and not cx.effects.looks.watches
        ):
            template = return_template(head, result)
            if template is not None and self.unused and self.fullgraph and not self.has_graph(cx, head):
                template = given_back(head, template)
            if template is not None:
                return self.captured(cx, head, template=template)
            head = Head(cx, self.value_cells)
        for iterator in held:  # it ends with this frame, after its effects
            head.store(head.load_item(iterator), head.temp())
        load = head.load(cx.realize(result))
        effects = replay_effects(head)
        cells = self.returned_cells(head)
        tail = [*effects, *cells, *self.restore_state(head), *load, *build.return_value()]
        return self.captured(cx, head, tail=tail)

    def returned_cells(self, head: Head) -> Code:
        """Stores into the root frame's own cells that outlive it in a closure; one may lead to another."""
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
        """The frame up to the instruction that broke, in the root or in a chain of direct calls below it."""
        cx.nothing_suspended()
        for source, real in self.rests_on:
            cx.guard("equals", source, real)
        if any(map(shows_an_end, frames)):
            raise SkipFrame("what locals() gave holds what ends with the frame")
        head = Head(cx, self.value_cells)
        root = frames[0]
        self.gives_end = self.gives_end or any(map(reaches_ends, frames))
        note_referred(frames[-1].stack)
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
            # the stack first: what is on it may be a local that gets another value
            tail = [*replay_effects(head), *self.restore_state(head), *pushes, *cells, *stores, *deletes]
            return self.captured(cx, head, tail=tail, at=instruction.offset, frame=root, broke=record)

    def leave_calls(self, head: Head, frames: list[Frame], let_go: Code) -> Code:
        """Resume the innermost frame at its instruction, then each caller after its call with the result.

        `let_go` stands where all arguments are on the stack.
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
                for i in tail:  # to a traceback the callee's resume function is the call
                    i.positions, i.lineno = instruction.positions, instruction.lineno
                return [*tail, *passed]
            if inner:
                loads = [*loads[:-1], [*loads[-1], *let_go]] if loads else loads
            result = build.call_function(build.call_function(build.load_const(TAIL_CALL), build.load_const(fn), *loads))
            passed += between(head, result[-1], frames[depth - 1 : 0 : -1])
        raise AssertionError

    def suspend(self, head: Head, frame: Frame, entry: Instruction, extra: list[Code]) -> tuple[Resume, list[Code]]:
        """The resume function that continues `frame` at `entry`, and the loads of its arguments."""
        names = [n for n in self.live(frame, entry) if n in frame.locals or n in frame.free]
        kinds = frame.reading.kinds[entry]
        if "exc" in kinds or "lasti" in kinds or len(kinds) != len(frame.stack) + len(extra):
            raise SkipFrame("a break below a call inside of an exception handler")
        result = "boxed" if self.gives_end else "value"
        layout = [*map(self.stack_kind, frame.stack), *[result for _ in extra]]
        boxed = tuple(n for n in names if n in frame.locals and self.is_boxed(frame.locals[n]))
        assert entry.offset is not None  # an instruction of the frame's
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
        """Variables of a frame that are read at or after `entry`, in slot order, and those whose end is seen."""
        # Asked first: it notes what containers are asked for.
        ending = {n for n, v in frame.locals.items() if ends_others(v)}
        code = frame.code
        kept = {n for n, v in frame.locals.items() if holds_ends(v) or is_known_to_others(v)}
        wanted = {*frame.reading.live[entry], *ending, *kept}
        original = origin_of(code)[0]
        if original is not code:  # parameters in which a resume function is given cells and its stack are no variables
            wanted &= {*slot_names(original)}
        return [n for n in dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars, *sorted(wanted)])
                if n in wanted]  # fmt: skip

    def frame_cells(self, head: Head, frame: Frame) -> Code:
        """Stores into the cells that the root frame itself owns; while an inlined comprehension runs, the stack holds some."""
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
        """Deletions of parameters that hold what the variable does no more: the last step, since others may be loaded from
        them.  What they held may have to end here; an exception among it would hold this frame by its traceback.
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
            raise SkipFrame(f"the stack at {instruction!r} is not what its bytecode says")
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
        """Global state that the program changed and that outlives this part of the frame."""
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
        """Function modes that the program entered or left, and whether `__torch_function__` is on."""
        functions = head.cx.functions
        state, begun = functions.begun
        common = 0
        while common < min(len(begun), len(functions.modes)) and begun[common] is functions.modes[common]:
            common += 1
        code = [i for _ in begun[common:] for i in (*head.call(torch._C._pop_torch_function_stack), *build.pop_top())]
        for mode in functions.modes[common:]:
            code += [*head.call(torch._C._push_on_torch_function_stack, head.load(mode)), *build.pop_top()]
        if head.cx.errors != control.breaks_are_errors():
            code += [*head.call(control.switch_errors, build.load_const(head.cx.errors)), *build.pop_top()]
        if functions.state != state:
            code += [*head.call(write_state, build.load_const(functions.state)), *build.pop_top()]
        return code

    def has_graph(self, cx: Capture, head: Head) -> bool:
        """Whether a graph is to run."""
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
        if (mutated or cx.graph.turned) and len(sources) > 1:  # a write to one tensor is no write to another
            cx.guard("no_alias", sources[0], None, tuple(sources[1:]))
        if (decided := cx.items.guard()) is not None:
            cx.guards["data",] = decided
        apart.guard_mutated(cx)
        cx.guard_keys_apart()
        head.only_referred()
        head.counts_alone()
        flags.check(cx, [t.fake for t in head.outputs])
        leaving = [*(t.fake for t in head.outputs), *(cx.graph.inputs[i].fake for i in mutated)]
        data.check(cx, head.outputs)
        gradients.check_leaves(cx, leaving)
        backward_hooks.check(cx, leaving)
        parameters.check(cx, [t.fake for t in head.outputs])
        cx.graph.check_picks(t.fake for t in head.outputs)
        if self.kernel and any(map(cx.graph.is_given, head.outputs)):  # what a view of it is there depends on much
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
        """Generated code: the graph's call (`start`), then `tail`; the instruction at `at` runs as it is, and what follows it
        goes on."""
        asked = [*ask_loggers(head), *ask_warnings(head), *ask_tables(head), *ask_drops(head)]
        classes = head.weakly(head.first, asked, head.entry, start, head.prepare, tail)
        made_here = dict.fromkeys(
            i.argval for i in (*classes, *head.first, *head.entry, *start, *head.prepare) if i.opname == "STORE_FAST"
        )
        left = [i for name in made_here for i in build.delete_fast(name)]  # it may have to die before we return
        if let_go:
            tail = [i for j in tail for i in (left if j is let_go[0] else (j,))]
        start = [i.copy() for i in start]
        failed = self.failed(head, start)
        # after `before` nothing begins anew
        before = [*classes, *head.first, *asked, *head.entry, *start, *head.prepare]
        begun = [] if resume_info(self.code) is None else entered()
        code = distinct([*before, *begun, *tail, *(left if at is not None else [])])
        if at is None:
            return whole(self.code, code, failed=failed)
        assert frame is not None
        return continuation(self.code, code, at, self.tails(frame, at), failed=failed)

    def failed(self, head: Head, start: Code) -> Failed | None:
        """What a graph's error leads to: the frame runs again as it is written, or the error has the program's lines, and, of a
        resume function's with an active handler, is raised where the function goes on."""
        errors = head.cx.errors_of_data
        ours = not self.unused  # errors of a user's backend reach the user
        again = errors.again(ours=ours)
        inside = lands(self.code)
        if not start or not (ours or again or inside or head.states is not None):
            return None
        given = [
            [*build.load_fast(ERROR), *build.delete_fast(ERROR)],
            build.load_const(again),
            build.load_const(ours),
            build.load_const(None) if head.states is None else build.load_fast(head.states),
        ]  # a local would close a cycle
        ask = build.call_function(build.load_const(rebuild.failed), *given)
        first = [*build.store_fast(ERROR), *build.load_fast(ERROR), *ask, *build.pop_top()]
        for instruction in start:
            instruction.handler = Handler(first[0], 0, False)
        return lambda body: [*first, *(landing(self.code, body) if inside else build.op("RERAISE", 0))]

    def call_graph(self, head: Head, inputs: list[Source], graph: GraphBuilder) -> Code:
        loads = head.follow_all(inputs)
        code = build.call_function(build.load_const(GRAPH), *loads)
        if graph.is_wrapped() or head.cx.functions.begun[1]:
            aliased = tuple(i.aliased for i in graph.used)
            code = head.call(rebuild.call_graph, build.load_const(GRAPH), build.load_const(aliased), *loads)
        if not head.outputs:
            return [*code, *build.pop_top()]
        code = [*code, *build.unpack_sequence(len(head.outputs))]
        return [*code, *(i for n in range(len(head.outputs)) for i in build.store_fast(f"__out{n}"))]

    def stack_kind(self, value: Value) -> str:
        """How a resume function gets an item of the stack (see `bytecode.resume`)."""
        if value is NULL:
            return "null"
        if isinstance(value, Cell):
            return "cell"
        return "boxed" if self.is_boxed(value) else "value"

    def is_boxed(self, value: Value) -> bool:
        """Whether a resume function alone holds a value: its end is seen, or that of what the break gives it to hold."""
        holds = (
            not is_quiet(value.real) if isinstance(value, Lazy) else isinstance(value, (List, Tuple, Dict, Set, Object))
        )
        return ends_others(value) or (self.gives_end and holds)

    def tails(self, frame: Frame, at: int) -> dict[str, Code]:
        """For each way out of the native instruction, a call of the resume function that goes on there."""
        result: dict[str, Code] = {}
        kinds = [self.stack_kind(v) for v in frame.stack]
        instruction = frame.instructions[frame.ip]
        if instruction.opname == "GET_ITER":
            kinds[-1] = "value" if isinstance(frame.stack[-1], (Const, List, Tuple, Dict, Set)) else "boxed"
        bound = {*frame.locals, *frame.free}
        if instruction.opname in ("STORE_FAST", "DELETE_FAST"):
            stored = instruction.opname == "STORE_FAST" and frame.stack[-1] is not NULL  # NULL: a comprehension's end
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


def between(head: Head, call: Instruction, frames: list[Frame]) -> Code:
    """What an exception out of a call comes to; the frames wait for its result, and are none of Python's meanwhile."""
    at = [(f, f.current) for f in frames if not tracebacks.is_ours(f.code)]
    places = [tracebacks.place_of(f.code, f.globals, i.offset, i.lineno or f.code.co_firstlineno) for f, i in at]
    if not places:
        return []
    given = [*build.load_fast(ERROR), *build.delete_fast(ERROR)]
    add = head.call(tracebacks.between, given, build.load_const(tuple(tracebacks.entries(places))))
    first = [*build.store_fast(ERROR), *build.load_fast(ERROR), *add, *build.pop_top()]
    call.handler = Handler(first[0], 0, False)
    return [*first, *build.op("RERAISE", 0)]


def around_own_frames(reads_frame: dict[int, int | None], stop: int | None) -> int | None:
    """Where to stop instead, if the instruction is one that reads the variables of a real frame."""
    while stop in reads_frame:
        stop = reads_frame[stop]
        if stop is None:
            raise SkipFrame("it asks for its own variables (eval, exec), in which something breaks the graph")
    return stop


def told(cx: Capture, exception: Value) -> str:
    """An exception and its text, where that is known without running any of the program's code."""
    text = exception.python_type().__qualname__
    if (
        isinstance(exception, Object)
        and not exception.exists
        and not isinstance(exception.cls.__str__, types.FunctionType)
    ):
        with contextlib.suppress(Break, Raised, Specialise):
            text += f": {exceptions.text(cx, exception, str).const()}"
    return text


def reaches_ends(frame: Frame) -> bool:
    """Whether a frame names, or holds, a class whose instances have a finalizer: what it gives may be one."""
    if names_ends(frame.code, frame.globals):
        return True
    held = (*frame.locals.values(), *frame.free.values(), *frame.stack)
    values = [v.contents if isinstance(v, Cell) else v for v in held]
    classes: list[Any] = [v.cls if isinstance(v, (Class, Object)) else getattr(v, "real", None) for v in values]
    return any(issubclass(type(c), type) and is_ended(c) for c in classes)


def is_known_to_others(value: Value) -> bool:
    """Whether a variable holds a class that ends: its bases know it, and so does what is done to them."""
    held = value.contents if isinstance(value, Cell) else value
    return may_end(held.cls if isinstance(held, Class) else getattr(held, "real", None))


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


# Instructions that leave nothing new on the stack: what is on top afterwards was there before.
NO_RESULT = ("POP_TOP", "POP_ITER", "POP_JUMP", "STORE_", "DELETE_", "NOP", "NOT_TAKEN", "RESUME", "JUMP", "END_FOR", "LIST_",
             "SET_", "MAP_ADD", "DICT_", "POP_EXCEPT", "KW_NAMES", "PRECALL")  # fmt: skip


def pushes_result(opname: str, key: str) -> bool:
    """Whether the instruction leaves a new value on top when it leaves through `key`."""
    if opname == "FOR_ITER" and key == "jump":
        return False
    return not opname.startswith(NO_RESULT)


WEAK = {weakref.ref, weakref.proxy, weakref.finalize, weakref.WeakMethod, weakref.WeakSet}


def note_referred(stack: list[Value]) -> None:
    """Who is called natively may refer weakly to what is passed: then variables hold it, read again or not.  Of tensors and
    functions that is asked of weak references alone: most calls get some."""
    called = [v.fn if isinstance(v, Builtin) else v.cls for v in stack if isinstance(v, (Builtin, Class))]
    weakly = any(fn is known for fn in called for known in WEAK)
    given = [v.receiver if isinstance(v, Method) and weakly else v for v in stack]
    inside = [v for c in given if weakly for v in values_in(c)]
    for value in [*given, *inside]:
        if isinstance(value, Object) or (weakly and isinstance(value, (Tensor, Function))) or _is_referable(value):
            value.ends = True


def _is_referable(value: Value) -> bool:
    """Whether weak references lead to instances: of the program's subclass of a class that is not modelled."""
    if not isinstance(value, Opaque):
        return False
    cls = type(value.real)
    return is_mutable(cls) and bool(type.__getattribute__(cls, "__weakrefoffset__"))
