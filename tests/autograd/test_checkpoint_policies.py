"""Selective checkpoints: values and gradients match eager, and the backward finds the tensors that the policy saves."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import set_printoptions
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import pycompiler
from pycompiler.autograd import compile_joint
from pycompiler.autograd.checkpoint_policies import PolicyCall
from pycompiler.autograd.unsupported import AutogradUnsupported
from tests.harness.compare import assert_same

mm = torch.ops.aten.mm.default
SAVE_MM = [mm]
BACKENDS = ("eager", "aot_eager", "native")
asked: list[Any] = []


def every_other() -> Any:
    """A policy with its own state."""
    seen: dict[Any, int] = defaultdict(int)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        seen[op] += 1
        return CheckpointPolicy.MUST_SAVE if op is mm and seen[op] % 2 else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def that_notes(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    asked.append(op)
    return op is mm


def of_columns(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    return op is mm and getattr(ctx, "op_output", args[-1]).shape[1] == 8  # older torch has no `op_output`


def saves(heavy: Any, ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if op in heavy else CheckpointPolicy.PREFER_RECOMPUTE


def of_set(heavy: Any) -> Callable[[], Any]:
    return functools.partial(create_selective_checkpoint_contexts, functools.partial(saves, heavy))


CONTEXTS: dict[str, Callable[[], Any]] = {
    "listed": functools.partial(create_selective_checkpoint_contexts, SAVE_MM),
    "every other": every_other,
    "notes": functools.partial(create_selective_checkpoint_contexts, that_notes),
    "set": of_set({mm}),
    "frozen set": of_set(frozenset([mm, torch.ops.aten.addmm.default])),
    "columns": functools.partial(create_selective_checkpoint_contexts, of_columns),
}


def body(x: Any, w: Any) -> Any:
    return torch.sigmoid(torch.sigmoid(torch.sigmoid(x @ w) @ w).mul(2) @ w) * x


def program(x: Any, w: Any, contexts: Any) -> Any:
    return checkpoint(body, x.sin(), w, use_reentrant=False, context_fn=contexts).sum(1)


def outcome(fn: Callable[..., Any], contexts: Any, rows: int = 5) -> list[Any]:
    torch.manual_seed(0)
    x, w = torch.randn(rows, 8, requires_grad=True), torch.randn(8, 8, requires_grad=True)
    result = fn(x, w, contexts)
    result.sum().backward()
    return [result, x, w]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONTEXTS)
def test_as_eager(name: str, backend: str) -> None:
    if name == "every other" and torch.__version__ < "2.15":
        pytest.skip("eager asks such a policy again, and its gradients are wrong")
    compiled = pycompiler.compile(program, backend=backend, fullgraph=name != "notes")  # runs eagerly
    for rows in (5, 7, 9):
        asked.clear()
        expected, notes = outcome(program, CONTEXTS[name], rows), list(asked)
        asked.clear()
        assert_same(outcome(compiled, CONTEXTS[name], rows), expected)
        assert [a for a in asked if a is mm] == [a for a in notes if a is mm]


@pytest.mark.captures_nothing("one policy, asked as a recorded body asks it")
@pytest.mark.parametrize("name", ["listed", "every other", "set"])
def test_kernels_that_an_operator_caches_are_no_change(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = PolicyCall(CONTEXTS[name])
    monkeypatch.setitem(mm._dispatch_cache, torch._C.DispatchKey.Sparse, torch._C.DispatchKey.Sparse)
    monkeypatch.setitem(mm.__dict__, "cached", {})
    policy.end()


def of_a_cell(start: Any, change: Callable[[Any], Any]) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """A `context_fn` whose policy changes the contents of a cell, and a function that reads the cell."""
    cell = start

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
        nonlocal cell
        cell = change(cell)
        return False

    return lambda: create_selective_checkpoint_contexts(policy), lambda: cell


def filled(made: Any, fill: str, *args: Any) -> Any:
    getattr(made, fill)(*args)
    return made


CHANGES: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    "cell": (3, lambda n: n + 1),
    "list": ([1], lambda made: filled(made, "append", 2)),
    "set": ({1}, lambda made: filled(made, "add", 2)),
    "dict": ({1: 2}, lambda made: filled(made, "update", {2: 3})),
}


@pytest.mark.captures_nothing("one policy, asked as a recorded body asks it")
@pytest.mark.parametrize("name", CHANGES)
def test_an_object_that_a_policy_changes_is_restored(name: str) -> None:
    start, change = CHANGES[name]
    context_fn, read = of_a_cell(start, change)
    shown = repr(start)
    policy = PolicyCall(context_fn)
    policy.end()  # nothing is changed yet
    assert not policy.saves(mm, (), {}, None)
    assert repr(read()) != shown
    with pytest.raises(AutogradUnsupported, match="changes an object from outside"):
        policy.end()
    assert repr(read()) == shown


def products(contexts: Any) -> tuple[int, int]:
    """The number of products in the forward graph and in the backward graph."""
    counts: list[int] = []

    def count(gm: torch.fx.GraphModule, _: Any) -> Any:
        counts.append(sum(n.target is mm for n in gm.graph.nodes))
        return gm

    def backend(gm: torch.fx.GraphModule, examples: Any) -> Any:
        return compile_joint(gm, examples, fw_compiler=count, bw_compiler=count)

    outcome(pycompiler.compile(program, backend=backend, fullgraph=True), contexts)
    return counts[0], counts[-1]


def test_the_policy_says_what_is_computed_again() -> None:
    plain = products(torch.utils.checkpoint.noop_context_fn)
    assert plain == (3, 9)
    assert products(CONTEXTS["listed"]) == products(CONTEXTS["columns"]) == (3, 6)
    assert products(every_other) == (3, 7)


def that_sets_an_option_of_torch(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> bool:
    set_printoptions(precision=5)
    return op is mm


def test_a_policy_may_call_functions_of_torch_that_keep_state() -> None:
    """Only objects of the program are compared and restored."""
    try:
        assert products(functools.partial(create_selective_checkpoint_contexts, that_sets_an_option_of_torch)) == (3, 6)
    finally:
        torch.set_printoptions(profile="default")


def test_another_list_is_another_graph() -> None:
    contexts = functools.partial(create_selective_checkpoint_contexts, [mm])
    compiled = pycompiler.compile(program, backend="aot_eager", fullgraph=True)
    outcome(compiled, contexts)
    contexts.args[0].clear()
    outcome(compiled, contexts)
    outcome(compiled, every_other)
    assert compiled.counters()["compiles"] == 3


def test_contexts_made_in_the_frame() -> None:
    def made(x: Any, w: Any, _: Any) -> Any:
        contexts = functools.partial(create_selective_checkpoint_contexts, SAVE_MM)
        return checkpoint(body, x, w, use_reentrant=False, context_fn=contexts)

    compiled = pycompiler.compile(made, backend="aot_eager", fullgraph=True)
    assert_same(outcome(compiled, None), outcome(made, None))


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_set_is_another_graph(backend: str) -> None:
    heavy = {mm}
    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for contexts, compiles in ((of_set(heavy), 1), (of_set({mm}), 1), (of_set(set()), 2), (of_set(heavy), 2)):
        assert_same(outcome(compiled, contexts), outcome(program, contexts))
        assert compiled.counters()["compiles"] == compiles
    heavy.add(torch.ops.aten.sigmoid.default)
    assert_same(outcome(compiled, of_set(heavy)), outcome(program, of_set(heavy)))
    assert compiled.counters()["compiles"] == 3
    assert products(of_set(heavy)) == products(of_set({mm})) == (3, 6)
