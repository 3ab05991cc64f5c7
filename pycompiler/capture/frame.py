"""Capture of one frame, from its first instruction to its return or first graph break.

In: a code object, its globals, and the values in its locals array.  Out: `Captured`: guards, and either a return
template for the native plan, or a generated function that calls the graph and, after a break, tail-calls a resume
function.  What cannot be captured at all raises `SkipFrame`.

A break is found by running; then the capture runs again, up to the instruction that broke, so that no half-done
work of that instruction is left in graph, guards or side effects.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import fx

from pycompiler.capture import skip
from pycompiler.capture.breaks import Break, Raised, SkipFrame
from pycompiler.capture.builtins import containers as _containers
from pycompiler.capture.builtins import python as _python
from pycompiler.capture.builtins import torch_api
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.bytecode.frames import FrameLayout, continuation, exits, resume, resume_info, tail_call, whole
from pycompiler.capture.bytecode.resume import UnitOf
from pycompiler.capture.bytecode.shapes import stack_kinds
from pycompiler.capture.codegen import Head, replay_effects, return_template
from pycompiler.capture.context import Capture
from pycompiler.capture.interpreter import Frame, decoded
from pycompiler.capture.opcodes import control as _control
from pycompiler.capture.opcodes import stack as _stack
from pycompiler.capture.opcodes import variables as _variables
from pycompiler.capture.values.base import NULL, Cell, Value
from pycompiler.ir.guards import Guard, UserFrame
from pycompiler.ir.source import Source, local

LOADED = (_containers, _python, _control, _stack, _variables)  # imported for their tables


class Host(Protocol):
    """What the pipeline supplies: a compiler of graphs, resume functions, and the native tail call."""

    tail_call: Any

    def compile_graph(self, gm: fx.GraphModule, inputs: list[torch.Tensor], cx: Capture) -> Callable[..., Any]: ...

    def resume_function(self, code: types.CodeType, namespace: dict[str, Any]) -> Any: ...


@dataclass(frozen=True)
class BreakRecord:
    """One graph break: its kind, reason, hint, and the user's stack, outermost first."""

    kind: str
    reason: str
    hint: str
    stack: tuple[UserFrame, ...]


@dataclass
class Captured:
    """The result of a capture.  `template` is set when the frame needs no Python code; else `function` is."""

    guards: list[Guard]
    graph: fx.GraphModule | None
    inputs: list[Source]
    compiled: Callable[..., Any] | None = None
    template: Any = None
    function: types.FunctionType | None = None
    broke: BreakRecord | None = None
    op_count: int = 0
    empty: bool = False  # neither graph nor effects nor break: the original code does as well
    inlined: set[types.CodeType] = field(default_factory=set)


class _AtBreak(Exception):
    """The capture has reached the instruction that must run natively."""


def capture_frame(
    code: types.CodeType,
    namespace: dict[str, Any],
    values: dict[str, Any],
    host: Host,
    *,
    fullgraph: bool = False,
    on_break: Callable[[BreakRecord], None] | None = None,
) -> Captured:
    """Capture the frame of `code` with the locals array `values` (by name, cells as cells) and globals `namespace`."""
    reason = skip.why_frame_skipped(code)
    if reason is not None:
        raise SkipFrame(reason)
    session = _Session(code, namespace, values, host)
    state = torch_api.read_state()
    rng = torch.random.get_rng_state()
    try:
        return session.run(fullgraph, on_break)
    finally:
        torch_api.write_state(state)
        if not torch.equal(rng, torch.random.get_rng_state()):
            torch.random.set_rng_state(rng)


class _Session:
    """One capture with its retries."""

    def __init__(
        self, code: types.CodeType, namespace: dict[str, Any], values: dict[str, Any], host: Host
    ) -> None:
        self.code = code
        self.namespace = namespace
        self.values = values
        self.host = host
        self.layout = FrameLayout.of(code)
        info = resume_info(code)
        raw = set(code.co_freevars) | set(info.restored if info is not None else ())
        self.value_cells = frozenset(n for n in self.layout.cells if n not in raw and n in self.layout.params)
        self.raw_cells = raw
        self.state = torch_api.read_state()

    def run(self, fullgraph: bool, on_break: Callable[[BreakRecord], None] | None) -> Captured:
        record: BreakRecord | None = None
        stop: int | None = None
        while True:
            torch_api.write_state(self.state)
            cx, frame = self.start(stop)
            try:
                _, result = frame.run()
                return self.finish_return(cx, frame, result)
            except _AtBreak:
                assert record is not None
                return self.finish_break(cx, frame, record)
            except Break as b:
                record = BreakRecord(b.kind, b.reason, b.hint, b.stack)
            except Raised as r:
                stack = (frame.user_frame(),)
                broke = Break("uncaught-exception", r.value.describe())
                record = BreakRecord(broke.kind, broke.reason, broke.hint, stack)
            if on_break is not None:
                on_break(record)
            stop = cx.root_steps

    def start(self, stop: int | None) -> tuple[Capture, Frame]:
        cx = Capture(self.namespace)
        cx.stop_at = stop
        cx.stopper = _AtBreak
        values: dict[str, Value] = {}
        for name, real in self.values.items():
            source = local(name)
            if isinstance(real, types.CellType) and name in self.raw_cells:
                values[name] = cx.wrap_cell(real, source)
            else:
                values[name] = cx.lazy(real, source)
        free: list[Cell] = []
        for name in self.code.co_freevars:
            cell = values.pop(name)
            assert isinstance(cell, Cell)
            free.append(cell)
        return cx, Frame(cx, self.code, self.namespace, values, free, root=True)

    # results --------------------------------------------------------------------------------------------------
    def finish_return(self, cx: Capture, frame: Frame, result: Value) -> Captured:
        head = Head(cx, self.value_cells)
        changed = self.state_changes()
        if not cx.effects and not changed:
            template = return_template(head, result)
            if template is not None:
                return self.captured(cx, head, template=template)
            head = Head(cx, self.value_cells)
        load = head.load(cx.realize(result))
        effects = replay_effects(head)
        tail = [*effects, *self.restore_state(head), *load, *build.return_value()]
        return self.captured(cx, head, tail=tail)

    def finish_break(self, cx: Capture, frame: Frame, record: BreakRecord) -> Captured:
        instruction = frame.instructions[frame.ip]
        assert instruction.offset is not None
        head = Head(cx, self.value_cells)
        effects = self.frame_cells(head, frame)
        stores, bound = self.store_locals(head, frame)
        pushes = self.push_stack(head, frame, instruction)
        tail = [*replay_effects(head), *self.restore_state(head), *effects, *stores, *pushes]
        captured = self.captured(cx, head, tail=tail, at=instruction.offset, frame=frame, bound=bound)
        captured.broke = record
        return captured

    def frame_cells(self, head: Head, frame: Frame) -> Code:
        """Stores into the cells that the frame itself owns."""
        code: Code = []
        for name, cell in frame.locals.items():
            if isinstance(cell, Cell) and cell.frame_name is not None and cell.changed:
                if cell.contents is not None:
                    code += [*head.load_item(cell.contents), *build.store_deref(name)]
                elif name in self.value_cells:
                    code += build.delete_deref(name)
        return code

    def store_locals(self, head: Head, frame: Frame) -> tuple[Code, list[str]]:
        """Stores of locals that changed, and the names that are bound at the break."""
        loads: Code = []
        stores: Code = []
        bound: list[str] = []
        for name, value in frame.locals.items():
            if isinstance(value, Cell) and (value.frame_name == name or value.source == local(name)):
                bound.append(name)
                continue
            if isinstance(value, Cell) and value.frame_name is not None and value.frame_name != name:
                pass
            bound.append(name)
            if value.source == local(name):
                continue
            loads += head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
            stores = [*build.store_raw(name), *stores]
        unbound = [n for n in self.layout.params if n not in frame.locals and n not in self.layout.cells]
        deletes = [i for n in unbound if n in self.values for i in build.delete_fast(n)]
        bound += [n for n in self.code.co_freevars if n not in bound]
        return [*loads, *stores, *deletes], bound

    def push_stack(self, head: Head, frame: Frame, instruction: Any) -> Code:
        kinds = stack_kinds(frame.instructions)[instruction]
        if len(kinds) != len(frame.stack):
            raise SkipFrame(f"the stack at {instruction!r} is not what its bytecode says")
        code: Code = []
        level = 0
        for kind, value in zip(kinds, frame.stack, strict=True):
            if value is NULL:
                code += build.push_null()
            elif kind == "exc":
                code += build.enter_handler(head.load(frame.handled[level]))
                level += 1
            elif kind == "lasti":
                code += build.load_const(UnitOf(instruction))
            else:
                code += head.load_cell(value) if isinstance(value, Cell) else head.load_item(value)
        return code

    def state_changes(self) -> list[str]:
        return [name for name, (read, _) in torch_api.STATE.items() if read() != self.state[name]]

    def restore_state(self, head: Head) -> Code:
        """Global state that the program changed and that outlives this part of the frame."""
        code: Code = []
        for name in self.state_changes():
            read, write = torch_api.STATE[name]
            code += [*head.call(write, build.load_const(read())), *build.pop_top()]
        return code

    def captured(
        self,
        cx: Capture,
        head: Head,
        *,
        template: Any = None,
        tail: Code | None = None,
        at: int | None = None,
        frame: Frame | None = None,
        bound: Sequence[str] = (),
    ) -> Captured:
        mutated = cx.graph.mutated_inputs()
        for i in mutated:
            others = tuple(t.source for t in cx.graph.inputs if t is not cx.graph.inputs[i] and t.source is not None)
            source = cx.graph.inputs[i].source
            if others and source is not None:
                cx.guard("no_alias", source, None, others)
        has_graph = bool(head.outputs) or bool(mutated) or cx.graph.has_effects()
        gm: fx.GraphModule | None = None
        compiled: Callable[..., Any] | None = None
        inputs: list[Source] = []
        if has_graph:
            ops = cx.graph.op_count()
            gm = cx.graph.finish(head.outputs)
            used = cx.graph.prune_inputs()
            inputs = [t.source for t in used if t.source is not None]
            compiled = self.host.compile_graph(gm, [t.fake for t in used], cx)
            del ops
        result = Captured(list(cx.guards.values()), gm, inputs, compiled, inlined=cx.inlined)
        result.op_count = cx.graph.op_count() if gm is not None else 0
        if template is not None:
            result.template = template
            result.empty = gm is None
            return result
        assert tail is not None
        start = self.call_graph(head, compiled, inputs) if compiled is not None else []
        code = [*start, *head.prepare, *tail]
        if at is None:
            made = whole(self.code, code)
        else:
            assert frame is not None
            made = continuation(self.code, code, at, self.tails(frame, at, bound))
        result.function = self.make_function(made)
        return result

    def call_graph(self, head: Head, compiled: Callable[..., Any], inputs: list[Source]) -> Code:
        loads = [head.follow(s) for s in inputs]
        code = build.call_function(build.load_const(compiled), *loads)
        if not head.outputs:
            return [*code, *build.pop_top()]
        code = [*code, *build.unpack_sequence(len(head.outputs))]
        return [*code, *(i for n in range(len(head.outputs)) for i in build.store_fast(f"__out{n}"))]

    def tails(self, frame: Frame, at: int, bound: Sequence[str]) -> dict[str, Code]:
        """For each way out of the native instruction, a call of the resume function that goes on there."""
        result: dict[str, Code] = {}
        kinds = ["null" if v is NULL else "value" for v in frame.stack]
        stored = {"STORE_FAST": True, "DELETE_FAST": False}.get(frame.instructions[frame.ip].opname)
        names = [n for n in self.live_order() if n in bound]
        if stored is not None:
            target = frame.instructions[frame.ip].argval
            names = [n for n in names if n != target] + ([target] if stored else [])
        for key, exit_ in exits(self.code, at).items():
            depth = len(kinds) + exit_.effect
            layout = (kinds + ["value"] * max(0, exit_.effect))[:depth]
            if layout and pushes_result(frame.instructions[frame.ip].opname, key):
                layout[-1] = "value"
            code = resume(self.code, exit_.offset, locals=tuple(names), stack=tuple(layout))
            info = resume_info(code)
            assert info is not None
            fn = self.host.resume_function(code, self.namespace)
            result[key] = tail_call(self.host.tail_call, fn, tuple(names), info.stack, prefix=f"__tail_{key}_")
        return result

    def live_order(self) -> list[str]:
        """Variables that a resume function takes, in slot order."""
        code = self.code
        return list(dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars]))

    def make_function(self, code: types.CodeType) -> types.FunctionType:
        cells = tuple(self.values[n] for n in code.co_freevars)
        return types.FunctionType(code, self.namespace, code.co_name, None, cells or None)


# Instructions that leave nothing new on the stack: what is on top afterwards was there before.
NO_RESULT = ("POP_TOP", "POP_JUMP", "STORE_", "DELETE_", "NOP", "RESUME", "JUMP", "END_FOR", "LIST_", "SET_", "MAP_ADD",
             "DICT_", "POP_EXCEPT", "KW_NAMES", "PRECALL")  # fmt: skip


def pushes_result(opname: str, key: str) -> bool:
    """Whether the instruction leaves a new value on top when it leaves through `key`."""
    if opname == "FOR_ITER" and key == "jump":
        return False
    return not opname.startswith(NO_RESULT)


__all__ = ["BreakRecord", "Captured", "Host", "capture_frame", "decoded"]
