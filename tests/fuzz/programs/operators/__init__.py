"""Operators of the generated programs, one file per family; each registers rows of `generate.OPERATORS`."""

from . import aimed, indexing, inplace, joining, linear, order, pointwise, reducing, views  # noqa: F401
