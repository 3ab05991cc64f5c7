"""Loops, generators, iterators, itertools and functools."""

from __future__ import annotations

import collections
import functools
import itertools
import operator
import sys

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


@case(X)
def for_range(x):
    for i in range(3):
        x = x + i
    for i in range(5, 0, -2):
        x = x * i
    return x, i


@case(X)
def for_else(x):
    for i in range(3):
        if i == 5:
            break
    else:
        x = x + 10
    for i in range(3):
        if i == 1:
            break
    else:
        x = x + 100
    return x, i


@case(X)
def while_loops(x):
    n = 0
    while n < 3:
        n += 1
        if n == 2:
            continue
        x = x + n
    else:
        x = x * 2
    while True:
        n += 1
        if n > 5:
            break
    return x, n


@case(X)
def nested_loops(x):
    out = []
    for i in range(3):
        for j in range(3):
            if j == 2:
                break
            if i == 1:
                continue
            out.append((i, j))
    return x + 1, out


@case(X)
def loop_over_tensor(x):
    total = 0
    for row in x.reshape(2, 2):
        total = total + row
    return total


@case(X)
def loop_return_inside(x):
    for i in range(10):
        for j in (1, 2):
            if i * j == 6:
                return x + i + j


@case(X)
def enumerate_zip(x):
    a = [(i, v) for i, v in enumerate("ab", start=1)]
    b = list(zip([1, 2, 3], "ab"))
    c = dict(zip("ab", (x, x + 1)))
    d = list(zip())
    u, v = zip(*[(1, 2), (3, 4)])
    return a, b, c, d, u, v


@case(X)
def zip_strict(x):
    out = []
    for a, b in (([1], [1, 2]), ([1, 2], [1]), ([1], [2])):
        try:
            out.append(list(zip(a, b, strict=True)))
        except ValueError as e:
            out.append(str(e))
    try:
        list(zip([1], [2], [], strict=True))
    except ValueError as e:
        out.append(str(e))
    return x + 1, out


@case(X)
def map_filter(x):
    return (
        list(map(lambda v: v * 2, [1, 2])), list(map(lambda a, b: a + b, (1, 2), (3, 4, 5))), list(map(str, [1, 2])),
        list(filter(None, [0, 1, "", "a"])), list(filter(lambda v: v > 1, [1, 2, 3])), sum(map(len, ["a", "bb"])),
        list(map(torch.sin, [x, x + 1])), x + 1,
    )  # fmt: skip


@case(X)
def lazy_map(x):
    log = []

    def f(v):
        log.append(v)
        return v

    m = map(f, [1, 2, 3])
    first = next(m)
    return x + first, list(log), list(m), log


@case(X)
def reversed_sorted(x):
    return (
        list(reversed([1, 2])), list(reversed("ab")), list(reversed(range(3))), list(reversed({"a": 1, "b": 2})),
        sorted("bca"), sorted([3, 1], reverse=True), sorted({"b": 1, "a": 2}.items(), key=lambda kv: kv[1]), x + 1,
        sorted([1.5, -2, True]), sorted([(2, "a"), (1, "z")], key=operator.itemgetter(1)),
    )  # fmt: skip


@case(X)
def sort_stability(x):
    rows = [("b", 1), ("a", 1), ("c", 0)]
    return x + 1, sorted(rows, key=lambda r: r[1]), sorted(rows, key=lambda r: r[1], reverse=True)


@case(X)
def min_max_any_all(x):
    return (
        min(3, 1, 2), max([1, 5]), min("ab", key=ord), max((), default=7), min([(1, "b"), (1, "a")]), any([0, 1]),
        all([]), any(v > 2 for v in range(3)), all(v < 3 for v in range(3)), x + max(len("ab"), 1), max(1, 2.0), max(True, 1),
    )  # fmt: skip


@case(X)
def min_max_errors(x):
    out = []
    for f in (lambda: min([]), lambda: max(()), lambda: max(1, "a")):
        try:
            f()
        except (ValueError, TypeError) as e:
            out.append(str(e))
    return x + 1, out


@case(X)
def sum_of_tensors(x):
    return sum([x, x]), sum((x for _ in range(3)), start=x), sum([])


def _gen(n):
    for i in range(n):
        yield i


def _echo():
    got = yield "ready"
    while got is not None:
        got = yield got * 2
    return "done"


def _delegating():
    a = yield from _gen(2)
    b = yield from _echo()
    yield (a, b)


@case(X)
def generators(x):
    g = _gen(3)
    return x + next(g), list(g), list(g), next(g, "end"), sum(_gen(4)), [*_gen(2)], tuple(_gen(2))


@case(X)
def generator_send(x):
    g = _echo()
    out = [next(g), g.send(3), g.send(4)]
    try:
        g.send(None)
    except StopIteration as e:
        out.append(e.value)
    return x + 1, out


@case(X)
def generator_delegation(x):
    g = _delegating()
    out = [next(g), next(g), next(g), g.send(5), g.send(None)]
    return x + 1, out, list(_delegating())[:2]


def _guarded(log):
    try:
        yield 1
        yield 2
    except ValueError as e:
        log.append(str(e))
        yield "caught"
    finally:
        log.append("closed")


@case(X)
def generator_throw(x):
    log = []
    g = _guarded(log)
    out = [next(g), g.throw(ValueError("v"))]
    rest = list(g)
    return x + 1, out, rest, log


@case(X)
def generator_throw_uncaught(x):
    log = []
    g = _guarded(log)
    next(g)
    try:
        g.throw(KeyError("k"))
    except KeyError as e:
        return x + 1, e.args, log


@case(X)
def generator_close(x):
    log = []
    g = _guarded(log)
    next(g)
    g.close()
    g.close()
    return x + 1, log, list(g)


@case(X)
def generator_close_unstarted(x):
    log = []
    g = _guarded(log)
    g.close()
    return x + 1, log


@case(X)
def generator_break_runs_finally_later(x):
    log = []
    for v in _guarded(log):
        break
    return x + v


@case(X)
def generator_expression(x):
    k = 2
    g = (x * i + k for i in range(3) if i)
    k = 10
    return list(g)


@case(X)
def generator_expression_first_iterable_is_eager(x):
    a = [1, 2]
    g = (v for v in a)
    a.append(3)
    a = []
    return x + sum(g)


def _naturals():
    n = 0
    while True:
        yield n
        n += 1


@case(X)
def infinite_generator(x):
    total = 0
    for n in _naturals():
        if n > 4:
            break
        total += n
    return x + total, list(itertools.islice(_naturals(), 2, 8, 3)), next(iter(_naturals()))


@case(X)
def generator_of_tensors(x):
    def steps(v):
        for _ in range(3):
            v = v * 2
            yield v

    return list(steps(x)), sum(steps(x))


@case(X)
def generator_return_value(x):
    def inner():
        yield 1
        return 42

    def outer():
        r = yield from inner()
        yield r

    return x + 1, list(outer())


@case(X)
def generator_stop_iteration_inside(x):
    def bad():
        yield 1
        raise StopIteration("x")

    try:
        list(bad())
    except RuntimeError as e:
        return x + 1, str(e), type(e.__cause__).__name__


@case(X)
def generator_recursive(x):
    def walk(tree):
        for node in tree:
            if isinstance(node, list):
                yield from walk(node)
            else:
                yield node

    return x + sum(walk([1, [2, [3, 4]], 5]))


@case(X, breaks=ANY)
def generator_returned(x):
    return (x + i for i in range(3))


@case(X, breaks=ANY)
def generator_partly_consumed_returned(x):
    g = (x + i for i in range(3))
    next(g)
    return g


@case(X, breaks=ANY)
def generator_across_break(x):
    g = _gen(3)
    a = next(g)
    print("break")
    return x + a + next(g)


@case(X)
def itertools_finite(x):
    return (
        list(itertools.chain([1], (2,), "a")), list(itertools.chain.from_iterable([[1], [2, 3]])), x + 1,
        list(itertools.product([1, 2], repeat=2)), list(itertools.combinations("abc", 2)),
        list(itertools.permutations([1, 2])), list(itertools.combinations_with_replacement("ab", 2)),
        list(itertools.zip_longest([1, 2], [3], fillvalue=0)), list(itertools.accumulate([1, 2, 3])),
        list(itertools.accumulate([1, 2, 3], operator.mul)), list(itertools.islice(range(10), 3)),
    )  # fmt: skip


@case(X)
def itertools_more(x):
    return (
        list(itertools.starmap(pow, [(2, 3), (3, 2)])), list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])), x + 1,
        list(itertools.dropwhile(lambda v: v < 3, [1, 2, 3, 1])), list(itertools.pairwise([1, 2, 3])),
        list(itertools.compress("abc", [1, 0, 1])), list(itertools.filterfalse(lambda v: v % 2, range(4))),
        list(itertools.accumulate([1, 2], initial=10)),
    )  # fmt: skip


@case(X)
def itertools_infinite(x):
    c = itertools.count(5, 2)
    cy = itertools.cycle([1, 2])
    r = itertools.repeat(7, 2)
    return x + next(c) + next(c), [next(cy) for _ in range(5)], list(r), [a for a, _ in zip(itertools.count(), "ab")]


@case(X)
def itertools_groupby(x):
    return (
        x + 1,
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2, 3, 3])],
        [(k, len(list(g))) for k, g in itertools.groupby(["a", "bb", "cc"], key=len)],
    )


@case(X)
def itertools_tee(x):
    a, b = itertools.tee([1, 2, 3])
    return x + next(a), list(a), list(b)


@case(X)
def itertools_batched_by_hand(x):
    it = iter(range(5))
    out = []
    while chunk := list(itertools.islice(it, 2)):
        out.append(chunk)
    return x + 1, out


@case(X)
def iter_sentinel(x):
    values = iter([1, 2, 0, 3])
    return x + 1, list(iter(lambda: next(values), 0))


@case(X)
def iterator_shared(x):
    it = iter([1, 2, 3, 4])
    pairs = list(zip(it, it))
    e = enumerate("ab")
    next(e)
    return x + 1, pairs, list(e)


@case(X)
def iterator_returned(x):
    return iter([x, x + 1]).__next__(), list(iter((1, 2)))


@case(X)
def functools_things(x):
    def f(a, b):
        return a * 10 + b

    class_ = functools.partial(f, 1)
    return (
        functools.reduce(f, [1, 2, 3]), functools.reduce(operator.add, [x, x], 1), class_(2), functools.reduce(f, [], 5),
        functools.reduce(lambda a, b: a + b, "ab"),
    )  # fmt: skip


@case(X)
def functools_cmp_to_key(x):
    return x + 1, sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a))


@case(X)
def operator_module(x):
    return (
        operator.add(x, 1), operator.mul(2, 3), operator.getitem([1, 2], 1), operator.itemgetter(0, 1)("ab"),
        operator.attrgetter("shape")(x), operator.methodcaller("upper")("a"), operator.not_(0), operator.contains([1], 1),
        operator.neg(x), operator.concat([1], [2]), operator.truth([]), operator.is_(None, None), operator.lt(1, 2),
        operator.iadd([1], [2]), operator.pos(1), operator.inv(2), operator.is_not(1, None), operator.countOf([1, 1], 1),
    )  # fmt: skip


@case(X)
def range_object(x):
    r = range(2, 10, 3)
    return (
        x + len(r),
        r[1],
        r[-1],
        list(r),
        5 in r,
        6 in r,
        r.start,
        r.stop,
        r.step,
        r[::-1],
        r == range(2, 11, 3),
        bool(range(0)),
    )


@case(X)
def loop_variable_after_break(x):
    i = None
    for i in []:
        pass
    for j in range(3):
        if j == 1:
            break
    return x + j, i


@case(X, breaks=ANY)
def loop_with_break_inside(x):
    for i in range(3):
        x = x + i
        print("step", i)
    return x


@case(X)
def unpack_in_for(x):
    total = 0
    for (a, b), *rest in [((1, 2), 3, 4), ((5, 6),)]:
        total += a + b + len(rest)
    for k, (v, w) in {"a": (1, 2)}.items():
        total += v * w
    return x + total, k


@case(X)
def while_with_walrus(x):
    values = [3, 2, 1]
    out = []
    while values and (v := values.pop()) < 3:
        out.append(v)
    return x + 1, out, v


@case(X)
def zip_of_generators_is_lazy(x):
    log = []

    def g(n, name):
        for i in range(n):
            log.append((name, i))
            yield i

    pairs = list(zip(g(2, "a"), g(3, "b")))
    return x + 1, pairs, log


@case(X)
def map_with_multiple_is_lazy(x):
    log = []

    def g(n, name):
        for i in range(n):
            log.append((name, i))
            yield i

    return x + 1, list(map(operator.add, g(2, "a"), g(1, "b"))), log


@case([torch.ones(2), torch.zeros(2)], [1, 2])
def zip_tensors(ts, ks):
    return [t * k for t, k in zip(ts, ks)], {i: t for i, t in enumerate(ts)}


@case(X, breaks=ANY, recompiles=20)
def lru_cache_local(x):
    @functools.lru_cache
    def f(n):
        return n + 1

    return x + f(1) + f(1)


@case(make=lambda: (torch.ones(2), (i for i in range(5))), breaks=ANY)
def existing_generator_argument(x, g):
    return x + next(g), list(g)


@case(make=lambda: (torch.ones(2), iter([1, 2, 3])), breaks=ANY)
def existing_iterator_argument(x, it):
    for v in it:
        x = x + v
    return x


def _inner(log):
    try:
        yield 1
        yield 2
    except ValueError as e:
        log.append(("inner", str(e)))
        yield "handled"
    finally:
        log.append("inner finally")
    return "inner result"


def _outer(log):
    try:
        got = yield from _inner(log)
        log.append(got)
        yield "after"
    except KeyError:
        log.append("outer")
        yield "outer handled"


@case(X)
def throw_into_delegating_generator(x):
    log = []
    g = _outer(log)
    out = [next(g), g.throw(ValueError("v")), next(g)]
    h = _outer(log)
    out += [next(h), h.throw(KeyError("k")), next(h, "end")]
    return x + 1, out, log


@case(X)
def close_delegating_generator(x):
    log = []
    g = _outer(log)
    next(g)
    g.close()
    return x + 1, log, next(g, "end")


@case(X)
def send_to_fresh_generator(x):
    g = _echo()
    try:
        g.send(1)
    except TypeError as e:
        message = str(e)
    return x + 1, message, next(g)


@case(X)
def return_value_comes_once(x):
    def f():
        return 5
        yield

    g = f()
    out = []
    for _ in range(2):
        try:
            next(g)
        except StopIteration as e:
            out.append(e.value)
    return x + 1, out


@case()
def elements_see_what_was_added_before():
    grown, queue, members = [1], collections.deque([1]), {1}
    grown.extend(map(lambda v: v + grown[-1], range(3)))
    grown += (v + len(grown) for v in range(3))
    queue.extendleft(map(lambda v: v + queue[0], range(3)))
    members.update(v + len(members) for v in range(3))
    grown.extend(grown)
    queue.extend(queue)
    return grown, queue, sorted(members)


@case(breaks=ANY if sys.version_info >= (3, 14) else ())  # signatures are unknown since 3.14
def wrong_arguments_of_iterators():
    texts = []
    for make in (
        lambda: itertools.combinations([1]),
        lambda: itertools.product([1], fake=1),
        lambda: itertools.islice([], -1),
    ):
        try:
            make()
        except (TypeError, ValueError) as e:
            texts.append(type(e).__name__)
    return texts


@case(X)
def iterators_by_name(x):
    r, s, t = range(4).__iter__(), "abc".__iter__(), str.__iter__("xy")
    return (
        x + next(r), next(s), list(r), list(s), list(t), next(b"a".__iter__()), list((1, 2).__iter__()), list([3].__iter__()),
        list({1: 2}.__iter__()), list(range(3).__reversed__()), next(r, None),
    )  # fmt: skip


@case(X)
def extremes_of_lists_that_the_key_changes(x):
    shorter, longer = [3, 1, 2], [5]
    least = max(shorter, key=lambda v: shorter.pop())
    most = min(longer, key=lambda v: (longer.append(9) if len(longer) < 4 else None) or v)
    return x + least, shorter, most, longer
