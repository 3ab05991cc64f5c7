"""The cost of a hit without any work: a backend whose graphs return at once, one thread."""

from __future__ import annotations

import programs
import pytest
import torch
from peers import COMPILERS, Peer, no_work

pytestmark = pytest.mark.parametrize("peer", COMPILERS, indirect=True)


@pytest.mark.parametrize(("count", "limit"), [(1, 1 / 15), (10, 1 / 12), (50, None)])
def test_tensors(measure, peer: Peer, count: int, limit: float | None) -> None:
    fn = peer.compile(programs.adder(count), backend=no_work)
    measure.calls(
        f"guards: {count} tensors",
        fn,
        *(torch.ones(4) for _ in range(count)),
        limits={"torch.compile": limit} if limit else None,
    )


def test_linears(measure, peer: Peer) -> None:
    model = peer.compile(programs.linears(50), backend=no_work)
    with torch.no_grad():
        measure.calls("guards: Sequential of 50 Linear", model, torch.ones(8, 8), limits={"torch.compile": 1 / 10})


@pytest.mark.parametrize("count", [1, 10])
def test_dynamic_tensors(measure, peer: Peer, count: int) -> None:
    """Compared with the static tensors above; the limit is 1.3 times their time."""
    fn = peer.compile(programs.adder(count), backend=no_work, dynamic=True)
    measure.calls(f"guards: {count} tensors, dynamic", fn, *(torch.ones(4) for _ in range(count)))


def test_dynamic_linears(measure, peer: Peer) -> None:
    model = peer.compile(programs.linears(50), backend=no_work, dynamic=True)
    with torch.no_grad():
        measure.calls("guards: Sequential of 50 Linear, dynamic", model, torch.ones(8, 8))


def test_nested(measure, peer: Peer) -> None:
    plain = programs.Nested()
    assert len(list(plain.modules())) == 727
    model = peer.compile(plain, backend=no_work)
    with torch.no_grad():
        measure.calls("guards: 727 nested modules", model, torch.ones(8, 8), limits={"torch.compile": 1 / 20})
