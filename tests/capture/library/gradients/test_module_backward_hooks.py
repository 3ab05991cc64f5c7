"""Full backward hooks of modules, registered and removed between calls, compared with eager."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import pycompiler

SEEN: list[torch.Tensor] = []


def twice(module: nn.Module, inputs: Any, outputs: Any) -> Any:
    SEEN.append(outputs[0].clone())
    return (inputs[0] * 2,)


def thrice(module: nn.Module, outputs: Any) -> Any:
    SEEN.append(outputs[0].clone())
    return (outputs[0] * 3,)


def gradients(run: Any, module: nn.Module) -> list[Any]:
    SEEN.clear()
    module.zero_grad()
    x = torch.ones(2, 3, requires_grad=True)
    run(x).sum().backward()
    return [x.grad, *(p.grad for p in module.parameters()), *SEEN]


def test_a_hook_is_compiled_once() -> None:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    run = pycompiler.compile(lambda x: module(x))
    for place, register, hook in (
        (module[0], nn.Module.register_full_backward_hook, twice),
        (module[1], nn.Module.register_full_backward_pre_hook, thrice),
        (module, nn.Module.register_full_backward_hook, twice),
    ):
        handle = register(place, hook)
        expected = gradients(module, module)
        torch.testing.assert_close(gradients(run, module), expected)
        before = pycompiler.counters()
        for _ in range(10):
            torch.testing.assert_close(gradients(run, module), expected)
        after = pycompiler.counters()
        assert after["compiles"] == before["compiles"]
        handle.remove()
        torch.testing.assert_close(gradients(run, module), gradients(module, module))


def test_methods_of_classes_in_c_are_known_by_name() -> None:
    """Each attribute access returns another object."""

    class Counts(dict):  # type: ignore[type-arg]
        pass

    def program(x: torch.Tensor, make: Any) -> Any:
        return make(["a", "b"]), x + 1

    run = pycompiler.compile(program)
    x = torch.ones(2)
    for _ in range(3):
        for make in (dict.fromkeys, Counts.fromkeys, dict.fromkeys):
            found, expected = run(x, make), program(x, make)
            assert found[0] == expected[0] and type(found[0]) is type(expected[0])
    assert run.counters()["compiles"] == 2
