"""Overlap of elements in memory, compared with an enumeration of all places."""

from __future__ import annotations

import itertools

from pycompiler.operators.memory_overlap import has_no_overlap


def test_apart_is_what_places_say() -> None:
    for shape in itertools.product((0, 1, 2, 3), repeat=3):
        for stride in itertools.product((0, 1, 2, 3, 5), repeat=3):
            places = [
                sum(k * s for k, s in zip(at, stride, strict=True)) for at in itertools.product(*map(range, shape))
            ]
            assert has_no_overlap(shape, stride) == (len(set(places)) == len(places)), (shape, stride)


def test_many_interleaved_places_are_not_counted() -> None:
    assert has_no_overlap((1000, 1000), (1000, 1))
    assert not has_no_overlap((1 << 16, 3), (2, 3))
    assert not has_no_overlap((2, 1 << 16), (1, 1))
