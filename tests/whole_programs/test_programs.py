"""Programs as users write them: recurrent layers, checkpointing, whole steps, transforms around a compiled function."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import pycompiler


def test_recurrent_layer_hits_its_entry() -> None:
    torch.manual_seed(0)
    model, x = nn.GRU(4, 4, batch_first=True), torch.randn(2, 3, 4)
    compiled = pycompiler.compile(model)
    for _ in range(3):
        assert torch.allclose(compiled(x)[0], model(x)[0])
    counted = pycompiler.counters(compiled)
    assert (counted["compiles"], counted["hits"], counted["eager_calls"]) == (1, 2, 0)


def test_checkpoint_inside_and_around() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(8, 8), torch.randn(3, 8)

    def block(z: torch.Tensor) -> torch.Tensor:
        return layer(z).relu()

    def inside(z: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, z, use_reentrant=False).sum()

    compiled_block = pycompiler.compile(block)
    programs = {
        "inside": pycompiler.compile(inside),
        "around": lambda z: checkpoint(compiled_block, z, use_reentrant=False).sum(),
    }
    reference = x.clone().requires_grad_()
    inside(reference).backward()
    for name, program in programs.items():
        for _ in range(2):
            z = x.clone().requires_grad_()
            program(z).backward()
            assert torch.allclose(z.grad, reference.grad), name


@pytest.mark.captures_nothing("calls under transforms run eagerly, on a backend of ours")
def test_transforms_around_a_compiled_function() -> None:
    x = torch.arange(3.0)
    compiled = pycompiler.compile(lambda x: x.sin().sum())
    assert torch.allclose(torch.func.grad(compiled)(x), x.cos())
    doubled = pycompiler.compile(lambda x: x * 2)
    assert torch.equal(torch.vmap(doubled)(x.expand(2, 3)), x.expand(2, 3) * 2)


@pytest.mark.parametrize("transform", [torch.func.vmap, lambda f: lambda x: checkpoint(f, x, use_reentrant=False)])
def test_what_takes_functions_is_given_tensors_of_inference_mode(
    transform: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return transform(lambda t: t.sin() * t)(x * 2)  # type: ignore[no-any-return]

    compiled = pycompiler.compile(fn, backend="aot_eager")
    with torch.inference_mode():
        x = torch.linspace(0, 1, 6).view(2, 3)
        torch.testing.assert_close(compiled(x), fn(x))
    assert not [r for r in caplog.records if "bug of pycompiler" in r.message]
