"""A table of handlers by operation and kinds of operands.

In: an operation, and values.  Out: the handler of the first kind in the table's order that an operand has, or None.

Example: ``@TABLE.row("compare", Tensor)`` gets each comparison of a tensor, except with operands of an earlier kind.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

H = TypeVar("H", bound=Callable[..., Any])


class KindTable:
    """`kinds`: classes of values in order of precedence.  No value may have two of them."""

    def __init__(self, operations: Sequence[str], kinds: Sequence[type]) -> None:
        for a, b in itertools.combinations(kinds, 2):
            if issubclass(a, b) or issubclass(b, a):
                raise TypeError(f"{a.__name__} and {b.__name__} are ambiguous")
        self.operations, self.kinds = operations, kinds
        self._rows: dict[tuple[str, type], Callable[..., Any]] = {}
        self._found: dict[tuple[Any, ...], Callable[..., Any] | None] = {}

    def row(self, operation: str, kind: type) -> Callable[[H], H]:
        """Register a handler.  Raises ValueError for a second one."""
        if operation not in self.operations or kind not in self.kinds or (operation, kind) in self._rows:
            raise ValueError(f"{operation} of {kind.__name__} is unknown, or has a handler")

        def add(fn: H) -> H:
            self._rows[operation, kind] = fn
            return fn

        return add

    def handler(self, operation: str, *operands: object) -> Callable[..., Any] | None:
        key = (operation, *map(type, operands))
        if key not in self._found:
            kinds = (k for k in self.kinds if (operation, k) in self._rows and any(isinstance(v, k) for v in operands))
            self._found[key] = self._rows.get((operation, next(kinds, object)))
        return self._found[key]
