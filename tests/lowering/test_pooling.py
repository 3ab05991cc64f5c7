"""Max pooling as loops: values and positions equal eager's, with padding, ties, NaN and infinities."""

import pytest
import torch
import torch.nn.functional as F
from harness import check, externs, lowered, randn

WINDOWS = {
    "resnet": (3, 2, 1), "plain": (2,), "overlapping": (3, 1, 1), "wide": (5, 2, 2), "uneven": ((3, 2), (1, 2), (1, 0)),
    "ceil": (3, 2, 1, 1, True), "ceil without padding": (2, 2, 0, 1, True),
}  # fmt: skip


def special(kind: str) -> torch.Tensor:
    x = randn(2, 3, 9, 11)
    if kind == "ties":
        return (x > 0).float()
    if kind == "nan":
        return torch.where(x > 1, float("nan"), x)
    return torch.full_like(x, -float("inf"))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("name", WINDOWS)
def test_windows(name: str, layout: torch.memory_format) -> None:
    x = randn(2, 3, 9, 11).to(memory_format=layout)
    check(lambda x: F.max_pool2d(x, *WINDOWS[name], return_indices=True), (x,), native=True)


@pytest.mark.parametrize("kind", ["ties", "nan", "lowest"])
def test_which_position_wins(kind: str) -> None:
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (special(kind),), native=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    check(lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True), (randn(3, 9, 11, dtype=dtype),), native=True)


def test_an_unread_position_is_not_computed() -> None:
    program = lowered(lambda x: F.max_pool2d(x, 3, 2, 1), (randn(2, 3, 9, 11),))
    assert len(program.nodes) == 1


def test_places_are_held_within_an_image_where_they_may_leave_it() -> None:
    """Comparisons that always hold are omitted: if the first place is 0, no comparison with 0 exists."""
    x = randn(1, 1, 8, 8)
    for window, count in (((2, 2), 0), ((3, 2, 1), 6)):
        [loop] = lowered(lambda x, w=window: F.max_pool2d(x, *w), (x,)).nodes
        assert str(loop).count("max(") == count, loop


def test_dilated_and_large_windows_stay_with_aten() -> None:
    x = randn(1, 2, 19, 19)
    for f in (lambda x: F.max_pool2d(x, 3, 1, 1, 2), lambda x: F.max_pool2d(x, 7, 2)):
        assert externs(lowered(f, (x,))) == ["aten.max_pool2d_with_indices.default"]
