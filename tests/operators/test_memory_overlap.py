"""Whether elements share places, beside all of them written down."""

from __future__ import annotations

import itertools

from pycompiler.ir.places import apart


def test_apart_is_what_places_say() -> None:
    for shape in itertools.product((0, 1, 2, 3), repeat=3):
        for stride in itertools.product((0, 1, 2, 3, 5), repeat=3):
            places = [
                sum(k * s for k, s in zip(at, stride, strict=True)) for at in itertools.product(*map(range, shape))
            ]
            assert apart(shape, stride) == (len(set(places)) == len(places)), (shape, stride)


def test_many_interleaved_places_are_not_counted() -> None:
    assert apart((1000, 1000), (1000, 1))
    assert not apart((1 << 16, 3), (2, 3))
    assert not apart((2, 1 << 16), (1, 1))
