"""Handlers for jumps, loops, calls, function creation, generators, exceptions and context managers."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.bytecode.resume import resume_info
from pycompiler.capture.bytecode.tables import ALWAYS_KEYWORDS, EXIT_DEPTH
from pycompiler.capture.opcodes.registry import SEND_POPS, OpcodeHandler, opcode
from pycompiler.capture.opcodes.stack import peek
from pycompiler.capture.opcodes.truth import truth_at
from pycompiler.capture.semantics import container_elements, exception_groups, operators
from pycompiler.capture.values.base import NULL, Capture, Cell, Value, class_name
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.iterators import Generator, Iter
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.objects import Object, traceback_of
from pycompiler.capture.values.symbolic_numbers import is_open_text

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame


# jumps --------------------------------------------------------------------------------------------------------
@opcode("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT")
def jump(frame: Frame, ins: Instruction) -> None:
    frame.jump(ins.target)


def _jump_if(test: Any) -> OpcodeHandler:
    def handler(frame: Frame, ins: Instruction) -> None:
        if test(frame.cx, frame.pop()):
            frame.jump(ins.target)

    return handler


def _jump_if_truth(wanted: bool) -> OpcodeHandler:
    def handler(frame: Frame, ins: Instruction) -> None:
        if truth_at(frame, ins, frame.pop()) is wanted:
            frame.jump(ins.target)

    return handler


for _wanted in (True, False):
    opcode(*(f"POP_JUMP{way}IF_{str(_wanted).upper()}" for way in ("_", "_FORWARD_", "_BACKWARD_")))(
        _jump_if_truth(_wanted)
    )
for _name, _test in {
    "IF_NONE": lambda cx, v: cx.is_none(v),
    "IF_NOT_NONE": lambda cx, v: not cx.is_none(v),
}.items():
    opcode(*(f"POP_JUMP{way}{_name}" for way in ("_", "_FORWARD_", "_BACKWARD_")))(_jump_if(_test))


@opcode("JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP")
def jump_or_pop(frame: Frame, ins: Instruction) -> None:
    frame.stack[-1] = frame.cx.realize(frame.stack[-1])
    if frame.cx.truth(frame.stack[-1]) is (ins.opname == "JUMP_IF_TRUE_OR_POP"):
        frame.jump(ins.target)
    else:
        frame.stack.pop()


# loops --------------------------------------------------------------------------------------------------------
@opcode("GET_ITER")
def get_iter(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.cx.iterator(frame.pop()))


@opcode("GET_YIELD_FROM_ITER")
def get_yield_from_iter(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.cx.iterator(frame.pop()))


def _resumes_in_loop(frame: Frame, ins: Instruction) -> bool:
    """Whether the frame resumes inside this loop.

    Such a loop runs one element per graph, so the number of elements does not matter.
    """
    info = resume_info(frame.code) if frame.root else None
    if info is None:
        return False
    begin, end = (None if i is None or i.offset is None else info.offsets.get(i.offset) for i in (ins, ins.target))
    return begin is not None and end is not None and begin < info.at < end


@opcode("FOR_ITER")
def for_iter(frame: Frame, ins: Instruction) -> None:
    iterator = peek(frame, 1)
    if isinstance(iterator, Iter) and iterator.source is not None and _resumes_in_loop(frame, ins):
        raise Break("running-iterator", f"next({iterator.describe()})")
    value = frame.cx.next_of(iterator)
    if value is not None:
        frame.push(value)
        return
    if operators.FOR_ITER_POPS:  # 3.11: the iterator is popped; later END_FOR or POP_TOP does it
        frame.stack.pop()
    else:
        frame.push(NULL)
    frame.jump(ins.target)


# returns and generators ---------------------------------------------------------------------------------------
@opcode("RETURN_VALUE")
def return_value(frame: Frame, ins: Instruction) -> None:
    frame.result = ("return", frame.pop())


@opcode("RETURN_CONST")
def return_const(frame: Frame, ins: Instruction) -> None:
    frame.result = ("return", frame.cx.make(ins.argval))


@opcode("RETURN_GENERATOR")
def return_generator(frame: Frame, ins: Instruction) -> None:
    frame.push(Const(None))  # popped by the POP_TOP that follows; calls.inline creates the suspended frame


@opcode("YIELD_VALUE")
def yield_value(frame: Frame, ins: Instruction) -> None:
    frame.result = ("yield", frame.pop())


def _sent(cx: Capture, receiver: Value, sent: Value) -> Value | None:
    """The value that an iterator gives for the sent value; None at its end.  At the end, a non-generator raises
    StopIteration."""
    if isinstance(receiver, Generator):
        return receiver.send(cx, sent)
    if not cx.is_none(sent):
        return cx.call(receiver.getattr(cx, "send"), [sent], {})
    value = cx.next_of(receiver)
    return cx.stop() if value is None else value


@opcode("SEND")
def send(frame: Frame, ins: Instruction) -> None:
    cx = frame.cx
    sent = frame.pop()
    receiver = peek(frame, 1)
    result: Value = Const(None)
    try:
        value = _sent(cx, receiver, sent)
    except Raised as ended:
        if isinstance(receiver, Generator) or not issubclass(ended.value.python_type(), StopIteration):
            raise
        value, result = None, ended.value.getattr(cx, "value")
    if value is not None:
        frame.push(value)
        return
    if isinstance(receiver, Generator):
        result = receiver.take_returned()
    if SEND_POPS:  # 3.11: the receiver is replaced by the result
        frame.stack[-1] = result
    else:
        frame.push(result)
    frame.jump(ins.target)


# calls --------------------------------------------------------------------------------------------------------
@opcode("PRECALL")
def precall(frame: Frame, ins: Instruction) -> None:
    pass


@opcode("KW_NAMES")
def kw_names(frame: Frame, ins: Instruction) -> None:
    frame.kw_names = ins.argval


def _take_callable(frame: Frame) -> tuple[Value, list[Value]]:
    """The callable, and the receiver as leading argument, from the two slots below the arguments."""
    second, first = frame.stack.pop(), frame.stack.pop()
    if second is NULL:
        return frame.cx.realize(first), []
    if first is NULL:
        return frame.cx.realize(second), []
    return frame.cx.realize(first), [second if is_open_text(second) else frame.cx.realize(second)]


def _call(frame: Frame, values: list[Value], names: tuple[str, ...]) -> None:
    fn, args = _take_callable(frame)
    split = len(values) - len(names)
    args += values[:split]
    kwargs = dict(zip(names, values[split:], strict=True))
    values.clear()  # as on CPython's stack, the arguments belong to the callee
    frame.cx.spread = False
    frame.push(frame.cx.call_direct(fn, args, kwargs))


@opcode("CALL")
def call(frame: Frame, ins: Instruction) -> None:
    names, frame.kw_names = frame.kw_names, ()
    _call(frame, frame.taken(ins.number), names)


@opcode("CALL_KW")
def call_kw(frame: Frame, ins: Instruction) -> None:
    names = frame.pop()
    if isinstance(names, Tuple):  # an argument of a resume function
        names = Const(tuple(frame.cx.realize(name).const() for name in names.items))
    _call(frame, frame.taken(ins.number), names.const())


READS_LENGTH_HINT = sys.version_info < (3, 14)  # whether CPython reads the length hint of a `*` argument


@opcode("CALL_FUNCTION_EX")
def call_function_ex(frame: Frame, ins: Instruction) -> None:
    cx = frame.cx
    if ALWAYS_KEYWORDS:
        given = frame.stack.pop()
        mapping = None if given is NULL else cx.realize(given)
    else:
        mapping = frame.pop() if ins.number & 1 else None
    iterable = frame.pop()
    if operators.NULL_AFTER_CALLABLE:
        frame.stack.pop()
        fn = frame.pop()
    else:
        fn = frame.pop()
        frame.stack.pop()  # NULL
    if not container_elements.iterable(cx, iterable):
        raise Break("unsupported-operation", f"a call with * of {iterable.describe()}")
    pairs = list(container_elements.mapping_pairs(cx, mapping, looked_at=False)) if mapping is not None else []
    if not all(issubclass(k.python_type(), str) for k, _ in pairs):
        cx.throw(TypeError, "keywords must be strings")
    kwargs = {k.const(): v for k, v in pairs}
    cx.spread = mapping is not None
    frame.push(cx.call_direct(fn, container_elements.unpacked(cx, iterable, listed=READS_LENGTH_HINT), kwargs))


@opcode("CALL_INTRINSIC_1")
def call_intrinsic_1(frame: Frame, ins: Instruction) -> None:
    # Numbers of CPython's intrinsic table: 3 StopIteration error, 5 unary +, 6 list to tuple.
    if ins.arg == 5:
        frame.push(operators.unary(frame.cx, "+", frame.pop()))
    elif ins.arg == 6:
        made = frame.pop()
        assert isinstance(made, List)
        frame.push(Tuple(made.items))
    elif ins.arg == 3:
        exception = frame.pop()
        if issubclass(exception.python_type(), StopIteration):
            frame.cx.throw_from(RuntimeError, "generator raised StopIteration", exception)
        frame.push(exception)
    else:
        raise Break("unsupported-opcode", f"CALL_INTRINSIC_1 {ins.arg}")


@opcode("CALL_INTRINSIC_2")
def call_intrinsic_2(frame: Frame, ins: Instruction) -> None:
    if ins.arg == 1:
        return prep_reraise_star(frame, ins)
    raise Break("unsupported-opcode", f"CALL_INTRINSIC_2 {ins.arg}")


# functions ----------------------------------------------------------------------------------------------------
@opcode("MAKE_FUNCTION")
def make_function(frame: Frame, ins: Instruction) -> None:
    code = frame.pop().const()
    flags = ins.arg or 0  # since 3.13 SET_FUNCTION_ATTRIBUTE sets these, and there are no flags
    function = Function(code, frame.globals, closure=[], defaults=[], kwdefaults={})
    for bit in (8, 4, 2, 1):
        if flags & bit:
            _set_function_attribute(frame, function, bit, frame.pop())
    frame.push(function)


@opcode("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(frame: Frame, ins: Instruction) -> None:
    function, value = frame.pop(), frame.pop()
    assert isinstance(function, Function)
    _set_function_attribute(frame, function, ins.number, value)
    frame.push(function)


def _set_function_attribute(frame: Frame, function: Function, bit: int, value: Value) -> None:
    if bit == 16:
        function.overlay["__annotate__"] = value
    elif bit == 8:
        function.made_closure = [c for c in value.items if isinstance(c, Cell)] if isinstance(value, Tuple) else []
    elif bit == 4:
        names_and_values = list(value.iterate(frame.cx))
        pairs = zip(names_and_values[::2], names_and_values[1::2], strict=True)
        function.overlay["__annotations__"] = Dict({frame.cx.key(k): v for k, v in pairs})
    elif bit == 2 and isinstance(value, Dict):
        function.made_kwdefaults = {k.const(): v for k, v in value.pairs(frame.cx)}
    elif bit == 1 and isinstance(value, Tuple):
        function.made_defaults = [value.at(frame.cx, i) for i in range(len(value.items))]


# exceptions ---------------------------------------------------------------------------------------------------
@opcode("RAISE_VARARGS")
def raise_varargs(frame: Frame, ins: Instruction) -> None:
    cx = frame.cx
    if ins.arg == 0:
        if not frame.handled:  # the exception is a caller's
            raise Break("uncaught-exception", "a bare raise outside of an exception handler")
        raise Raised(frame.handled[-1])
    cause = frame.pop() if ins.arg == 2 else None
    exception = cx.as_exception(frame.pop())
    if not issubclass(exception.python_type(), BaseException):
        cx.throw(TypeError, "exceptions must derive from BaseException")
    if cause is not None:
        if not isinstance(exception, Object):
            raise Break("unsupported-operation", "raise of an existing exception from another one")
        cx.effects.set_attr(exception, "__cause__", _cause(frame, cause))
        cx.effects.set_attr(exception, "__suppress_context__", Const(True))
    raise cx.raised(exception)


def _cause(frame: Frame, given: Value) -> Value:
    """The cause that `raise ... from given` stores."""
    cx = frame.cx
    try:
        cause = cx.as_exception(given)
    except Raised:
        if sys.version_info < (3, 13):  # older versions do not check the result of calling a class
            raise Break(
                "unsupported-operation", "raise ... from a class whose call does not return an exception"
            ) from None
        raise
    if not cx.is_none(cause) and not issubclass(cause.python_type(), BaseException):
        cx.throw(TypeError, "exception causes must derive from BaseException")
    return cause


@opcode("PUSH_EXC_INFO")
def push_exc_info(frame: Frame, ins: Instruction) -> None:
    exception = frame.pop()
    frame.push(frame.handled[-1] if frame.handled else Const(None))
    frame.push(exception)
    frame.handled.append(exception)


@opcode("POP_EXCEPT")
def pop_except(frame: Frame, ins: Instruction) -> None:
    frame.stack.pop()
    if frame.handled:
        frame.handled.pop()


@opcode("CHECK_EXC_MATCH")
def check_exc_match(frame: Frame, ins: Instruction) -> None:
    classes = exception_groups.classes_of(frame.cx, frame.pop())
    frame.push(Const(exception_groups.is_of(frame.cx, peek(frame, 1), classes)))


@opcode("CHECK_EG_MATCH")
def check_eg_match(frame: Frame, ins: Instruction) -> None:
    classes = frame.pop()
    caught, rest = exception_groups.match(frame.cx, peek(frame, 1), classes)
    frame.stack[-1] = rest
    frame.push(caught)
    if not frame.cx.is_none(caught):
        frame.handled[-1] = caught


@opcode("PREP_RERAISE_STAR")
def prep_reraise_star(frame: Frame, ins: Instruction) -> None:
    left, caught = frame.pop(), frame.pop()
    frame.push(exception_groups.rest_to_raise(frame.cx, caught, left))


@opcode("RERAISE")
def reraise(frame: Frame, ins: Instruction) -> None:
    exception = frame.pop()
    raise Raised(exception)


@opcode("CLEANUP_THROW")
def cleanup_throw(frame: Frame, ins: Instruction) -> None:
    """3.12: the handler of a `yield from` that an exception was thrown into.  `Generator.throw` passes it to the inner
    generator."""
    exception = frame.pop()
    if issubclass(exception.python_type(), StopIteration):  # it would be the value of the `yield from`
        raise Break("unsupported-operation", "StopIteration thrown into a delegating generator")
    raise Raised(exception)


# context managers ---------------------------------------------------------------------------------------------
def _manager_method(cx: Capture, manager: Value, name: str) -> Value | None:
    if isinstance(manager, Object):
        return manager.special(cx, name)
    return manager.getattr(cx, name) if hasattr(manager.python_type(), name) else None


@opcode("BEFORE_WITH")
def before_with(frame: Frame, ins: Instruction) -> None:
    cx, manager = frame.cx, frame.pop()
    enter, leave = (_manager_method(cx, manager, name) for name in ("__enter__", "__exit__"))
    if enter is None or leave is None:
        missing = " (missed __exit__ method)" if enter is not None else ""
        name = class_name(manager.python_type())
        cx.throw(TypeError, f"{name!r} object does not support the context manager protocol{missing}")
    frame.push(leave)
    frame.push(cx.call(enter, [], {}))


@opcode("LOAD_SPECIAL")
def load_special(frame: Frame, ins: Instruction) -> None:
    """3.14's `with`: `__exit__` first, then `__enter__`.  The method is bound, so that one object is passed on, as
    before 3.14."""
    cx, manager = frame.cx, frame.pop()
    if ins.argval not in ("__enter__", "__exit__"):
        raise Break("unsupported-opcode", f"LOAD_SPECIAL {ins.argval}")
    found = _manager_method(cx, manager, ins.argval)
    if found is None:
        cx.throw(TypeError, _no_manager(manager.python_type(), ins.argval))
    frame.push(found)
    frame.push(NULL)


def _no_manager(cls: type, missing: str) -> str:
    module = "" if cls.__module__ in ("builtins", "__main__") else f"{cls.__module__}."
    told = f"{module}{cls.__qualname__!s}"
    text = f"{told!r} object does not support the context manager protocol (missed {missing} method)"
    if hasattr(cls, "__aenter__") and hasattr(cls, "__aexit__"):
        other = "but it supports the asynchronous context manager protocol. Did you mean to use 'async with'?"
        return f"{text} {other}"
    return text


@opcode("WITH_EXCEPT_START")
def with_except_start(frame: Frame, ins: Instruction) -> None:
    cx, exception = frame.cx, peek(frame, 1)
    leave = peek(frame, EXIT_DEPTH)
    receiver = [] if EXIT_DEPTH == 4 or frame.stack[-4] is NULL else [peek(frame, 4)]
    frame.push(cx.call(leave, [*receiver, cx.class_of(exception), exception, traceback_of(exception)], {}))
