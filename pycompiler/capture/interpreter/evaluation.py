"""Symbolic execution of one frame: CPython's evaluation loop over values.

In: a code object with bound locals.
Out: the frame's return value, a yield, or an exception.  The handlers are one table in `opcodes/`.  This file owns
the loop, exception tables and line numbers.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.bytecode.code_facts import reading
from pycompiler.capture.bytecode.instruction import Instruction
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.opcodes.registry import HANDLERS, SEND_POPS
from pycompiler.capture.recording.data_errors import ErrorPath
from pycompiler.capture.values.base import NULL, Capture, Cell, Value
from pycompiler.capture.values.constant import UnknownStr
from pycompiler.ir.guards import UserFrame
from pycompiler.logs import artifact
from pycompiler.torch_compat import interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pycompiler.capture.values.containers.dicts import LocalsDict

RERAISES = ("RERAISE", "CLEANUP_THROW", "RAISE_VARARGS")
"""Opcodes that raise an exception which has passed their frame before; RAISE_VARARGS without argument is `raise`."""

log_source = artifact("trace_source")
log_bytecode = artifact("trace_bytecode")


class Frame:
    """A frame under symbolic execution. The root frame is the frame whose code gets compiled."""

    def __init__(
        self,
        cx: Capture,
        code: types.CodeType,
        func_globals: dict[str, Any],
        local_values: dict[str, Value],
        closure: Sequence[Cell],
        *,
        root: bool = False,
        function: Value | None = None,
    ) -> None:
        self.cx = cx
        self.code = code
        self.globals = func_globals
        self.locals = local_values
        self.free = dict(zip(code.co_freevars, closure, strict=True)) if code.co_freevars else {}
        self.reading = reading(code)
        self.instructions, self.position = self.reading.instructions, self.reading.position
        self.ip = 0
        self.stack: list[Value] = []
        self.root = root
        self.function = function
        self.handled: list[Value] = []  # exceptions being handled (sys.exc_info), innermost last
        self.kw_names: tuple[str, ...] = ()
        self.current: Instruction = self.instructions[0]
        self.result: tuple[str, Value] | None = None
        self.line = code.co_firstlineno
        self.begin = 0  # step at which the current instruction began
        self.narrated = 0  # the last line that was logged
        self.shown: LocalsDict | None = None  # the dict that `locals()` returned
        self.names: Any = None  # the namespace of code that has its variables by name
        self.scope: Any = None  # the program's dict that such code uses for globals, if it is no module's dict
        self.ways_out: dict[Any, ErrorPath] = {}  # ways out of errors, by handler
        self.direct = False  # entered by the caller's CALL itself: its return value is the call's
        self.of_module = False  # the `forward` called by `nn.Module.__call__`, which has no frame here
        # `direct`, or the `__init__` of an instance created directly: no other frame is in between
        self.follows = False

    # stack ----------------------------------------------------------------------------------------------------
    def push(self, value: Value) -> None:
        self.stack.append(value)

    def pop(self) -> Value:
        return self.cx.realize(self.stack.pop())

    def popn(self, n: int) -> list[Value]:
        return [v if v is NULL else self.cx.realize(v) for v in self.taken(n)]

    def taken(self, n: int) -> list[Value]:
        """The last `n` values of the stack, not realised."""
        at = len(self.stack) - n
        taken = self.stack[at:]
        del self.stack[at:]
        return taken

    def jump(self, target: Instruction | None) -> None:
        assert target is not None
        self.ip = self.position[target]

    # places ---------------------------------------------------------------------------------------------------
    def cell(self, name: str) -> Cell:
        """The cell of a cell or free variable."""
        found = self.free.get(name)
        if found is None:
            value = self.locals.get(name)
            assert isinstance(value, Cell), f"{name} has no cell"
            return value
        return found

    def user_frame(self) -> UserFrame:
        return UserFrame(self.code.co_filename, self.current.lineno or self.line, self.code.co_name)

    def untold(self, told: Break) -> Value:
        """A string that may never be needed. If its characters are used, this instruction becomes the break."""
        return UnknownStr(self.here(told))

    def here(self, told: Break) -> Break:
        """A break at this instruction, for later use."""
        made = told.anew()
        made.step, made.stack = breaking_frame(self.cx.frames).begin, self.cx.user_stack
        return made

    # the loop -------------------------------------------------------------------------------------------------
    def run(self) -> tuple[str, Value]:
        """Run until return or yield."""
        cx = self.cx
        cx.frames.append(self)
        self.result = None
        try:
            while self.result is None:
                self.step()
        finally:
            cx.frames.pop()
        return self.result

    def narrate(self, instruction: Instruction) -> None:
        """Log the instruction that is captured next."""
        if log_source.enabled and instruction.lineno and instruction.lineno != self.narrated:
            self.narrated = instruction.lineno
            log_source("TRACE starts_line %s", str(self.user_frame()).replace("\n", ":", 1))
        log_bytecode("TRACE %s %s %s", instruction.opname, instruction.argval, self.stack)

    def step(self) -> None:
        self.current = instruction = self.instructions[self.ip]
        self.begin = self.cx.count_step()
        self.ip += 1
        if interrupts.pending:
            interrupts.check()
        if log_bytecode.enabled or log_source.enabled:
            self.narrate(instruction)
        try:
            handler = HANDLERS.get(instruction.opname)
            if handler is None:
                raise Break("unsupported-opcode", instruction.opname)
            handler(self, instruction)
        except Raised as raised:
            self.unwind(raised)
        except Break as b:
            if not b.stack:
                b.stack = self.cx.user_stack
                b.frames = tuple(self.cx.frames)
            raise
        except Exception as e:
            if not hasattr(e, "pycompiler_place"):  # the place of the capture, for reports of internal errors
                e.pycompiler_place = (self.cx.user_stack, self.current.opname)  # type: ignore[attr-defined]
            raise
        if self.cx.suspended:
            self.cx.close_dropped()

    def unwind(self, raised: Raised) -> None:
        """Continue at the handler of the current instruction, or leave the frame."""
        if not self.current.opname.startswith(RERAISES) or self.current.opname == "RAISE_VARARGS" and self.current.arg:
            self.cx.passing(raised.value)
        entry = self.current.handler
        if self.cx.suspended and not self.root:
            self.cx.hold(raised.value, self)
        kept = 0 if entry is None else entry.depth
        if entry is None and len(raised.value.passed) == 1 and is_polyfill_module(self.globals):
            if self.current.opname != "RAISE_VARARGS" and issubclass(raised.value.python_type(), ARGUMENT_ERRORS):
                raise Break("builtin-call", f"a call of {self.code.co_qualname} with arguments that it rejects")
        if self.root:
            for value in reversed(self.stack[kept:]):
                self.cx.drop(self, value)
        del self.stack[kept:]
        if entry is None:
            try:
                raise raised
            finally:
                del raised  # the traceback of `raised` holds this interpreter frame
        if entry.lasti:
            self.push(self.cx.make(self.current.offset or 0))
        self.push(raised.value)
        self.jump(entry.target)

    def leave(self) -> None:
        """The frame has returned: release its variables, one after the other."""
        for name in [*self.code.co_varnames, *self.code.co_cellvars]:
            if self.locals.pop(name, None) is not None:
                self.cx.close_dropped()
        self.locals.clear()
        self.free.clear()
        self.cx.close_dropped()

    def cleans_up(self) -> bool:
        """Whether closing the generator suspended here runs code of the program."""
        entry = self.current.handler
        while entry is not None and entry.target.opname == "CLEANUP_THROW":
            entry = entry.target.handler
        # Since 3.12 each generator's body is in a handler of its own, which turns StopIteration into a RuntimeError.
        return entry is not None and entry.target.opname != "CALL_INTRINSIC_1"

    def delegate(self) -> Value | None:
        """The iterator that a generator suspended in `yield from` takes its elements from, or None."""
        send = self.instructions[self.ip - 2] if self.ip >= 2 else None
        return self.stack[-1] if send is not None and send.opname == "SEND" and self.stack else None

    def end_delegation(self, result: Value) -> None:
        """Go on after the `yield from`, whose value is `result`."""
        if SEND_POPS:  # 3.11: the iterator is replaced by the result
            self.stack[-1] = result
        else:
            self.push(result)
        self.jump(self.instructions[self.ip - 2].target)

    def throw(self, exception: Value) -> tuple[str, Value]:
        """Raise `exception` where the frame is suspended, then run on."""
        self.cx.frames.append(self)
        try:
            # A thrown-in exception gets the context of the generator alone, not of its callers.
            self.unwind(self.cx.raised(exception) if self.handled else self.cx.thrown(exception))
        finally:
            self.cx.frames.pop()
        return self.run()


ARGUMENT_ERRORS = (TypeError, AttributeError, OverflowError)
"""Exceptions that Python's instructions raise where C code checks its own arguments, in another order and with other
messages."""


def is_polyfill_module(namespace: dict[str, Any]) -> bool:
    """Whether code with these globals is a polyfill of this package for C code."""
    return str(namespace.get("__name__")).startswith("pycompiler.capture.")


CALLS = ("CALL", "CALL_KW", "CALL_FUNCTION_EX")


def breaking_frame(frames: Sequence[Frame]) -> Frame:
    """The innermost frame that can be resumed: reached from the root by direct calls outside of any try or with.

    Without a compiler, torch's operators that take functions enter these another way, so the operators' callers are
    resumed.  A waiting frame below the root is no Python frame.  If code of the program may count frames meanwhile,
    the root is resumed. (Each call of a module names a `stacklevel`, for a warning about hooks; those of torch are
    not counted.)
    """
    found = frames[0]
    direct = 0
    for caller, callee in zip(frames, frames[1:], strict=False):
        plain = caller.current.opname in CALLS and caller.current.handler is None and not caller.handled
        module = str(callee.globals.get("__name__"))
        within = module.startswith("torch._higher_order_ops.") or inlining_rules.is_one_operator(
            module, callee.code.co_qualname
        )
        if not (plain and callee.direct) or within or inlining_rules.why_frame_skipped(callee.code):
            break
        found, direct = callee, direct + 1
    between = [f for f in frames[1 : direct + 1] if not str(f.globals.get("__name__")).startswith("torch.")]
    counted = direct > 1 and any(inlining_rules.counts_frames(f.code, f.globals) for f in between)
    return frames[0] if counted else found
