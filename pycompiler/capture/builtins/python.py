"""Python's builtin functions."""

from __future__ import annotations

import builtins
import functools
import inspect
import itertools
import math
import operator
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

from pycompiler.capture import operators
from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.calls import builtin, constructor
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers import Dict, DictView, List, Sequence, Set, Slice, Tuple
from pycompiler.capture.values.functions import Builtin, Function, Method, Partial
from pycompiler.capture.values.iterators import Generator, Iter
from pycompiler.capture.values.objects import Class, Object, Opaque, PyModule, Super, mro_lookup
from pycompiler.capture.values.tensor import Tensor, TensorMethod

Args = list[Value]
Kwargs = dict[str, Value]


# types and identity -------------------------------------------------------------------------------------------
@constructor(type)
def type_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 1:
        raise Break("builtin-call", "type(name, bases, namespace)")
    return cx.make(args[0].python_type())  # type: ignore[no-any-return]


def classes_of(cx: Capture, value: Value) -> tuple[type, ...]:
    if isinstance(value, Tuple):
        return tuple(c for v in value.iterate(cx) for c in classes_of(cx, v))
    if isinstance(value, Class):
        return (value.cls,)
    if isinstance(value, Const) and value.value is None:
        return (type(None),)
    real = value.const() if value.is_const() else getattr(value, "real", getattr(value, "fn", None))
    if isinstance(real, types.UnionType):
        return tuple(c for c in typing.get_args(real))
    raise Break("unsupported-operation", f"isinstance(..., {value.describe()})")


@builtin(isinstance)
def isinstance_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value, classes = args[0], classes_of(cx, args[1])
    cls = value.python_type()
    if isinstance(value, Tensor):
        return Const(isinstance(value.fake if value.real is None else value.real, classes))
    if isinstance(value, Object) and value.exists:
        return Const(isinstance(value.real, classes))
    return Const(issubclass(cls, classes))


@builtin(issubclass)
def issubclass_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(issubclass(args[0].const(), classes_of(cx, args[1])))


@builtin(callable)
def callable_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, (Function, Method, Builtin, Class, Partial, TensorMethod)):
        return Const(True)
    return Const(hasattr(value.python_type(), "__call__"))


@builtin(id)
def id_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    real = getattr(value, "real", None)
    if isinstance(value, (Object, Function, Opaque)) and real is not None and value.source is not None:
        cx.guard("id_is", value.source, real)
        return Const(id(real))
    raise Break("unsupported-operation", f"id({value.describe()})")


@builtin(len)
def len_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(args[0].length(cx))


@constructor(bool)
def bool_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.truth(args[0])) if args else Const(False)


def _number(cls: type) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], Tensor):
            raise Break("data-dependent-value", f"{cls.__name__}(tensor)")
        if args and isinstance(args[0], Object):
            method = args[0].special(cx, f"__{cls.__name__}__") or args[0].special(cx, "__index__")
            if method is not None:
                return cx.call(method, [], {})  # type: ignore[no-any-return]
        return cx.evaluate(cls, *(a.const() for a in args), **{k: v.const() for k, v in kwargs.items()})  # type: ignore[no-any-return]

    return make


for _cls in (int, float, complex):
    constructor(_cls)(_number(_cls))


@constructor(str)
def str_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return operators.text(cx, args[0], str)
    return cx.evaluate(str, *(a.const() for a in args), **{k: v.const() for k, v in kwargs.items()})  # type: ignore[no-any-return]


@builtin(repr)
def repr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.text(cx, args[0], repr)


@builtin(format)
def format_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.format_value(cx, args[0], 0, args[1] if len(args) > 1 else Const(""))


@builtin(str.format)
def str_format(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    parts = [a if a.is_const() else operators.text(cx, a, str) for a in args]
    return cx.evaluate(str.format, *(a.const() for a in parts), **{k: v.const() for k, v in kwargs.items()})  # type: ignore[no-any-return]


@builtin(str.join)
def str_join(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.evaluate(str.join, args[0].const(), [v.const() for v in cx.elements(args[1])])  # type: ignore[no-any-return]


@builtin(hash)
def hash_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        method = args[0].special(cx, "__hash__")
        if isinstance(method, Method) and isinstance(method.function, Function):
            return cx.call(method, [], {})  # type: ignore[no-any-return]
    return cx.evaluate(hash, args[0].const())  # type: ignore[no-any-return]


# attributes ---------------------------------------------------------------------------------------------------
@builtin(getattr)
def getattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    name = args[1].const()
    if len(args) == 3:
        found = cx.catching(AttributeError, lambda: args[0].getattr(cx, name))
        return args[2] if found is None else found
    return args[0].getattr(cx, name)


@builtin(hasattr)
def hasattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.catching(AttributeError, lambda: args[0].getattr(cx, args[1].const())) is not None)


@builtin(setattr)
def setattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].setattr(cx, args[1].const(), args[2])
    return Const(None)


@builtin(delattr)
def delattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].delattr(cx, args[1].const())
    return Const(None)


@builtin(object.__setattr__)
def object_setattr(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        raise Break("mutation-unsupported", f"object.__setattr__({args[0].describe()}, ...)")
    args[0].plain_setattr(cx, args[1].const(), args[2])
    return Const(None)


@builtin(object.__getattribute__)
def object_getattribute(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        return args[0].getattr(cx, args[1].const())
    found = args[0].plain_getattr(cx, args[1].const())
    if found is None:
        cx.throw(AttributeError, f"{args[0].cls.__name__!r} object has no attribute {args[1].const()!r}")
    assert found is not None
    return found


@builtin(object.__init__)
def object_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(None)


@builtin(BaseException.__init__, Exception.__init__)
def exception_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        args[0].args = list(args[1:])
    return Const(None)


@builtin(object.__new__)
def object_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    from pycompiler.capture.calls import allocate

    return allocate(cx, args[0].const(), args[1:])


@builtin(dict.__new__, list.__new__, set.__new__, BaseException.__new__, Exception.__new__)
def storage_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return object_new(cx, args, kwargs)


@builtin(tuple.__new__)
def tuple_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Tuple(list(cx.elements(args[1])) if len(args) > 1 else [], args[0].const())


@builtin(vars)
def vars_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return args[0].getattr(cx, "__dict__")


@builtin(globals)
def globals_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    namespace = cx.frames[-1].globals
    return cx.wrap(namespace, cx.dict_source(namespace))  # type: ignore[no-any-return]


@constructor(super)
def super_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and isinstance(args[0], Class):
        return Super(args[0].cls, args[1])
    if args:
        raise Break("builtin-call", "super(type)")
    frame = cx.frames[-1]
    cell = frame.cell("__class__")
    first = frame.code.co_varnames[0]
    receiver = frame.locals[first]
    contents = cx.realize(getattr(receiver, "contents", None) or receiver)
    cell.contents = cx.realize(cell.contents)
    return Super(cell.contents.cls, contents)


@constructor(property, staticmethod, classmethod)
def descriptor_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    raise Break("builtin-call", "a descriptor made inside of a function")


# iteration ----------------------------------------------------------------------------------------------------
@builtin(iter)
def iter_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        raise Break("builtin-call", "iter(callable, sentinel)")
    return cx.iterator(args[0])  # type: ignore[no-any-return]


@builtin(next)
def next_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = cx.next_of(args[0])
    if value is not None:
        return cx.realize(value)  # type: ignore[no-any-return]
    if len(args) == 2:
        return args[1]
    returned = args[0].returned if isinstance(args[0], Generator) else Const(None)
    cx.throw_value(StopIteration, [] if cx.is_none(returned) else [returned])
    raise AssertionError


@constructor(range)
def range_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.evaluate_raw(range, *(cx.index(a) for a in args)))


@constructor(slice)
def slice_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    none: Value = Const(None)
    return Slice([none, args[0], none] if len(args) == 1 else [*args, *[none] * (3 - len(args))])


@constructor(enumerate)
def enumerate_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    start = cx.index(args[1] if len(args) > 1 else kwargs.get("start", Const(0)))
    return Iter((Tuple([Const(i), v]) for i, v in enumerate(cx.elements(args[0]), start)), enumerate)


@constructor(zip)
def zip_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    strict = "strict" in kwargs and kwargs["strict"].truth(cx)
    iterators = [cx.iterator(a) for a in args]

    def generate() -> Iterator[Value]:
        while iterators:
            row: list[Value] = []
            for i, it in enumerate(iterators):
                value = cx.next_of(it)
                if value is None:
                    if strict and (i or any(cx.next_of(rest) is not None for rest in iterators[1:])):
                        cx.throw(ValueError, f"zip() argument {i + 1} is shorter than argument {max(i, 1)}")
                    return
                row.append(cx.realize(value))
            yield Tuple(row)

    return Iter(generate(), zip)


@constructor(map)
def map_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, sources = args[0], [cx.elements(a) for a in args[1:]]
    return Iter((cx.call(fn, list(row), {}) for row in zip(*sources, strict=False)), map)


@constructor(filter)
def filter_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn = args[0]
    test = (lambda v: cx.truth(v)) if cx.is_none(fn) else (lambda v: cx.truth(cx.call(fn, [v], {})))
    return Iter((v for v in cx.elements(args[1]) if test(v)), filter)


@constructor(reversed)
def reversed_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, Object):
        method = value.special(cx, "__reversed__")
        if method is not None and not (isinstance(method, Method) and isinstance(method.function, Builtin)):
            return cx.call(method, [], {})  # type: ignore[no-any-return]
    return Iter(iter(list(cx.elements(value))[::-1]), reversed)


@constructor(itertools.chain)
def chain(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Iter((v for a in args for v in cx.elements(a)), itertools.chain)


@builtin(itertools.chain.from_iterable)
def chain_from_iterable(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Iter((v for a in cx.elements(args[-1]) for v in cx.elements(a)), itertools.chain)


@constructor(itertools.repeat)
def repeat(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    times = args[1] if len(args) > 1 else kwargs.get("times")
    source = itertools.repeat(args[0]) if times is None else itertools.repeat(args[0], cx.index(times))
    return Iter(iter(source), itertools.repeat)


@constructor(itertools.count)
def count(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Iter((Const(i) for i in itertools.count(*(a.const() for a in args))), itertools.count)


@constructor(itertools.islice)
def islice(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Iter(itertools.islice(cx.elements(args[0]), *(a.const() for a in args[1:])), itertools.islice)


def _combinatoric(fn: Any) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        pools, rest = ([args, []] if fn is itertools.product else [args[:1], args[1:]])
        rows = fn(*(list(cx.elements(p)) for p in pools), *(r.const() for r in rest),
                  **{k: v.const() for k, v in kwargs.items()})  # fmt: skip
        return Iter((Tuple(list(r)) for r in rows), fn)

    return make


for _fn in (itertools.product, itertools.combinations, itertools.permutations, itertools.combinations_with_replacement):
    constructor(_fn)(_combinatoric(_fn))


@constructor(itertools.zip_longest)
def zip_longest(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fill = kwargs.get("fillvalue", Const(None))
    rows = itertools.zip_longest(*(list(cx.elements(a)) for a in args), fillvalue=fill)
    return Iter((Tuple(list(r)) for r in rows), itertools.zip_longest)


@constructor(itertools.accumulate)
def accumulate(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn = args[1] if len(args) > 1 else None
    step = (lambda a, b: cx.call(fn, [a, b], {})) if fn else (lambda a, b: operators.binary(cx, "+", a, b))
    return Iter(itertools.accumulate(cx.elements(args[0]), step), itertools.accumulate)


@builtin(sum)
def sum_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    total = args[1] if len(args) > 1 else kwargs.get("start", Const(0))
    for value in cx.elements(args[0]):
        total = operators.binary(cx, "+", total, value)
    return total


def _extreme(name: str, op: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def pick(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        values = list(cx.elements(args[0])) if len(args) == 1 else args
        key = kwargs.get("key", Const(None))
        if not values:
            if "default" in kwargs:
                return kwargs["default"]
            cx.throw(ValueError, f"{name}() arg is an empty sequence")
        rank = (lambda v: v) if cx.is_none(key) else (lambda v: cx.call(key, [v], {}))
        best, best_rank = values[0], rank(values[0])
        for value in values[1:]:
            value_rank = rank(value)
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


def sort_values(cx: Capture, values: list[Value], kwargs: Kwargs) -> list[Value]:
    key = kwargs.get("key", Const(None))
    reverse = cx.truth(kwargs.get("reverse", Const(False)))
    ranked = [(v if cx.is_none(key) else cx.call(key, [v], {}), v) for v in values]

    def order(a: tuple[Value, Value], b: tuple[Value, Value]) -> int:
        if cx.truth(operators.compare(cx, "<", a[0], b[0])):
            return -1
        return 1 if cx.truth(operators.compare(cx, "<", b[0], a[0])) else 0

    return [v for _, v in sorted(ranked, key=functools.cmp_to_key(order), reverse=reverse)]


@builtin(sorted)
def sorted_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return List(sort_values(cx, list(cx.elements(args[0])), kwargs))


@builtin(functools.reduce)
def reduce_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    values = list(cx.elements(args[1]))
    if len(args) > 2:
        values.insert(0, args[2])
    if not values:
        cx.throw(TypeError, "reduce() of empty iterable with no initial value")
    return functools.reduce(lambda a, b: cx.call(args[0], [a, b], {}), values)


# numbers ------------------------------------------------------------------------------------------------------
def _through_operator(text: str) -> Callable[[Capture, Args, Kwargs], Value]:
    return lambda cx, args, kwargs: operators.binary(cx, text, args[0], args[1])


for _text, (_op, _, _) in operators.BINARY.items():
    builtin(_op)(_through_operator(_text))
for _text, (_iop, _) in operators.INPLACE.items():
    builtin(_iop)(_through_operator(_text))
for _text, (_cmp, _, _) in operators.COMPARE.items():
    builtin(_cmp)(lambda cx, args, kwargs, _t=_text: operators.compare(cx, _t, args[0], args[1]))
for _text, (_un, _) in operators.UNARY.items():
    builtin(_un)(lambda cx, args, kwargs, _t=_text: operators.unary(cx, _t, args[0]))


@builtin(operator.getitem)
def operator_getitem(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.getitem(cx, args[0], args[1])


@builtin(operator.setitem)
def operator_setitem(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].setitem(cx, args[1], args[2])
    return Const(None)


@builtin(operator.not_)
def operator_not(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(not cx.truth(args[0]))


@builtin(operator.truth)
def operator_truth(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.truth(args[0]))


@builtin(operator.is_, operator.is_not)
def operator_is(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    raise Break("builtin-call", "operator.is_")


@builtin(operator.contains)
def operator_contains(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(args[0].contains(cx, args[1]))


@builtin(operator.index)
def operator_index(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Const(cx.index(args[0]))


@constructor(operator.itemgetter)
def itemgetter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Getter(operator.itemgetter, args)


@constructor(operator.attrgetter)
def attrgetter(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Getter(operator.attrgetter, args)


class Getter(Value):
    """operator.itemgetter or attrgetter."""

    def __init__(self, cls: type, keys: Args) -> None:
        self.cls = cls
        self.keys = keys

    def python_type(self) -> type:
        return self.cls

    def call(self, cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if self.cls is operator.itemgetter:
            found = [operators.getitem(cx, args[0], k) for k in self.keys]
        else:
            found = [self._attr(cx, args[0], k.const()) for k in self.keys]
        return found[0] if len(found) == 1 else Tuple(found)

    def _attr(self, cx: Capture, value: Value, path: str) -> Value:
        for name in path.split("."):
            value = cx.realize(value.getattr(cx, name))
        return value


@builtin(abs)
def abs_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Tensor):
        return cx.graph.call_function(abs, args, {})  # type: ignore[no-any-return]
    if isinstance(args[0], Object):
        method = args[0].special(cx, "__abs__")
        if method is not None:
            return cx.call(method, [], {})  # type: ignore[no-any-return]
    return cx.evaluate(abs, args[0].const())  # type: ignore[no-any-return]


@builtin(pow)
def pow_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2:
        return operators.binary(cx, "**", args[0], args[1])
    return cx.evaluate(pow, *(a.const() for a in args))  # type: ignore[no-any-return]


@builtin(divmod)
def divmod_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Tuple([operators.binary(cx, "//", *args), operators.binary(cx, "%", *args)])


@builtin(math.prod)
def math_prod(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    total = kwargs.get("start", Const(1))
    for value in cx.elements(args[0]):
        total = operators.binary(cx, "*", total, value)
    return total


def _effectful(name: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        raise Break("builtin-call", f"{name}({', '.join(a.describe() for a in args)})")

    return handler


for _name in ("print", "input", "open", "exec", "eval", "compile", "breakpoint", "dir", "locals"):
    builtin(getattr(builtins, _name))(_effectful(_name))


@builtin(inspect.signature)
def signature(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, bound = (args[0].function, True) if isinstance(args[0], Method) else (args[0], False)
    if not isinstance(fn, Function) or fn.real is None or kwargs:
        raise Break("builtin-call", f"inspect.signature({args[0].describe()})")
    return cx.make(inspect.signature(types.MethodType(fn.real, cx) if bound else fn.real))  # type: ignore[no-any-return]


@builtin(typing.cast)
def cast(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


@constructor(functools.partial)
def partial(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn = args[0]
    if isinstance(fn, Partial):
        return Partial(fn.function, [*fn.args, *args[1:]], {**fn.kwargs, **kwargs}, functools.partial)
    return Partial(fn, args[1:], kwargs, functools.partial)


__all__ = ["Dict", "DictView", "PyModule", "Raised", "Sequence", "Set", "mro_lookup", "sort_values"]
