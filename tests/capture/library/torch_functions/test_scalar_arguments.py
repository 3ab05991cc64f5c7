"""Tensors as number arguments of operators; operators that return lists."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls

IN_PLACE: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "add": lambda y, x: torch._foreach_add_(y, 1.0),
    "zero": lambda y, x: torch._foreach_zero_(y),
    "copy": lambda y, x: torch._foreach_copy_(y, [x, x]),
    "lerp by a tensor": lambda y, x: torch._foreach_lerp_(y, [x, x], x.sum()),
    "addcdiv": lambda y, x: torch._foreach_addcdiv_(y, [x, x], [x, x], 0.5),
    "addcdiv by data": lambda y, x: torch._foreach_addcdiv_(y, [x, x], [x, x], [x[0].item(), 2.0]),
    "addcmul by a tensor": lambda y, x: torch._foreach_addcmul_(y, [x, x], [x, x], torch.stack([x[0], x[1]])),
}


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", IN_PLACE)
def test_operators_in_place_give_the_list_that_was_given(name: str, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        listed, fixed = [x * 1, x * 2], (x * 3, x * 4)
        a, b = IN_PLACE[name](listed, x), IN_PLACE[name](fixed, x)
        return a is listed, b is fixed, a, b

    x = torch.tensor([0.5, 2.0])
    same_list, same_tuple, a, b = pycompiler.compile(program, backend=backend)(x)
    assert same_list and same_tuple and type(a) is list and type(b) is tuple
    torch.testing.assert_close((a, b), program(x)[2:])
    assert bool(pycompiler.explain(program)(x).graph_break_count) == ("data" in name)


@pytest.mark.parametrize("backend", ("eager", "native"))
def test_a_tensor_to_the_power_of_each_of_a_list(backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return torch._foreach_pow(x.sum(), [x, x * 2, x - 1])

    x = torch.tensor([0.5, 2.0])
    found, expected = pycompiler.compile(program, backend=backend, fullgraph=True)(x), program(x)
    assert type(found) is type(expected) is tuple
    torch.testing.assert_close(found, expected)


NUMBERS = (3.0, 70000.0, 1e30, 1e300, float("inf"), float("nan"), -70000.0)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("dtype", (torch.float16, torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool))
def test_full_of_a_tensor_refuses_what_the_dtype_does_not_hold(dtype: torch.dtype, backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return torch.full((2,), n, dtype=x.dtype), x + 1

    compiled = pycompiler.compile(program, backend=backend)
    for number in (*(torch.tensor(v, dtype=torch.float64) for v in NUMBERS), torch.tensor(7e4), torch.tensor(70000)):
        args = (torch.ones(2).to(dtype), number)
        assert_same_calls(compiled, program, lambda given=args: given, calls=1, exact=True)
    assert not pycompiler.explain(program)(
        torch.ones(2).to(dtype), torch.tensor(3.0, dtype=torch.float64)
    ).graph_break_count


def test_full_like_refuses_what_the_dtype_does_not_hold() -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return torch.full_like(x, n)

    compiled = pycompiler.compile(program, fullgraph=True)
    for value in NUMBERS:
        args = (torch.ones(2), torch.tensor(value, dtype=torch.float64))
        assert_same_calls(compiled, program, lambda given=args: given, calls=1, exact=True)


@pytest.mark.parametrize("backend", ("eager", "native"))
def test_a_truth_is_no_factor(backend: str) -> None:
    def program(x: torch.Tensor, n: torch.Tensor) -> Any:
        return x.clone().add_(x, alpha=n.item())

    compiled = pycompiler.compile(program, backend=backend)
    for args in ((torch.ones(2), torch.tensor(True)), (torch.ones(2, dtype=torch.bool), torch.tensor(True))):
        assert_same_calls(compiled, program, lambda given=args: given, exact=True)


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32, torch.float64))
@pytest.mark.parametrize("name", ("addcdiv_", "addcmul_"))
def test_a_factor_in_a_tensor_rounds_as_a_number(name: str, dtype: torch.dtype) -> None:
    def program(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor) -> Any:
        listed = [x * 1, x * 2]
        getattr(torch, f"_foreach_{name}")(listed, [y, y * 3], [y.abs() + 0.3, y.abs() + 0.7], torch.stack([n, n * 3]))
        return getattr(x.clone(), name)(y, y.abs() + 0.3, value=n), listed

    x, y = torch.linspace(-2, 2, 128).to(dtype), torch.linspace(1, -1, 128).to(dtype)
    compiled = pycompiler.compile(program, fullgraph=True)
    for n in (1.0, -0.7, 0.0271):
        assert_same_calls(compiled, program, lambda n=torch.tensor(n, dtype=torch.float64): (x, y, n), exact=True)


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16, torch.float32))
def test_a_product_of_lists_rounds_the_number_in_place(dtype: torch.dtype, backend: str) -> None:
    def program(x: torch.Tensor, v: float) -> Any:
        a, b = [x * 1, x * 2], [x * 1, x * 2]
        torch._foreach_mul_(a, v)
        torch._foreach_mul_(b, [v, 0.7])
        return a, b, torch._foreach_mul(a, v), torch._foreach_mul_([x * 1], 3)

    compiled = pycompiler.compile(program, backend=backend, fullgraph=True)
    for v in (0.9, 0.3, 1e30, 0.123):
        assert_same_calls(compiled, program, lambda v=v: (torch.linspace(-2, 2, 128).to(dtype), v), exact=True)


def test_a_product_of_no_tensors_is_an_error() -> None:
    def program(x: torch.Tensor) -> Any:
        torch._foreach_mul_([], 0.9)
        return x + 1

    with pytest.raises(RuntimeError, match="at least one tensor"):
        pycompiler.compile(program)(torch.ones(3, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", (torch.float16, torch.bfloat16))
@pytest.mark.parametrize(
    "optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.SGD]
)
@pytest.mark.parametrize("foreach", [False, True])
def test_optimizers_of_small_dtypes_have_eagers_numbers(
    optimizer: Any, foreach: bool, dtype: torch.dtype, caplog: pytest.LogCaptureFixture
) -> None:
    def trained(compiled: bool) -> torch.Tensor:
        weights = torch.nn.Parameter(torch.linspace(-2, 2, 128).to(dtype))
        options = {"momentum": 0.9} if optimizer is torch.optim.SGD else {}
        made = optimizer([weights], lr=0.1, weight_decay=0.3, foreach=foreach, **options)
        step = pycompiler.compile(made.step) if compiled else made.step
        for k in range(3):
            weights.grad = torch.linspace(1, -1, 128).to(dtype) * (k + 1)
            step()
        return weights.detach()

    torch.testing.assert_close(trained(True), trained(False), rtol=0, atol=0, equal_nan=True)
    assert "runs eagerly" not in caplog.text


REFUSED: dict[str, Callable[[torch.Tensor], Any]] = {
    "lerp of integers": lambda x: torch._foreach_lerp([x], [x * 2], 0.5),
    "lerp of integers by a list": lambda x: torch._foreach_lerp([x], [x * 2], [0.5]),
    "addcdiv of integers": lambda x: torch._foreach_addcdiv_([x.clone()], [x], [x], [1.0]),
    "addcdiv of truths": lambda x: torch._foreach_addcdiv_([x > 0, x], [x, x > 0], [x > 0, x > 0], [0.1, 0.2]),
    "an inverse of integers": lambda x: torch._foreach_pow([x], -1),
    "a third argument of full": lambda x: torch.full((2,), x[0], torch.int64),  # type: ignore[call-overload]
}


@pytest.mark.parametrize("backend", ("eager", "native"))
@pytest.mark.parametrize("name", REFUSED)
def test_operators_on_lists_refuse_what_their_kernels_refuse(name: str, backend: str) -> None:
    args = (torch.arange(1, 5),)
    assert_same_calls(
        pycompiler.compile(REFUSED[name], backend=backend), REFUSED[name], lambda given=args: given, exact=True
    )


def test_a_truth_by_its_name_is_asked_about_anew() -> None:
    def program(x: torch.Tensor, n: Any) -> Any:
        return x.clone().add_(x, alpha=n)

    for n in (2, True, 0.5):
        args = (torch.ones(2, dtype=torch.float64), n)
        assert_same_calls(pycompiler.compile(program), program, lambda given=args: given, exact=True)
