"""Floats among size symbols: a call stores symbol values as integers, and a float as its 64 bits.

In: a float.  Out: its word, and back.  Kernels take words as scalars, beside sizes.
"""

from __future__ import annotations

import struct


def word_of(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def float_of(word: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", word))[0])
