"""Handlers for stack manipulation, operators, containers and string formatting."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.opcodes.dict_increments import increments
from pycompiler.capture.opcodes.registry import OpcodeHandler, opcode
from pycompiler.capture.opcodes.truth import truth_at
from pycompiler.capture.semantics import container_elements, formatting, operators, symbolic_formatting
from pycompiler.capture.values.attributes import MISSING, lookup
from pycompiler.capture.values.base import NULL, Capture, Value, class_name
from pycompiler.capture.values.constant import AddressStr, Const, UnknownStr
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.keys import Key, distinct_members
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import join
from pycompiler.capture.values.deferred import joined as joined_later
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import ComputedStr, text
from pycompiler.capture.values.tensor import Tensor
from pycompiler.ir.computed_sources import joined

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame


@opcode("POP_TOP", "POP_ITER")
def pop_top(frame: Frame, ins: Instruction) -> None:
    if frame.root:
        frame.cx.drop(frame, frame.stack[-1])
    frame.stack.pop()


@opcode("END_FOR")
def end_for(frame: Frame, ins: Instruction) -> None:
    frame.stack.pop()
    if operators.END_FOR_POPS_TWO:
        frame.stack.pop()


@opcode("END_SEND")
def end_send(frame: Frame, ins: Instruction) -> None:
    del frame.stack[-2]


@opcode("PUSH_NULL")
def push_null(frame: Frame, ins: Instruction) -> None:
    frame.push(NULL)


@opcode("COPY")
def copy(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.stack[-ins.number])


@opcode("SWAP")
def swap(frame: Frame, ins: Instruction) -> None:
    s, n = frame.stack, ins.number
    s[-1], s[-n] = s[-n], s[-1]


@opcode("BINARY_OP")
def binary_op(frame: Frame, ins: Instruction) -> None:
    if ins.argval == "[]" and increments(frame):
        return
    if ins.argval == "[]":
        binary_subscr(frame, ins)
        return
    if (made := symbolic_formatting.binary(frame.cx, ins.argval, *frame.stack[-2:])) is not None:
        frame.taken(2)
        frame.push(made)
        return
    right, left = frame.pop(), frame.pop()
    frame.push(operators.binary(frame.cx, ins.argval, left, right))


@opcode("COMPARE_OP")
def compare_op(frame: Frame, ins: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(operators.compare(frame.cx, ins.argval, left, right))


@opcode("IS_OP")
def is_op(frame: Frame, ins: Instruction) -> None:
    right, left = frame.pop(), frame.pop()
    frame.push(Const(frame.cx.identical(left, right) is not bool(ins.arg)))


@opcode("CONTAINS_OP")
def contains_op(frame: Frame, ins: Instruction) -> None:
    container = frame.pop()
    item = realised_key(frame, container, frame.stack.pop())
    frame.push(Const(container.contains(frame.cx, item) is not bool(ins.arg)))


def _unary(op: str) -> OpcodeHandler:
    def handler(frame: Frame, ins: Instruction) -> None:
        frame.push(operators.unary(frame.cx, op, frame.pop()))

    return handler


opcode("UNARY_NEGATIVE")(_unary("-"))
opcode("UNARY_POSITIVE")(_unary("+"))
opcode("UNARY_INVERT")(_unary("~"))


@opcode("UNARY_NOT")
def unary_not(frame: Frame, ins: Instruction) -> None:
    frame.push(operators.negation_of(frame.cx, frame.pop()))


@opcode("TO_BOOL")
def to_bool(frame: Frame, ins: Instruction) -> None:
    following = frame.instructions[frame.ip]
    if following.opname == "UNARY_NOT":
        frame.push(operators.truth_of(frame.cx, frame.pop()))
        return
    frame.push(Const(truth_at(frame, following, frame.pop())))


@opcode("BINARY_SUBSCR")
def binary_subscr(frame: Frame, ins: Instruction) -> None:
    if increments(frame):
        return
    key, owner = frame.stack.pop(), frame.pop()
    frame.push(operators.getitem(frame.cx, owner, realised_key(frame, owner, key)))


def realised_key(frame: Frame, owner: Value, key: Value) -> Value:
    """The key, realised unless the container takes lazy keys."""
    kept = owner.storage if isinstance(owner, Object) else owner
    return key if isinstance(kept, (Dict, Set)) and kept.takes(key) else frame.cx.realize(key)


@opcode("STORE_SUBSCR")
def store_subscr(frame: Frame, ins: Instruction) -> None:
    key, owner, value = frame.stack.pop(), frame.pop(), frame.pop()
    owner.setitem(frame.cx, realised_key(frame, owner, key), value)


@opcode("DELETE_SUBSCR")
def delete_subscr(frame: Frame, ins: Instruction) -> None:
    key, owner = frame.stack.pop(), frame.pop()
    owner.delitem(frame.cx, realised_key(frame, owner, key))


@opcode("BINARY_SLICE")
def binary_slice(frame: Frame, ins: Instruction) -> None:
    stop, start, owner = frame.pop(), frame.pop(), frame.pop()
    frame.push(operators.getitem(frame.cx, owner, make_slice([start, stop, Const(None)])))


@opcode("STORE_SLICE")
def store_slice(frame: Frame, ins: Instruction) -> None:
    stop, start, owner, value = frame.pop(), frame.pop(), frame.pop(), frame.pop()
    owner.setitem(frame.cx, make_slice([start, stop, Const(None)]), value)


def make_slice(parts: list[Value]) -> Slice:
    return Slice(parts)


@opcode("BUILD_SLICE")
def build_slice(frame: Frame, ins: Instruction) -> None:
    parts = frame.popn(ins.number)
    frame.push(make_slice(parts if len(parts) == 3 else [*parts, Const(None)]))


@opcode("BUILD_TUPLE")
def build_tuple(frame: Frame, ins: Instruction) -> None:
    frame.push(Tuple(frame.taken(ins.number)))


@opcode("BUILD_LIST")
def build_list(frame: Frame, ins: Instruction) -> None:
    frame.push(List(frame.taken(ins.number)))


@opcode("BUILD_SET")
def build_set(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.cx.placed(Set(distinct_members(frame.cx, frame.popn(ins.number)))))


@opcode("BUILD_MAP")
def build_map(frame: Frame, ins: Instruction) -> None:
    values = frame.taken(2 * ins.number)
    frame.push(Dict({Key(frame.cx, frame.cx.realize(k)): v for k, v in zip(values[::2], values[1::2], strict=True)}))


@opcode("BUILD_CONST_KEY_MAP")
def build_const_key_map(frame: Frame, ins: Instruction) -> None:
    keys = frame.pop().const()
    values = frame.taken(ins.number)
    frame.push(Dict({Key(frame.cx, frame.cx.make(k)): v for k, v in zip(keys, values, strict=True)}))


@opcode("BUILD_STRING")
def build_string(frame: Frame, ins: Instruction) -> None:
    parts = frame.taken(ins.number)
    if (made := text(frame.cx, joined, parts)) is not None:
        frame.push(made)
        return
    parts = [frame.cx.realize(v) for v in parts]
    if (later := joined_later(frame.cx, parts)) is not None:
        frame.push(later)
        return
    untold = [v for v in parts if isinstance(v, UnknownStr)]
    if untold and all(isinstance(v, AddressStr) for v in untold):
        frame.push(AddressStr(untold[0].broke, join, parts))
        return
    frame.push(
        next((v for v in untold if not isinstance(v, AddressStr)), None) or Const("".join(v.const() for v in parts))
    )


def peek(frame: Frame, depth: int) -> Any:
    """The container at `depth` (1 is the top), realised in place."""
    frame.stack[-depth] = frame.cx.realize(frame.stack[-depth])
    return frame.stack[-depth]


@opcode("LIST_APPEND")
def list_append(frame: Frame, ins: Instruction) -> None:
    value = frame.stack.pop()
    value, target = value if isinstance(value, ComputedStr) else frame.cx.realize(value), peek(frame, ins.number)
    frame.cx.effects.mutate(target, ())
    target.items.append(value)


@opcode("SET_ADD")
def set_add(frame: Frame, ins: Instruction) -> None:
    value = frame.pop()
    peek(frame, ins.number).add(frame.cx, value)


@opcode("MAP_ADD")
def map_add(frame: Frame, ins: Instruction) -> None:
    value, key = frame.pop(), frame.pop()
    peek(frame, ins.number).setitem(frame.cx, key, value)


@opcode("LIST_EXTEND")
def list_extend(frame: Frame, ins: Instruction) -> None:
    iterable, target = frame.pop(), peek(frame, ins.number)
    if not container_elements.iterable(frame.cx, iterable):
        told = class_name(iterable.python_type())
        frame.cx.throw(TypeError, f"Value after * must be an iterable, not {told}")
    frame.cx.effects.mutate(target, ())
    target.items.extend(container_elements.unpacked(frame.cx, iterable))


@opcode("SET_UPDATE")
def set_update(frame: Frame, ins: Instruction) -> None:
    iterable = frame.pop()
    target = peek(frame, ins.number)
    container_elements.set_update(frame.cx, target, iterable)


@opcode("DICT_UPDATE")
def dict_update(frame: Frame, ins: Instruction) -> None:
    mapping = frame.pop()
    cls = mapping.python_type()
    if lookup(frame.cx, cls, "keys") is MISSING:
        frame.cx.throw(TypeError, f"{class_name(cls)!r} object is not a mapping")
    container_elements.dict_update(frame.cx, peek(frame, ins.number), mapping)


@opcode("DICT_MERGE")
def dict_merge(frame: Frame, ins: Instruction) -> None:
    cx, mapping = frame.cx, frame.pop()
    target = peek(frame, ins.number)
    if not isinstance(mapping, Dict) and lookup(cx, mapping.python_type(), "keys") is MISSING:
        raise Break("unsupported-operation", f"a call with ** of {mapping.describe()}")

    def refuse(key: Value) -> None:
        if Key(cx, key) not in target.entries:
            return
        fn = cx.realize(frame.stack[-ins.number - (3 if operators.NULL_AFTER_CALLABLE else 2)])
        if not isinstance(fn, Function):
            raise Break("unsupported-operation", f"a keyword given twice to {fn.describe()}")
        name = f"{fn.globals.get('__name__')}.{fn.qualname}()"
        cx.throw(TypeError, f"{name} got multiple values for keyword argument {key.const()!r}")

    for key, value in container_elements.mapping_pairs(cx, mapping, looked_at=False, first=refuse):
        target.setitem(cx, key, value)


@opcode("LIST_TO_TUPLE")
def list_to_tuple(frame: Frame, ins: Instruction) -> None:
    made = frame.pop()
    assert isinstance(made, List)
    frame.push(Tuple(made.items))


_ERROR_HAS_COUNT = sys.version_info >= (3, 14)


def _unpacked(cx: Capture, value: Value, before: int | None = None) -> list[Value]:
    """The elements of an unpacked iterable. Elements after the first `before` come from a list, as in CPython."""
    cls = value.python_type()
    if not container_elements.iterable(cx, value):
        cx.throw(TypeError, f"cannot unpack non-iterable {class_name(cls)} object")
    if before is None or isinstance(value, (Tuple, List)):
        return container_elements.unpacked(cx, value, listed=False)
    iterator = cx.iterator(value)
    first = [*itertools.islice(cx.pull(iterator), before)]
    return [*first, *cx.listed(iterator)] if len(first) == before else first


@opcode("UNPACK_SEQUENCE")
def unpack_sequence(frame: Frame, ins: Instruction) -> None:
    cx, value = frame.cx, frame.pop()
    items = _unpacked(cx, value)
    if len(items) < ins.number:
        cx.throw(ValueError, f"not enough values to unpack (expected {ins.arg}, got {len(items)})")
    if len(items) > ins.number:
        told = f", got {len(items)}" if _ERROR_HAS_COUNT and value.python_type() in (list, tuple, dict) else ""
        cx.throw(ValueError, f"too many values to unpack (expected {ins.arg}{told})")
    frame.stack.extend(reversed(items))


@opcode("UNPACK_EX")
def unpack_ex(frame: Frame, ins: Instruction) -> None:
    cx, value = frame.cx, frame.pop()
    before, after = ins.number & 0xFF, ins.number >> 8
    items = _unpacked(cx, value, before)
    if len(items) < before + after:
        cx.throw(ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    middle = items[before : len(items) - after]
    frame.stack.extend(reversed([*items[:before], List(middle), *items[len(items) - after :]]))


@opcode("GET_LEN")
def get_len(frame: Frame, ins: Instruction) -> None:
    frame.push(peek(frame, 1).length(frame.cx))


def _formatted(frame: Frame, value: Value, which: int, spec: Value) -> Value:
    """The string of one f-string field."""
    if (made := symbolic_formatting.formatted(frame.cx, value, which, spec)) is not None:
        return made
    value = frame.cx.realize(value)
    plain = spec.is_const() and spec.const() == ""
    return _lazy_text(frame, value, plain, lambda: formatting.format_value(frame.cx, value, which, spec))


def _lazy_text(frame: Frame, value: Value, plain: bool, text: Callable[[], Value]) -> Value:
    """The result of `text()`; a lazy string for a plain tensor.  Formatting a plain tensor runs no code of the program
    and cannot raise."""
    try:
        return text()
    except Break as b:
        if plain and isinstance(value, Tensor) and _is_printed_by_torch(frame.cx, value):
            return frame.untold(b)
        raise


def _is_printed_by_torch(cx: Capture, value: Tensor) -> bool:
    cls = value.python_type()
    own = lookup(cx, cls, "__format__"), lookup(cx, cls, "__repr__")
    known = lookup(cx, cls, "__str__") is object.__str__ and all(f.__module__ == "torch._tensor" for f in own)
    return known and not cx.functions.concerns([value], {})


@opcode("FORMAT_VALUE")
def format_value(frame: Frame, ins: Instruction) -> None:
    which, has_spec = ins.number & 3, ins.number & 4
    spec = frame.pop() if has_spec else Const("")
    frame.push(_formatted(frame, frame.stack.pop(), which, spec))


@opcode("CONVERT_VALUE")
def convert_value(frame: Frame, ins: Instruction) -> None:
    taken = frame.stack.pop()
    if (made := symbolic_formatting.converted(frame.cx, taken, symbolic_formatting.CONVERTED[ins.number])) is not None:
        frame.push(made)
        return
    value = frame.cx.realize(taken)
    frame.push(_lazy_text(frame, value, True, lambda: formatting.convert(frame.cx, value, ins.number)))


@opcode("FORMAT_SIMPLE")
def format_simple(frame: Frame, ins: Instruction) -> None:
    frame.push(_formatted(frame, frame.stack.pop(), 0, Const("")))


@opcode("FORMAT_WITH_SPEC")
def format_with_spec(frame: Frame, ins: Instruction) -> None:
    spec = frame.pop()
    frame.push(_formatted(frame, frame.stack.pop(), 0, spec))
