"""Emitters: small instruction lists with the same meaning on every supported Python.

In: names, objects, instruction lists.
Out: fresh `Instruction` lists, to be joined with `[*a, *b]`.  Objects are embedded as constants; a code object may
hold any object in memory.

Example::

    [*call_function(load_const(print), load_fast("x"), kwnames=()), *pop_top()]
"""

from __future__ import annotations

from collections.abc import Sequence

from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction, UnitOf
from pycompiler.capture.bytecode.tables import (
    BINARY_OPERATORS,
    COMPARE_OPERATORS,
    LASTI_IS_INT,
    OPMAP,
    VERSION,
)

Code = list[Instruction]


def op(opname: str, arg: int | None = None) -> Code:
    """One instruction with a plain numeric argument, or none."""
    return [Instruction(opname, arg, arg)]


def named(opname: str, value: object, flag: int = 0) -> Code:
    """One instruction whose argument is a name, a constant or an operator."""
    return [Instruction(opname, argval=value, flag=flag)]


def load_const(value: object) -> Code:
    """Push any object."""
    return named("LOAD_CONST", value)


def load_fast(name: str) -> Code:
    """Push a local that is bound."""
    return named("LOAD_FAST", name)


def load_fast_check(name: str) -> Code:
    """Push a local, or raise UnboundLocalError; since 3.12 `load_fast` of an unbound local pushes NULL."""
    return named("LOAD_FAST_CHECK" if "LOAD_FAST_CHECK" in OPMAP else "LOAD_FAST", name)


def store_fast(name: str) -> Code:
    """Pop into a local; NULL may be stored."""
    return named("STORE_FAST", name)


def delete_fast(name: str) -> Code:
    """Unbind a local that is bound."""
    return named("DELETE_FAST", name)


def load_deref(name: str) -> Code:
    """Push the contents of a cell."""
    return named("LOAD_DEREF", name)


def store_deref(name: str) -> Code:
    """Pop into a cell."""
    return named("STORE_DEREF", name)


def delete_deref(name: str) -> Code:
    """Empty a cell that is not empty."""
    return named("DELETE_DEREF", name)


def make_cell(name: str) -> Code:
    """Put a new cell into a slot, holding the slot's old content."""
    return named("MAKE_CELL", name)


def load_raw(name: str) -> Code:
    """Push the content of the slot itself: the cell object for a cell slot, the value otherwise."""
    return named("LOAD_FAST", name)


def store_raw(name: str) -> Code:
    """Pop into the slot itself: a cell object for a cell slot."""
    return named("STORE_FAST", name)


def load_global(name: str) -> Code:
    """Push a global or builtin, without NULL."""
    return named("LOAD_GLOBAL", name)


def store_global(name: str) -> Code:
    """Pop into a global."""
    return named("STORE_GLOBAL", name)


def delete_global(name: str) -> Code:
    """Delete a global."""
    return named("DELETE_GLOBAL", name)


def push_null() -> Code:
    """Push NULL."""
    return op("PUSH_NULL")


def load_callable(load_instrs: Sequence[Instruction]) -> Code:
    """Push a callable with its NULL, in the order that this Python's CALL expects; then push arguments and `call`."""
    return [*load_instrs, *push_null()] if VERSION >= (3, 13) else [*push_null(), *load_instrs]


def call(nargs: int, kwnames: tuple[str, ...] = ()) -> Code:
    """Call the callable that `load_callable` pushed with the `nargs` arguments on top, the last ones named by
    `kwnames`."""
    if VERSION >= (3, 13):
        return [*load_const(kwnames), *op("CALL_KW", nargs)] if kwnames else op("CALL", nargs)
    names = named("KW_NAMES", kwnames) if kwnames else []
    precall = op("PRECALL", nargs) if VERSION == (3, 11) else []
    return [*names, *precall, *op("CALL", nargs)]


def call_function(
    fn_instrs: Sequence[Instruction], *arg_instr_lists: Sequence[Instruction], kwnames: tuple[str, ...] = ()
) -> Code:
    """Push the result of a call; the last `len(kwnames)` arguments are keyword arguments."""
    arguments = [instruction for arg in arg_instr_lists for instruction in arg]
    return [*load_callable(fn_instrs), *arguments, *call(len(arg_instr_lists), kwnames)]


def build_tuple(count: int) -> Code:
    """Pop items, push a tuple."""
    return op("BUILD_TUPLE", count)


def build_list(count: int) -> Code:
    """Pop items, push a list."""
    return op("BUILD_LIST", count)


AT_ONCE = 500  # items on the stack: verification takes depth times instructions


def list_of(items: list[Code]) -> Code:
    """Push a list of the values that `items` push, one part after the other."""
    parts = [items[at : at + AT_ONCE] for at in range(0, len(items), AT_ONCE)] or [[]]
    code: Code = []
    for place, part in enumerate(parts):
        code += [*(i for item in part for i in item), *build_list(len(part)), *(op("LIST_EXTEND", 1) if place else [])]
    return code


def build_set(count: int) -> Code:
    """Pop items, push a set."""
    return op("BUILD_SET", count)


def build_map(count: int) -> Code:
    """Pop `count` pairs of key and value, push a dict."""
    return op("BUILD_MAP", count)


def build_const_key_map(keys: tuple[object, ...]) -> Code:
    """Pop one value per key, push a dict."""
    return [*load_const(keys), *op("BUILD_CONST_KEY_MAP", len(keys))]


def build_string(count: int) -> Code:
    """Pop strings, push the joined string."""
    return op("BUILD_STRING", count)


def build_slice(count: int) -> Code:
    """Pop two or three bounds, push a slice."""
    return op("BUILD_SLICE", count)


def load_attr(name: str) -> Code:
    """Replace the object on top by its attribute."""
    return named("LOAD_ATTR", name)


def store_attr(name: str) -> Code:
    """Stack: value, object. Pop both, set the attribute."""
    return named("STORE_ATTR", name)


def delete_attr(name: str) -> Code:
    """Pop an object, delete its attribute."""
    return named("DELETE_ATTR", name)


def load_item() -> Code:
    """Stack: container, key. Replace both by the item."""
    return op("BINARY_SUBSCR") if "BINARY_SUBSCR" in OPMAP else binary_op("[]")


def delete_item() -> Code:
    """Stack: container, key. Pop both, delete the item."""
    return op("DELETE_SUBSCR")


def binary_op(operator: str) -> Code:
    """``+``, ``+=`` ... on the two values on top."""
    if operator not in BINARY_OPERATORS:
        raise ValueError(f"unknown binary operator {operator!r}; expected one of {BINARY_OPERATORS}")
    return named("BINARY_OP", operator)


def compare_op(operator: str) -> Code:
    """``<``, ``==`` ... on the two values on top."""
    if operator not in COMPARE_OPERATORS:
        raise ValueError(f"unknown comparison {operator!r}; expected one of {COMPARE_OPERATORS}")
    return named("COMPARE_OP", operator)


def is_op(invert: bool = False) -> Code:
    """``is``, or ``is not``, of the two values on top."""
    return op("IS_OP", int(invert))


def unpack_sequence(count: int) -> Code:
    """Pop a sequence, push its items, the first on top."""
    return op("UNPACK_SEQUENCE", count)


def pop_top() -> Code:
    """Drop the top."""
    return op("POP_TOP")


def copy(depth: int) -> Code:
    """Push the item at `depth` again; 1 is the top."""
    return op("COPY", depth)


def dup() -> Code:
    """Push the top again."""
    return copy(1)


def swap(depth: int) -> Code:
    """Exchange the top with the item at `depth`; 2 is the item below the top."""
    return op("SWAP", depth)


def nop() -> Code:
    """An instruction to jump to."""
    return op("NOP")


def jump(target: Instruction) -> Code:
    """Go to `target`, in either direction."""
    return [Instruction("JUMP", target=target)]


def jump_if(truth: bool, target: Instruction) -> Code:
    """Pop a value; go to `target` when its truth is `truth`."""
    to_bool = op("TO_BOOL") if "TO_BOOL" in OPMAP else []
    return [*to_bool, Instruction(f"POP_JUMP_IF_{'TRUE' if truth else 'FALSE'}", target=target)]


def load_lasti(entry: Instruction, depth: int) -> Code:
    """Push the index of `entry`, as a handler gets it, on a stack of `depth` items."""
    if LASTI_IS_INT:
        return load_const(UnitOf(entry))
    raising, landed = op("RAISE_VARARGS", 1), pop_top()  # only unwinding creates a tagged index
    raising[0].handler = ExceptionHandler(landed[0], depth, True)
    return [*load_const(RuntimeError), *raising, *landed]


def enter_handler(exception_instrs: Sequence[Instruction]) -> Code:
    """Make an exception the handled one, and push the previous one, which POP_EXCEPT restores."""
    return [*exception_instrs, *op("PUSH_EXC_INFO"), *pop_top()]


def return_value() -> Code:
    """Return the top."""
    return op("RETURN_VALUE")
