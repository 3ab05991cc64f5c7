"""The listing of an operator's steps matches a trace."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch._ops import OpOverload
from torch._subclasses import FakeTensorMode

from pycompiler.__main__ import main
from pycompiler.autograd import compile_joint
from pycompiler.autograd.decomp.registry import PARTIAL
from pycompiler.debug.operators import functional, named, steps_of

aten = torch.ops.aten

X, Y, I = torch.rand(4, 4), torch.rand(4, 4), torch.arange(4)
CALLS: dict[OpOverload, tuple[Any, ...]] = {
    **dict.fromkeys((aten.silu.default, aten.relu.default, aten.gelu.default, aten.frac.default, aten.sort.default), (X,)),
    **dict.fromkeys((aten.mm.default, aten.matmul.default, aten.linear.default, aten.kron.default, aten.atan2.default), (X, Y)),
    **dict.fromkeys((aten.softmax.int, aten.cumsum.default, aten.logsumexp.default), (X, 1)),
    aten.roll.default: (X, [1]),
    aten.dropout.default: (X, 0.5, True),
    aten.bernoulli.default: (X,),
    aten.index_add.default: (X, 0, I, Y),
    aten.layer_norm.default: (X, [4]),
    aten.var_mean.correction: (X, [1]),
    aten.mul.Scalar: (X, 2.0),
    aten.hardsigmoid.default: (X,),
    aten.cross_entropy_loss.default: (X, I),
    aten.threshold.default: (X, 0.1, 0.2),
    aten.add_.Tensor: (X, Y),
    aten.select_scatter.default: (X, Y[0], 0, 1),
}  # fmt: skip


def recorded(op: OpOverload, args: tuple[Any, ...]) -> list[Any]:
    """The operators in the compiled graph of one call of `op`."""
    graph, mode, fakes = fx.Graph(), FakeTensorMode(), []
    given = []
    for a in args:
        if isinstance(a, torch.Tensor):
            fakes.append(mode.from_tensor(a.clone()))
            a = graph.placeholder(f"x{len(fakes)}")
            a.meta["example_value"] = fakes[-1]
        given.append(a)
    out = graph.call_function(op, tuple(given))
    graph.output((graph.call_function(operator.getitem, (out, 0)) if len(op._schema.returns) > 1 else out,))
    seen: list[Any] = []

    def compiler(gm: fx.GraphModule, _: list[Any]) -> Callable[..., Any]:
        seen.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm.forward

    compile_joint(fx.GraphModule({}, graph), fakes, fw_compiler=compiler, bw_compiler=compiler)
    return seen


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_the_listing_says_what_a_trace_does(op: OpOverload) -> None:
    last = steps_of(op)[-1]
    seen = recorded(op, CALLS[op])
    assert (op in seen) == (last.what in ("lowered", "called"))
    if last.what == "written as":
        assert functional(op) in seen


def test_every_operator_has_a_way() -> None:
    """Exactly one table takes each operator; if it takes some arguments only, another table takes the others."""
    taken = ("taken apart", "written as", "decomposed", "lowered", "called")
    found = [op for name in dir(aten) if hasattr(getattr(aten, name), "overloads") for op in _dispatched(name)]
    assert len(found) > 1500
    for op in found:
        steps = steps_of(op)
        assert [s.ends for s in steps] == [False] * (len(steps) - 1) + [True]
        assert steps[-1].what in taken
        assert sum(s.what in taken for s in steps) == 1 + (op in PARTIAL)


def _dispatched(name: str) -> list[OpOverload]:
    try:
        return named(f"aten.{name}")
    except ValueError:  # an operator of TorchScript alone
        return []


def test_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["operator", "silu", "aten::add.Tensor", "torch.ops.aten.index_put.default"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[:2] == ["aten.silu.default", "  decomposed: decomp.activations.silu"]
    assert (
        "  lowered: lowering.pointwise.add_sub, or ATen's kernel where the lowering returns NotImplemented" in printed
    )
    assert "  made in place: lowering.partial_updates, where it writes a part of an input" in printed
    assert main(["operator", "aten.no_such"]) == 2
    assert "unknown operator 'aten.no_such'" in capsys.readouterr().out
