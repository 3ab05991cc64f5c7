"""list, tuple, dict, set, deque and relatives: operations, mutation of inputs and of new containers, slices, unpacking."""

from __future__ import annotations

import collections

import torch
from capture.harness import ANY, case

import pycompiler

X = torch.arange(4.0)
T = [torch.ones(4), torch.zeros(4)]


@case(X, [1, 2, 3])
def list_read(x, a):
    return x + a[0] + a[-1] + len(a), a[1:], a[::-1], 2 in a, a.index(3), a.count(1), a + [4], a * 2, [0] * 3


@case(X, [3, 1, 2])
def list_mutate(x, a):
    a.insert(0, "s")
    a.extend((7, 8))
    a.remove(7)
    a.append(x)
    a[1] = 30
    del a[2]
    popped = a.pop()
    a += [1]
    a.reverse()
    return popped, x + 1


@case(X, [3, 1, 2])
def list_sort(x, a):
    a.sort()
    b = sorted(a, reverse=True)
    c = sorted(["bb", "a", "ccc"], key=len)
    d = sorted([(1, "b"), (0, "z"), (1, "a")])
    a.sort(key=lambda v: -v)
    return x + a[0], b, c, d


@case(X, [1, 2, 3, 4, 5])
def list_slices(x, a):
    a[1:3] = [20]
    a[::2] = [7, 8]
    del a[1:2]
    b = a[:]
    b.clear()
    return x + 1, b, a[5:], a[-2:], a[1:100]


@case(X, [1, 2])
def list_aliases(x, a):
    b = a
    b.append(3)
    c = list(a)
    c.append(4)
    d = a.copy()
    return x + len(a), b is a, c, d is a, d == a


@case(X, T)
def list_of_tensors(x, ts):
    ts[0] = ts[0] + x
    ts.append(x * 2)
    a, *b = ts
    return sum(ts), len(b)


@case(X, T)
def list_of_tensors_inplace(x, ts):
    for t in ts:
        t += x
    return torch.stack(ts)


@case(X)
def list_errors(x):
    out, one = [], [1]
    for f in (lambda: [][0], lambda: [1].index(2), lambda: [].pop(), lambda: [1].remove(5), lambda: (1,)[3],
              lambda: one["a"], lambda: [1].pop(4), lambda: [1, 2].__getitem__(9)):  # fmt: skip
        try:
            f()
        except (IndexError, ValueError, TypeError) as e:
            out.append((type(e).__name__, str(e)))
    return x + 1, out


@case(X)
def list_multiply_aliases(x):
    rows = [[0] * 2] * 2
    rows[0][0] = 1
    return x + 1, rows


@case(X)
def list_compare(x):
    return x + 1, [1, 2] == [1, 2], [1] < [2], [1, 2] > [1], [1] == (1,), [[1]] == [[1]], (1, 2) <= (1, 3), () == []


@case(X)
def list_while_iterating(x):
    a = [1, 2]
    for v in a:
        if len(a) < 6:
            a.append(v + 2)
    return x + sum(a), a


@case(X, [1, [2, [3]]])
def nested_mutation(x, a):
    a[1][1].append(x)
    a[1] = a[1][1]
    return a[1][0] + x


@case(X, [1], [1])
def two_lists(x, a, b):
    a.append(2)
    return x + len(a) + len(b), a is b


@case(X, (1, 2, (3, 4)))
def tuple_ops(x, t):
    a, (b, c) = t[0], t[2]
    return (
        x + a + b + c,
        t[:2],
        t + (5,),
        t.index(2),
        2 in t,
        len(t),
        t * 2,
        hash((1, 2)) == hash((1, 2)),
        tuple([1, 2]),
    )


@case(X, {"a": 1, "b": 2})
def dict_read(x, d):
    return (
        x + d["a"] + d.get("z", 5) + len(d), list(d), list(d.keys()), list(d.values()), list(d.items()), "a" in d,
        "z" not in d, {**d, "c": 3}, d | {"b": 9}, d == {"b": 2, "a": 1}, bool(d), dict(d) is d,
    )  # fmt: skip


@case(X, {"a": 1, "b": 2})
def dict_mutate(x, d):
    d["c"] = x
    d["a"] += 1
    del d["b"]
    d.update({"e": 5}, f=6)
    d.update([("g", 7)])
    d |= {"h": 8}
    e = d.pop("e")
    z = d.pop("zz", None)
    s = d.setdefault("a", 100)
    t = d.setdefault("new", [])
    t.append(1)
    return x + e + s, z, d.popitem()


@case(X, {"a": 1})
def dict_clear(x, d):
    e = d.copy()
    d.clear()
    d["q"] = x
    return x + len(e), e


@case(X)
def dict_new(x):
    d = {}
    d[1] = "one"
    d[(1, 2)] = "pair"
    d[None] = 0
    d[2.5] = x
    d[True] = "true is one"
    return d, dict(a=1), dict([(1, 2)]), dict(zip("ab", (1, 2))), dict.fromkeys("ab", 0), {k: v for k, v in d.items()}


@case(X)
def dict_errors(x):
    out = []
    for f in (lambda: {}["k"], lambda: {1: 2}[3], lambda: {}.pop("k"), lambda: {}.popitem(), lambda: {"a": 1}.pop("b")):
        try:
            f()
        except KeyError as e:
            out.append(e.args)
    return x + 1, out


@case(X)
def dict_order(x):
    d = {"b": 1, "a": 2}
    d["b"] = 3
    del d["a"]
    d["a"] = 4
    d["c"] = 5
    return x + 1, list(d), list(reversed(d)), [*d.items()], next(iter(d)), max(d), sorted(d.values())


@case(X)
def dict_changed_while_iterating(x):
    d = {"a": 1}
    try:
        for k in d:
            d[k + "b"] = 1
    except RuntimeError as e:
        return x + 1, str(e)


@case(X, {"w": torch.ones(4), "b": torch.zeros(4)})
def dict_of_tensors(x, d):
    total = x
    for name, t in d.items():
        total = total + t * len(name)
    d["w"] = total
    return {k: v + 1 for k, v in d.items()}


@case(X, {torch.float32: 1, torch.int64: 2})
def dict_dtype_keys(x, d):
    return x * d[x.dtype]


@case(X, {1: "a", (2, 3): "b"})
def dict_other_keys(x, d):
    return x + 1, d[1], d[2, 3], 2 in d


@case(X)
def dict_views(x):
    d, e = {"a": 1, "b": 2}, {"b": 3, "c": 4}
    keys = d.keys()
    d["z"] = 0
    return (
        x + len(keys),
        sorted(d.keys() & e.keys()),
        sorted(d.keys() - e.keys()),
        sorted(d.keys() | e),
        keys,
        d.values(),
    )


@case(X)
def dict_union_order(x):
    return x + 1, {"a": 1} | {"b": 2, "a": 3}, {**{"a": 1}, "a": 2}


@case(X, {1, 2, 3})
def set_read(x, s):
    return (
        x + len(s),
        2 in s,
        s | {4},
        s & {1},
        s - {1},
        s ^ {1, 9},
        s <= {1, 2, 3, 4},
        s == {3, 2, 1},
        sorted(s),
        s > {1},
    )


@case(X, {1, 2, 3})
def set_mutate(x, s):
    s.add(4)
    s.discard(1)
    s.discard(100)
    s.remove(2)
    s.update([7, 8])
    s |= {9}
    return x + len(s)


@case(X)
def set_new(x):
    s = set()
    s.add("a")
    t = {1, 2} | {3}
    f = frozenset([1, 2])
    return (
        s, t, f, {f: 1}, t.issubset({1, 2, 3, 4}), t.union([9]), t.intersection([1]), t.difference([1]), f | {5},
        t.isdisjoint({7}), {1, 2}.symmetric_difference({2, 3}), set("aab") == {"a", "b"}, x + 1,
    )  # fmt: skip


@case(X)
def set_errors(x):
    try:
        {1}.remove(2)
    except KeyError as e:
        return x + 1, e.args


@case(X)
def set_more(x):
    s = {1, 2, 3}
    s &= {1, 2}
    s -= {1}
    s ^= {7}
    t = s.copy()
    t.clear()
    u = {5}
    return x + len(s), s, t, u.pop(), u, {v % 2 for v in range(5)}


@case(X)
def set_difference_update(x):
    s = {1, 2, 3, 4}
    s.difference_update({1})
    s.intersection_update({2, 3})
    s.symmetric_difference_update({3, 9})
    return x + 1, s


@case(X, collections.deque([1, 2, 3]), breaks=ANY)
def deque_existing(x, d):
    d.append(4)
    d.appendleft(0)
    return x + d.popleft() + d.pop(), len(d)


@case(X)
def deque_new(x):
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(4)
    d.appendleft(0)
    e = collections.deque()
    e.extend([1, 2])
    e.extendleft([3])
    e.rotate(1)
    e.insert(1, 7)
    e.insert(-1, 8)
    return x + d[0] + len(d), list(d), list(e), e.popleft(), e.pop(), d.maxlen, 2 in d


@case(X)
def deque_returned(x):
    d = collections.deque([x, 1], maxlen=4)
    d.append(x + 1)
    return d


def _attempt(log, operation, *args):
    try:
        log.append(operation(*args))
    except Exception as error:
        log.append((type(error).__name__, str(error)))


@case(X, breaks=ANY, recompiles=5)
def deque_errors(x):
    d, log = collections.deque([1, 2, 3, 1], maxlen=4), []
    _attempt(log, d.insert, 1, 9)
    _attempt(log, d.remove, 77)
    _attempt(log, d.index, 3, 0, 2)
    _attempt(log, d.__setitem__, 9, 5)
    _attempt(log, d.__delitem__, 9)
    _attempt(log, d.__getitem__, "a")
    _attempt(log, d.__getitem__, slice(2))
    return x + 1, log, list(d), type(iter(d)).__name__


class Listed(list):
    pass


class Grown(list):
    def __iadd__(self, other):
        return (len(self), other)


class Members(set):
    pass


class Table(dict):
    pass


@case(X)
def operators_of_subclasses(x):
    a, s, d = Grown([1]), Members([1]), Table(a=1)
    a += [x]
    s |= {2}
    s -= {1}
    e = d | {"b": 2}
    d |= {"c": 3}
    return a, type(s) is Members, s == {2}, type(e) is dict, e, type(d) is Table, d


@case(X)
def lists_grown_in_place(x):
    a, b, d = Listed([1]), Listed([1]), collections.deque([1, 2], maxlen=3)
    same = a
    a += [x]
    b *= 2
    d += [5, 6]
    return a, a is same, b, type(b) is Listed, list(d)


def _moved(change):
    d, log = collections.deque([1, 2, 3, 1], maxlen=5), []
    iterator = iter(d)
    next(iterator)
    change(d)
    _attempt(log, next, iterator)
    return log


@case(X)
def deque_changed_while_iterated(x):
    return x + 1, [
        _moved(lambda d: d.append(4)), _moved(lambda d: d.appendleft(4)), _moved(lambda d: d.pop()),
        _moved(lambda d: d.popleft()), _moved(lambda d: d.rotate(0)), _moved(lambda d: d.insert(1, 9)),
        _moved(lambda d: d.remove(1)), _moved(lambda d: d.extend([])), _moved(lambda d: d.extend([5])),
        _moved(lambda d: d.__delitem__(0)), _moved(lambda d: d.clear()), _moved(lambda d: d.reverse()),
        _moved(lambda d: d.__setitem__(1, 7)),
    ]  # fmt: skip


@case(X, breaks=ANY)
def container_changed_while_iterated_across_a_break(x):
    log = []
    for made in (dict.fromkeys([1]), {1}, collections.deque([1])):
        try:
            for key in made:
                if isinstance(made, dict):
                    made[key + 1] = x
                elif isinstance(made, set):
                    made.add(key + 1)
                else:
                    made.append(key + 1)
                pycompiler.graph_break()
                if len(made) > 4:
                    break
        except RuntimeError as error:
            log.append(str(error))
        log.append(len(made))
    return x + 1, log


@case(X, breaks=ANY)
def dict_members_replaced_while_iterated(x):
    d, log = {1: x, 2: x, 3: 4}, []
    try:
        for key in d:
            log.append(key)
            if key == 1:
                del d[1]
                d[9] = 0
    except RuntimeError as error:
        log.append(str(error))
    return x + 1, log, d


@case(X)
def deque_queue(x):
    q = collections.deque([(0, x)])
    out = []
    while q:
        depth, v = q.popleft()
        out.append(v)
        if depth < 2:
            q.append((depth + 1, v + 1))
    return out


@case(X)
def default_dict(x):
    d = collections.defaultdict(list)
    d["a"].append(1)
    d["a"].append(2)
    n = collections.defaultdict(int)
    for ch in "hello":
        n[ch] += 1
    return x + n["l"], d, "zz" in d, d.get("zz"), dict(n), n


@case(X, collections.defaultdict(list, a=[1]))
def default_dict_existing(x, d):
    d["b"].append(x)
    d["a"].append(2)
    return x + len(d)


@case(X)
def default_dict_lambda(x):
    d = collections.defaultdict(lambda: x * 2)
    return d["k"] + 1, len(d)


@case(X)
def default_dict_without_factory(x):
    d = collections.defaultdict(None, {"a": x})
    try:
        d["b"]
    except KeyError as e:
        return d["a"] + 1, str(e), d.default_factory


@case(X)
def ordered_dict(x):
    d = collections.OrderedDict(a=1, b=2)
    d["c"] = x
    d.move_to_end("a")
    return d, list(d), d.popitem(last=False), x + 1, d == {"c": 1} if False else None


@case(X, collections.OrderedDict(a=1, b=2))
def ordered_dict_existing(x, d):
    d["c"] = 3
    d.move_to_end("a", last=False)
    return x + d["b"], list(d.items())


@case(X)
def counter(x):
    c = collections.Counter("hello")
    c.update("l")
    return x + c["l"], c.most_common(1), c["zz"], sorted(c.items()), sum(c.values())


@case(X, breaks=ANY)
def counter_arithmetic(x):
    return (
        x + 1,
        collections.Counter("aab") + collections.Counter("b"),
        collections.Counter(a=1) - collections.Counter(a=1),
    )


@case(X)
def chain_map(x):
    m = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
    m["c"] = 4
    return x + m["a"] + m["b"], sorted(m), m.maps[0]


@case(X, breaks=ANY)
def mapping_proxy(x):
    import types

    p = types.MappingProxyType({"a": 1})
    return x + p["a"], len(p)


@case(X)
def unpacking(x):
    a, b, c = 1, 2, 3
    a, b = b, a
    (d, e), f = (4, 5), 6
    g, *h = [7, 8, 9]
    *i, j = (1, 2, 3)
    k, *m, n = range(5)
    [p, q] = "ab"
    return x + a + b + c + d + e + f + g + j + k + n, h, i, m, p, q


@case(X)
def unpacking_errors(x):
    out = []
    for v in ((1,), (1, 2, 3), 5):
        try:
            a, b = v
        except (ValueError, TypeError) as e:
            out.append(str(e))
    try:
        a, *b, c = (1,)
    except ValueError as e:
        out.append(str(e))
    return x + 1, out


@case(X)
def star_displays(x):
    a, d = [1, 2], {"k": 1}
    return x + 1, [*a, 3, *range(2)], (*a, *a), {*a, 5}, {**d, **{"m": 2}}, [*d], [*"ab"]


@case(X)
def comprehensions(x):
    return (
        [i * i for i in range(5) if i % 2], {i: str(i) for i in range(3)}, {i % 3 for i in range(7)},
        [(i, j) for i in range(3) for j in range(i)], [[j for j in range(i)] for i in range(3)],
        [a if a else -1 for a in (0, 1)], sum(i for i in range(4)), [x + i for i in range(2)],
        {k: [v for v in range(k)] for k in (1, 2)}, [y := 1, y + 1], [f(3) for f in (lambda v: v, lambda v: v * 2)],
    )  # fmt: skip


@case(X, [1, 2, 3])
def comprehension_over_argument(x, a):
    k = 2
    return [x * v + k for v in a if v != 2], {v: x for v in a}, k


@case(X)
def comprehension_scope(x):
    i = 10
    a = [i for i in range(3)]
    return x + i, a


@case(X)
def comprehension_closures(x):
    fs = [lambda: i for i in range(3)]
    gs = [(lambda i: lambda: i)(i) for i in range(3)]
    return x + 1, [f() for f in fs], [g() for g in gs]


@case(X)
def nested_comprehension_conditions(x):
    m = [[1, 2, 3], [4, 5, 6]]
    return x + 1, [[r[i] for r in m] for i in range(3)], [v for r in m if sum(r) > 6 for v in r if v != 5]


@case(X)
def returns_containers(x):
    y = x + 1
    return {"list": [y, y], "tuple": (y,), "dict": {"k": (x, y)}, "none": None, "set": {1, 2}, "num": 3.5}


@case(X)
def returns_input_and_alias(x):
    return x, [x], (x, x)


@case(X, [1, 2], {"k": [3]})
def returns_arguments(x, a, d):
    return a, d, d["k"], x + 1


@case(X, {"k": [1]})
def dict_value_identity(x, d):
    v = d["k"]
    v.append(2)
    d["j"] = v
    return x + len(d["k"]), d["j"] is d["k"]


@case(X)
def tuple_of_mixed_keys(x):
    d = {("a", 1): 1, ("a", 2): 2}
    return x + d["a", 1], {k[1]: v for k, v in d.items()}


@case(X)
def string_keys_with_quotes(x):
    return {"it's": x + 1, 'say "hi"': 2, "new\nline": 3}


@case(X)
def large_list(x):
    a = list(range(300))
    a[150] = x
    return sum(a[:150]) + a[150], len(a)


@case(X, list(range(40)))
def large_list_argument(x, a):
    a[20] = 0
    return x + sum(a)


@case(X, [])
def empty_list_argument(x, a):
    if not a:
        a.append(1)
    return x + len(a)


@case(X, {})
def empty_dict_argument(x, d):
    if not d:
        d["k"] = x
    return x + len(d)


@case(X, [None, True, 1.5, "s", b"b", 1j, ...])
def list_of_constants(x, a):
    return x + 1, a[::-1], [type(v).__name__ for v in a], None in a, a.index("s")


@case(X)
def bytes_and_bytearray(x):
    b = b"abc"
    return x + b[0], b[1:], b + b"d", b.decode(), b.hex(), list(b), b"b" in b


@case(X, breaks=ANY)
def bytearray_mutation(x):
    b = bytearray(b"abc")
    b[0] = 120
    b.append(33)
    return x + len(b), bytes(b)


@case(X)
def iter_protocol_on_containers(x):
    it = iter([1, 2, 3])
    a = next(it)
    rest = list(it)
    return x + a, rest, next(it, None), list(iter({"a": 1})), next(iter({5}))


@case(X)
def containers_in_bool(x):
    return x + 1, bool([]), bool([0]), not {}, not (), "" or "d", [] or [1], {} and 1


@case(X)
def list_iadd_other_iterables(x):
    a = [1]
    a += (2, 3)
    a += "ab"
    a += range(2)
    a *= 2
    return x + 1, a


@case(X)
def equality_across_types(x):
    return x + 1, 1 == 1.0, True == 1, "1" == 1, None == 0, [1] == [1.0], {1: 2} == {1.0: 2}, (1,) == [1], {1} == {1.0}


@case(X)
def array_like_sums(x):
    parts = [x * i for i in range(3)]
    return sum(parts), sum(parts, x), sum([1, 2.5]), sum([[1], [2]], [])


@case(X, [1, 2, 3])
def list_mutated_in_function(x, a):
    def add(v, to):
        to.append(v)
        return to

    add(4, a)
    add(x, to=a)
    return x + len(a)


@case(X, [1, 2, 3])
def list_slices_are_copies(x, a):
    b = a[:2]
    b.append(9)
    return x + len(a), b


@case(X, [3, 1], breaks=ANY)
def list_sort_tensor_key(x, a):
    a.sort(key=lambda v: float(v))
    return x + a[0]


# the order of sets ----------------------------------------------------------------------------------------------
@case(X)
def set_order_of_changes(x):
    s = set()
    for i in (8, 0, 16, 24, 3):
        s.add(i)
    s.discard(8)
    s.add(32)
    return x + len(s), list(s)


@case(X)
def set_order_of_operators(x):
    a, b = {16, 8, 0}, {24, 8, 1}
    b ^= {0, 5}
    b |= {64, 32}
    return x, list(a | b), list(a & b), list(a - b), list(a ^ b), list(a.union([40])), [*a.copy()], list(b)


@case(X)
def set_order_of_sources(x):
    d = {"x": 1, "y": 2, "z": 3}
    made = set("hello"), set(d), set((8, 0)), frozenset({8, 0, 16}), {k for k in d}, {*"ab", *{8, 0}}
    return x, [list(s) for s in made], list(d.keys() - {"x"}), list(d.keys() | ["w"])


@case(X)
def set_order_in_text(x):
    return x, str({16, 8, 0}), repr(frozenset({8, 0})), f"{ {24, 16} }", ",".join({"a", "b", "c"}), repr(set())


@case(X, {16, 8, 1})
def set_order_of_an_existing_one(x, s):
    s.add(0)
    s.discard(16)
    s |= {24, 32}
    return x + len(s), s


@case(X, {16, 8, 1}, breaks=ANY)
def set_order_of_an_existing_one_iterated(x, s):
    s.add(0)
    return x + len(s), list(s), list(s | {24, 32})


@case(X, breaks=ANY)
def set_order_of_tensors(x):
    seen = {x, x + 1}
    return len(seen), sum(seen)


@case(X, breaks=ANY)
def set_order_of_a_shrunk_one(x):
    s = set(range(100))
    for i in range(95):
        s.discard(i)
    s.add(7)
    return x, list(s), s


@case(X)
def frozenset_keys(x):
    table = {frozenset({1, 2}): 3}
    return x + table[frozenset([2, 1])], frozenset([1]) in {frozenset([1])}


@case(X, collections.OrderedDict(a=1, b=2))
def ordered_dicts_compare_their_order(x, o):
    p = collections.OrderedDict(b=2, a=1)
    return x, o == p, o != p, o == dict(p), p == collections.OrderedDict(b=2, a=1), dict(o) == p


@case(X)
def what_cannot_be_unpacked_or_updated(x):
    seen, d = [], {}
    attempts = (
        lambda: [*3],
        lambda: {*3},
        lambda: {**3},
        lambda: dict([1]),
        lambda: dict(["abc"]),
        lambda: d.update([("a", 1), 2]),
        lambda: dict(3),
        lambda: super(),
    )
    for attempt in attempts:
        try:
            attempt()
        except (TypeError, ValueError, RuntimeError) as e:
            seen.append((type(e).__name__, str(e)))
    return x, seen, d


@case(X, breaks=ANY)
def set_intersection_takes_the_other_element(x):
    return x, [repr(v) for v in {1.0} & {1}], [repr(v) for v in {1} & {1.0, 2}], {True} | {1}


class _OwnSet(set):
    pass


@case(X)
def set_operators_of_a_subclass(x):
    s = _OwnSet([3, 8, 0])
    return (
        x,
        type(s | {5}).__name__,
        type(s.union()).__name__,
        type(s & {3}).__name__,
        type(s - {3}).__name__,
        list(s ^ {16, 8}),
    )


class _OwnList(list):
    pass


@case(X)
def classes_of_iterators(x):
    d = collections.OrderedDict(a=x)
    iterables = [
        [x],
        (x,),
        {1: x},
        {1},
        frozenset(),
        "a",
        "\xe9",
        b"a",
        range(3),
        range(2**70),
        collections.deque([x]),
        d,
        _OwnList(),
    ]
    iterables += [v for o in ({1: x}, d) for v in (o.keys(), o.values(), o.items())][:3]
    backwards = [o for o in iterables if not isinstance(o, (set, frozenset))]
    return x, [type(iter(o)).__name__ for o in iterables], [type(reversed(o)).__name__ for o in backwards]


def _told(x, op, a, b):
    try:
        if op == "+=":
            a += b
        elif op == "*=":
            a *= b
        elif op == "**=":
            a **= b
        elif op == "-=":
            a -= b
        elif op == "*":
            a = a * b
        else:
            a = a + b
    except TypeError as e:
        return str(e)
    return a


@case(X)
def operands_that_do_not_fit(x):
    pairs = (
        (1, "a"),
        ("a", None),
        (None, 1.5),
        (None, [1]),
        ((1,), None),
        ({1}, {2: 3}),
        (1, {2}),
        (len, "a"),
    )
    return x, [_told(x, op, a, b) for op in ("+=", "-=", "*=", "**=", "*", "+") for a, b in pairs]


@case(X)
def a_template_that_reads_nothing(x):
    plain, escaped = "a", "a%%"
    seen = [escaped % [x], plain % {}, "%s" % [1], plain % ()]
    for other in ((1,), 1, "b"):
        try:
            plain % other
        except TypeError as e:
            seen.append(str(e))
    return x, seen


@case(X, breaks=ANY)
def a_set_is_looked_for_in_a_set(x):
    inner = {1}
    outer = {frozenset({1}), 2}
    return x, inner in outer, {2} in outer


@case(X, breaks=ANY)
def methods_of_too_many_arguments(x):
    texts = []
    for call in (
        lambda: [1].copy(2), lambda: [1].__contains__(1, 2), lambda: {1: 2}.__getitem__(1, 2), lambda: {1}.add(1, 2), lambda: {1}.clear(1),
        lambda: (1,).__getitem__(0, 1), lambda: [1].__iter__(2), lambda: "a".__iter__(1), lambda: {1: 2}.copy(3),
    ):  # fmt: skip
        try:
            texts.append(call())
        except TypeError as e:
            texts.append(str(e))
    return x + len(texts), texts, x.storage_type()


class _Counted(dict):
    def __missing__(self, key):
        return f"no {key}"

    def __getitem__(self, key):
        return super().__getitem__(key), len(self)


@case(make=lambda: (X, _Counted({1: 2})), graphs=1)
def missing_keys_of_the_base(x, given):
    made, counts = _Counted({3: 4}), collections.Counter("aab")
    return (
        x + 1,
        given[1],
        given[5],
        made[3],
        made["k"],
        dict.__getitem__(made, 7),
        counts.__getitem__("z"),
        counts.__getitem__("a"),
    )
