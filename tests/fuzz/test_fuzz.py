"""The guard fuzzer by fixed seed: mutations of the state behind every guard kind, no stale hit, no needless recompile."""

from __future__ import annotations

import itertools

import pytest
import torch

from fuzz import attributes, containers, functions, modules, state, tensors  # noqa: F401
from fuzz.core import FAMILIES, Tally, walk
from pycompiler.ir.guards import GUARD_KINDS
from tests.tiers import part

PER_KIND, WALKS = 5000, 5


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("kind", list(GUARD_KINDS))
def test_mutations_of_every_guard_kind(kind: str) -> None:
    chosen = [f for f in FAMILIES.values() if f.kind == kind]
    total = Tally()
    seeds = part(WALKS)
    for family, seed in itertools.product(chosen, seeds):
        tally = walk(family, seed, -(-PER_KIND // (WALKS * len(chosen))))
        assert kind in tally.seen, f"{family.name} makes no guard of the kind {kind}"
        total.add(tally)
    assert total.mutations >= PER_KIND * len(seeds) // WALKS
    assert not total.inert, "these mutations never changed what the program does"
    assert total.failed[kind], "no guard of the kind told a state from another"
    assert total.hits or kind == "truth"
