"""Equal nests in a row: one function, called in a loop over a table of pointers."""

from __future__ import annotations

import torch
from kernel_harness import compile_plan, lowered, run_plan

LAYERS = 6


def values(f, args, looped: str) -> None:  # type: ignore[no-untyped-def]
    plan, _ = compile_plan(lowered(f, args))
    assert plan.source.count(looped) == 1, plan.source
    for ours, eager in zip(run_plan(plan, args), f(*args), strict=True):
        torch.testing.assert_close(ours, eager)


def test_a_chain_of_equal_layers() -> None:
    def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for w in weights:
            x = torch.nn.functional.linear(x, w)
        return (x,)

    values(layers, [torch.rand(8, 8) for _ in range(LAYERS + 1)], f"k < {LAYERS}; k++")


def test_equal_nests_that_threads_share() -> None:
    def updates(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(a - 0.1 * torch.sin(b) for a, b in zip(tensors[::2], tensors[1::2], strict=True))

    values(updates, [torch.rand(160, 130) for _ in range(2 * LAYERS)], f"k < {LAYERS}; k++")


def test_parts_that_take_turns_keep_their_order() -> None:
    """Two parts by turns, then a run of one: only the run is a loop, and it comes last."""

    def layers(x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for w in weights[:4]:
            x = torch.nn.functional.linear(x, w).softmax(1)
        for w in weights[4:]:
            x = torch.nn.functional.linear(x, w)
        return (x,)

    values(layers, [torch.rand(8, 8) for _ in range(4 + LAYERS + 1)], "; k++")
