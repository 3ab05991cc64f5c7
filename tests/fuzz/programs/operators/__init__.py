"""What programs are made of, one file a family; each registers rows of `generate.OPERATORS`."""

from . import aimed, indexing, inplace, joining, linear, order, pointwise, reducing, views  # noqa: F401
