"""Floats among size symbols: where a call keeps the values of symbols, a float is the 64 bits of it, as an integer.

In: a float.  Out: its word, and back.  Kernels take words as scalars, beside sizes.
"""

from __future__ import annotations

import struct


def word_of(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def float_of(word: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", word))[0])
