"""Warnings of torch's operator samples: compiled code gives them too, so the table `warns.KERNELS` is complete.

Each sample that warns in eager is compiled and must give the same warnings.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import pytest
import torch

import pycompiler

# Some torch versions need packages for their samples that are no requirement of this project.
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SLICES = 2
SAMPLES = 12
DTYPES = (torch.float32, torch.complex64, torch.uint8)
OTHERWISE = dict.fromkeys(
    ((f"nn.functional.conv{n}d", torch.complex64) for n in (1, 2, 3)),
    "of several real convolutions each warns; told once, as by default",
)
"""Operators and dtypes whose warnings differ from eager's, with the reason."""

POOL = ThreadPoolExecutor(1)
"""A thread with a short stack: torch reads all frames of the stack for each sample."""
Said = list[tuple[type[Warning], str]]


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(
        torch, "manual_seed", torch.default_generator.manual_seed
    )  # torch's own function formats the stack for each sample
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


def said(fn: Callable[..., Any], sample: Any, in_place: bool) -> Said:
    given = sample.input.clone() if in_place else sample.input
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            fn(given, *sample.args, **sample.kwargs)
        except Exception:
            return []
    return [(w.category, str(w.message)) for w in seen]


def samples_that_warn(op: Any, dtype: torch.dtype) -> Iterator[tuple[Callable[..., Any], Any, bool, Said]]:
    """One sample for each kind of call, with its warnings."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = POOL.submit(lambda: list(islice(op.sample_inputs("cpu", dtype), SAMPLES))).result()
    found = set()
    for sample in samples:
        for fn in (op.op, op.method_variant, op.inplace_variant):
            in_place = fn is op.inplace_variant
            if fn is None or not isinstance(sample.input, torch.Tensor) and fn is not op.op:
                continue
            told = said(fn, sample, in_place)
            if told and (key := (fn, *told)) not in found:
                found.add(key)
                yield fn, sample, in_place, told


@pytest.mark.parametrize("part", range(SLICES))
def test_samples_that_warn(part: int) -> None:
    torch.manual_seed(0)
    warned, wrong = set(), []
    for op in [o for o in op_db[part::SLICES] if not o.name.startswith("jiterator")]:
        for dtype in [d for d in DTYPES if d in op.supported_dtypes("cpu")]:
            for fn, sample, in_place, told in samples_that_warn(op, dtype):

                def program(x: Any, *args: Any, fn: Any = fn, **kwargs: Any) -> Any:
                    return fn(x, *args, **kwargs)

                compiled = pycompiler.compile(program, backend="eager")
                got = [said(compiled, sample, in_place) for _ in range(2)]
                warned.add(op.full_name)
                if (op.full_name, dtype) in OTHERWISE:
                    continue
                wrong += [(op.full_name, dtype, told, got)] * (got != [told] * 2)
    assert wrong == []
    assert len(warned) > 10
