"""The partition's cut: it separates forward and backward, saves few bytes, and its recompute gives the same gradients."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from ad_helpers import Compiled, check, joint_of, lifted
from ad_models import GPT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx, nn
from torch.utils.checkpoint import checkpoint

import pycompiler
from pycompiler.autograd import compile_joint
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.maxflow import INFINITE, FlowNetwork
from pycompiler.autograd.partition import BackwardRegion, is_copied, partition
from pycompiler.autograd.recompute import SMALL, size_bytes
from pycompiler.operators.operator_facts import facts_of


def random_program(seed: int) -> tuple[Any, list[torch.Tensor]]:
    """A DAG of pointwise operators, views, matmuls, reductions and random numbers over 4×4 matrices."""
    rng = random.Random(seed)
    steps = [(rng.randrange(9), rng.random(), rng.random()) for _ in range(rng.randrange(3, 25))]

    def program(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, ...]:
        values = [a, b, c]
        for kind, i, j in steps:
            x, y = values[int(i * len(values))], values[int(j * len(values))]
            makers = [
                lambda x=x, y=y: x + y,
                lambda x=x, y=y: (x * y).tanh(),
                lambda x=x, y=y: x.sin() * 0.5,
                lambda x=x, y=y: x @ y * 0.3,
                lambda x=x, y=y: x.t() - y,
                lambda x=x, y=y: x.softmax(-1),
                lambda x=x, y=y: x - y.mean(0, keepdim=True),
                lambda x=x, y=y: nn.functional.dropout(x, 0.5),
                lambda x=x, y=y: torch.cat([x[:2], y[2:]]),
            ]
            values.append(makers[kind]())
        return values[-1], values[len(values) // 2] * 2

    torch.manual_seed(seed)
    args = [torch.randn(4, 4, requires_grad=k != 1) for k in range(3)]
    return program, args


@pytest.mark.parametrize("how", ["default", "min_cut"])
@pytest.mark.parametrize("seed", range(25))
def test_random_programs(seed: int, how: str) -> None:
    torch.set_num_threads(1)
    program, args = random_program(seed)
    check(program, args, tolerance=1e-4, seed=seed, partition=how, activation_memory_budget=(seed % 3) / 2)


def separates(joint: Joint, region: BackwardRegion, cut: set[fx.Node]) -> bool:
    """Whether each path from an input to a gradient passes the cut, and no random number is drawn again behind it."""
    stack, seen = [g for g in joint.grads if g is not None], set()
    while stack:
        n = stack.pop()
        if n in seen or n in cut:
            continue
        seen.add(n)
        if n in region.inputs or (n not in region.backward and facts_of(n.target).draws):
            return False
        stack.extend(n.all_input_nodes)
    return True


@settings(max_examples=20, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_cut_separates_and_is_no_larger_than_the_default(seed: int) -> None:
    program, args = random_program(seed)
    joint = joint_of(program, args)
    if not joint.needs_backward:
        return
    region = BackwardRegion(joint)
    smallest, default = region.budget_cut(1.0), region.default_cut()
    assert separates(joint, region, set(smallest))
    assert separates(joint, region, set(default))
    assert region.cost(smallest) <= region.cost(default)
    part = partition(joint)
    for gm in (part.forward, part.backward):
        gm.graph.lint()
        dead = [n for n in gm.graph.nodes if not n.users and n.op == "call_function" and not facts_of(n.target).draws]
        assert not dead


@settings(max_examples=10, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_budget_is_monotone(seed: int) -> None:
    program, args = random_program(seed)
    joint = joint_of(program, args)
    if not joint.needs_backward:
        return
    region = BackwardRegion(joint)
    sizes = [region.cost(region.budget_cut(b / 4)) for b in range(5)]
    assert sizes == sorted(sizes)


def test_budget_zero_saves_only_inputs() -> None:
    args = [torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)]
    joint = joint_of(lambda w, x: torch.tanh(torch.tanh(x @ w) @ w) @ w, args)
    assert {kind for kind, _ in partition(joint, budget=0.0).saved} == {"input"}
    assert {kind for kind, _ in partition(joint, budget=1.0).saved} == {"input", "output"}
    check(lambda w, x: torch.tanh(torch.tanh(x @ w) @ w) @ w, args, activation_memory_budget=0.0)


def test_a_budget_between_releases_some_products() -> None:
    args = [torch.randn(8, 8, requires_grad=True), torch.randn(8, 8)]
    region = BackwardRegion(joint_of(lambda w, x: (((x @ w).tanh() @ w).tanh() @ w).tanh() @ w, args))
    saved = [[n.name for n in region.budget_cut(b / 4) if n not in region.inputs] for b in range(5)]
    assert saved == [[], [], ["tanh_2"], ["tanh_1", "tanh_2"], ["tanh", "tanh_1", "tanh_2"]]


def test_the_cost_of_a_tensor_by_its_owner() -> None:
    """An output is there anyway, another tensor is new, and a part of an input that the caller may write is a copy."""

    def fn(w: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = w.exp()
        return y, y.view(2, 4).sin(), w * (x[0] + 1)

    joint = joint_of(fn, [torch.randn(8, requires_grad=True), torch.randn(64, 8)])
    region, size = BackwardRegion(joint), 8 * 4
    costs = {n.name: region.cost([n]) for n in joint.graph.nodes if n.name in ("exp", "view", "add", "select")}
    assert costs == {"exp": 0, "view": size + 2, "add": 2 * size + 2, "select": 3 * size + 3}


@pytest.mark.parametrize(
    ("fn", "saved"),
    [(lambda x: torch.where((y := x.exp()) > 0.5, y, x * 2), ["exp"]), (lambda x: torch.where(x > 0.5, x.sin(), x), ["x"]),
     (lambda x: torch.where((y := x.exp()).view(2, 2) > 0.5, y.view(2, 2), 1.0), ["exp"]),
     (lambda x: torch.where(x.relu() > 0.5, x.sin(), x), ["x"]),
     (lambda x: torch.where(x.sin() > 0.5, x.sin(), x), ["x", "gt"]),
     (lambda x: torch.where(x.sin().view(2, 2).t() > 0.5, x.view(2, 2).sin(), 1.0), ["x", "gt"])],
)  # fmt: skip
def test_a_comparison_of_rounded_numbers_is_saved(fn: Any, saved: list[str]) -> None:
    """A comparison of saved numbers is computed again."""
    part = partition(joint_of(fn, [torch.randn(4, requires_grad=True)]))
    assert [n.name for n in part.saved_nodes] == saved


def graphs_of(fn: Any, *args: torch.Tensor) -> list[fx.GraphModule]:
    """The forward and the backward graph of a program."""
    found: list[fx.GraphModule] = []

    def note(gm: fx.GraphModule, examples: Any) -> Any:
        found.append(gm)
        return gm

    def backend(gm: fx.GraphModule, examples: Any) -> Any:
        return compile_joint(gm, examples, fw_compiler=note, bw_compiler=note)

    pycompiler.compile(fn, backend=backend, fullgraph=True)(*args).sum().backward()
    return found


def test_a_comparison_with_a_constant_is_computed_again() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return torch.where(y > torch.tensor([0.5, 1.0, 2.0, 3.0]), y, x * 2)

    forward, backward = graphs_of(program, torch.randn(4, requires_grad=True))
    assert [n.name for n in backward.graph.nodes if n.op == "placeholder"] == ["exp", "tangent_0"]
    assert "gt" in {n.name for n in forward.graph.nodes} & {n.name for n in backward.graph.nodes}


def test_results_of_one_random_call_in_a_checkpoint_are_saved() -> None:
    def inside(x: torch.Tensor) -> torch.Tensor:
        y, _ = torch.native_dropout(x.exp(), 0.5, True)
        return (y * y).sin()

    forward, backward = graphs_of(
        lambda x: checkpoint(inside, x, use_reentrant=False), torch.randn(4, requires_grad=True)
    )
    random = torch.ops.aten.native_dropout.default
    assert [sum(n.target is random for n in gm.graph.nodes) for gm in (forward, backward)] == [1, 0]
    assert [n.name for n in backward.graph.nodes if n.op == "placeholder"] == [
        "l_x",
        "getitem",
        "getitem_1",
        "tangent_0",
    ]


def test_gradients_of_no_tangent_belong_to_the_outputs_they_come_from() -> None:
    """Eager saves the image for the first output, so the second output's backward needs no copy of it."""
    shapes = [(1, 2, 5, 5), (3, 2, 3, 3), (4,)]
    joint = joint_of(
        lambda x, w, v: (nn.functional.conv2d(x, w).sign(), v.sin()),
        [torch.randn(s, requires_grad=True) for s in shapes],
    )
    assert partition(joint).saved == [("input", 0), ("input", 1), ("input", 2)]


def test_pointwise_chain_saves_only_its_input() -> None:
    def chain(x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = torch.sin(x) * 2 + 1
        return x

    compiled = check(chain, [torch.randn(64, requires_grad=True)])
    assert len(compiled.forward.graph.output_node().args[0]) == 1  # type: ignore[union-attr, arg-type]


def test_matmuls_are_not_computed_again() -> None:
    ids = torch.randint(0, 11, (2, 6))
    compiled = check(GPT(0.1), [ids, ids])

    def count(gm: fx.GraphModule | None) -> int:
        assert gm is not None
        dear = (torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bernoulli.p)
        return sum(n.target in dear for n in gm.graph.nodes)

    gm, _ = lifted(GPT(0.1), [ids, ids])
    linear = sum(n.target is torch.nn.functional.linear for n in gm.graph.nodes)
    dropout = sum(n.target is torch.nn.functional.dropout for n in gm.graph.nodes)
    assert count(compiled.forward) == linear + dropout
    assert count(compiled.backward) == 2 * linear


def test_dropout_saves_a_bool_mask() -> None:
    joint = joint_of(lambda x: nn.functional.dropout(x, 0.5), [torch.randn(8, 8, requires_grad=True)])
    saved = partition(joint).saved_nodes
    assert [n.meta["val"].dtype for n in saved] == [torch.bool]


def test_output_view_shares_the_saved_memory() -> None:
    """Large logits are returned as a view of the tensor that the loss reads: they are saved once, as the output."""

    def fn(x: torch.Tensor, w: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        logits = torch.nn.functional.linear(x, w)
        return logits, torch.nn.functional.cross_entropy(logits.view(-1, classes), t)

    classes = 50_000
    args = [torch.randn(2, 3, 4), torch.randn(classes, 4, requires_grad=True), torch.tensor([0, 1, 2, 3, 4, 5])]
    joint = joint_of(fn, args)
    part = partition(joint)
    shapes = [n.meta["val"].numel() for n in part.forward.graph.output_node().args[0]]  # type: ignore[union-attr]
    assert shapes.count(2 * 3 * classes) == 1
    check(fn, args)


def test_a_small_part_of_what_eager_does_not_keep_is_saved_alone() -> None:
    """The caller may write the whole tensor, so a copy is saved; a copy of the row costs less than a copy of the whole."""

    def fn(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return w * (x[0] + 1) + w * w.detach() * (x[0] * 2) + (x[0] - 1) * w.exp().detach() * w

    part = partition(joint_of(fn, [torch.randn(8, requires_grad=True), torch.randn(64, 8)]))
    assert part.saved == [("input", 0), ("output", 1)]
    assert [tuple(n.meta["val"].shape) for n in part.saved_nodes] == [(8,), (8,)]


@pytest.mark.parametrize(
    ("fn", "saved"),
    [(lambda w, x: (w * x, (w + 1) * x), ("input", 1)), (lambda w, x: (w * x, w * (x + 1)), ("output", 2)),
     (lambda w, x: (w * (x + 1), w * x), ("output", 2)), (lambda w, x: (w * x, w + x), ("input", 1)),
     (lambda w, x, y, z: (w * x + y, w * (x + 1) + z), ("output", 2)), (lambda w, y, z, x: (w * x + y, w * (x + 1) + z), ("output", 2))],
)  # fmt: skip
def test_what_eager_keeps_for_one_tangent_is_copied_for_another(fn: Any, saved: tuple[str, int]) -> None:
    """A backward by the tangent for which eager saves `x + 1` must not be an error after a write to `x`."""
    others = [torch.randn(8) for _ in range(fn.__code__.co_argcount - 1)]
    part = partition(joint_of(fn, [torch.randn(8, requires_grad=True), *others]))
    assert (part.saved, [n.name for n in part.saved_nodes]) == ([saved], ["x"])


def test_gradients_of_no_tangent_are_of_the_backward() -> None:
    """Also where one call gives several such gradients: later gradients are added in place."""
    convolution = torch.ops.aten.convolution_backward.default
    joint = joint_of(
        lambda x, w: nn.functional.conv2d(x, w).sign(),
        [torch.randn(1, 2, 5, 5, requires_grad=True), torch.randn(3, 2, 3, 3, requires_grad=True)],
    )
    part = partition(joint)
    calls = [sum(n.target is convolution for n in gm.graph.nodes) for gm in (part.forward, part.backward)]
    assert calls == [0, 1]
    assert sorted(part.saved) == [("input", 0), ("input", 1)]


@pytest.mark.parametrize(("bytes_more", "copied"), [(0, True), (4, False)])
def test_what_is_larger_than_a_mebibyte_is_saved_itself(bytes_more: int, copied: bool) -> None:
    assert SMALL == 1 << 20
    joint = joint_of(lambda x: x.sin(), [torch.empty((SMALL + bytes_more) // 4, requires_grad=True)])
    assert is_copied(joint.inputs[0]) is copied


@pytest.mark.parametrize(("how", "budget"), [("fastest", 1.0), ("min_cut", 1.5), ("min_cut", -0.1)])
def test_bad_options(how: str, budget: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Compiled(
            lambda x: x.exp(), [torch.randn(2, requires_grad=True)], partition=how, activation_memory_budget=budget
        )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, 10_000))
def test_flow_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    n = rng.randrange(3, 8)
    edges = [(rng.randrange(n), rng.randrange(n), rng.randrange(1, 9)) for _ in range(rng.randrange(2, 16))]
    edges = [(a, b, c) for a, b, c in edges if a != b]
    network = FlowNetwork(n)
    for a, b, c in edges:
        network.edge(a, b, c)
    side = network.min_cut_sink_side(0, n - 1)

    def value(sink_side: set[int]) -> int:
        return sum(c for a, b, c in edges if a not in sink_side and b in sink_side)

    cuts = []
    for mask in range(1 << (n - 2)):
        cuts.append({n - 1, *(v for v in range(1, n - 1) if mask >> (v - 1) & 1)})
    best = min(map(value, cuts))
    assert 0 not in side
    assert value(side) == best
    assert all(side <= cut for cut in cuts if value(cut) == best)


def test_flow_without_a_cut_says_so() -> None:
    network = FlowNetwork(2)
    network.edge(0, 1, INFINITE)
    with pytest.raises(AssertionError, match="nothing can be cut"):
        network.min_cut_sink_side(0, 1)


def test_a_graph_without_gradients_is_marked() -> None:
    """Lowering then packs constant weights."""
    compiled = Compiled(lambda x, w: x @ w, [torch.randn(2, 3), torch.randn(3, 4)])
    compiled(*compiled.values)
    assert compiled.inference is not None
    assert compiled.inference.meta["inference"] is True


def test_size_bytes() -> None:
    joint = joint_of(lambda x: x.double(), [torch.randn(3, 5)])
    assert [size_bytes(n) for n in joint.fresh] == [3 * 5 * 8]
