"""Values beside eager's."""

from __future__ import annotations

from typing import Any

import torch


def assert_same(got: Any, wanted: Any) -> None:
    """Of the same type, tensors about equal, all else equal; lists and tuples by their items."""
    assert type(got) is type(wanted), (got, wanted)
    if isinstance(wanted, (tuple, list)):
        assert len(got) == len(wanted), (got, wanted)
        for a, b in zip(got, wanted, strict=True):
            assert_same(a, b)
    elif isinstance(wanted, torch.Tensor):
        torch.testing.assert_close(got, wanted)
    else:
        assert got == wanted
