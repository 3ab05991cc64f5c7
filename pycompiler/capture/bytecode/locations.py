"""The two side tables of a code object: locations (PEP 626/657) and exceptions.

In: rows of positions or handler ranges.
Out: the bytes of `co_linetable` and `co_exceptiontable`; the latter is also decoded.  Formats: CPython's
Objects/locations.md (3.11: Objects/locations.md) and Objects/exception_handling_notes.txt.

Example: ``encode_exception_table([(2, 4, 9, 0, True)])`` covers code units 2 to 5 with a handler at unit 9.
"""

from __future__ import annotations

from collections.abc import Iterable

from pycompiler.capture.bytecode.instruction import Positions

_MAX_RUN = 8
_NO_COLUMNS, _LONG, _NONE = 13, 14, 15

ExceptionRow = tuple[int, int, int, int, bool]
"""Start, length and target in code units, stack depth, whether the raising index is pushed."""


def encode_locations(rows: Iterable[tuple[int, Positions]], first_line: int) -> bytes:
    """`co_linetable` for runs of (code units, positions), in order."""
    out = bytearray()
    line = first_line
    for units, positions in rows:
        for start in range(0, units, _MAX_RUN):
            run = min(_MAX_RUN, units - start)
            line = _encode_location(out, run, positions, line)
    return bytes(out)


def _encode_location(out: bytearray, units: int, positions: Positions, previous: int) -> int:
    line, end_line, column, end_column = positions
    if line is None:
        out.append(0x80 | _NONE << 3 | units - 1)
        return previous
    delta = line - previous
    if column is None or end_column is None or end_line is None or column < 0 or end_column < 0 or end_line < line:
        out.append(0x80 | _NO_COLUMNS << 3 | units - 1)
        _signed_varint(out, delta)
    elif end_line == line and delta == 0 and column < 80 and 0 <= end_column - column < 16:
        out += bytes([0x80 | column // 8 << 3 | units - 1, column % 8 << 4 | end_column - column])
    elif end_line == line and 0 <= delta < 3 and column < 128 and end_column < 128:
        out += bytes([0x80 | 10 + delta << 3 | units - 1, column, end_column])
    else:
        out.append(0x80 | _LONG << 3 | units - 1)
        _signed_varint(out, delta)
        for value in (end_line - line, column + 1, end_column + 1):
            _varint(out, value)
    return line


def _varint(out: bytearray, value: int) -> None:
    while value >= 64:
        out.append(64 | value & 63)
        value >>= 6
    out.append(value)


def _signed_varint(out: bytearray, value: int) -> None:
    _varint(out, -value << 1 | 1 if value < 0 else value << 1)


def encode_exception_table(rows: Iterable[ExceptionRow]) -> bytes:
    """`co_exceptiontable` for rows in order of their start, which do not overlap."""
    out = bytearray()
    for start, length, target, depth, lasti in rows:
        fields = [_big_endian(value) for value in (start, length, target, depth << 1 | lasti)]
        fields[0][0] |= 0x80
        for field in fields:
            out += field
    return bytes(out)


def _big_endian(value: int) -> bytearray:
    digits = bytearray([value & 63])
    while value := value >> 6:
        digits.insert(0, 64 | value & 63)
    return digits


def decode_exception_table(table: bytes) -> list[ExceptionRow]:
    """The rows of a `co_exceptiontable`, in order of their start."""
    values: list[int] = []
    value = 0
    for byte in table:
        value = value << 6 | byte & 63
        if not byte & 64:
            values.append(value)
            value = 0
    quads = zip(values[0::4], values[1::4], values[2::4], values[3::4], strict=True)
    return [(start, length, target, tail >> 1, bool(tail & 1)) for start, length, target, tail in quads]
