"""Products that are numbers of their own.

Compilers contract a product and a sum to one operation that does not round the product.  Of a product that is used more than
once they may round one use and not another: then `x * y + z - x * y` leaves what the rounding is, which later operators may make
large (a norm divides by 1e-12).  Such products are rounded once; all others may be contracted.

In: the lines of a nest.  Out: the same, with barriers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable

_VALUE = re.compile(r"\bt\d+\b")
_OPERAND = r"[\w.()+-]+"
_PRODUCT = re.compile(rf"^(\s*const (?:float|double) (t\d+) = )({_OPERAND} \* {_OPERAND});$")
_SUM = re.compile(r" [+-]=? | -t\d")


def rounded_once(lines: Iterable[str]) -> Callable[[list[str]], list[str]]:
    """`lines`: all of a nest.  The answer puts barriers into any of them."""
    uses: Counter[str] = Counter()
    added: set[str] = set()
    products: set[str] = set()
    for line in lines:
        names = _VALUE.findall(line)
        uses.update(names)
        if found := _PRODUCT.match(line):
            products.add(found[2])
        elif _SUM.search(line):
            added.update(names)
    apart = {name for name in products & added if uses[name] > 2}  # where it is made, and twice

    def barriers(lines: list[str]) -> list[str]:
        return [_barrier(line, apart) for line in lines] if apart else lines

    return barriers


def _barrier(line: str, apart: set[str]) -> str:
    found = _PRODUCT.match(line)
    return f"{found[1]}pyc_product({found[3]});" if found and found[2] in apart else line
