"""Handlers of iterators: iter, zip, map, sorted, ... and itertools.

In: iterables.
Out: `Iter`, with a step function, as lazy as Python's own.  Most have a recipe: generated code builds the same
iterator in the same state.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.semantics import operators
from pycompiler.capture.values import symbolic_numbers
from pycompiler.capture.values.attributes import MISSING, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.iterators import GROUP, TEE, Iter, Recipe
from pycompiler.capture.values.containers.sequences import List, Slice, Tuple
from pycompiler.capture.values.functions import Builtin, Method
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, Symbolic
from pycompiler.symbolic.size_nodes import greater, lesser

NONE: Value = Const(None)
EMPTY: Value = Tuple([])


@builtin(iter)
def iter_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1:
        return cx.iterator(args[0])
    fn, sentinel = args
    if mro_lookup(fn.python_type(), "__call__") is MISSING:
        cx.evaluate_raw(iter, None, None)  # raises its error

    def step() -> Value | None:
        value = cx.catching(StopIteration, lambda: cx.call(fn, [], {}))
        return None if value is None or cx.alike(value, sentinel) else value

    return Iter(step, type(iter(int, 1)), lambda taken: (iter, [fn, sentinel]))


class IteratorTaken(Value):
    """An iterator of an object whose `__iter__` has already been called."""

    def __init__(self, iterator: Value) -> None:
        self.iterator = iterator


def _asked(cx: Capture, value: Value) -> Value:
    return value.iterator if isinstance(value, IteratorTaken) else cx.iterator(value)


def _without_iter_call(source: Value) -> Value:
    """The iterable that a rebuilt iterator continues with.  `iter()` of a program's object would call its `__iter__`
    again."""
    if not isinstance(source, Object):
        return source
    return Iter(lambda: None, recipe=lambda taken: (runtime_helpers.Begun, [source]))


def _all_begun(sources: Iterable[Value]) -> list[Value]:
    return [_without_iter_call(source) for source in sources]


@builtin(next)
def next_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and isinstance(args[0], Object):
        method = args[0].special(cx, "__next__")
        if method is not None:
            return cx.realize(cx.call(method, [], {}))  # the program's own StopIteration passes on
    value = cx.next_of(args[0])
    if value is not None:
        return cx.realize(value)
    if len(args) == 2:
        return args[1]
    cx.stop()


@constructor(range)
def range_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.evaluate_raw(range, *(cx.index(a) for a in args)))


@constructor(slice)
def slice_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not 0 < len(args) < 4:
        cx.evaluate_raw(slice, *args)
    return Slice([NONE, args[0], NONE] if len(args) == 1 else [*args, *[NONE] * (3 - len(args))])


@constructor(enumerate)
def enumerate_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    start = cx.index(args[1] if len(args) > 1 else kwargs.get("start", Const(0)))
    source = cx.iterator(args[0])

    numbers = itertools.count(start)

    def step() -> Value | None:
        value = cx.next_of(source)
        return None if value is None else Tuple([Const(next(numbers)), cx.realize(value)])

    return Iter(step, enumerate, lambda taken: (enumerate, [_without_iter_call(source), Const(start + taken)]))


@constructor(zip)
def zip_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    strict = "strict" in kwargs and cx.truth(kwargs["strict"])
    iterators = [_asked(cx, a) for a in args]

    def step() -> Value | None:
        row: list[Value] = []
        for i, it in enumerate(iterators):
            value = cx.next_of(it)
            if value is None:
                if strict:
                    _check_strict(cx, iterators, i)
                    cx.stopped_by = None
                return None
            row.append(cx.realize(value))
        return Tuple(row) if row else None

    return Iter(step, zip, lambda taken: (runtime_helpers.zip_strict if strict else zip, _all_begun(iterators)))


def _check_strict(cx: Capture, iterators: list[Value], ended: int) -> None:
    """Check zip(strict=True): iterator number `ended` is the first that has ended; all others must end, too."""

    def sentence(i: int, what: str) -> str:
        return f"zip() argument {i + 1} is {what} than argument{' 1' if i == 1 else f's 1-{i}'}"

    if ended:
        cx.throw(ValueError, sentence(ended, "shorter"))
    for i, it in enumerate(iterators[1:], 1):
        if cx.next_of(it) is not None:
            cx.throw(ValueError, sentence(i, "longer"))


@constructor(map)
def map_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if kwargs:
        raise Break("builtin-call", "map(..., strict=...)")
    fn, iterators = args[0], [_asked(cx, a) for a in args[1:]]

    def step() -> Value | None:
        row: list[Value] = []
        for it in iterators:
            value = cx.next_of(it)
            if value is None:
                return None
            row.append(value)
        return cx.call(fn, row, {})

    return Iter(step, map, lambda taken: (map, [fn, *_all_begun(iterators)]))


def _filtering(cls: Any, keep: bool) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        fn, source = args[0], _asked(cx, args[1])

        def step() -> Value | None:
            for value in cx.pull(source):
                if cx.truth(value if cx.is_none(fn) else cx.call(fn, [value], {})) is keep:
                    return value
            return None

        return Iter(step, cls, lambda taken: (cls, [fn, _without_iter_call(source)]))

    return make


filter_ = constructor(filter)(_filtering(filter, True))
constructor(itertools.filterfalse)(_filtering(itertools.filterfalse, False))


@constructor(reversed)
def reversed_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Object):
        method = value.special(cx, "__reversed__")
        if method is not None and not (isinstance(method, Method) and isinstance(method.function, Builtin)):
            return cx.call(method, [], {})
        if value.storage is None:
            if value.special(cx, "__getitem__") is None:
                cx.throw(TypeError, f"{class_name(value.cls)!r} object is not reversible")
            places = iter(range(value.length(cx).const("as a number of elements") - 1, -1, -1))

            def step() -> Value | None:
                place = next(places, None)
                return None if place is None else value.place(cx, place)

            return Iter(step, reversed)
        if isinstance(value.storage, Tuple) and any(value.overrides(cx, n) for n in ("__len__", "__getitem__")):
            raise Break(
                "unsupported-operation", f"reversed({value.describe()}), whose class overrides __len__ or __getitem__"
            )
    if not any(hasattr(value.python_type(), name) for name in ("__reversed__", "__getitem__")):
        cx.throw(TypeError, f"{class_name(value.python_type())!r} object is not reversible")
    return cx.container_iterator(value, backwards=True)


# itertools ----------------------------------------------------------------------------------------------------
def _chained(cx: Capture, iterables: Value) -> Value:
    """itertools.chain.from_iterable(iterables)."""
    outer = cx.iterator(iterables)
    state: list[Value] = []
    ended = False

    def step() -> Value | None:
        nonlocal ended
        while True:
            if state:
                value = cx.next_of(state[0])
                if value is not None:
                    return value
                state.clear()
            inner = None if ended else cx.next_of(outer)
            if inner is None:
                return None
            ended = True  # if this raises, the outer iterator stays ended
            state.append(cx.iterator(cx.realize(inner)))
            ended = False

    return Iter(
        step,
        itertools.chain,
        lambda taken: (
            runtime_helpers.chain_from,
            [_without_iter_call(state[0]) if state else EMPTY, EMPTY if ended else _without_iter_call(outer)],
        ),
    )


@constructor(itertools.chain)
def chain(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _chained(cx, Tuple(list(args)))


@builtin(itertools.chain.from_iterable, itertools.chain.__dict__["from_iterable"])
def chain_from_iterable(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _chained(cx, args[-1])


@constructor(itertools.repeat)
def repeat(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cx.evaluate_raw(itertools.repeat, None, **dict.fromkeys(kwargs.keys() - {"object", "times"}))  # raises its error
    element = args[0] if args else kwargs["object"]
    times = args[1] if len(args) > 1 else kwargs.get("times")
    if times is None:
        return Iter(lambda: element, itertools.repeat, lambda taken: (itertools.repeat, [element]))
    n = max(0, cx.size(times))
    values = itertools.repeat(element, n)
    return Iter(values, itertools.repeat, lambda taken: (itertools.repeat, [element, Const(n - taken)]))


@constructor(itertools.count)
def count(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    start = args[0] if args else kwargs.get("start", Const(0))
    by = args[1] if len(args) > 1 else kwargs.get("step", Const(1))
    for value in (start, by):
        cls = value.python_type()
        if not (
            issubclass(cls, torch.Tensor)
            or any(mro_lookup(cls, n) is not MISSING for n in ("__index__", "__float__", "__complex__"))
        ):
            cx.throw(TypeError, "a number is required")
    state = [start]

    def step() -> Value:
        value = state[0]
        state[0] = operators.binary(cx, "+", value, by)
        return value

    return Iter(step, itertools.count, lambda taken: (itertools.count, [state[0], by]))


@constructor(itertools.cycle)
def cycle(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    source, saved = cx.iterator(args[0]), List([])
    position = itertools.count()
    ended = False

    def step() -> Value | None:
        nonlocal ended
        value = None if ended else cx.next_of(source)
        if value is not None:
            saved.items.append(value)
            return value
        ended = True
        return saved.items[next(position) % len(saved.items)] if saved.items else None

    return Iter(step, itertools.cycle)


def _bound(cx: Capture, value: Value) -> int:
    """A bound of islice; whatever an `__index__` raises, the error is the one for a negative bound."""
    found = cx.catching(BaseException, lambda: cx.index(value))
    return -1 if found is None else found


@constructor(itertools.islice)
def islice(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    bounds = [None if cx.is_none(a) else _bound(cx, a) for a in args[1:]]
    source = cx.iterator(args[0])
    values = cx.evaluate_raw(itertools.islice, cx.pull(source), *bounds)
    start, stop, step = [None, *bounds, None][:3] if len(bounds) == 1 else [*bounds, None][:3]

    def again(taken: int) -> Recipe:
        by, first = step or 1, start or 0
        used = first + (taken - 1) * by + 1 if taken else 0
        left = [first + taken * by - used, None if stop is None else stop - used, by]
        return itertools.islice, [_without_iter_call(source), *map(Const, left)]

    return Iter(values, itertools.islice, again)


def _combinatoric(fn: Any) -> Callable[[Capture, Args, Kwargs], Value]:
    """Iterators that read their inputs at once."""

    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        given, rest = (args, []) if fn is itertools.product else (args[:1], args[1:])
        pools = [Tuple(cx.tupled(p)) for p in given]
        known = {k: v.const() for k, v in kwargs.items()}
        rows = cx.evaluate_raw(fn, *(p.items for p in pools), *(r.const() for r in rest), **known)
        left = [cx.make(fn), Tuple(list(pools)), Tuple(rest), cx.make(known)]
        return Iter((Tuple(list(r)) for r in rows), fn, lambda taken: (runtime_helpers.rows_of, [*left, Const(taken)]))

    return make


for _fn in (itertools.product, itertools.combinations, itertools.permutations, itertools.combinations_with_replacement):
    constructor(_fn)(_combinatoric(_fn))


@constructor(itertools.zip_longest)
def zip_longest(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fill, iterators = kwargs.get("fillvalue", NONE), [cx.iterator(a) for a in args]
    left: list[Value | None] = [*iterators]  # None for an iterator that has ended

    def step() -> Value | None:
        row: list[Value] = []
        for i, iterator in enumerate(left):
            value = None if iterator is None else cx.next_of(iterator)
            if value is None:
                left[i] = None
                if not any(left):
                    return None
            row.append(fill if value is None else cx.realize(value))
        return Tuple(row) if row else None

    def again(taken: int) -> Recipe:
        return runtime_helpers.zip_longest, [fill, *(EMPTY if it is None else _without_iter_call(it) for it in left)]

    return Iter(step, itertools.zip_longest, again)


@constructor(itertools.accumulate)
def accumulate(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn = args[1] if len(args) > 1 else kwargs.get("func", NONE)
    source, totals = cx.iterator(args[0]), list[Value]()
    add = (lambda a, b: operators.binary(cx, "+", a, b)) if cx.is_none(fn) else (lambda a, b: cx.call(fn, [a, b], {}))
    initial = kwargs.get("initial", NONE)
    start = None if cx.is_none(initial) else initial

    def step() -> Value | None:
        if not totals and start is not None:
            totals.append(start)
        elif (value := cx.next_of(source)) is not None:
            totals[:] = [add(totals[0], cx.realize(value)) if totals else cx.realize(value)]  # type: ignore[no-untyped-call]
        else:
            return None
        return totals[0]

    def again(taken: int) -> Recipe:
        if taken:
            return runtime_helpers.accumulated, [fn, _without_iter_call(source), totals[0]]
        return runtime_helpers.accumulate, [fn, _without_iter_call(source), *([start] if start is not None else [])]

    return Iter(step, itertools.accumulate, again)


@constructor(itertools.starmap)
def starmap(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, source = args[0], cx.iterator(args[1])

    def step() -> Value | None:
        row = cx.next_of(source)
        return None if row is None else cx.call(fn, list(cx.elements(row)), {})

    return Iter(step, itertools.starmap, lambda taken: (itertools.starmap, [fn, _without_iter_call(source)]))


@constructor(itertools.takewhile)
def takewhile(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, source = args[0], cx.iterator(args[1])
    ended = False

    def step() -> Value | None:
        nonlocal ended
        value = None if ended else cx.next_of(source)
        if value is None or cx.truth(cx.call(fn, [value := cx.realize(value)], {})):
            return value
        cx.stopped_by = None  # an iterator that the function used has ended by itself
        ended = True
        return None

    return Iter(step, itertools.takewhile,
                lambda taken: (itertools.takewhile, [fn, EMPTY if ended else _without_iter_call(source)]))  # fmt: skip


@constructor(itertools.dropwhile)
def dropwhile(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, source = args[0], cx.iterator(args[1])
    begun = False

    def step() -> Value | None:
        nonlocal begun
        for value in cx.pull(source):
            if begun or not cx.truth(cx.call(fn, [value], {})):
                begun = True
                return value
        return None

    def again(taken: int) -> Recipe:
        return (
            (runtime_helpers.dropped, [_without_iter_call(source)])
            if taken
            else (itertools.dropwhile, [fn, _without_iter_call(source)])
        )

    return Iter(step, itertools.dropwhile, again)


@constructor(itertools.pairwise)
def pairwise(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    source = cx.iterator(args[0])
    last: list[Value] = []

    def step() -> Value | None:
        if not last and (first := cx.next_of(source)) is not None:
            last.append(cx.realize(first))
        value = cx.next_of(source) if last else None
        if value is None:
            return None
        pair = [last.pop(), cx.realize(value)]
        last.append(pair[1])
        return Tuple(pair)

    return Iter(step, itertools.pairwise, lambda taken: (runtime_helpers.pairwise, [_without_iter_call(source), *last]))


@constructor(itertools.compress)
def compress(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    data, selectors = [cx.iterator(a) for a in (*args, *(kwargs[n] for n in ("data", "selectors")[len(args) :]))]

    def step() -> Value | None:
        for value in cx.pull(data):
            if (chosen := cx.next_of(selectors)) is None:
                return None
            if cx.truth(cx.realize(chosen)):
                return value
        return None

    return Iter(step, itertools.compress, lambda taken: (itertools.compress, _all_begun([data, selectors])))


@constructor(itertools.groupby)
def groupby(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Group elements. Groups are read lazily; a skipped group is drained, as in CPython."""
    key = args[1] if len(args) > 1 else kwargs.get("key", NONE)
    source = cx.iterator(args[0])
    rank = (lambda v: v) if cx.is_none(key) else (lambda v: cx.call(key, [v], {}))
    # the key and the value that were read last; the value is None once a group has taken it
    ahead: list[Value | None] = [None, None]
    keys: list[Value] = []  # the key of the last returned group
    group: list[object] = [None]  # the identity of the last returned group; None from the next step on

    def advance() -> bool:
        value = cx.next_of(source)
        if value is None:
            return False
        value = cx.realize(value)
        ahead[:] = [rank(value), value]  # type: ignore[no-untyped-call]
        return True

    def goes_on(key: Value) -> bool:
        assert ahead[0] is not None
        return cx.alike(key, ahead[0])

    def member(mine: object, key: Value) -> Value | None:
        if group[0] is not mine or (ahead[1] is None and not advance()) or not goes_on(key):
            return None
        value, ahead[1] = ahead[1], None
        return value

    def step() -> Value | None:
        group[0] = None
        while ahead[0] is None or keys and goes_on(keys[0]):
            if not advance():
                return None
        keys[:], group[0] = [ahead[0]], object()
        return Tuple([ahead[0], Iter(functools.partial(member, group[0], ahead[0]), GROUP)])

    return Iter(step, itertools.groupby)


@builtin(itertools.tee)
def tee(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    n = cx.index(args[1]) if len(args) > 1 else 2
    if n < 0:
        cx.throw(ValueError, "n must be >= 0")
    source = cx.iterator(args[0])
    if source.source is not None and source.python_type() is TEE:
        raise Break("builtin-call", "itertools.tee of a tee iterator from outside of the graph")
    first = source if isinstance(source, Teed) else Teed(cx, source, [], 0)
    if isinstance(source, Teed) and not TEE_IS_ITS_COPY:
        first = Teed(cx, source.iterator, source.seen, source.taken)
    return Tuple([first, *(Teed(cx, first.iterator, first.seen, first.taken) for _ in range(n - 1))] if n else [])


TEE_IS_ITS_COPY = (lambda one: itertools.tee(one)[0] is one)(itertools.tee(())[0])  # False since 3.14


class Teed(Iter):
    """One of the iterators of `itertools.tee`; `seen`: the elements that any of them has taken from the shared
    iterator."""

    def __init__(self, cx: Capture, iterator: Value, seen: list[Value], taken: int) -> None:
        super().__init__(lambda: self._next(cx), TEE)
        self.iterator, self.seen, self.taken = iterator, seen, taken

    def _next(self, cx: Capture) -> Value | None:
        if self.taken == len(self.seen):
            value = cx.next_of(self.iterator)
            if value is None:
                return None
            self.seen.append(value)
        return self.seen[self.taken]


# folds --------------------------------------------------------------------------------------------------------
SUM_COMPENSATES = sum([0.1] * 10) == 1  # since 3.12 sum() compensates rounding errors: it is not a chain of additions


def _numbers_first(total: Value, values: list[Value]) -> int:
    """The number of leading values that are numbers, added without running code."""
    if not isinstance(total, PLAIN_VALUES):
        return 0
    return next((i for i, v in enumerate(values) if not isinstance(v, PLAIN_VALUES)), len(values))


def _rounded(numbers: tuple[Value, ...]) -> int:
    """The number of float additions in the sum of these. A rounding error of one cannot be corrected after the sum."""
    first = next((i for i, n in enumerate(numbers) if issubclass(n.python_type(), (float, complex))), len(numbers))
    return len(numbers) - max(first, 1)


@builtin(sum)
def sum_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    total = args[1] if len(args) > 1 else kwargs.get("start", Const(0))
    if issubclass(total.python_type(), (str, bytes, bytearray)):
        raise Break("builtin-call", "sum() with a start of str, bytes or bytearray, which raises TypeError")
    summed = args[0].summary(cx, sum) if len(args) == 1 and not kwargs and isinstance(args[0], List) else None
    if summed is not None:
        return summed
    values = list(cx.elements(args[0]))
    begin = _numbers_first(total, values)
    if begin == len(values) and all(v.is_const() for v in (total, *values)):
        return cx.evaluate(sum, [v.const() for v in values], total)
    if SUM_COMPENSATES and _rounded((total, *values[:begin])) > 1:
        numbers = [v.const("as a number that sum() adds") for v in values[:begin]]
        total, values = cx.evaluate(sum, numbers, total), values[begin:]
    for value in values:
        total = operators.binary(cx, "+", total, value)
    return total


def _computed_extreme(cx: Capture, name: str, a: Value, b: Value) -> Value | None:
    """The minimum or maximum as a computed symbol: for two ints with an unbacked symbol, or two symbolic floats.

    Otherwise None; an int beside a float may be either.
    """
    kinds = {v.python_type() for v in (a, b)}
    symbols = [v for v in (a, b) if isinstance(v, Symbolic)]
    if kinds == {int} and any(symbolic_numbers.is_unbacked(v.sym) for v in symbols):
        return symbolic_numbers.compute(cx, {"min": torch.sym_min, "max": torch.sym_max}[name], [a, b])
    if kinds == {float} and any(not v.is_const() for v in symbols):
        return symbolic_numbers.compute(cx, {"min": lesser, "max": greater}[name], [a, b])
    return None


def _extreme(name: str, op: str) -> Callable[[Capture, Args, Kwargs], Value]:
    python = {"min": min, "max": max}[name]

    def pick(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if not args or not kwargs.keys() <= {"key"} and (len(args) > 1 or not kwargs.keys() <= {"key", "default"}):
            cx.evaluate_raw(python, *[0] * len(args), **dict.fromkeys(kwargs))  # raises
        known = args[0].summary(cx, python) if len(args) == 1 and not kwargs and isinstance(args[0], List) else None
        if known is not None:
            return known
        values = cx.elements(args[0]) if len(args) == 1 else iter(args)  # the key function may change the iterable
        key = kwargs.get("key", NONE)
        best = next(values, None)
        if best is None:
            if "default" in kwargs:
                return kwargs["default"]
            cx.evaluate_raw(python, ())
        assert best is not None
        rank = (lambda v: v) if cx.is_none(key) else (lambda v: cx.call(key, [v], {}))
        best_rank = rank(best)  # type: ignore[no-untyped-call]
        better = functools.partial(operators.compare, cx, op)
        for value in values:
            value_rank = rank(value)  # type: ignore[no-untyped-call]
            extreme = None
            if cx.is_none(key):
                extreme = cx.items.extreme(better, best_rank, value_rank)
                if extreme is None:
                    extreme = _computed_extreme(cx, name, best_rank, value_rank)
            if extreme is not None:
                best = best_rank = extreme
                continue
            if cx.truth(operators.compare(cx, op, value_rank, best_rank)):
                best, best_rank = value, value_rank
        return best

    return pick


builtin(min)(_extreme("min", "<"))
builtin(max)(_extreme("max", ">"))


@builtin(any)
def any_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(any(cx.truth(v) for v in cx.elements(args[0])))


@builtin(all)
def all_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(all(cx.truth(v) for v in cx.elements(args[0])))


def _comparison(cx: Capture, ranks: list[Value]) -> Callable[[Value, Value], Value]:
    """The comparison that list.sort uses for these values.

    For instances of one class it calls `__lt__` directly, and the operator only if that returns NotImplemented.  The
    same holds for the first elements of tuples.
    """
    plain = functools.partial(operators.compare, cx, "<")
    tuples = all(isinstance(v, Tuple) and v.cls is tuple and v.truth(cx) for v in ranks)
    known = [v.at(cx, 0) for v in ranks if isinstance(v, Tuple)] if tuples else ranks
    if not all(isinstance(v, Object) and v.cls is known[0].python_type() for v in known):
        return plain

    def less(a: Value, b: Value) -> Value:
        return operators.by_method(cx, "<", a, b) or plain(a, b)

    def of_tuples(a: Value, b: Value) -> Value:
        assert isinstance(a, Tuple) and isinstance(b, Tuple)
        apart = operators.first_difference(cx, a, b)
        if apart is None:
            return Const(len(a.items) < len(b.items))
        return (less if apart[0] is a.at(cx, 0) and apart[1] is b.at(cx, 0) else plain)(*apart)

    return of_tuples if tuples else less


def sort_values(cx: Capture, values: list[Value], kwargs: Kwargs) -> None:
    """Sort `values` in place. If a comparison raises, they are left as CPython's sort leaves them."""
    key = kwargs.get("key", NONE)
    flag = kwargs.get("reverse", Const(False)).const()
    reverse = cx.evaluate_raw(sorted, (0, 1), reverse=flag) == [1, 0]  # accepted flags depend on the version
    ranked = [(v if cx.is_none(key) else cx.call(key, [v], {}), v) for v in values]

    less = _comparison(cx, [rank for rank, _ in ranked])

    def order(a: tuple[Value, Value], b: tuple[Value, Value]) -> int:
        return -1 if cx.truth(less(a[0], b[0])) else 0  # list.sort only uses `<`

    try:
        ranked.sort(key=functools.cmp_to_key(order), reverse=reverse)
    finally:
        values[:] = [v for _, v in ranked]


@builtin(sorted)
def sorted_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    values = cx.listed(args[0])
    sort_values(cx, values, kwargs)
    return List(values)


@builtin(functools.reduce)
def reduce_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    values = cx.elements(args[1])
    total = args[2] if len(args) > 2 else next(values, None)
    if total is None:
        cx.throw(TypeError, "reduce() of empty iterable with no initial value")
    for value in values:
        total = cx.call(args[0], [total, value], {})
    assert isinstance(total, Value)
    return total
