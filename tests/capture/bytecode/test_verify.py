"""The verifier rejects code that would push NULL, and accepts all code of CPython's own compiler (`test_roundtrip` too)."""

import pytest

from pycompiler.capture.bytecode import assemble, build, decode
from pycompiler.capture.bytecode.instruction import ExceptionHandler
from pycompiler.capture.bytecode.tables import VERSION
from pycompiler.capture.bytecode.verify import Unsound, prove


def rejected(code, text, **given):
    with pytest.raises(Unsound, match=text):
        prove(code, ("x", "y", "c"), **given)


def returned(*code):
    return [*code, *build.return_value()]


def test_a_variable_that_some_way_leaves_unbound():
    load = build.load_fast("y")
    code = returned(
        *build.load_fast("x"), *build.jump_if(True, load[0]), *build.load_const(1), *build.store_fast("y"), *load
    )
    if VERSION == (3, 11):  # LOAD_FAST of 3.11 checks
        prove(code, ("x", "y"), bound=("x",))
    else:
        rejected(code, "not every path to the instruction binds y", bound=("x",))
    load[0].opname = build.load_fast_check("y")[0].opname
    assert prove(code, ("x", "y"), bound=("x",)) == 1


def test_a_check_that_passed_binds():
    code = returned(*build.load_fast_check("y"), *build.pop_top(), *build.load_fast("y"))
    assert prove(code, ("x", "y"), bound=("x",)) == 1


def test_a_deleted_variable_and_the_way_through_a_handler():
    handler = build.pop_top()
    body = [*build.load_const(1), *build.store_fast("y"), *build.load_fast("x"), *build.store_fast("x")]
    body[2].handler = ExceptionHandler(handler[0], 0, False)
    after = returned(*build.load_fast_check("y"))
    code = [*body, *build.delete_fast("y"), *after, *handler, *returned(*build.load_fast("y"))]
    assert prove(code, ("x", "y"), bound=("x",)) == 1
    body[1], body[0] = build.nop()[0], build.nop()[0]
    if VERSION > (3, 11):
        rejected([*body, *code[4:]], "not every path", bound=("x",))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (returned(*build.push_null()), "RETURN_VALUE.* takes NULL"),
        (returned(*build.push_null(), *build.op("UNARY_NEGATIVE")), "UNARY_NEGATIVE.* takes NULL"),
        (returned(*build.call_function(build.push_null(), build.load_const(0))), "calls or is given NULL"),
        (returned(*build.call_function(build.load_const(print), build.push_null())), "calls or is given .*NULL"),
        (returned(*build.load_const(0), *build.load_const(0)), "leaves"),
        (returned(*build.pop_top()), "takes 1 items, the stack has 0"),
        (returned(*build.load_const(0), *build.copy(2)), "below the stack of 1"),
        (returned(*build.load_deref("c")), "its slot holds NULL"),
        (
            [*build.load_const(0), *build.op("POP_EXCEPT"), *returned(*build.load_const(0))],
            "would restore an? (integer|value)",
        ),
        ([*build.load_const("no"), *build.load_const(ValueError), *build.op("RERAISE", 1)], "needs an index"),
        (build.load_const(0), "falls off the end"),
        (returned(*build.load_fast("unknown")), "names an unknown variable"),
    ],
)
def test_rejected(code, text):
    rejected(code, text, bound=("x",))


def test_a_restored_cell_is_a_cell():
    code = returned(*build.make_cell("c"), *build.load_deref("c"), *build.store_raw("c"), *build.load_deref("c"))
    assert prove(code, ("c",), cells=("c",)) == 1
    rejected(code, "its slot holds a value", bound=("c",))


def test_two_depths_at_one_place():
    end = build.nop()
    code = [*build.load_fast("x"), *build.jump_if(True, end[0]), *build.load_const(1), *end]
    rejected(returned(*code, *build.load_const(2)), "0 items on one path|1 items on one path", bound=("x",))


def test_no_code_object_is_made_of_what_is_rejected():
    def f(x):
        return x

    with pytest.raises(Unsound):
        assemble([*decode(f.__code__)[:1], *build.push_null(), *build.return_value()], f.__code__)


def test_loads_of_the_program_that_ways_of_ours_reach_unbound_become_checked_ones() -> None:
    (ours,), (its,) = list(build.load_fast("x")), list(build.load_fast("x"))
    its.offset = 2
    if VERSION < (3, 12):  # every load checks
        prove([its, *build.return_value()], ("x",))
        assert its.opname == "LOAD_FAST"
        return
    prove([its, *build.return_value()], ("x",))
    assert its.opname == "LOAD_FAST_CHECK"
    with pytest.raises(Unsound, match="may push NULL"):
        prove([ours, *build.return_value()], ("x",))


def test_an_opcode_that_nothing_is_known_of():
    code = returned(*build.load_const(0))
    code[0].opname = "LOAD_SOMETHING"
    rejected(code, "add a row to bytecode/verify.py")
