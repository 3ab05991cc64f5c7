"""Argument checks of ATen kernels, found by probing the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import pycompiler
from pycompiler.operators import kernel_type_checks
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

aten = torch.ops.aten


def ones(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype)


def write_itself(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    x[i] = x
    return x


WIDE, INT, BOOL, COMPLEX = torch.float64, torch.int64, torch.bool, torch.complex64
REFUSED: list[tuple[Callable[..., Any], tuple[Any, ...]]] = [
    (torch.matmul, (ones(3, 3), ones(3, 3, dtype=WIDE))),
    (torch.matmul, (ones(300, 30), ones(30, 3, dtype=WIDE))),
    (F.linear, (ones(3, 3), ones(3, 3), ones(3, dtype=WIDE))),
    (torch.addmm, (ones(3, 3, dtype=WIDE), ones(3, 3), ones(3, 3))),
    (torch.bmm, (ones(2, 3, 3), ones(2, 3, 3, dtype=WIDE))),
    (torch.mv, (ones(3, 3), ones(3, dtype=INT))),
    (F.softmax, (ones(3, dtype=INT), 0)),
    (lambda x: 0.1 - (x > 0), (ones(3),)),
    (lambda x: x - x, (ones(3, dtype=BOOL),)),
    (torch.relu, (ones(3, dtype=BOOL),)),
    (torch.clamp_min, (ones(3, dtype=COMPLEX), 0)),
    (torch.bitwise_and, (ones(3), ones(3))),
    (torch.sign, (ones(3, dtype=COMPLEX),)),
    (lambda x, i, y: x.index_add(0, i, y), (ones(3), torch.arange(3), ones(3, dtype=WIDE))),
    # tensors without elements
    (lambda x: x.max(0), (ones(0),)),
    (lambda x: x.min(1), (ones(2, 0),)),
    (lambda x: x.median(0), (ones(0, 2),)),
    (lambda x: x.mode(1), (ones(3, 0, 2),)),
    (torch.max, (ones(0),)),
    (lambda x, i: x.index_select(0, i), (ones(0, 0), torch.tensor([0]))),
    (lambda x, i: F.embedding(i, x), (ones(0, 0), torch.tensor([0]))),
    # writes whose source shares the memory
    (write_itself, (ones(3), torch.tensor([0, 2, 1]))),
    (write_itself, (ones(1), torch.tensor([0]))),
    # integer division by zero
    (lambda i: i // (i - 1), (ones(3, dtype=INT),)),
    (lambda i: i % (i - 1), (ones(3, dtype=torch.uint8),)),
    (lambda i: i % 0, (ones(3, dtype=INT),)),
    (lambda i: torch.fmod(i, i - 1), (ones(3, dtype=INT),)),
    (lambda i: torch.div(i, i - 1, rounding_mode="trunc"), (ones(3, dtype=INT),)),
    # dimensions out of range
    (lambda x: x.softmax(3), (ones(3),)),
    (lambda x: torch.softmax(x, -9, dtype=WIDE), (ones(2, 3),)),
    (lambda x: x.sort(-9), (ones(2, 3),)),
    (lambda x: x.argsort(dim=7, stable=True), (ones(2, 3),)),
    (lambda x: x.cummax(1), (ones(),)),
    (lambda x: x.cummin(-2), (ones(),)),
    # wrong shapes for a written part
    (torch.diagonal_scatter, (ones(3, 5), ones(1))),
    (lambda x, y: torch.select_scatter(x, y, -1, -9), (ones(5, 5), ones(5))),
    (lambda x, y: torch.select_scatter(x, y, 1, 0), (ones(5, 5, 5), ones(1, 5, 5))),
    (lambda x, y: torch.slice_scatter(x, y, 0, 0, -1, 1), (ones(5, 5), ones(5, 5))),
    (lambda x, y: torch.as_strided_scatter(x, y, (2, 2), (1, 2), 7), (ones(3, 3), ones(2, 2))),
    (lambda x: torch.as_strided_copy(x, (9, 9), (1, 2)), (ones(3, 3),)),
    # wrong sizes and number kinds
    (F.soft_margin_loss, (ones(5, 5), ones(1, 5, 5))),
    (torch.bucketize, (ones(5, 5), ones(1, 5))),
    (lambda x, i: x.index_select(0, i), (ones(), torch.tensor([]))),
    (lambda x, i, y: x.index_reduce(0, i, y, "prod"), (ones(0), torch.tensor([0, 1]), ones(3))),
    (lambda x: F.avg_pool1d(x, 3, 1, 8), (ones(2, 3, 9),)),
    (lambda x: F.local_response_norm(x, 0), (ones(1, 6, 3),)),
    (lambda x, y: F.grid_sample(x, y, align_corners=False), (ones(2, 3, 5, 0), ones(2, 5, 5, 2))),
    (lambda x: F.adaptive_avg_pool2d(x, (5, 7)), (ones(8, 8, 0),)),
    (lambda x: F.adaptive_avg_pool1d(x, 5), (ones(3, 8, 8, dtype=INT),)),
    (lambda x: F.adaptive_avg_pool3d(x, 5), (ones(3, 8, 8, 6, dtype=COMPLEX),)),
    (lambda x: F.interpolate(x, scale_factor=0.6, mode="nearest-exact"), (ones(2, 3, 4, dtype=BOOL),)),
    (F.conv1d, (ones(2, 4, 8), ones(2, 4, 3), ones(2, dtype=WIDE))),
    (F.conv2d, (ones(2, 4, 8, 8), ones(2, 4, 3, 3, dtype=torch.float16))),
    (torch.fft.rfft, (ones(8, dtype=torch.float16),)),
    (F.batch_norm, (ones(2, 1), ones(1, 1), ones(1))),
    (lambda x, m, v: F.batch_norm(x, m, v, training=True), (ones(2, 1), ones(1), ones(1, dtype=WIDE))),
    (lambda x, i, y: x.scatter_add(1, i, y), (ones(4, 0), torch.zeros(4, 2, dtype=INT), ones(4, 2))),
    (lambda x, i, y: x.clone().scatter_add_(1, i, y), (ones(4, 0), torch.zeros(4, 2, dtype=INT), ones(4, 2))),
]


@pytest.fixture(autouse=True)
def no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test asks the kernels itself: answers are stored by types, and hid refusals of large arguments."""
    monkeypatch.setattr(kernel_type_checks, "_answers", {})


@pytest.mark.parametrize("number", range(len(REFUSED)))
@pytest.mark.parametrize("dead", [False, True])
def test_what_eager_refuses(number: int, dead: bool) -> None:
    fn, args = REFUSED[number]

    def program(*args: Any) -> Any:
        value = fn(*args)
        return args[0].clone() if dead else value

    with pytest.raises(Exception) as theirs:  # noqa: PT011
        program(*args)
    with pytest.raises(type(theirs.value)) as ours:
        pycompiler.compile(program)(*args)
    assert str(ours.value).splitlines()[0] == str(theirs.value).splitlines()[0]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_was_done_before_stays(number: int) -> None:
    """The refusal is known at compile time. A graph with earlier writes would leave the program's own side effects undone."""
    fn, args = REFUSED[number]
    done: list[str] = []

    def program(written: torch.Tensor, *args: Any) -> Any:
        written.add_(1)
        done.append("before")
        return fn(*args)

    written = torch.zeros(2)
    with pytest.raises(Exception):  # noqa: B017, PT011
        pycompiler.compile(program, backend="eager")(written, *args)
    assert (done, written.tolist()) == (["before"], [1, 1])


def test_what_eager_takes() -> None:
    def fn(x: torch.Tensor, i: torch.Tensor, m: torch.Tensor) -> Any:
        y = x[i] * i[:, None] + m
        return torch.where(m, y, 0).softmax(1), (x > 0).sum(), i.cumsum(0) % 3, y.to(torch.float64) @ x.double().t()

    args = ones(4, 3), torch.tensor([3, 0]), torch.ones(2, 3, dtype=torch.bool)
    got, expected = pycompiler.compile(fn, fullgraph=True)(*args), fn(*args)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_each_combination_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(kernel_type_checks, "_ask", lambda op, *rest: asked.append(op))
    mode = new_fake_mode()
    x, i = fake_of(mode, ones(3)), fake_of(mode, ones(3, dtype=INT))
    for _ in range(2):
        kernel_type_checks.check_types(aten.add.Tensor, (x, i), {})
        kernel_type_checks.check_types(aten.add.Tensor, (x, x), {})
        kernel_type_checks.check_types(aten.view.default, (x, [3]), {})
        kernel_type_checks.check_types(aten.bernoulli.p, (x, 0.5), {})
    assert asked == [aten.add.Tensor, aten.add.Tensor]
