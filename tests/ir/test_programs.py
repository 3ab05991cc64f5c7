"""Printer, verifier and interpreter on hand-written loop programs: each verifier rule rejects its own kind of mistake."""

from dataclasses import replace

import pytest
import torch

from pycompiler.ir.interpret import POINTWISE_MEANING, REDUCTION_MEANING, InterpretError, interpret
from pycompiler.ir.loops import POINTWISE, REDUCTIONS, Buffer, Extern, Loop, Op, Program, Reduction, Ref
from pycompiler.ir.printer import print_program
from pycompiler.ir.verify import IRError, verify
from pycompiler.symbolic.expr import Expr

CPU, F32, I64, BOOL = torch.device("cpu"), torch.float32, torch.int64, torch.bool
E = Expr.of
I, J, R = Expr.sym("i0"), Expr.sym("i1"), Expr.sym("r0")


def buffer(name, *shape, dtype=F32, stride=None):
    step, strides = 1, []
    for n in reversed(shape):
        strides.insert(0, E(step))
        step *= n
    return Buffer(name, dtype, tuple(map(E, shape)), tuple(stride or strides), CPU)


def relu_loop():
    body = (Op("load", (), F32, ("in0", I * 4 + J)), Op("const", (), F32, (0.0,)), Op("maximum", (0, 1), F32))
    return Loop((buffer("b0", 8, 4),), ("i0", "i1"), (E(8), E(4)), body, (2,), (I * 4 + J,))


def row_sum():
    body = (Op("load", (), F32, ("b0", I * 4 + R)),)
    return Loop((buffer("b1", 8),), ("i0",), (E(8),), body, (0,), (I,), Reduction("sum", ("r0",), (E(4),)))


def program(*nodes, outputs=None):
    inputs = [buffer("in0", 8, 4)]
    outs = [b for n in nodes for b in n.out if b is not None]
    last = outs[-1]
    return Program(
        inputs,
        list(nodes),
        outputs or [Ref(last.name, last.shape, last.stride, E(0))],
        buffers={b.name: b for b in inputs + outs},
    )


def test_every_operation_has_a_meaning():
    special = {"load", "masked_load", "const", "index", "cast", "bitcast", "wrap_index", "rand", "randn"}
    assert set(POINTWISE) == set(POINTWISE_MEANING) | special
    assert set(REDUCTIONS) == set(REDUCTION_MEANING)


def test_a_program_runs_and_prints():
    p = program(relu_loop(), row_sum())
    verify(p)
    x = torch.randn(8, 4)
    torch.testing.assert_close(interpret(p, [x])[0], x.relu().sum(1))
    assert print_program(p) == "\n".join(
        [
            "program graph(in0: f32[8, 4] (4, 1))",
            "loop b0: f32[8, 4] (4, 1) [i0: 8, i1: 4]",
            "    0 load in0 [4*i0 + i1]                       f32",
            "    1 const 0.0                                  f32",
            "    2 maximum 0 1                                f32",
            "    -> b0[4*i0 + i1] = 2",
            "loop b1: f32[8] (1) [i0: 8; sum r0: 4]",
            "    0 load b0 [4*i0 + r0]                        f32",
            "    -> b1[i0] = sum 0",
            "return b1[8; 1]",
        ]
    )


def body_with(**changes):
    """`relu_loop` with operations replaced by position: `o0=Op(...)`."""
    loop = relu_loop()
    return replace(loop, body=tuple(changes.get(f"o{i}", op) for i, op in enumerate(loop.body)))


ILLEGAL = {
    "defined_before_use": program(row_sum()),
    "written_once": program(relu_loop(), relu_loop()),
    "ssa": program(body_with(o2=Op("maximum", (0, 3), F32))),
    "ssa: op 2: unknown": program(body_with(o2=Op("frobnicate", (0, 1), F32))),
    "ssa: op 2: maximum takes 2": program(body_with(o2=Op("maximum", (0,), F32))),
    "dtypes": program(body_with(o1=Op("const", (), I64, (0,)))),
    "dtypes: op 0 load": program(body_with(o0=Op("load", (), I64, ("in0", I * 4 + J)))),
    "result_dtypes": program(body_with(o2=Op("lt", (0, 1), BOOL))),
    "scopes": program(body_with(o0=Op("load", (), F32, ("in0", I * 4 + Expr.sym("k"))))),
    "scopes: index": program(body_with(o0=Op("load", (), F32, ("in0", Expr.sym("%2"))))),
    "in_range": program(body_with(o0=Op("load", (), F32, ("in0", I * 4 + J + 1)))),
    "in_range: in0[-i0": program(body_with(o0=Op("load", (), F32, ("in0", -I)))),
    "stores_one_to_one": program(replace(relu_loop(), store_index=(I + J,))),
    "spaces": program(replace(relu_loop(), vars=("i0", "i0"))),
    "arity": program(replace(relu_loop(), results=(2, 2))),
    "arity: an adding": program(replace(relu_loop(), store_mode="add")),
    "refs_in_bounds": program(relu_loop(), outputs=[Ref("b0", (E(8), E(5)), (E(4), E(1)), E(0))]),
    "outputs_are_legal": program(relu_loop(), outputs=[3]),
    "mutations_are_arguments": program(
        relu_loop(),
        Extern(
            torch.ops.aten.neg.default, (Ref("b0", (E(8),), (E(1),), E(0)),), {}, (buffer("b1", 8),), mutates=("in0",)
        ),
    ),
    "buffers_declared": replace(program(relu_loop()), buffers={"in0": buffer("in0", 8, 4)}),
}


@pytest.mark.parametrize("rule", ILLEGAL)
def test_rules_catch(rule):
    with pytest.raises(IRError) as error:
        verify(ILLEGAL[rule])
    assert rule in str(error.value)


def test_partial_writers_and_adding_stores():
    half = replace(relu_loop(), ranges=(E(4), E(4)))
    rest = Loop(half.out, half.vars, half.ranges, (Op("const", (), F32, (2.0,)),), (0,), (I * 4 + J + 16,), init="b0")
    add = Loop(
        half.out, ("i0",), (E(6),), (Op("const", (), F32, (1.0,)),), (0,), (I // 2,), store_mode="add", init="b0"
    )
    p = program(half, rest, add)
    verify(p)
    x = torch.randn(8, 4)
    want = torch.cat([x[:4].relu(), torch.full((4, 4), 2.0)])
    want[0, :3] += 2
    torch.testing.assert_close(interpret(p, [x])[0], want)
    with pytest.raises(IRError, match="written again after it was read"):
        verify(program(half, row_sum(), rest))


def test_interpreter_checks():
    with pytest.raises(InterpretError, match="outside a storage of 32"):
        interpret(program(body_with(o0=Op("load", (), F32, ("in0", I * 4 + J + 1)))), [torch.ones(8, 4)])
    with pytest.raises(InterpretError, match="write one element"):
        interpret(program(replace(relu_loop(), store_index=(I + J,))), [torch.ones(8, 4)])
    neg = Extern(
        torch.ops.aten.neg.default,
        (Ref("in0", (E(8), E(4)), (E(4), E(1)), E(0)),),
        {},
        (buffer("b0", 8, 4, stride=(E(1), E(8))),),
    )
    with pytest.raises(InterpretError, match="was declared"):
        interpret(program(neg), [torch.ones(8, 4)])


def test_masked_and_indirect_loads():
    index = buffer("in1", 3, dtype=I64)
    body = (
        Op("load", (), I64, ("in1", I)),
        Op("wrap_index", (0,), I64, (E(8), "index", 0)),
        Op("load", (), F32, ("in0", Expr.sym("%1") * 4 + J)),
        Op("index", (), I64, (J,)),
        Op("const", (), I64, (2,)),
        Op("lt", (3, 4), BOOL),
        Op("masked_load", (5, 2), F32, ("in0", J)),
    )
    loop = Loop((buffer("b0", 3, 4),), ("i0", "i1"), (E(3), E(4)), body, (6,), (I * 4 + J,))
    p = program(loop)
    p.inputs.append(index)
    p.buffers["in1"] = index
    verify(p)
    x, i = torch.randn(8, 4), torch.tensor([1, -1, 7])
    want = x[i]
    want[:, :2] = x[0, :2]
    torch.testing.assert_close(interpret(p, [x, i])[0], want)
    with pytest.raises(IndexError):
        interpret(p, [x, torch.tensor([0, 8, 0])])


def test_symbolic_sizes_are_bound_by_the_inputs():
    n = Expr.sym("s0")
    source = Buffer("in0", F32, (n, E(4)), (E(4), E(1)), CPU)
    out = Buffer("b0", F32, (n, E(4)), (E(4), E(1)), CPU)
    loop = Loop(
        (out,),
        ("i0", "i1"),
        (n, E(4)),
        (Op("load", (), F32, ("in0", I * 4 + J)), Op("neg", (0,), F32)),
        (1,),
        (I * 4 + J,),
    )
    p = Program([source], [loop], [Ref("b0", out.shape, out.stride, E(0))], buffers={"in0": source, "b0": out})
    verify(p)
    for rows in (1, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(interpret(p, [x])[0], -x)
