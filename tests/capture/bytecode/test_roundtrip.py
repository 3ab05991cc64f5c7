"""decode → assemble gives back the same code: over the standard library, and run."""

import dis
import importlib.util
import inspect
import pathlib
import sys
import sysconfig
import types

import pytest
from pycompiler.capture.bytecode import Instruction, assemble, decode, stack_depth
from pycompiler.capture.bytecode.build import compare_op, jump, jump_if, load_const, load_fast, nop, return_value, store_fast
from pycompiler.capture.bytecode.decode import slot_names
from pycompiler.capture.bytecode.locations import decode_exception_table
from pycompiler.capture.bytecode.tables import COMPARE_OPERATORS, SUPERINSTRUCTIONS

STDLIB = pathlib.Path(sysconfig.get_path("stdlib"))
SKIPPED = ("test", "site-packages", "idlelib", "lib2to3", "turtledemo", "tkinter")


def sources():
    files = [path for path in sorted(STDLIB.rglob("*.py")) if not any(part in SKIPPED for part in path.parts)]
    chosen = [path for path in files if path.stat().st_size < 120_000][::2]
    grammar = [path for path in STDLIB.glob("test/test_*.py") if path.stem[5:] in GRAMMAR]
    return chosen + grammar


GRAMMAR = {
    "grammar", "generators", "coroutines", "asyncgen", "with", "patma", "except_star", "listcomps", "scope", "super",
    "exceptions", "named_expressions", "type_params", "extcall", "fstring", "unpack_ex", "opcodes", "compile",
}


def code_objects(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from code_objects(const)


def plain(code):
    """What dis says, in terms that do not depend on offsets, pool indices or superinstructions."""
    order = {}
    listed = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
    starts, previous = {}, None
    for instruction in dis.get_instructions(code):
        begin = previous if previous is not None else instruction.offset
        previous = begin if instruction.opname == "EXTENDED_ARG" else None
        if previous is None:
            starts[begin] = starts[instruction.offset] = instruction.offset
    for instruction in listed:
        order[instruction.offset] = len(order)
    rows = []
    for i in listed:
        value = i.argval
        if i.opcode in dis.hasjrel:
            value = order[starts[value]]
        elif i.opcode in dis.hasconst:
            value = (type(value), repr(value) if not isinstance(value, types.CodeType) else value.co_qualname)
        elif i.opcode in dis.hasname:
            flags = {"LOAD_GLOBAL": 1, "LOAD_ATTR": 1 * (sys.version_info >= (3, 12)), "LOAD_SUPER_ATTR": 3}
            value = (value, i.arg & flags.get(i.opname, 0))
        elif i.opname == "COMPARE_OP" and sys.version_info >= (3, 12):
            value = i.arg
        positions = i.positions and tuple(i.positions)
        if i.opname in SUPERINSTRUCTIONS:
            names = value if isinstance(value, tuple) else i.argval
            rows += [(name, name_, positions) for name, name_ in zip(SUPERINSTRUCTIONS[i.opname], names, strict=True)]
        else:
            rows.append((i.opname, value, positions))
    return rows


def protected(code):
    """Exception table rows in terms of decoded positions."""
    decoded = decode(code)
    return [i.handler and (decoded.index(i.handler.target), i.handler.depth, i.handler.lasti) for i in decoded]


def code_differs_only_in_pools(old, new):
    return old.co_code[::2] == new.co_code[::2]


def check(code):
    made = assemble(decode(code), code)
    # A superinstruction shifts positions of jumps, so jump goals are compared on the decoded form instead.
    old, new = plain_decoded(code), plain_decoded(made)
    assert old == new, code
    if not any(i.opname in SUPERINSTRUCTIONS for i in dis.get_instructions(code)):
        assert plain(code) == plain(made), code
    for field in ("co_varnames", "co_cellvars", "co_freevars", "co_flags", "co_argcount", "co_name", "co_qualname"):
        assert getattr(code, field) == getattr(made, field), (code, field)
    assert made.co_stacksize >= max(stack_depth(decode(code)).values())
    # The compiler's own layout has a superfluous EXTENDED_ARG now and then.
    if len(made.co_code) == len(code.co_code):
        assert made.co_code == code.co_code or code_differs_only_in_pools(code, made)
        assert list(code.co_lines()) == list(made.co_lines()), code
        assert made.co_exceptiontable == code.co_exceptiontable, code


def plain_decoded(code):
    decoded = decode(code)
    order = {i: n for n, i in enumerate(decoded)}
    rows = []
    for i in decoded:
        value = i.argval
        if isinstance(value, types.CodeType):
            value = value.co_qualname
        handler = i.handler and (order[i.handler.target], i.handler.depth, i.handler.lasti)
        rows.append((i.opname, type(value), repr(value), i.flag, i.target and order[i.target], handler, i.positions, i.reads))
    return rows


@pytest.mark.parametrize("part", range(8))
def test_standard_library(part):
    count = 0
    for path in sources()[part::8]:
        try:
            module = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except SyntaxError:
            continue
        for code in code_objects(module):
            check(code)
            count += 1
    assert count > 500
