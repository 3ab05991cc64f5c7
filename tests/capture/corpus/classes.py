"""User classes: attributes, properties, descriptors, super(), class and static methods, metaclasses, enums, dataclasses."""

from __future__ import annotations

import abc
import collections
import copy
import dataclasses
import enum
import functools
import sys
import types
import typing

import torch
from capture.harness import ANY, case

X = torch.arange(4.0)


class Point:
    """An ordinary class."""

    scale = 2

    def __init__(self, x, y=1):
        self.x = x
        self.y = y

    def total(self):
        return self.x + self.y * self.scale

    @property
    def double(self):
        return self.x * 2

    @double.setter
    def double(self, value):
        self.x = value / 2

    @double.deleter
    def double(self):
        self.x = 0

    @classmethod
    def of(cls, x):
        return cls(x, cls.scale)

    @staticmethod
    def add(a, b):
        return a + b

    @functools.cached_property
    def costly(self):
        return self.x * 10


class Point3(Point):
    scale = 3

    def __init__(self, x, y=1, z=5):
        super().__init__(x, y)
        self.z = z

    def total(self):
        return super().total() + self.z

    @property
    def double(self):
        return super().double + 1

    @classmethod
    def of(cls, x):
        made = super().of(x)
        made.z = 7
        return made


@case(X, Point(3))
def attributes(x, p):
    return x * p.x + p.y


@case(X, Point(3))
def method_call(x, p):
    return x + p.total()


@case(X)
def new_object(x):
    p = Point(x, 2)
    p.y += 1
    p.extra = "e"
    return p


@case(X)
def new_object_total(x):
    return Point(x, 2).total(), Point.of(x).total(), Point.add(x, 1)


@case(X)
def subclass(x):
    p = Point3(x)
    return p.total(), p.double, Point3.of(x).total(), isinstance(p, Point), type(p) is Point3


@case(X, Point(torch.ones(4)))
def attribute_store(x, p):
    p.x = p.x + x
    p.count = 1
    p.count += 1
    return p.x


@case(X, Point(1))
def attribute_delete(x, p):
    del p.y
    return x + 1, hasattr(p, "y"), getattr(p, "y", 5)


@case(X, Point(1))
def attribute_missing(x, p):
    try:
        p.nothing
    except AttributeError as e:
        return x + 1, str(e)


@case(X, Point(1))
def attribute_delete_missing(x, p):
    try:
        del p.nothing
    except AttributeError:
        return x + 1


@case(X, Point(4))
def property_set(x, p):
    p.double = 6
    return x * p.x, p.double


@case(X, Point(4))
def property_delete(x, p):
    del p.double
    return x + p.x


@case(X, Point3(4))
def property_without_setter(x, p):
    try:
        p.double = 1
    except AttributeError:
        return x + 1


@case(X, Point(torch.ones(4)))
def cached_property(x, p):
    return x + p.costly + p.costly, "costly" in p.__dict__


@case(X, Point(2))
def setattr_getattr(x, p):
    setattr(p, "x", 9)
    setattr(p, "new", x)
    delattr(p, "y")
    return getattr(p, "x") + getattr(p, "new") + getattr(p, "missing", 1), hasattr(p, "y")


@case(X, Point(2))
def instance_dict(x, p):
    return x + p.__dict__["x"], list(vars(p)), sorted(p.__dict__.items())


@case(X, Point(2))
def instance_dict_update(x, p):
    p.__dict__["z"] = 3
    return x + p.z


@case(X)
def instance_dict_of_new(x):
    p = Point(1)
    p.__dict__.update(a=2)
    return x + p.a


@case(X, Point(2))
def class_attributes(x, p):
    return x * Point.scale * type(p).scale * p.__class__.scale, p.__class__.__name__, Point.__qualname__


class Config:
    depth = 2
    layers: typing.ClassVar = [1, 2]
    table: typing.ClassVar = {"a": 1}


@case(X)
def class_attribute_containers(x):
    return x * Config.depth + sum(Config.layers) + Config.table["a"]


@case(X)
def class_attribute_store(x):
    Config.depth = 2
    return x * Config.depth


@case(X, Point(5))
def bound_method_value(x, p):
    f = p.total
    return x + f(), f.__self__ is p, f.__name__


@case(X)
def unbound_method(x):
    return Point.total(Point(x))


@case(X, [Point(1), Point(2)])
def objects_in_list(x, points):
    points[0].x = 10
    return sum(p.x for p in points) + x


class Doubler:
    """A data descriptor in Python."""

    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, instance, owner=None):
        return self if instance is None else getattr(instance, self.name) * 2

    def __set__(self, instance, value):
        setattr(instance, self.name, value + 1)


class Lazy:
    """A non-data descriptor in Python."""

    def __init__(self, k):
        self.k = k

    def __get__(self, instance, owner):
        return (owner.__name__, self.k) if instance is None else instance.base * self.k


class Described:
    field = Doubler()
    lazy = Lazy(3)

    def __init__(self):
        self.base = 4
        self.field = 1


@case(X, Described(), breaks=ANY)
def descriptors(x, d):
    d.field = 5
    return x * d.field + d.lazy, Described.lazy, Described.field is type(d).__dict__["field"]


@case(X)
def descriptors_of_new(x):
    d = Described()
    d.field = x
    d.lazy = 1
    return d.field, d.lazy


class Dynamic:
    """__getattr__, __setattr__, __delattr__."""

    def __init__(self):
        object.__setattr__(self, "store", {"k": 3})

    def __getattr__(self, name):
        if name.startswith(("missing", "__")):
            raise AttributeError(name)
        return self.store.get(name, len(name))

    def __setattr__(self, name, value):
        self.store[name] = value

    def __delattr__(self, name):
        del self.store[name]


@case(X, Dynamic())
def dynamic_attributes(x, d):
    d.w = x * 2
    k = d.k
    del d.k
    return d.w + d.unknown + k, hasattr(d, "missing"), sorted(d.store)


@case(X)
def dynamic_attributes_of_new(x):
    d = Dynamic()
    d.a = x
    return d.a, d.abc, getattr(d, "missing_one", None)


class Everything:
    def __init__(self):
        self.k = 2

    def __getattribute__(self, name):
        if name == "magic":
            return 42
        return object.__getattribute__(self, name)


@case(X, Everything())
def getattribute(x, e):
    return x * e.k + e.magic


class Slotted:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class SlottedMore(Slotted):
    __slots__ = ("c", "__dict__")


@case(X, Slotted(2))
def slots(x, s):
    s.b = s.a + 1
    s.a = x
    return x * s.b, hasattr(s, "c")


@case(X)
def slots_of_new(x):
    s = SlottedMore(x)
    s.c = 1
    s.free = 2
    del s.a
    return s, hasattr(s, "a"), hasattr(s, "b")


@case(X, Slotted(2))
def slots_no_dict(x, s):
    try:
        s.zzz = 1
    except AttributeError:
        return x + 1


class Base:
    def __init__(self):
        self.log = ["base"]

    def who(self):
        return "base"

    @classmethod
    def make(cls):
        return cls.__name__


class Left(Base):
    def __init__(self):
        super().__init__()
        self.log.append("left")

    def who(self):
        return "left " + super().who()

    @classmethod
    def make(cls):
        return "left " + super().make()


class Right(Base):
    def __init__(self):
        super().__init__()
        self.log.append("right")

    def who(self):
        return "right " + super(Right, self).who()


class Diamond(Left, Right):
    def __init__(self):
        super().__init__()
        self.log.append("diamond")

    def who(self):
        return f"diamond {super().who()}"

    def via_getattr(self):
        return getattr(super(), "who")(), hasattr(super(), "nothing")

    def in_comprehension(self):
        parent = super()
        return [parent.who() for _ in range(2)]


@case(X)
def diamond_super(x):
    d = Diamond()
    return x + len(d.log), d.log, d.who(), Diamond.make(), d.via_getattr(), d.in_comprehension()


@case(X, Diamond())
def diamond_super_existing(x, d):
    return x + 1, d.who(), d.make(), [c.__name__ for c in type(d).__mro__]


class SuperSet(Base):
    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name != "count":
            self.count = getattr(self, "count", 0) + 1


@case(X)
def super_setattr(x):
    s = SuperSet()
    s.a = x
    return s.a + s.count, s


class Meta(type):
    registry: typing.ClassVar = {"n": 1}

    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.tag = cls.label
        return made

    @property
    def label(cls):
        return "label of " + cls.__name__

    def shout(cls):
        return cls.__name__.upper()

    def __len__(cls):
        return 7

    def __getitem__(cls, k):
        return k * 2

    def __contains__(cls, k):
        return k == 1

    def __iter__(cls):
        return iter((1, 2))


class WithMeta(metaclass=Meta):
    def __init__(self, v):
        self.v = v


@case(X)
def metaclass(x):
    w = WithMeta(x)
    return w.v + 1, w.tag, WithMeta.shout(), WithMeta.label


@case(X)
def metaclass_protocols(x):
    return x + len(WithMeta) + WithMeta[4], 1 in WithMeta, 2 in WithMeta, list(WithMeta)


class Hiding(type):
    """A metaclass whose `__dict__` and `__mro__` must not affect the attribute lookup on its classes."""

    __dict__ = property(lambda cls: {"hidden": 1})
    __mro__ = property(lambda cls: ("hidden",))


class Hidden(metaclass=Hiding):
    marker = 7

    def __init__(self, v):
        self.v = v


class MoreHidden(Hidden):
    def __init__(self, v):
        super().__init__(v + 1)


HIDDEN = Hidden(2)


@case(X)
def metaclass_that_hides(x):
    HIDDEN.stored = 3
    made = MoreHidden(x)
    past = (
        type.__dict__["__dict__"].__get__(Hidden)["marker"],
        type.__dict__["__mro__"].__get__(Hidden),
        len(type(x).__mro__),
    )
    told = (
        past,
        len(Hidden.__mro__),
        Hidden.__dict__["hidden"],
        Hidden.__name__,
        MoreHidden.marker,
        hasattr(made, "nope"),
    )
    return (
        made.v + Hidden.marker + HIDDEN.stored + HIDDEN.v,
        told,
        isinstance(made, (dict, Hidden)),
        issubclass(Hidden, int),
    )


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def pretty(self):
        return self.name.lower()

    def times(self, v):
        return v * self.value


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 3


class Flags(enum.Flag):
    A = enum.auto()
    B = enum.auto()


class Text(str, enum.Enum):
    ADD = "add"
    MUL = "mul"


@case(X, Color.GREEN)
def enums(x, c):
    return c.times(x), c is Color.GREEN, c == Color.RED, c.name, c.pretty, Color["RED"].value, Color(2)


@case(X)
def enum_iteration(x):
    return x + sum(c.value for c in Color), [c.name for c in Color], len(Color), Color.RED in Color


@case(X, Color.RED)
def enum_as_key(x, c):
    table = {Color.RED: 2, Color.GREEN: 3}
    return x * table[c], c in table, {Color.RED} | {Color.GREEN} == set(table)


@case(X, Level.HIGH)
def int_enum(x, level):
    return x * level + Level.LOW, level > Level.LOW, level + 1, level == 3


@case(X)
def flags(x):
    both = Flags.A | Flags.B
    return x + both.value, Flags.A in both, both


@case(X, Text.ADD)
def str_enum(x, t):
    return (x + 1 if t == "add" else x * 2), t == Text.ADD, t.value.upper()


@case(X)
def enum_bad_value(x):
    try:
        Color(9)
    except ValueError as e:
        return x + 1, str(e)


@case(X, Color.GREEN)
def enum_match(x, c):
    match c:
        case Color.RED:
            return x + 1
        case Color.GREEN:
            return x + 2


@dataclasses.dataclass
class Data:
    a: torch.Tensor
    b: int = 2
    items: list = dataclasses.field(default_factory=list)

    def scaled(self):
        return self.a * self.b


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: str = "b"


@dataclasses.dataclass(order=True)
class Ordered:
    rank: int
    name: str = dataclasses.field(compare=False, default="")
    derived: int = dataclasses.field(init=False)

    def __post_init__(self):
        self.derived = self.rank * 2


@dataclasses.dataclass(slots=True)
class SlotData:
    v: int
    w: int = 3


@dataclasses.dataclass
class Child(Data):
    c: int = 9


@case(X, Data(torch.ones(4)))
def dataclass_argument(x, d):
    d.items.append(x)
    d.b += 1
    return d.scaled() + x


@case(X)
def dataclass_new(x):
    d = Data(x, b=3)
    return d, d.scaled(), Child(x, c=1).c


@case(X)
def dataclass_replace(x):
    d = Data(x)
    return dataclasses.replace(d, b=7).scaled(), d.b


@case(X)
def dataclass_fields(x):
    d = Frozen(1)
    return x + 1, [f.name for f in dataclasses.fields(d)], dataclasses.is_dataclass(d)


@case(X)
def dataclass_asdict(x):
    d = Frozen(1)
    return x + 1, dataclasses.asdict(d), dataclasses.astuple(d)


@case(X)
def dataclass_eq(x):
    return (
        x + 1,
        Frozen(1) == Frozen(1),
        Frozen(1) != Frozen(2),
        Ordered(1) < Ordered(2),
        max(Ordered(1), Ordered(3)).rank,
    )


@case(X)
def dataclass_frozen_store(x):
    f = Frozen(3)
    try:
        f.a = 4
    except dataclasses.FrozenInstanceError as e:
        return x + f.a, str(e)


@case(X, Frozen(2))
def dataclass_hash(x, f):
    return x + {f: 1}[f], f in {Frozen(2)}


@case(X)
def dataclass_post_init(x):
    return x + Ordered(4, "n").derived


@case(X)
def dataclass_slots(x):
    s = SlotData(2)
    s.w = 5
    return x * s.v + s.w, s


@case(X)
def dataclass_repr(x):
    return x + 1, repr(Frozen(1)), str(Frozen(2, "c"))


@case(X, breaks=ANY)
def dataclass_repr_tensor(x):
    return x + 1, repr(Data(x, 1))


class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: int = 4

    def both(self):
        return self.first + self.second


Plain = collections.namedtuple("Plain", "u v w", defaults=(3,))


@case(X, Pair(X))
def namedtuple_argument(x, p):
    return p.first + x * p.second, p.both(), p[0], len(p)


@case(X)
def namedtuple_new(x):
    p = Pair(x)
    q = p._replace(second=5)
    return p, q, q._asdict(), Pair._fields, Plain(1, v=2), Plain._make([1, 2, 3]), Pair._field_defaults


@case(X)
def namedtuple_unpack(x):
    a, b = Pair(x, 3)
    u, *rest = Plain(1, 2)
    return a * b + u, rest, Plain(1, 2) == (1, 2, 3), Plain(1, 2) + (4,)


@case(X, Plain(1, 2))
def namedtuple_repr(x, p):
    return x + 1, repr(p), p.index(2), p.count(1), isinstance(p, tuple)


class TD(typing.TypedDict):
    k: int


@case(X)
def typed_dict(x):
    d = TD(k=3)
    return x + d["k"], d


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...

    @property
    @abc.abstractmethod
    def name(self): ...


class Square(Shape):
    def __init__(self, s):
        self.s = s

    def area(self):
        return self.s * self.s

    @property
    def name(self):
        return "square"


@case(X)
def abstract_classes(x):
    s = Square(x)
    try:
        Shape()
    except TypeError as e:
        return s.area(), s.name, isinstance(s, Shape), str(e)


class AnsweringMeta(type):
    """A metaclass that answers every name, `__abstractmethods__` too."""

    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.other
        return made

    def __getattr__(cls, name):
        return f"no {name}"


class Answering(metaclass=AnsweringMeta):
    def __init__(self, v):
        self.v = v


@case(X)
def metaclass_that_answers_to_every_name(x):
    made = Answering(x + 1)
    return made.v, made.tag, Answering.more


class Registered(collections.abc.Sized):
    def __len__(self):
        return 3


@case(X, Registered())
def abc_isinstance(x, r):
    return (
        x + len(r), isinstance(r, collections.abc.Sized), isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping), isinstance(x, collections.abc.Hashable),
        issubclass(dict, collections.abc.MutableMapping),
    )  # fmt: skip


@typing.runtime_checkable
class HasTotal(typing.Protocol):
    def total(self): ...


@case(X, Point(1), breaks=ANY)
def runtime_protocol(x, p):
    return x + 1, isinstance(p, HasTotal)


class New:
    """__new__ with arguments, singletons."""

    made: typing.ClassVar = []

    def __new__(cls, v, *rest):
        self = super().__new__(cls)
        self.v = v
        return self

    def __init__(self, v, *rest):
        self.rest = rest


@case(X)
def dunder_new(x):
    n = New(x, 1, 2)
    return n.v + len(n.rest), n


class Other:
    def __new__(cls):
        return 5


@case(X)
def dunder_new_other_type(x):
    return x + Other()


class Generic(typing.Generic[typing.TypeVar("T")]):
    def __init__(self, v):
        self.v = v


@case(X)
def generic_class(x):
    return Generic(x).v + 1


@case(X, breaks=ANY)
def generic_class_subscripted(x):
    return Generic[int](x).v + 1


class InitSubclass:
    kinds: typing.ClassVar = {}

    def __init_subclass__(cls, **kw):
        InitSubclass.kinds[cls.__name__] = cls


class KindA(InitSubclass):
    value = 3


@case(X)
def class_registry(x):
    return x * InitSubclass.kinds["KindA"].value, InitSubclass.kinds["KindA"]() is not None


@case(X, breaks=ANY, recompiles=2)
def local_class(x):
    class Local:
        k = 3

        def f(self):
            return self.k

    return x * Local().f()


@case(X, breaks=ANY, recompiles=2)
def type_call(x):
    C = type("C", (), {"k": 2})
    return x * C.k


@case(X, Point(torch.ones(4)), breaks=ANY, recompiles=5)
def copy_copy(x, p):
    q = copy.copy(p)
    q.y = 10
    return x * p.y + q.y, q.x is p.x


@case(X, [1, [2]], breaks=ANY)
def copy_deepcopy(x, items):
    other = copy.deepcopy(items)
    other[1].append(3)
    return x + len(items[1]), other


@case(X, Point(1), recompiles=1)
def identity(x, p):
    q = p
    return x + 1, q is p, p is not None, p == q, p != q, Point(1) == Point(1), id(p) == id(q)


@case(X, Point(1), Point(1))
def identity_of_arguments(x, p, q):
    return x + (1 if p is q else 2)


@case(X)
def object_graph(x):
    a, b = Point(1), Point(2)
    a.other, b.other = b, a
    a.x = x
    return a.other.other.x + 1


@case(X, breaks=ANY)
def cyclic_object_returned(x):
    a = Point(x + 1)
    a.me = a
    return a


@case(X)
def shared_object_returned(x):
    p = Point(x + 1)
    return [p, p], {"p": p}


class Callable_:
    def __init__(self, k):
        self.k = k

    def __call__(self, v, *, plus=0):
        return v * self.k + plus


@case(X, Callable_(3))
def callable_object(x, f):
    return f(x, plus=1), callable(f), callable(x), callable(3)


@case(X)
def callable_object_new(x):
    return Callable_(2)(x), [Callable_(k)(x) for k in (1, 2)]


class Weird:
    """Class-level callables that are not functions."""

    act = torch.nn.functional.relu
    op = staticmethod(torch.sin)
    part = functools.partial(torch.add, alpha=2)
    part = staticmethod(part) if sys.version_info >= (3, 14) else part  # a method since 3.14
    builtin = len

    def __init__(self):
        self.fn = torch.cos


@case(X, Weird())
def class_level_callables(x, w):
    return w.op(x) + w.fn(x) + w.part(x, x) + w.builtin([1, 2])


@case(X)
def partialmethod(x):
    return PartialMethods().twice(x)


class PartialMethods:
    def times(self, k, v):
        return v * k

    twice = functools.partialmethod(times, 2)


@case(X, Point(1))
def dir_and_name(x, p):
    return x + 1, type(p).__name__, p.__class__.__mro__[1] is object, p.__module__.rpartition(".")[2], Point.__doc__


class _Slotted:
    __slots__ = ("k", "q")

    def __init__(self):
        self.k = 1


class _Plain:
    def __init__(self):
        self.k = 1


@case(X, _Slotted(), _Plain())
def attribute_stored_then_deleted(x, a, b):
    for o in (a, b):
        o.q = 5
        x = x + o.q
        del o.q
        o.k = 7
        del o.k
    return x, hasattr(a, "q"), hasattr(b, "k")


class _Unnamed:
    pass


_Unnamed.late = functools.cached_property(lambda self: 2)  # its __set_name__ was never called


@case(X, _Unnamed())
def cached_property_without_a_name(x, o):
    try:
        return x + o.late
    except TypeError as e:
        return x, str(e).split(" instance")[0]


def _method_of_no_class(cell):
    def bind(code):
        return types.FunctionType(code, globals(), closure=(cell,))

    class Holder:
        def f(self):
            return super().__repr__()

    return bind(Holder.f.__code__)


@case(X, _method_of_no_class(types.CellType()))
def super_without_a_class(x, empty):
    try:
        empty(1)
    except (RuntimeError, NameError) as e:
        return x, str(e)


class _Methodical:
    def method(self):
        "its text"
        return 1

    @classmethod
    def of_class(cls):
        return 2


@case(make=lambda: (torch.ones(2), _Methodical()), graphs=1)
def what_bound_methods_are(x, given):
    kinds, append = [], [].append
    for m in (
        given.method,
        given.of_class,
        _Methodical.of_class,
        append,
        [1].copy,
        "a".join,
        {}.get,
        x.sin,
        len,
        given.__init__,
    ):
        kinds.append(
            (
                type(m),
                m.__class__,
                isinstance(m, types.MethodType),
                m.__name__,
                m.__doc__,
                hasattr(m, "__func__"),
                hasattr(m, "no"),
            )
        )
    try:
        append.nope
    except AttributeError as e:
        kinds.append(str(e))
    return x + given.method.__call__(), kinds


_late = property(lambda self: 1)


@case(X, breaks="builtin-call")
def property_of_another_frame(x):
    y = x + 1
    property.__init__(_late, len)
    return y * 2
