"""A proof that generated code never pushes a NULL where Python would raise; it runs before the code object is created.

In: a list of instructions and the content of the variable slots at its start.
Out: the greatest stack depth; or `Unsound`, which names the instruction.  The proof is a data-flow analysis over the
code's own control flow, including handlers.  Each slot and each stack item has a set of possible contents, as bits
(`NULL`, `VALUE` ...).  Where paths meet, sets are united.

- No instruction takes a stack item that may be NULL, except a call, in the one slot where it may be (or must be) NULL.
- A variable that may be unbound is only loaded by an instruction that checks (3.11: every load does).
- The program's own loads become checking ones where generated paths reach them.
- A slot used as a cell holds a cell.  POP_EXCEPT gets the item of PUSH_EXC_INFO, RERAISE the index that a handler got.
- The stack has one depth at each instruction.  No instruction takes more than there is.  A return leaves it empty.

Example: ``prove([*build.load_fast("x"), *build.return_value()], ("x",))`` raises on 3.12, where the load pushes NULL.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from pycompiler.capture.bytecode.analysis import stack_effect
from pycompiler.capture.bytecode.instruction import Instruction, UnitOf
from pycompiler.capture.bytecode.tables import (
    ALWAYS_KEYWORDS,
    CELL,
    EXIT_DEPTH,
    JUMP_UNCONDITIONAL,
    LASTI_IS_INT,
    QUIET,
    STOPS,
    VERSION,
)

NULL: Final = 1
VALUE: Final = 2
A_CELL: Final = 4
BOXED: Final = 8
"""A cell that holds a cell: the result of MAKE_CELL on a parameter that already was a cell."""
HANDLED: Final = 16
"""The item that PUSH_EXC_INFO saved for POP_EXCEPT."""
LASTI: Final = 32
"""The index of a raising instruction, or another integer."""
NAMES: Final = {NULL: "NULL", VALUE: "a value", A_CELL: "a cell", BOXED: "a cell in a cell", HANDLED: "a handled exception",
                LASTI: "an integer"}  # fmt: skip

_NULL_LAST: Final = VERSION >= (3, 13)
"""Whether the slot of a call that may be NULL comes after the callable."""

Items = tuple[int, ...]
State = tuple[Items, Items]
"""The possible contents of the slots and of the stack items."""


class Unsound(ValueError):
    """Code that could push a NULL, or whose stack does not fit."""


# The number of items that an instruction takes, if its stack effect does not determine it; callable on the argument.
_TAKES: Final[Mapping[str, int | Callable[[int], int]]] = {
    "BEFORE_ASYNC_WITH": 1, "BEFORE_WITH": 1, "BINARY_OP": 2, "BINARY_SLICE": 3, "BINARY_SUBSCR": 2,
    "BUILD_CONST_KEY_MAP": lambda n: n + 1, "BUILD_INTERPOLATION": lambda n: 2 + (n & 1),
    "BUILD_LIST": lambda n: n, "BUILD_MAP": lambda n: 2 * n,
    "BUILD_SET": lambda n: n, "BUILD_SLICE": lambda n: n, "BUILD_STRING": lambda n: n, "BUILD_TEMPLATE": 2,
    "BUILD_TUPLE": lambda n: n,
    "CALL": lambda n: n + 2, "CALL_FUNCTION_EX": lambda n: 4 if ALWAYS_KEYWORDS else 3 + (n & 1), "CALL_KW": lambda n: n + 3,
    "CALL_INTRINSIC_1": 1, "CALL_INTRINSIC_2": 2, "CHECK_EG_MATCH": 2, "CHECK_EXC_MATCH": 2, "CLEANUP_THROW": 3,
    "COMPARE_OP": 2, "CONTAINS_OP": 2, "CONVERT_VALUE": 1, "COPY": 0, "END_SEND": 2, "FORMAT_SIMPLE": 1,
    "FORMAT_VALUE": lambda n: 2 if n & 4 else 1, "FORMAT_WITH_SPEC": 2, "FOR_ITER": 1, "GET_AITER": 1, "GET_ANEXT": 1,
    "GET_AWAITABLE": 1, "GET_ITER": 1, "GET_LEN": 1, "GET_YIELD_FROM_ITER": 1, "IMPORT_FROM": 1, "IMPORT_NAME": 2,
    "IS_OP": 2, "JUMP_IF_FALSE_OR_POP": 1, "JUMP_IF_TRUE_OR_POP": 1, "LIST_TO_TUPLE": 1, "LOAD_ATTR": 1,
    "LOAD_FROM_DICT_OR_DEREF": 1, "LOAD_FROM_DICT_OR_GLOBALS": 1, "LOAD_METHOD": 1, "LOAD_SPECIAL": 1, "LOAD_SUPER_ATTR": 3,
    "MAKE_FUNCTION": lambda n: 1 + n.bit_count(), "MATCH_CLASS": 3, "MATCH_KEYS": 2, "MATCH_MAPPING": 1,
    "MATCH_SEQUENCE": 1, "PREP_RERAISE_STAR": 2, "PUSH_EXC_INFO": 1, "RETURN_VALUE": 1, "SEND": 2, "SET_FUNCTION_ATTRIBUTE": 2,
    "TO_BOOL": 1, "UNARY_INVERT": 1, "UNARY_NEGATIVE": 1, "UNARY_NOT": 1, "UNARY_POSITIVE": 1, "UNPACK_EX": 1,
    "UNPACK_SEQUENCE": 1, "YIELD_VALUE": 1,
}  # fmt: skip
_BY_DEPTH: Final = frozenset([
    "ASYNC_GEN_WRAP", "CACHE", "COPY_FREE_VARS", "DELETE_ATTR", "DELETE_DEREF", "DELETE_FAST", "DELETE_GLOBAL",
    "DELETE_NAME", "DELETE_SUBSCR", "DICT_MERGE", "DICT_UPDATE", "END_ASYNC_FOR", "END_FOR", "EXTENDED_ARG",
    "IMPORT_STAR", "JUMP", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT", "JUMP_FORWARD", "KW_NAMES",
    "LIST_APPEND", "LIST_EXTEND", "LOAD_ASSERTION_ERROR", "LOAD_BUILD_CLASS", "LOAD_CLASSDEREF", "LOAD_CLOSURE",
    "LOAD_CONST", "LOAD_DEREF", "LOAD_FAST", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "LOAD_FAST_LOAD_FAST",
    "LOAD_GLOBAL", "LOAD_LOCALS", "LOAD_NAME", "MAKE_CELL", "MAP_ADD", "NOP", "NOT_TAKEN",
    "POP_EXCEPT", "POP_ITER",
    "POP_JUMP_BACKWARD_IF_FALSE", "POP_JUMP_BACKWARD_IF_NONE", "POP_JUMP_BACKWARD_IF_NOT_NONE",
    "POP_JUMP_BACKWARD_IF_TRUE", "POP_JUMP_FORWARD_IF_FALSE", "POP_JUMP_FORWARD_IF_NONE",
    "POP_JUMP_FORWARD_IF_NOT_NONE", "POP_JUMP_FORWARD_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE",
    "POP_JUMP_IF_NOT_NONE", "POP_JUMP_IF_TRUE", "POP_TOP", "PRECALL", "PRINT_EXPR", "PUSH_NULL",
    "RAISE_VARARGS", "RERAISE", "RESUME", "RETURN_CONST", "RETURN_GENERATOR",
    "SETUP_ANNOTATIONS", "SET_ADD", "SET_UPDATE", "STORE_ATTR", "STORE_DEREF", "STORE_FAST",
    "STORE_FAST_LOAD_FAST", "STORE_FAST_STORE_FAST", "STORE_GLOBAL", "STORE_NAME", "STORE_SLICE",
    "STORE_SUBSCR", "SWAP", "WITH_EXCEPT_START",
])  # fmt: skip
"""Opcodes that take as many items as the stack gets lower.  An opcode that is neither here nor in `_TAKES` has no
proof."""
_TAKES_NULL: Final = frozenset(
    ["CALL", "CALL_FUNCTION_EX", "CALL_KW", "STORE_FAST", *(["POP_TOP"] if VERSION >= (3, 14) else [])]
)
"""Opcodes that may take a NULL (3.14 leaves a `with` by popping an item that may be NULL); calls have a rule of their
own."""
_NO_VALUE: Final = NULL if LASTI_IS_INT else NULL | LASTI
_LOADS_CHECK: Final = frozenset(["LOAD_FAST_CHECK", *(["LOAD_FAST"] if VERSION == (3, 11) else []),
                                 *(["LOAD_CLOSURE"] if VERSION < (3, 13) else [])])  # fmt: skip
"""Opcodes that raise when the variable is unbound."""


def prove(
    instructions: Sequence[Instruction],
    slots: Iterable[str],
    *,
    bound: Iterable[str] = (),
    cells: Iterable[str] = (),
    own: Iterable[str] = (),
    free: Iterable[str] = (),
) -> int:
    """The greatest stack depth of the code; `Unsound` unless the code is sound.

    Of the `slots`, `bound` hold a value at the start and `cells` a cell; COPY_FREE_VARS fills the slots of `free`.
    The slots of `own` and `free` are for cells: a value that generated instructions (without offset) store there
    counts as a cell.
    """
    proof = _Proof(instructions, slots, frozenset(own), frozenset(free))
    return proof.run({**dict.fromkeys(bound, VALUE), **dict.fromkeys(cells, A_CELL)}) if instructions else 0


class _Proof:
    def __init__(
        self, instructions: Sequence[Instruction], slots: Iterable[str], own: frozenset[str], free: frozenset[str]
    ) -> None:
        self.instructions = instructions
        self.index = {instruction: position for position, instruction in enumerate(instructions)}
        self.slots = {name: slot for slot, name in enumerate(slots)}
        self.free = free
        self.cells = own | free
        self.states: dict[int, State] = {}
        self.pending: list[int] = []

    def run(self, start: Mapping[str, int]) -> int:
        self.states[0] = (tuple(start.get(name, NULL) for name in self.slots), ())
        self.pending.append(0)
        while self.pending:
            self.visit(self.pending.pop())
        return max(len(stack) for _, stack in self.states.values())

    def visit(self, position: int) -> None:
        instruction = self.instructions[position]
        slots, stack = self.states[position]
        opname = instruction.opname
        handler = instruction.handler
        target = instruction.target
        forward = opname in JUMP_UNCONDITIONAL and target is not None and self.index.get(target, 0) > position
        if handler is not None and opname not in QUIET and not forward:
            if len(stack) < handler.depth:
                raise Unsound(f"the handler of {instruction!r} needs {handler.depth} items, the stack has {len(stack)}")
            pushed = (LASTI, VALUE) if handler.lasti else (VALUE,)
            self.reach(handler.target, instruction, (slots, stack[: handler.depth] + pushed))
        takes = _taken(instruction, stack)
        if opname in RULES:
            RULES[opname](instruction, stack)
        if instruction.target is not None:
            effect = stack_effect(instruction, jump=True)
            goal_stack = stack[: len(stack) - takes] + (VALUE,) * (takes + effect)
            self.reach(instruction.target, instruction, (slots, goal_stack))
        if opname not in STOPS:
            if position + 1 == len(self.instructions):
                raise Unsound(f"control falls off the end after {instruction!r}; expected a return, raise or jump")
            after = AFTER.get(opname)
            if after is not None:
                state = after(self, instruction, slots, stack)
            else:
                effect = stack_effect(instruction, jump=False)
                state = slots, stack[: len(stack) - takes] + _made(instruction, takes + effect)
            self.reach(self.instructions[position + 1], instruction, state)

    def reach(self, goal: Instruction, origin: Instruction, state: State) -> None:
        """Unite the known state at `goal` with `state`; if the union is larger, `goal` is visited again."""
        position = self.index.get(goal)
        if position is None:
            raise Unsound(f"{origin!r} leads to {goal!r}, which is not in the list")
        known = self.states.get(position)
        if known is None:
            self.states[position] = state
            self.pending.append(position)
            return
        if len(known[1]) != len(state[1]):
            depths = f"{len(known[1])} items on one path and {len(state[1])} on another, after {origin!r}"
            raise Unsound(f"the stack at {goal!r} has {depths}")
        united = _united(known[0], state[0]), _united(known[1], state[1])
        if united != known:
            self.states[position] = united
            self.pending.append(position)

    def slot(self, instruction: Instruction) -> int:
        found = self.slots.get(instruction.argval)
        if found is None:
            raise Unsound(f"{instruction!r} names an unknown variable; expected one of {list(self.slots)}")
        return found


def _taken(instruction: Instruction, stack: Items) -> int:
    """The number of items that the instruction takes.  No item may be NULL."""
    opname = instruction.opname
    known = _TAKES.get(opname)
    if known is None:
        if opname not in _BY_DEPTH:
            raise Unsound(f"the stack items of {instruction!r} are unknown; add a row to bytecode/verify.py")
        known = max(0, -stack_effect(instruction, jump=False))
    takes = known if isinstance(known, int) else known(instruction.arg or 0)
    if len(stack) < takes:
        raise Unsound(f"{instruction!r} takes {takes} items, the stack has {len(stack)}")
    if takes and opname not in _TAKES_NULL and any(item & _NO_VALUE for item in stack[-takes:]):
        raise Unsound(f"{instruction!r} takes {_shown(stack[-takes:])}")
    return takes


def _made(instruction: Instruction, count: int) -> Items:
    """The items that the instruction pushes."""
    opname = instruction.opname
    if count == 2 and opname in ("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD", "LOAD_SPECIAL", "LOAD_SUPER_ATTR"):
        other = NULL if opname == "LOAD_GLOBAL" else NULL | VALUE
        return (VALUE, other) if _NULL_LAST else (other, VALUE)
    return (VALUE,) * count


def _united(a: Items, b: Items) -> Items:
    return a if a is b or a == b else tuple(map(operator.or_, a, b))  # of equal length


def _shown(items: Items) -> str:
    return ", ".join(" or ".join(name for bit, name in NAMES.items() if item & bit) for item in items)


# Rules: requirements of an instruction on the stack items, beyond their number -----------------------------------
def _call_rule(instruction: Instruction, stack: Items) -> None:
    arguments = (_taken(instruction, stack) or 2) - 2
    first, second, *rest = stack[len(stack) - arguments - 2 :]
    fn, beside = (first, second) if _NULL_LAST else (second, first)
    if instruction.opname == "CALL_FUNCTION_EX" and ALWAYS_KEYWORDS and rest[-1] in (NULL, VALUE):
        rest.pop()
    if fn & NULL or any(item & NULL for item in rest):
        raise Unsound(f"{instruction!r} calls or is given {_shown((fn, *rest))}")
    if instruction.opname == "CALL_FUNCTION_EX" and beside != NULL:
        raise Unsound(f"{instruction!r} needs NULL beside its callable, not {_shown((beside,))}")


def _reraise_rule(instruction: Instruction, stack: Items) -> None:
    depth = instruction.arg or 0
    if depth and (len(stack) <= depth or stack[-1 - depth] != LASTI):
        raise Unsound(f"{instruction!r} needs an index below the exception, the stack is {_shown(stack)}")


def _pop_except_rule(instruction: Instruction, stack: Items) -> None:
    if stack[-1] != HANDLED:
        raise Unsound(f"{instruction!r} would restore {_shown(stack[-1:])}")


def _depth_rule(instruction: Instruction, stack: Items) -> None:
    if not 1 <= (instruction.arg or 0) <= len(stack):
        raise Unsound(f"{instruction!r} reaches below the stack of {len(stack)} items")


def _with_rule(instruction: Instruction, stack: Items) -> None:
    if len(stack) < EXIT_DEPTH or stack[-EXIT_DEPTH] & NULL:
        raise Unsound(f"{instruction!r} needs the manager's __exit__ {EXIT_DEPTH} deep, the stack is {_shown(stack)}")


def _return_rule(instruction: Instruction, stack: Items) -> None:
    if len(stack) != (instruction.opname == "RETURN_VALUE"):
        raise Unsound(f"{instruction!r} leaves {_shown(stack)} on the stack")


RULES: Final[Mapping[str, Callable[[Instruction, Items], None]]] = {
    "CALL": _call_rule, "CALL_KW": _call_rule, "CALL_FUNCTION_EX": _call_rule, "RERAISE": _reraise_rule,
    "POP_EXCEPT": _pop_except_rule, "COPY": _depth_rule, "SWAP": _depth_rule, "WITH_EXCEPT_START": _with_rule,
    "RETURN_VALUE": _return_rule, "RETURN_CONST": _return_rule,
}  # fmt: skip


# Instructions that do more than take values and push values ------------------------------------------------------
def _stored(slots: Items, slot: int, held: int) -> Items:
    return slots if slots[slot] == held else (*slots[:slot], held, *slots[slot + 1 :])


def _load_fast(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    held = slots[proof.slot(instruction)]
    if held & NULL and instruction.opname not in _LOADS_CHECK:
        if instruction.opname != "LOAD_FAST" or instruction.offset is None:
            raise Unsound(
                f"{instruction!r} may push NULL: not every path to the instruction binds {instruction.argval}"
            )
        # the program's own load: bound on all its paths, but not on each generated path
        instruction.opname = "LOAD_FAST_CHECK"
    bound = held & ~NULL or VALUE
    return _stored(slots, proof.slot(instruction), bound), (*stack, bound)


def _load_and_clear(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    slot = proof.slot(instruction)
    return _stored(slots, slot, NULL), (*stack, slots[slot])


def _store_fast(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    held = stack[-1]
    if held == VALUE and instruction.offset is None and instruction.argval in proof.cells:
        held = A_CELL
    return _stored(slots, proof.slot(instruction), held), stack[:-1]


def _delete_fast(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    return _stored(slots, proof.slot(instruction), NULL), stack


def _make_cell(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    slot = proof.slot(instruction)
    return _stored(slots, slot, BOXED if slots[slot] == A_CELL else A_CELL), stack


def _copy_free(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    return tuple(A_CELL if name in proof.free else slots[slot] for name, slot in proof.slots.items()), stack


def _use_cell(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    held = slots[proof.slot(instruction)]
    if held & ~(A_CELL | BOXED):
        raise Unsound(f"{instruction!r} uses a cell, its slot holds {_shown((held,))}")
    effect = stack_effect(instruction, jump=False)
    takes = _taken(instruction, stack)
    return slots, stack[: len(stack) - takes] + (A_CELL if held == BOXED else VALUE,) * (takes + effect)


def _push_null(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    return slots, (*stack, NULL)


def _load_const(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    index = isinstance(instruction.argval, UnitOf) or type(instruction.argval) is int
    return slots, (*stack, LASTI if index and LASTI_IS_INT else VALUE)


def _copy(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    items, depth = list(stack), instruction.arg or 0
    if items[-depth] == HANDLED:  # of the two copies only the upper one meets POP_EXCEPT
        items[-depth] = VALUE
    return slots, (*items, stack[-depth])


def _swap(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    items, depth = list(stack), instruction.arg or 0
    items[-1], items[-depth] = items[-depth], items[-1]
    return slots, tuple(items)


def _push_exc_info(proof: _Proof, instruction: Instruction, slots: Items, stack: Items) -> State:
    return slots, (*stack[:-1], HANDLED, stack[-1])


AFTER: Final[Mapping[str, Callable[[_Proof, Instruction, Items, Items], State]]] = {
    **dict.fromkeys(CELL - {"MAKE_CELL", "COPY_FREE_VARS", "LOAD_CLOSURE"}, _use_cell),
    "COPY": _copy, "COPY_FREE_VARS": _copy_free, "DELETE_FAST": _delete_fast, "LOAD_CONST": _load_const,
    "LOAD_CLOSURE": _load_fast, "LOAD_FAST": _load_fast, "LOAD_FAST_AND_CLEAR": _load_and_clear, "LOAD_FAST_CHECK": _load_fast,
    "MAKE_CELL": _make_cell, "PUSH_EXC_INFO": _push_exc_info, "PUSH_NULL": _push_null, "STORE_FAST": _store_fast,
    "SWAP": _swap,
}  # fmt: skip
