"""Results that are pieces of one tensor: they leave the graph through one call and refuse the same writes as in eager."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler.autograd import runtime

PROGRAMS: dict[str, tuple[Callable[[torch.Tensor], Any], int]] = {  # and the number of calls that create several views
    "unbind": (lambda x: x.unbind(0), 1),
    "chunk": (lambda x: x.chunk(2), 1),
    "an odd chunk": (lambda x: x.chunk(3, 1), 1),
    "sizes": (lambda x: x.split([1, 2, 1]), 1),
    "out of order": (lambda x: x.chunk(2)[::-1], 1),
    "of a result": (lambda x: (x * 2).chunk(2), 1),
    "of a view": (lambda x: x.t().chunk(2), 1),
    "twice": (lambda x: (*x.unbind(0), *x.chunk(2, 1)), 2),
    "most": (lambda x: x.unbind(0)[1:], 1),
    "one": (lambda x: x.unbind(0)[1], 0),
    "a gap": (lambda x: x.split(1)[::2], 0),
    "views of pieces": (lambda x: [p.unsqueeze(0) for p in x.unbind(0)], 0),
    "an empty one": (lambda x: x.split([0, 4]), 0),
    "beside the whole": (lambda x: (x.t(), *x.unbind(0)), 1),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_pieces(name: str, grad: bool, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fn, calls = PROGRAMS[name]
    texts: list[str] = []
    build = runtime.build_text

    def seen(name: str, text: str, scope: dict[str, Any]) -> Any:
        texts.append(text)
        return build(name, text, scope)

    monkeypatch.setattr(runtime, "build_text", seen)
    compiled = pycompiler.compile(fn, backend=backend)
    sides = []
    for run in (fn, compiled, compiled):
        x = torch.arange(24.0).reshape(4, 6).requires_grad_(grad)
        results = run(x)
        results = [results] if isinstance(results, torch.Tensor) else [*results]
        facts: list[Any] = [(r.tolist(), r.stride(), r.requires_grad, r._is_view(), r._base is x) for r in results]
        if grad:
            sum((r * (k + 1)).sum() for k, r in enumerate(results)).backward()
            facts.append(x.grad.tolist() if x.grad is not None else None)
        for r in results:
            try:
                r.add_(1)
                facts.append(r.tolist())
            except RuntimeError as e:
                facts.append(re.sub(r"\d+", "N", str(e)).split(".")[0].split(" of ")[0])
        facts.append(x.tolist())
        sides.append(facts)
    assert sides[1] == sides[0] and sides[2] == sides[0]
    assert compiled.counters()["compiles"] == 1 and compiled.counters()["eager_calls"] == 0
    assert sum(text.count("    pieces") for text in texts) == calls
