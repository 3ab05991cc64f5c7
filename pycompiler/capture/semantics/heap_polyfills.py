"""Python versions of `heapq` and `bisect`, which CPython implements in C, for inlining.

In: nothing.  Out: `HEAPS`: function -> the function to inline.  They compare the same elements in the same order and
raise the same errors (source: CPython's Modules/_heapqmodule.c, Modules/_bisectmodule.c).  A subclass of list breaks
the graph.
"""

from __future__ import annotations

import bisect
import heapq
import operator
import sys
from collections.abc import Callable
from typing import Any


def graph_break(message: str) -> None:
    """Break the graph here."""


graph_break._pycompiler_break = True  # type: ignore[attr-defined]


def _comes_first(heap: list[Any], a: Any, b: Any, greatest: bool) -> bool:
    size = len(heap)
    first = bool(b < a) if greatest else bool(a < b)
    if len(heap) != size:
        raise RuntimeError("list changed size during iteration")
    return first


def _plain(heap: Any) -> None:
    if type(heap) is not list:
        graph_break("a heap that is not a list")


def _sift_down(heap: list[Any], start: int, pos: int, greatest: bool) -> None:
    """Move the element towards the root until its parent is ordered before it or equal."""
    while pos > start:
        parent = (pos - 1) >> 1
        if not _comes_first(heap, heap[pos], heap[parent], greatest):
            return
        heap[pos], heap[parent] = heap[parent], heap[pos]
        pos = parent


def _sift_up(heap: list[Any], pos: int, greatest: bool) -> None:
    """Move the first-ordered child up until a leaf is reached, then move the element down to its place."""
    end, start = len(heap), pos
    while pos < end >> 1:
        child = 2 * pos + 1
        if child + 1 < end and not _comes_first(heap, heap[child], heap[child + 1], greatest):
            child += 1
        heap[pos], heap[child] = heap[child], heap[pos]
        pos = child
    _sift_down(heap, start, pos, greatest)


def _pop(heap: Any, greatest: bool) -> Any:
    _plain(heap)
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first, heap[0] = heap[0], last
    _sift_up(heap, 0, greatest)
    return first


def _replace(heap: Any, item: Any, greatest: bool) -> Any:
    _plain(heap)
    if not heap:
        raise IndexError("index out of range")
    first, heap[0] = heap[0], item
    _sift_up(heap, 0, greatest)
    return first


def _heapify(heap: Any, greatest: bool) -> None:
    _plain(heap)
    if len(heap) > 2500:
        graph_break("a heap of more than 2500 elements")
    for pos in reversed(range(len(heap) >> 1)):
        _sift_up(heap, pos, greatest)


def heappush(heap: Any, item: Any, /) -> None:
    _plain(heap)
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1, False)


def heappop(heap: Any, /) -> Any:
    return _pop(heap, False)


def heapreplace(heap: Any, item: Any, /) -> Any:
    return _replace(heap, item, False)


def heappushpop(heap: Any, item: Any, /) -> Any:
    _plain(heap)
    if heap and _comes_first(heap, heap[0], item, False):
        item, heap[0] = heap[0], item
        _sift_up(heap, 0, False)
    return item


def heapify(heap: Any, /) -> None:
    _heapify(heap, False)


def heapify_max(heap: Any, /) -> None:
    _heapify(heap, True)


def heappop_max(heap: Any, /) -> Any:
    return _pop(heap, True)


def heapreplace_max(heap: Any, item: Any, /) -> Any:
    return _replace(heap, item, True)


def _bounds(a: Any, lo: Any, hi: Any) -> tuple[int, int]:
    if isinstance(a, dict):
        graph_break("bisect in a dict")
    lo, hi = operator.index(lo), -1 if hi is None else operator.index(hi)
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if lo > sys.maxsize or not -sys.maxsize <= hi <= sys.maxsize:
        graph_break("bisect with bounds of more than 64 bits")
    return lo, len(a) if hi == -1 else hi


def bisect_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    lo, hi = _bounds(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            hi = middle
        else:
            lo = middle + 1
    return lo


def bisect_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> Any:
    lo, hi = _bounds(a, lo, hi)
    while lo < hi:
        middle = (lo + hi) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


def insort_right(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


def insort_left(a: Any, x: Any, lo: Any = 0, hi: Any = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


HEAPS: dict[Any, Callable[..., Any]] = {
    heapq.heappush: heappush,
    heapq.heappop: heappop,
    heapq.heapreplace: heapreplace,
    heapq.heappushpop: heappushpop,
    heapq.heapify: heapify,
    bisect.bisect_right: bisect_right,
    bisect.bisect_left: bisect_left,
    bisect.insort_right: insort_right,
    bisect.insort_left: insort_left,
}
for _name, _fn in (("heapify_max", heapify_max), ("heappop_max", heappop_max), ("heapreplace_max", heapreplace_max)):
    HEAPS |= {
        known: _fn for known in (getattr(heapq, prefix + _name, None) for prefix in ("", "_")) if known
    }  # public since 3.14
