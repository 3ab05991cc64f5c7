"""Python constructs that no single call shows: ids, identity, subclasses, iterator states."""

from __future__ import annotations

import collections
import contextvars
import functools
import itertools
import operator
import types
import typing
import warnings
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import pycompiler
import pycompiler.errors

X = torch.ones(2)
T = typing.TypeVar("T")


def _advanced(n):
    made = [
        itertools.compress("ABCDEF", [1, 0, 1, 0, 1, 1]),
        itertools.islice(range(30), 3, 20, 4),
        itertools.islice(iter("abcdefgh"), 5),
        itertools.islice(range(9), 2, None),
        itertools.pairwise([1, 2, 3, 4, 5]),
        itertools.accumulate([1, 2, 3, 4]),
        itertools.accumulate([1, 2, 3, 4], initial=7),
        itertools.accumulate([1, 2, 3, 4], operator.mul),
        itertools.zip_longest([1, 2], "abcd", fillvalue=9),
        itertools.takewhile(lambda v: v < 4, [1, 2, 3, 4, 1]),
        itertools.dropwhile(lambda v: v < 2, [1, 2, 3, 1, 5, 6]),
    ]
    for iterator in made:
        for _ in range(n):
            next(iterator)
    return made


@pytest.mark.parametrize("taken", range(4))
def test_iterators_leave_the_graph_where_they_are(taken):
    made = pycompiler.compile(_advanced, fullgraph=True, backend="eager", dynamic=False)(taken)
    expected = _advanced(taken)
    assert [*map(type, made)] == [*map(type, expected)]
    assert [*map(list, made)] == [*map(list, expected)]


class Holder:
    """An object that is only distinguished by its id."""


def test_an_id_is_compared_with_a_number() -> None:
    def chosen(holder, x, wanted):
        return x * 2 if id(holder) == wanted else x * 3

    first, second = Holder(), Holder()
    compiled = pycompiler.compile(chosen, backend="eager", fullgraph=True)
    for holder in (first, second, first):
        assert torch.equal(compiled(holder, X, id(first)), chosen(holder, X, id(first)))


def test_an_id_is_a_key_among_numbers() -> None:
    known, unknown = Holder(), Holder()
    table = {id(known): 1}

    def looked_up(holder):
        return table.get(id(holder)), id(holder) in table, id(holder) in {id(known), 3}

    compiled = pycompiler.compile(looked_up, backend="eager")
    for holder in (unknown, known, unknown):
        assert compiled(holder) == looked_up(holder)


def test_ids_of_two_arguments() -> None:
    def equal(a, b):
        return id(a) == id(b), id(a) != id(b)

    def counted(*given):
        seen, again = set(), 0
        for value in given:
            again += id(value) in seen
            seen.add(id(value))
        return again

    compare, count = (pycompiler.compile(f, backend="eager") for f in (equal, counted))
    a, b = Holder(), Holder()
    for pair in ((a, b), (a, a), (X, X + 1), (X, X)):
        assert compare(*pair) == equal(*pair)
    for given in ((X, X, X + 1), (X, X + 1, X), (X, X, X), (X + 1, X, X + 1)):
        assert count(*given) == counted(*given)


def _one_after_the_other(x):
    first = [1]
    known = id(first)
    del first
    return known == id([2]), x + 1


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (len(set(map(id, zip("abc", "def", strict=True)))), x + 1),
        lambda x: (id([]) == id([]), id(Holder()) == id(Holder()), x + 1),
        _one_after_the_other,
    ],
)
@pytest.mark.captures_nothing(
    "the ids of objects that have ended keep the frame eager", "<lambda>1", "_one_after_the_other"
)
def test_an_object_may_have_the_id_of_one_that_is_gone(program):
    compiled = pycompiler.compile(program, backend="eager")
    for _ in range(2):
        assert str(compiled(X)) == str(program(X))


def test_ids_of_objects_that_are_kept():
    def program(x):
        first, second = [x + 1], [x + 2]
        known = {id(v): v for v in (first, second)}
        return known[id(second)], id(first) == id(second), len({id(v) for v in list(zip("abc", "def", strict=True))})

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert str(compiled(X)) == str(program(X))


class Pair(NamedTuple):
    a: object
    b: object


class Tagged(Pair):
    """A namedtuple with its own attributes and methods."""

    def __new__(cls, a, b):
        return super().__new__(cls, a, b)

    def __init__(self, a, b):
        self.tag = a

    def __add__(self, other):
        return Tagged(self.a + other.a, self.b + other.b)

    def __contains__(self, value):
        self.asked = value
        return super().__contains__(value)

    def __repr__(self):
        return "Tagged(%s; %s)" % self


def _made(x):
    pair = Tagged(x, 2)
    pair.extra = 3
    first, second = pair
    return pair, pair.a + first, second, len(pair), [*pair], pair[1], repr(Tagged(1, 2)), Tagged(1, 2) == (1, 2)


def test_a_subclass_of_a_namedtuple_is_made() -> None:
    got, expected = pycompiler.compile(_made, backend="eager", fullgraph=True)(X), _made(X)
    assert repr(got) == repr(expected)
    assert type(got[0]) is Tagged
    assert repr(vars(got[0])) == repr(vars(expected[0]))


def test_a_subclass_of_a_namedtuple_is_changed() -> None:
    def changed(pair, x):
        pair.tag = x + 1
        return 2 in pair, (pair + pair).b, pair._replace(a=5).a, pair._asdict(), hasattr(pair, "missing"), pair.tag * 2

    compiled = pycompiler.compile(changed, backend="eager", fullgraph=True)
    ours, eager = Tagged(1, 2), Tagged(1, 2)
    assert repr(compiled(ours, X)) == repr(changed(eager, X))
    assert repr(vars(ours)) == repr(vars(eager))


class Hiding:
    """A mixin whose `__getitem__` and `__len__` disagree with the real contents of the container."""

    def __getitem__(self, key):
        return "hidden"

    def __len__(self):
        return 77


class HidingList(Hiding, list):
    pass


class HidingDict(Hiding, dict):
    pass


class HidingTuple(Hiding, tuple):
    pass


@pytest.mark.parametrize("make", [lambda o: HidingList([o]), lambda o: HidingDict(a=o), lambda o: HidingTuple([o])],
                         ids=["list", "dict", "tuple"])  # fmt: skip
def test_elements_of_containers_that_hide_them(make) -> None:
    def marked(container, x):
        for value in container.values() if isinstance(container, dict) else container:
            value.mark = x + 1
        return len(container), container["a" if isinstance(container, dict) else 0], len(HidingTuple([1, 2])), x + 2

    ours, eager = Holder(), Holder()
    got = pycompiler.compile(marked, backend="eager")(make(ours), X)
    assert repr(got) == repr(marked(make(eager), X))
    assert torch.equal(ours.mark, eager.mark)


def test_is_inference() -> None:
    def told(x):
        return x + 1 if x.is_inference() else x - 1

    with torch.inference_mode():
        inside = torch.ones(2)
    compiled = pycompiler.compile(told, backend="eager")
    for x in (X, inside, X):
        assert torch.equal(compiled(x), told(x))


def test_reinitialised_containers() -> None:
    def emptied(x):
        queue, members = collections.deque([1, 2, 3]), {1, 2}
        queue.__init__([4, 5, 6], 2)
        members.__init__([7])
        return queue, queue.maxlen, members, {1} in {frozenset([1])}, collections.OrderedDict.fromkeys("ab", 1), x + 1

    assert repr(pycompiler.compile(emptied, backend="eager", fullgraph=True)(X)) == repr(emptied(X))


def test_switches_that_change_nothing_are_no_operators() -> None:
    def nested(x):
        with torch.enable_grad():
            return x + 1

    assert pycompiler.explain(nested)(X).op_count == 1
    with torch.no_grad():
        assert pycompiler.explain(nested)(X).op_count == 3


def test_a_namedtuple_class_made_inside() -> None:
    def made(x):
        point = collections.namedtuple("point", ["x", "y"], defaults=[3])
        first = point(x)
        return first, first._replace(x=5), point._fields, first._asdict(), point

    compiled = pycompiler.compile(made, backend="eager", fullgraph=True)
    got, again, expected = compiled(X), compiled(X), made(X)
    assert repr(got[:-1]) == repr(expected[:-1])
    assert type(got[0]) is type(got[1]) is got[-1] is not again[-1]
    assert got[-1].__module__ == __name__


class Base:
    x = 4

    def method(self):
        return 1


class Derived(Base):
    y = 2


def test_the_dict_of_a_class() -> None:
    def told(x):
        names = [k for k in Derived.__dict__ if k[0] != "_"]
        return (
            names,
            "x" in Base.__dict__,
            "x" in Derived.__dict__,
            Base.__dict__["x"],
            Derived.__dict__.get("z", 7),
            x + 1,
        )

    compiled = pycompiler.compile(told, backend="eager", fullgraph=True)
    assert repr(compiled(X)) == repr(told(X))
    try:
        Derived.z = 8
        assert repr(compiled(X)) == repr(told(X))
        Base.x = 5
        assert repr(compiled(X)) == repr(told(X))
    finally:
        del Derived.z
        Base.x = 4


def test_proxies_of_dicts() -> None:
    def proxied(x):
        table = {"a": 1}
        proxy = types.MappingProxyType(table)
        table["b"] = 2
        try:
            proxy["c"] = 3
        except TypeError as e:
            text = str(e)
        return proxy, dict(proxy), {**proxy}, proxy == {"a": 1, "b": 2}, list(proxy.items()), text, type(proxy), x + 1

    assert repr(pycompiler.compile(proxied, backend="eager", fullgraph=True)(X)) == repr(proxied(X))


def test_elements_popped_from_a_set() -> None:
    def popped(x):
        members = set("abcdef")
        taken = [members.pop() for _ in range(3)]
        members.add("a")
        return taken, sorted(members), {5, 3, 9}.pop(), x + 1

    assert repr(pycompiler.compile(popped, backend="eager", fullgraph=True)(X)) == repr(popped(X))


class Doubling:
    def __class_getitem__(cls, key):
        return key * 2


def test_annotations_and_aliases() -> None:
    def annotated(x):
        def inner(
            a: typing.List[Holder], b: Callable[[typing.List[T]], T], c: int | None = None
        ) -> dict[str, list[int]]:
            return a

        return inner(x, 1) + 1, typing.List[int] | None, Doubling[4]

    assert repr(pycompiler.compile(annotated, backend="eager", fullgraph=True)(X)) == repr(annotated(X))
    assert pycompiler.explain(annotated)(X).graph_break_count == 0


def test_unions_of_callables_and_variables() -> None:
    """CPython implements these operators in C, the last one from 3.12 on."""

    def annotated(x):
        return x + 1, Callable[..., int] | None, None | Callable[[str], int], Callable | None, T | None, T | list[int]

    assert repr(pycompiler.compile(annotated, backend="eager", fullgraph=True)(X)) == repr(annotated(X))


def test_a_tensor_of_a_tensor() -> None:
    x = torch.ones(2, requires_grad=True)

    def copied(x):
        made = torch.tensor(x)
        return made.add_(1), torch.tensor(x, dtype=torch.float64), made.requires_grad

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert repr(pycompiler.compile(copied, backend="eager", fullgraph=True)(x)) == repr(copied(x))


def test_descriptors_of_a_class() -> None:
    def told(x):
        return isinstance(Slotted.x, types.MemberDescriptorType), Pair.a.__doc__, x + 1

    assert repr(pycompiler.compile(told, backend="eager", fullgraph=True)(X)) == repr(told(X))


class Slotted:
    __slots__ = ("x",)


def test_an_exception_is_told_with_its_text() -> None:
    def fails(x):
        raise AttributeError(f"no {1 + 1}")

    with pytest.raises(pycompiler.errors.Unsupported, match="no 2"):
        pycompiler.compile(fails, fullgraph=True)(X)


VARIABLE = contextvars.ContextVar("VARIABLE", default=1)


def test_context_variables() -> None:
    def doubled(x):
        token = VARIABLE.set(VARIABLE.get() * 2)
        inside = VARIABLE.get()
        VARIABLE.reset(token)
        return x + inside, VARIABLE.get()

    def left(x):
        VARIABLE.set(7)
        return x + VARIABLE.get()

    compiled = pycompiler.compile(doubled, backend="eager", fullgraph=True)
    token = VARIABLE.set(1)
    try:
        for value in (1, 5):
            VARIABLE.set(value)
            assert repr(compiled(X)) == repr(doubled(X))
        assert torch.equal(pycompiler.compile(left, backend="eager")(X), X + 7)
        assert VARIABLE.get() == 7
    finally:
        VARIABLE.reset(token)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_kernels_of_attention_are_chosen(backend) -> None:
    def attention(x):
        with sdpa_kernel([SDPBackend.MATH]):
            y = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            inside = torch._C._get_flash_sdp_enabled()
        return y, inside, torch._C._get_flash_sdp_enabled()

    x = torch.randn(1, 2, 4, 8)
    got, expected = pycompiler.compile(attention, backend=backend, fullgraph=True)(x), attention(x)
    torch.testing.assert_close(got[0], expected[0])
    assert got[1:] == expected[1:] == (False, True)
    assert torch._C._get_flash_sdp_enabled()


def test_a_break_where_kernels_of_attention_are_chosen() -> None:
    def attention(x):
        with sdpa_kernel(SDPBackend.MATH):
            x = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            pycompiler.graph_break()
            inside = torch._C._get_flash_sdp_enabled()
        return x + 1, inside, torch._C._get_flash_sdp_enabled()

    x = torch.randn(1, 2, 4, 8)
    got, expected = pycompiler.compile(attention, backend="eager")(x), attention(x)
    torch.testing.assert_close(got[0], expected[0])
    assert got[1:] == expected[1:] == (False, True)


def test_all_numbers_of_a_tensor() -> None:
    def used(x):
        first, second, *rest = x.tolist()
        return x * first + second, torch.zeros(3) + rest[0], x.reshape(2, 2).tolist()

    with pycompiler.config.patch(capture_scalar_outputs=True):
        compiled = pycompiler.compile(used, backend="eager", fullgraph=True)
        for x in (torch.arange(4), torch.arange(4) + 3):
            assert repr(compiled(x)) == repr(used(x))


def test_subclasses_of_a_class() -> None:
    def told(x):
        return Holder.__subclasses__(), Holder().__weakref__, x + 1

    compiled = pycompiler.compile(told, backend="eager", fullgraph=True)
    assert repr(compiled(X)) == repr(told(X))
    kept = type("Kept", (Holder,), {})
    assert repr(compiled(X)) == repr(told(X)) and compiled(X)[0][-1] is kept


class Listed(dict):
    """A dict with its own iteration order."""

    def keys(self):
        return reversed(list(dict.keys(self)))

    __iter__ = keys


def test_copies_of_a_dict_that_says_how_it_is_iterated() -> None:
    def copied(x):
        table, target = Listed(a=1, b=2), {}
        target.update(table)
        return dict(table), {**table}, target, (lambda **k: k)(**table), x + 1

    assert repr(pycompiler.compile(copied, backend="eager", fullgraph=True)(X)) == repr(copied(X))


class Table(dict):
    pass


class Queue(list):
    pass


def test_views_and_iterators_of_what_is_in_a_subclass() -> None:
    def made(x):
        table, queue = Table(a=1), Queue([1, 2])
        return table, table.keys(), table.items(), queue, iter(queue), x + 1

    table, keys, items, queue, left, _ = pycompiler.compile(made, backend="eager", fullgraph=True)(X)
    table["b"] = 3
    queue.append(5)
    assert [list(keys), list(items), list(left)] == [["a", "b"], [("a", 1), ("b", 3)], [1, 2, 5]]


def test_keywords_and_indices_of_the_wrong_type() -> None:
    def wrong(x):
        texts, numbers = [], [1, 2]
        for act in (
            lambda: {}.update(**Table({1: 2})),
            lambda: (lambda **k: k)(**{1: 2}),
            lambda: numbers.__setitem__("a", 1),
            lambda: numbers.__delitem__("a"),
        ):
            try:
                act()
            except TypeError as e:
                texts.append(str(e))
        return texts, x + 1

    assert repr(pycompiler.compile(wrong, backend="eager", fullgraph=True)(X)) == repr(wrong(X))


FUNCTIONS = frozenset([torch.add, len, Base, 3])


def test_sets_of_functions() -> None:
    table = {torch.mul, repr}

    def told(x, fn):
        return fn in FUNCTIONS, fn in table, len(FUNCTIONS), x + 1

    compiled = pycompiler.compile(told, backend="eager", fullgraph=True)
    for fn in (torch.add, torch.mul, len, 3, str):
        assert repr(compiled(X, fn)) == repr(told(X, fn))
    table.add(str)
    assert repr(compiled(X, str)) == repr(told(X, str))


def test_a_graph_module_is_inlined() -> None:
    module = torch.fx.symbolic_trace(lambda a: a.sin() + 1)

    def called(x):
        return module(x) * 2

    assert torch.equal(pycompiler.compile(called, backend="eager", fullgraph=True)(X), called(X))


class Choosy:
    known = 3

    def __getattribute__(self, name):
        if name.startswith("q"):
            raise AttributeError(name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        if name == "qq":
            raise AttributeError("none")
        return name + "!"


class ChoosyMeta(type):
    __getattribute__ = lambda cls, name: type.__getattribute__(cls, name if name[0] != "q" else "?")
    __getattr__ = lambda cls, name: name + "!"


class Chosen(metaclass=ChoosyMeta):
    known = 4


def test_attributes_that_getattribute_refuses() -> None:
    def told(choosy, x):
        asked = [
            hasattr(choosy, "qq"),
            hasattr(choosy, "qz"),
            getattr(choosy, "qq", 9),
            Chosen.qz,
            hasattr(Chosen, "qz"),
        ]
        try:
            asked.append(choosy.qq)
        except AttributeError as e:
            asked.append(str(e))
        return asked, choosy.q, choosy.known, choosy.other, Chosen.known, x + 1

    assert repr(pycompiler.compile(told, backend="eager")(Choosy(), X)) == repr(told(Choosy(), X))


def tagged(a: int) -> int:
    """Its text."""
    return a


tagged.tag = 7


def test_attributes_of_functions_made_inside() -> None:
    def wrapped(x):
        @functools.wraps(tagged)
        def first(a):
            return tagged(a) + 1

        first.other = 3

        @functools.wraps(first)
        def second(a):
            return first(a)

        return second, second.tag, second.other, sorted(vars(second)), vars(first)["other"], second(x)

    got, expected = pycompiler.compile(wrapped, backend="eager", fullgraph=True)(X), wrapped(X)
    assert repr(got[1:]) == repr(expected[1:])
    for name in ("__name__", "__doc__", "__module__", "__annotations__"):
        assert getattr(got[0], name) == getattr(expected[0], name)
    assert got[0].__dict__.keys() == expected[0].__dict__.keys()
    assert got[0].__wrapped__.__wrapped__ is tagged


@functools.lru_cache
def remembered(a: int) -> int:
    """Its text, too."""
    return a + 2


class Called:
    def __call__(self, a):
        return a * 3


def test_functions_that_wrap_what_has_a_dict_of_names() -> None:
    """`functools.wraps` updates the function's dict, but an attribute with a slot of its own in functions stays unchanged."""

    def keeping(kept):
        @functools.wraps(kept)
        def kept_wrapper(a):
            return kept(a)

        return kept_wrapper

    def wrapped(x):
        called = Called()
        called.__module__, called.__name__, called.tag = "m", "n", 4
        first, second = keeping(remembered), keeping(called)
        vars(second)["__doc__"] = "hidden"
        said = [first.__name__, first.__module__, first.__doc__, first(3), second.__name__, second.__doc__, second.tag]
        return first, second, said, [*vars(second).items()][:2], vars(second)["__doc__"], [*vars(first)], x + 1

    got, expected = pycompiler.compile(wrapped, backend="eager", fullgraph=True)(X), wrapped(X)
    assert repr(got[2:]) == repr(expected[2:])
    for mine, theirs in zip(got[:2], expected[:2], strict=True):
        assert [*mine.__dict__] == [*theirs.__dict__]
        assert {k: v for k, v in mine.__dict__.items() if isinstance(v, str)} == {
            k: v for k, v in theirs.__dict__.items() if isinstance(v, str)
        }
        assert (mine.__module__, mine.__name__, mine.__doc__) == (theirs.__module__, theirs.__name__, theirs.__doc__)


def test_unions_of_dicts_of_different_classes() -> None:
    def united(x):
        counted, plain, ordered = collections.defaultdict(int, a=1), {"b": 2}, collections.OrderedDict(c=3)
        made = [counted | plain, plain | counted, ordered | plain, plain | ordered]
        return made, [*map(type, made)], made[0].default_factory, made[1].default_factory, x + 1

    assert repr(pycompiler.compile(united, backend="eager", fullgraph=True)(X)) == repr(united(X))


def test_combinatoric_iterators_leave_the_graph() -> None:
    def made(x):
        found = [
            itertools.product("ab", repeat=2),
            itertools.combinations("abcd", 2),
            itertools.permutations("abc"),
            itertools.combinations_with_replacement("ab", 2),
        ]
        for iterator in found[:3]:
            next(iterator)
        return *found, iter(Indexed()), x + 1

    *got, _ = pycompiler.compile(made, backend="eager", fullgraph=True)(X)
    *expected, _ = made(X)
    assert [*map(type, got)] == [*map(type, expected)]
    assert [*map(list, got)] == [*map(list, expected)]


class Indexed:
    def __getitem__(self, index):
        if index > 4:
            raise IndexError
        return index * 2


def test_stores_into_a_deque_end_no_iterator() -> None:
    def stored(queue, x):
        for place in range(len(queue)):
            queue[place] = place * 10
        return x + 1

    queue = collections.deque([1, 2, 3])
    iterator = iter(queue)
    pycompiler.compile(stored, backend="eager", fullgraph=True)(queue, X)
    assert list(iterator) == [0, 10, 20]


def test_exceptions_with_names() -> None:
    def named():
        found = [AttributeError("text", name="carry").name]
        try:
            collections.OrderedDict([("a", 1)], None)
        except TypeError as e:
            found.append(str(e))
        return found

    assert pycompiler.compile(named, backend="eager")() == named()


def test_a_list_that_is_extended_by_an_operator() -> None:
    def extended(numbers):
        made = [1]
        return operator.iconcat(made, [2]) is made, operator.iconcat(numbers, [3]), made

    ours, eager = [0], [0]
    assert pycompiler.compile(extended, backend="eager", fullgraph=True)(ours) == extended(eager)
    assert ours == eager == [0, 3]


def test_a_new_tensor_of_a_size() -> None:
    def made(x, y):
        return x.new(y.shape).shape, x.new(y.size()).shape, x.new((5, 8)), x.new(2, 3).shape

    assert repr(pycompiler.compile(made, backend="eager")(X, torch.rand(5, 8))) == repr(made(X, torch.rand(5, 8)))


class Coded(ValueError):
    def __new__(cls, text, code):
        made = super().__new__(cls, text)
        made.code = code
        return made


class Group(ExceptionGroup):
    def __new__(cls, message, excs, code):
        made = super().__new__(cls, message, excs)
        made.code = code
        return made


class Both(ValueError):
    def __new__(cls, text, code):
        made = super().__new__(cls, text, "new")
        made.code = code
        return made

    def __init__(self, text, code):
        self.seen = self.args


def test_exceptions_whose_new_is_their_own() -> None:
    def raised():
        found = []
        for make in (lambda: Coded("a", 3), lambda: Group("b", [KeyError(1)], 4), lambda: Both("c", 5)):
            try:
                raise make()
            except Exception as e:
                found.append((type(e).__name__, e.args[0], len(e.args), e.code, vars(e)))
        made = Coded("d", 6)
        return found, made.code, made.args

    assert pycompiler.compile(raised, backend="eager")() == raised()


def test_formats_that_are_no_text() -> None:
    """`format` refuses a format that is not a string before it calls the value."""

    class Text:
        def __format__(self, spec):
            return {"": "any"}[spec]

    def formatted(x, value, spec):
        y = x + 1
        try:
            return format(value, spec), y.shape
        except (TypeError, KeyError) as e:
            return repr(e), y.shape

    compiled = pycompiler.compile(formatted, backend="eager", fullgraph=True)
    for value, spec in ((Text(), None), (Text(), 3), (Text(), ""), (5, None)):
        assert compiled(X, value, spec) == formatted(X, value, spec)
