"""Cached refusals of an operator: the cache keeps nothing of the refused call alive."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import pycompiler


class Ends:
    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def __del__(self) -> None:
        self.log.append("end")


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int16])
def test_variables_of_a_call_end_with_its_error(dtype: torch.dtype, backend: str) -> None:
    log: list[Any] = []

    def program(x: torch.Tensor) -> Any:
        made = Ends(log)
        return x.mean(), made

    compiled = pycompiler.compile(program, backend=backend)
    gc.collect()
    gc.disable()
    try:
        for run in (program, compiled, compiled):
            log.clear()
            with pytest.raises(RuntimeError, match="mean") as caught:
                run(torch.ones(3, dtype=dtype))
            caught.value.__traceback__ = None
            del caught
            assert log == ["end"]
    finally:
        gc.enable()
