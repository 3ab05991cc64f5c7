"""Special methods of user classes, operators and their reflections, containers written in Python."""

from __future__ import annotations

import collections
import copy
import math
import operator
import sys
import threading
import typing

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


class Num:
    def __init__(self, v):
        self.v = v

    def __add__(self, o):
        return Num(self.v + (o.v if isinstance(o, Num) else o))

    def __radd__(self, o):
        return Num(o + self.v)

    def __iadd__(self, o):
        self.v += o
        return self

    def __sub__(self, o):
        return NotImplemented

    def __rsub__(self, o):
        return ("rsub", o)

    def __mul__(self, o):
        return Num(self.v * o)

    def __matmul__(self, o):
        return "matmul"

    def __neg__(self):
        return Num(-self.v)

    def __invert__(self):
        return "inverted"

    def __abs__(self):
        return Num(abs(self.v))

    def __eq__(self, o):
        return isinstance(o, Num) and self.v == o.v

    def __lt__(self, o):
        return self.v < o.v

    def __hash__(self):
        return hash(self.v)

    def __bool__(self):
        return self.v != 0

    def __len__(self):
        return 11

    def __int__(self):
        return int(self.v)

    def __float__(self):
        return float(self.v)

    def __index__(self):
        return int(self.v)

    def __repr__(self):
        return f"Num({self.v})"

    def __format__(self, spec):
        return f"<{self.v}:{spec}>"

    def __round__(self, n=0):
        return ("round", n)

    def __divmod__(self, o):
        return ("divmod", o)

    def __pow__(self, o, m=None):
        return ("pow", o)

    def __and__(self, o):
        return "and"

    def __ror__(self, o):
        return ("ror", o)


@case(X)
def arithmetic(x):
    a, b = Num(3), Num(4)
    return x + (a + b).v + (1 + a).v + (a * 2).v, -a, ~a, abs(Num(-2)), a @ b, a & b, 5 | a


@case(X)
def inplace(x):
    a = Num(1)
    b = a
    a += 5
    a *= 2
    return x + a.v + b.v, a is b


@case(X)
def not_implemented(x):
    try:
        Num(1) - 1
    except TypeError as e:
        return x + 1, 1 - Num(2), str(e)


@case(X)
def comparisons(x):
    a, b = Num(1), Num(2)
    return x + 1, a == Num(1), a != b, a < b, a > b, a == 1, sorted([b, a]), min(b, a), max([a, b])


@case(X)
def comparison_missing(x):
    try:
        Num(1) <= Num(2)
    except TypeError as e:
        return x + 1, str(e)


@case(X)
def truth_and_len(x):
    return x + len(Num(0)), bool(Num(0)), not Num(1), (Num(0) or 5), (Num(2) and 6), 1 if Num(0) else 2


@case(X)
def hashing(x):
    d = {Num(1): "one", Num(2): "two"}
    return x + 1, d[Num(1)], Num(2) in d, Num(3) in {Num(3), Num(4)}, hash(Num(5)) == hash(5)


@case(X)
def conversions(x):
    n = Num(2)
    return (
        x + int(n) + float(n),
        [0, 1, 2, 3][n],
        round(n),
        round(n, 2),
        divmod(n, 3),
        pow(n, 2),
        n**3,
        operator.index(n),
    )


@case(X)
def formatting(x):
    n = Num(2)
    return x + 1, f"{n}", f"{n:>5}", f"{n!r}", str(n), repr([n]), "{}".format(n), "%s" % n, format(n, "x")


@case(X, Num(3))
def existing_number(x, n):
    n += 4
    return x + n.v, n == Num(7), -n


@case(X, Num(torch.ones(4)))
def number_of_tensor(x, n):
    return (n + x).v, (n * 2).v, (x.sum().item() if False else 0)


class Reflected:
    def __radd__(self, o):
        return "radd"

    def __rmul__(self, o):
        return "rmul"

    def __gt__(self, o):
        return "gt"


@case(X)
def reflected(x):
    r = Reflected()
    return x * 2, 1 + r, [1] + r, "s" * r, 1 < r


class Sub(Num):
    def __radd__(self, o):
        return "sub first"


@case(X)
def subclass_reflected_first(x):
    return x + 1, Num(1) + Sub(2)


class Box:
    """A mutable sequence in Python."""

    def __init__(self, *items):
        self.items = list(items)

    def __getitem__(self, k):
        return self.items[k]

    def __setitem__(self, k, v):
        self.items[k] = v

    def __delitem__(self, k):
        del self.items[k]

    def __len__(self):
        return len(self.items)

    def __contains__(self, v):
        return any(v is i or v == i for i in self.items)

    def __iter__(self):
        return iter(self.items)

    def __reversed__(self):
        return iter(self.items[::-1])


class OldSequence:
    def __init__(self, n):
        self.n = n

    def __getitem__(self, i):
        if i >= self.n:
            raise IndexError(i)
        return i * i

    def __len__(self):
        return self.n


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


@case(X, Box(1, 2, 3))
def box(x, b):
    b[0] = 10
    del b[1]
    return x + sum(b) + len(b), 3 in b, 2 in b, list(reversed(b)), b[-1], [*b], bool(b)


@case(X)
def box_new(x):
    b = Box(x, x + 1)
    b[1] = b[0] * 2
    first, second = b
    return first + second, b


@case(X)
def box_slices(x):
    b = Box(1, 2, 3, 4)
    b[1:3] = [9]
    return x + 1, b[:2], b[::-1], b.items


@case(X)
def old_sequence(x):
    s = OldSequence(4)
    return x + sum(s), list(s), 9 in s, [v for v in s], max(s)


@case(X)
def iterator_object(x):
    total = 0
    for v in Countdown(4):
        total += v
    it = iter(Countdown(2))
    return x + total, next(it), next(it), next(it, "end"), list(Countdown(3))


@case(X, Countdown(3))
def iterator_object_existing(x, c):
    a = next(c)
    return x + a, list(c), c.n


@case(X)
def iterator_in_zip(x):
    return (
        x + 1,
        list(zip(Countdown(3), "abc")),
        list(map(lambda v: v + 1, Countdown(2))),
        list(enumerate(Countdown(2))),
    )


class GenIter:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            yield i * 2


@case(X)
def generator_iter(x):
    g = GenIter(3)
    return x + sum(g), list(g), dict(enumerate(g)), tuple(g), set(g) == {0, 2, 4}


class MyDict(dict):
    def __getitem__(self, k):
        return super().__getitem__(k) * 2

    def extra(self):
        return len(self)


class Missing(dict):
    def __missing__(self, k):
        return "missing " + k


class AttrDict(dict):
    def __getattr__(self, k):
        try:
            return self[k]
        except KeyError as e:
            raise AttributeError(k) from e

    __setattr__ = dict.__setitem__


class MyList(list):
    def total(self):
        return sum(self)

    def append(self, v):
        super().append(v)
        super().append(v)


class MyTuple(tuple):
    def first(self):
        return self[0]


class MySet(set):
    pass


class MyInt(int):
    def double(self):
        return self * 2


class MyStr(str):
    def shout(self):
        return self.upper() + "!"


@case(X)
def dict_subclass(x):
    d = MyDict(a=1, b=2)
    d["c"] = 3
    return x + d["a"] + d.extra(), d.get("b"), sorted(d), "c" in d, d == {"a": 1, "b": 2, "c": 3}, isinstance(d, dict)


@case(X, MyDict(a=1))
def dict_subclass_existing(x, d):
    d["n"] = x
    d.update(z=2)
    return x + d["a"] + len(d), list(d.items())[0]


@case(X)
def dict_missing(x):
    d = Missing(a=1)
    return x + d["a"], d["zz"], d.get("zz"), "zz" in d


@case(X, AttrDict(a=1, w=torch.ones(4)))
def attr_dict(x, d):
    d.k = 5
    return x * d.a + d.w + d.k, hasattr(d, "nothing"), list(d)


@case(X)
def list_subclass(x):
    a = MyList([1, 2])
    a.append(3)
    return x + a.total() + len(a), a, a[0], a[1:], a + [1], isinstance(a, list), list(a)


@case(X, MyList([1, 2]))
def list_subclass_existing(x, a):
    a.append(5)
    a.tag = "t"
    return x + a.total(), a == [1, 2, 5, 5]


@case(X)
def tuple_subclass(x):
    t = MyTuple((x, 2))
    return t.first() + t[1], len(t), t == (x, 2) if False else None, isinstance(t, tuple)


@case(X, MyTuple((1, 2)))
def tuple_subclass_existing(x, t):
    a, b = t
    return x + a + b + t.first()


@case(X, breaks=ANY)
def set_subclass(x):
    s = MySet([1, 2])
    s.add(3)
    return x + len(s), 3 in s, s


@case(X, breaks=ANY)
def int_subclass(x):
    return x + MyInt(3).double(), MyInt(4) + 1


@case(X, MyStr("abc"), breaks=ANY)
def str_subclass(x, s):
    return x + len(s), s.shout(), s + "d"


@case(X, MyInt(2), breaks=ANY)
def int_subclass_existing(x, n):
    return x + n + n.double()


class Ctx:
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        return False

    def __contains__(self, v):
        return v

    def __getitem__(self, k):
        return k


@case(X)
def getitem_keys(x):
    c = Ctx()
    return x + 1, c[1, 2], c[1:2], c[...], c[None], c[1:2, ::3], c["s"]


@case(X)
def contains_truth(x):
    c = Ctx()
    return x + 1, [1] in c, 0 in c, 0 not in c


class Chain:
    def __init__(self, v):
        self.v = v

    def then(self, f):
        self.v = f(self.v)
        return self

    __rshift__ = then


@case(X)
def chained_calls(x):
    return Chain(x).then(torch.sin).then(lambda v: v * 2).v, (Chain(x) >> torch.cos).v


class Eq:
    def __eq__(self, o):
        return "truthy"

    __hash__ = None


@case(X)
def eq_non_bool(x):
    return x + 1, Eq() == 1, Eq() != 1, Eq() in [1], [Eq()] == [3]


@case(X, breaks=ANY if sys.version_info >= (3, 14) else ())  # errors of 3.14 name the use of the hash
def unhashable(x):
    out = []
    for make in (lambda: {Eq(): 1}, lambda: {[]: 1}, lambda: hash({}), lambda: {(1, []): 2}):
        try:
            make()
        except TypeError as e:
            out.append(str(e))
    return x + 1, out


class BoolRaises:
    def __bool__(self):
        raise ValueError("no truth")


@case(X)
def bool_raises(x):
    try:
        if BoolRaises():
            return x
    except ValueError as e:
        return x + 1, str(e)


class LenOnly:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


@case(X)
def len_as_truth(x):
    return x + (1 if LenOnly(0) else 2) + (3 if LenOnly(1) else 4)


@case(X)
def no_len(x):
    out = []
    for f in (lambda: len(Chain(1)), lambda: Chain(1)[0], lambda: iter(Chain(1)), lambda: Chain(1)(), lambda: -Chain(1),
              lambda: Chain(1) + 1, lambda: Chain(1) < Chain(2), lambda: 1 in Chain(1), lambda: [][Chain(1)]):  # fmt: skip
        try:
            f()
        except TypeError as e:
            out.append(str(e))
    return x + 1, out


class UserMapping(collections.abc.Mapping):
    def __init__(self, d):
        self.d = d

    def __getitem__(self, k):
        return self.d[k]

    def __iter__(self):
        return iter(self.d)

    def __len__(self):
        return len(self.d)


@case(X)
def mapping_mixin(x):
    m = UserMapping({"a": 1, "b": 2})

    def f(**kw):
        return sorted(kw)

    return x + m["a"] + len(m), "a" in m, m.get("z", 5), list(m.keys()), list(m.items()), {**m}, f(**m), dict(m)


class Vec(collections.abc.MutableSequence):
    def __init__(self, *v):
        self.v = list(v)

    def __getitem__(self, i):
        return self.v[i]

    def __setitem__(self, i, v):
        self.v[i] = v

    def __delitem__(self, i):
        del self.v[i]

    def __len__(self):
        return len(self.v)

    def insert(self, i, v):
        self.v.insert(i, v)


@case(X)
def sequence_mixin(x):
    v = Vec(1, 2)
    v.append(3)
    v.extend([4])
    v += [5]
    v.reverse()
    return x + len(v) + v.pop(), v.index(3), v.count(4), list(v), 4 in v


@case(X)
def math_on_objects(x):
    return x + math.floor(2.5) + math.ceil(2.5) + math.trunc(-2.5) + round(2.5) + round(3.5)


class GetAttrSpecial:
    """Special methods are looked up on the class, never through __getattr__."""

    def __getattr__(self, name):
        if name == "__len__":
            return lambda: 3
        raise AttributeError(name)


@case(X)
def special_not_through_getattr(x):
    try:
        len(GetAttrSpecial())
    except TypeError as e:
        return x + 1, str(e)


class InstanceSpecial:
    def __len__(self):
        return 1


@case(X)
def special_not_from_instance(x):
    s = InstanceSpecial()
    s.__len__ = lambda: 99
    return x + len(s), s.__len__()


class _Named:
    pass


Alias = list[int]


@case(X, graphs=1)
def unions_of_types(x):
    def annotated(a: torch.Tensor | list[int], b: None | dict[str, _Named] = None) -> Alias | None:
        return a

    made = int | list[int], Alias | None, list[int] | list[str], _Named | int | Alias, (int | str) | _Named
    same = list[int] == list[int], (int | str) == (str | int), list[int] != list[str], Alias == (int | None)
    return annotated(x) + 1, made, same, typing.get_args(Alias | _Named)


@case(X, breaks="unsupported-operation")
def unions_that_are_none(x):
    try:
        return x + 1, list[int] | 3
    except TypeError as e:
        return x - 1, str(e)


@case(make=lambda: (torch.ones(2), threading.local()))
def attributes_of_threads(x, local):
    local.x = x * 2
    local.y = 3
    del local.y
    try:
        return local.x + local.y
    except AttributeError as e:
        return local.x, str(e)


@case(X)
def copies_of_sets(x):
    s, o = {1, 2}, collections.OrderedDict(a=[1], b=2)
    made, other = copy.deepcopy(s), copy.deepcopy(o)
    made.add(3)
    other["a"].append(5)
    return x + len(s), made, other, o, type(made), type(other), copy.copy(o), list(other)


class Shown:
    late: typing.Any
    named = property()

    def __str__(self):
        return "shown"


Shown.late = property(lambda self: 11)


@case(X)
def errors_of_properties_by_their_names(x):
    texts = []
    for name in ("named", "late"):
        for action in (getattr, delattr, lambda o, n: setattr(o, n, 3)):
            try:
                texts.append(action(Shown(), name))
            except AttributeError as e:
                texts.append(str(e))
    return x + 1, texts


SHOWN = Shown()


@case(X)
def formats_that_objects_lack(x):
    texts = []
    for value in (Shown(), SHOWN, [1], (1,), None, len, Shown):
        for spec in ("", "x", ">4"):
            try:
                texts.append(f"{value:{spec}}" if spec or value in (None, SHOWN) else None)
            except TypeError as e:
                texts.append(str(e))
    return x + 1, texts
