"""Round trip of decode and assemble: the same code object, over the standard library; the reassembled code also runs."""

import dis
import importlib.util
import inspect
import pathlib
import sys
import sysconfig
import types

import pytest

from pycompiler.capture.bytecode import Instruction, assemble, decode, stack_depth
from pycompiler.capture.bytecode.build import (
    compare_op,
    jump,
    jump_if,
    load_const,
    load_fast,
    load_fast_check,
    nop,
    return_value,
    store_fast,
)
from pycompiler.capture.bytecode.decode import slot_names
from pycompiler.capture.bytecode.locations import decode_exception_table
from pycompiler.capture.bytecode.tables import COMPARE_OPERATORS, COMPARE_TO_BOOL, QUIET, SUPERINSTRUCTIONS

STDLIB = pathlib.Path(sysconfig.get_path("stdlib"))
SKIPPED = ("test", "site-packages", "idlelib", "lib2to3", "turtledemo", "tkinter")


def sources():
    files = [path for path in sorted(STDLIB.rglob("*.py")) if not any(part in SKIPPED for part in path.parts)]
    chosen = [path for path in files if path.stat().st_size < 120_000][::3]
    grammar = [path for path in STDLIB.glob("test/test_*.py") if path.stem[5:] in GRAMMAR]
    return chosen + grammar


GRAMMAR = {
    "grammar",
    "generators",
    "coroutines",
    "asyncgen",
    "with",
    "patma",
    "except_star",
    "listcomps",
    "scope",
    "super",
    "exceptions",
    "named_expressions",
    "type_params",
    "extcall",
    "fstring",
    "unpack_ex",
    "opcodes",
    "compile",
}


def code_objects(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from code_objects(const)


def plain(code):
    """`dis` output without offsets, pool indices and superinstructions."""
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


def with_handlers_that_run(code):
    """The decoded instructions of `code`. A handler around instructions that cannot raise needs no stack, so it is dropped."""
    instructions = decode(code)
    for i in instructions:
        i.handler = None if i.opname in QUIET else i.handler
    return instructions


def check(code):
    made = assemble(decode(code), code)
    # Split instructions shift the positions of jumps, so jump targets are compared on the decoded form instead.
    old, new = plain_decoded(code), plain_decoded(made)
    assert old == new, code
    if not any(i.opname in SUPERINSTRUCTIONS or casts(i) for i in dis.get_instructions(code)):
        assert plain(code) == plain(made), code
    for field in ("co_varnames", "co_cellvars", "co_freevars", "co_flags", "co_argcount", "co_name", "co_qualname"):
        assert getattr(code, field) == getattr(made, field), (code, field)
    assert made.co_stacksize >= max(stack_depth(with_handlers_that_run(code)).values())
    # EXTENDED_ARGs may differ: the pools are in another order, and the compiler leaves superfluous EXTENDED_ARGs.
    same_shape = made.co_code[::3] == owning(code.co_code)[::3]
    if same_shape:
        assert list(code.co_lines()) == list(made.co_lines()), code
        assert made.co_exceptiontable == code.co_exceptiontable, code
    return same_shape


def casts(instruction):
    """Whether a comparison casts its result to bool; its decoded form has two instructions."""
    return instruction.opname == "COMPARE_OP" and bool(instruction.arg & COMPARE_TO_BOOL)


def owning(raw):
    """The bytecode with owning loads in place of 3.14's borrowing loads."""
    owns, borrows = dis.opmap["LOAD_FAST"], dis.opmap.get("LOAD_FAST_BORROW")
    return bytes(owns if n % 2 == 0 and byte == borrows else byte for n, byte in enumerate(raw))


def plain_decoded(code):
    decoded = decode(code)
    order = {i: n for n, i in enumerate(decoded)}
    rows = []
    for i in decoded:
        value = i.argval
        if isinstance(value, types.CodeType):
            value = value.co_qualname
        handler = i.handler and (order[i.handler.target], i.handler.depth, i.handler.lasti)
        goal = i.target and order[i.target]
        rows.append((i.opname, type(value), repr(value), i.flag, goal, handler, i.positions, i.reads))
    return rows


@pytest.mark.parametrize("part", range(8))
def test_standard_library(part):
    count = same_shape = 0
    for path in sources()[part::8]:
        try:
            module = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        except SyntaxError:
            continue
        for code in code_objects(module):
            same_shape += check(code)
            count += 1
    assert count > 300
    assert same_shape > 0.4 * count


def reassembled(code):
    """A module's code with every nested code object decoded and assembled again."""
    made = assemble(decode(code), code)
    consts = tuple(reassembled(const) if isinstance(const, types.CodeType) else const for const in made.co_consts)
    return made.replace(co_consts=consts)


def load_reassembled(name):
    path = pathlib.Path(importlib.util.find_spec(name).origin)
    module = types.ModuleType(f"reassembled_{name}")
    module.__package__ = name if path.stem == "__init__" else name.rpartition(".")[0]
    sys.modules[module.__name__] = module
    exec(reassembled(compile(path.read_bytes(), str(path), "exec", dont_inherit=True)), module.__dict__)
    return module


def test_reassembled_modules_work():
    data = {"a": [1, 2.5, None, True], "b": {"c": "x\n" * 3}}
    json = load_reassembled("json.encoder").JSONEncoder(indent=1)
    json.__class__.iterencode.__globals__["c_make_encoder"] = None
    import json as reference

    assert json.encode(data) == reference.dumps(data, indent=1)
    text = "the quick brown fox jumps over the lazy dog " * 5
    import difflib
    import textwrap

    assert load_reassembled("textwrap").fill(text, 30) == textwrap.fill(text, 30)
    old, new = text.split(), text.replace("fox", "cat").split()
    assert list(load_reassembled("difflib").unified_diff(old, new)) == list(difflib.unified_diff(old, new))
    decimal = load_reassembled("_pydecimal")
    assert str(decimal.Decimal(2).sqrt()) == "1.414213562373095048801688724"
    fractions = load_reassembled("fractions")
    assert fractions.Fraction("3/7") + fractions.Fraction(1, 2) == fractions.Fraction(13, 14)
    ast = load_reassembled("ast")
    source = inspect.getsource(textwrap)
    import ast as reference_ast

    assert ast.dump(ast.parse(source)) == reference_ast.dump(reference_ast.parse(source))
    dataclasses = load_reassembled("dataclasses")

    @dataclasses.dataclass(order=True)
    class Point:
        x: int
        y: int = 3

    assert Point(1) < Point(2)
    assert repr(Point(1)).endswith("Point(x=1, y=3)")


def test_reassembled_generators_and_coroutines_work():
    source = """
import asyncio
def gen(n):
    try:
        for i in range(n):
            got = yield i
            if got: yield from [got] * 2
    finally:
        log.append("closed")
async def agen(n):
    for i in range(n):
        await asyncio.sleep(0)
        yield i * i
class Manager:
    async def __aenter__(self): log.append("in"); return 5
    async def __aexit__(self, *exc): log.append(exc[0]); return True
async def main():
    total = [x async for x in agen(4) if x != 1]
    async with Manager() as five:
        total.append(five)
        raise KeyError
    return total
log = []
g = gen(3)
out = [next(g), g.send("a"), next(g), next(g)]
g.close()
out.append(asyncio.run(main()))
"""
    spaces = []
    for transform in (lambda code: code, reassembled):
        space = {}
        exec(transform(compile(source, "<coroutines>", "exec")), space)
        spaces.append((space["log"], space["out"]))
    assert spaces[0] == spaces[1] == (["closed", "in", KeyError], [0, "a", "a", 1, [0, 4, 9, 5]])


def shell(instructions, **kwargs):
    """A function of one argument `x` with the given instructions."""
    code = (lambda x: None).__code__
    return types.FunctionType(assemble([*decode(code)[:1], *instructions], code, **kwargs), {})


def test_far_jumps_and_many_constants():
    end, start = return_value(), nop()
    pairs = [(load_const(n + 10**6), store_fast(f"v{n % 300}")) for n in range(70_000)]
    distinct = [instruction for load, store in pairs for instruction in (*load, *store)]
    again = [*load_fast("x"), *load_const(1), Instruction("BINARY_OP", argval="-="), *store_fast("x")]
    last = load_fast_check("v299")
    leave = [*load_fast("x"), *load_const(0), *compare_op("<"), *jump_if(True, last[0])]
    fn = shell([*start, *leave, *distinct, *again, *jump(start[0]), *last, *end])
    assert len(fn.__code__.co_code) > 65536 * 4
    assert fn(1) == 10**6 + 70_000 - 101


@pytest.mark.parametrize("kind", ["TRUE", "FALSE", "NONE", "NOT_NONE"])
def test_conditional_jump_backwards(kind):
    opname = f"POP_JUMP_IF_{kind}"
    taken, test = load_const("taken"), load_fast("x")
    to_bool = [Instruction("TO_BOOL")] if sys.version_info >= (3, 13) and "NONE" not in opname else []
    back = Instruction(opname, target=taken[0])
    fn = shell([*jump(test[0]), *taken, *return_value(), *test, *to_bool, back, *load_const("not"), *return_value()])
    for value in (True, False, None, 3):
        truth = {"TRUE": bool(value), "FALSE": not value, "NONE": value is None, "NOT_NONE": value is not None}
        assert fn(value) == ("taken" if truth[kind] else "not")


def test_every_comparison():
    values = [1, 2, 2.0, float("nan"), "a", 2**70]
    for operator in COMPARE_OPERATORS:
        fn = shell([*load_fast("x"), *load_const(2), *compare_op(operator), *return_value()])
        plain_fn = eval(f"lambda x: x {operator} 2")
        for value in values * 30:  # enough iterations for the specialised instructions
            try:
                wanted = plain_fn(value)
            except TypeError:
                with pytest.raises(TypeError):
                    fn(value)
            else:
                assert fn(value) is wanted


def test_constants_keep_identity_and_type():
    first, second = [], []
    consts = [first, second, 0, 0.0, -0.0, False, "a", b"a", (0,), (0.0,), (False,)]
    body = [instruction for const in consts for instruction in load_const(const)]
    result = shell([*body, Instruction("BUILD_LIST", len(consts)), *return_value()])(None)
    assert result[0] is first
    assert result[1] is second
    assert [repr(value) for value in result] == [repr(value) for value in consts]


def test_same_name_local_and_free():
    def outer():
        x = "free"

        def inner():
            found = [x for x in range(3)]
            return x, found

        return inner

    inner = outer()
    code = assemble(decode(inner.__code__), inner.__code__)
    assert types.FunctionType(code, {}, closure=inner.__closure__)() == ("free", [0, 1, 2])
    assert len(set(slot_names(code))) == len(slot_names(code))
    assert code.co_varnames == inner.__code__.co_varnames


def test_errors_name_the_problem():
    code = (lambda x: x).__code__
    once = load_const(1)
    with pytest.raises(ValueError, match="twice"):
        assemble([*once, *once, *return_value()], code)
    with pytest.raises(ValueError, match="target"):
        assemble([*jump(nop()[0]), *return_value()], code)
    with pytest.raises(ValueError, match="falls off the end"):
        assemble(load_const(1), code)
    with pytest.raises(ValueError, match="uses a cell"):
        assemble([Instruction("LOAD_DEREF", argval="y"), *return_value()], code)
    with pytest.raises(ValueError, match="does not exist"):
        assemble([Instruction("LOAD_NOTHING"), *return_value()], code)


def test_exception_table_rows_merge():
    def guarded(a):
        try:
            return a.b.c.d
        except AttributeError:
            return None

    made = assemble(decode(guarded.__code__), guarded.__code__)
    assert len(decode_exception_table(made.co_exceptiontable)) == len(
        decode_exception_table(guarded.__code__.co_exceptiontable)
    )
