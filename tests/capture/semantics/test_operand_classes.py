"""Operands of any class in syntax and C functions: subclasses of numbers, strings and containers, and integers above 64 bits."""

from __future__ import annotations

import bisect
import collections
import functools
import io
import itertools
import math
import operator
import random
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fuzz.calls import Distinct, Float, Int, Named, Ordered, Table, Text, difference

import pycompiler
from tests.harness.compare import assert_same_calls


class Pair(tuple):
    def __float__(self) -> float:
        return 2.5

    def __index__(self) -> int:
        return 1

    def __floor__(self) -> int:
        return 8


class Asked(dict):
    def __complex__(self) -> complex:
        return 2 + 1j


class Getter:
    def __repr__(self) -> str:
        return "Getter"

    def __getitem__(self, key: Any) -> Any:
        return "got", key


class Adder(Getter):
    """`operator.concat` does not call `__add__` for an operand that is no sequence."""

    def __add__(self, other: Any) -> Any:
        return "added", other

    def __iadd__(self, other: Any) -> Any:
        return "added in place", other


class Hashed(set):
    def __hash__(self) -> int:
        return 5


def called(*args: Any, **named: Any) -> Any:
    return args, named


def stored(a: Any, b: Any) -> Any:
    a[b] = 1
    return a


def removed(a: Any, b: Any) -> Any:
    del a[b]
    return a


def sliced(a: Any, b: Any) -> Any:
    return a[b:]


FAR = 2**63
ROWS: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    **{
        f"{name} by {kind}": (fn, lambda kind=kind, key=key: ([1, 2, 3], key))
        for name, fn in {
            "get": operator.getitem, "set": stored, "del": removed, "pop": list.pop, "insert": lambda a, b: (a.insert(b, 7), a),
            "a tuple's": lambda a, b: tuple(a)[b], "a deque's": lambda a, b: collections.deque(a)[b], "slice": sliced,
            "rotate": lambda a, b: collections.deque(a).rotate(b), "times": operator.mul, "range": lambda a, b: [*range(b)[:2]],
            "count": lambda a, b: [*enumerate(a, b)], "index": lambda a, b: operator.index(b),
        }.items()
        for kind, key in {"an Int": Int(1), "64 bits": FAR, "-64 bits": -FAR - 1, "an Int of 64 bits": Int(FAR), "a text": Text("a")}.items()
    },
    **{f"{fn.__name__} of a tuple's class": (fn, lambda: (Pair((1, 2)),)) for fn in (math.sqrt, math.floor, math.isnan, chr, hex)},
    "the order of a tuple's class and a number": (lambda a, b: a < b, lambda: (0, Pair((1, 2)))),
    "a namedtuple and a number": (operator.add, lambda: (Named(1, 2), 1)),
    "a namedtuple times a number": (operator.mul, lambda: (Named(1, 2), 2.5)),
    "a power of a text": (operator.pow, lambda: (torch.ones(1), Text("a"))),
    "an index of an OrderedDict": (operator.contains, lambda: ({1: 2}, collections.OrderedDict(a=1))),
    "an update in place": (operator.ior, lambda: (collections.OrderedDict(a=1), (1, 2))),
    **{
        f"{template} of {type(value()).__name__}": (operator.mod, lambda template=template, value=value: (template, value()))
        for template in ("%(a)s", "%(b)s", "%s", "%r", "%d", "plain", "%(a)s %s")
        for value in (lambda: Table(a=1), lambda: Ordered(a=1), Getter, lambda: collections.Counter("aab"), lambda: Text("ab"), lambda: [1],
                      lambda: collections.OrderedDict(a=1), lambda: collections.ChainMap({"a": 1}), lambda: collections.deque([1]),
                      lambda: Named(1, 2))
    },
    "bytes % a dict": (operator.mod, lambda: (b"plain", collections.OrderedDict(a=1))),
    "a call with a dict's class": (lambda a: called(**a), lambda: (Ordered(a=1),)),
    "a dict of a dict's class": (lambda a: {**a}, lambda: (Ordered(a=1),)),
    "a set's class in a set": (lambda a, b: (b in a, a.discard(b), a), lambda: ({frozenset({1}), 2}, Distinct({1}))),
    "a set's class with a hash in a set": (lambda a, b: b in a, lambda: ({frozenset({1}), 2}, Hashed({1}))),
    "sets of which one is none": (lambda a, b: a.intersection_update([1], b), lambda: ({1, 2}, 3)),
    "a set with a keyword": (lambda a: set.__init__(a, bogus=1), lambda: ({1},)),
    "a set of two": (lambda a: set.__init__(a, [1], [2]), lambda: ({1},)),
    "a deque of a text's length": (lambda a: a.__init__([1], "a"), lambda: (collections.deque([1]),)),
    "another class's iteration": (lambda a: range.__iter__(a), lambda: ([1],)),
    **{
        f"{name} {said}": (fn, lambda args=args: args)
        for name, fn in {
            "grad mode": torch.is_grad_enabled, "modes": torch._C._len_torch_dispatch_stack, "threads": torch.get_num_threads,
            "TF32": torch._C._get_cublas_allow_tf32, "overrides": torch._C._is_torch_function_all_disabled,
            "functions of": torch._C._has_torch_function, "function of": torch._C._has_torch_function_unary,
            "usage": torch._C._log_api_usage_once,
        }.items()
        for said, args in {"of one": (1,), "of a list": ([1],), "of two": ((1, 2), 2)}.items()
    },
    **{
        f"{name} of {kind.__name__}": (fn, lambda kind=kind, args=args: (*args, kind(1, 2) if kind is Named else kind((1, 2))))
        for name, fn, *args in (
            ("bytes.rjust", bytes.rjust, b"ab"), ("bytes.rfind", bytes.rfind, b"ab"), ("an order", complex.__lt__, 1j),
            ("int.__hash__", int.__hash__), ("float.conjugate", float.conjugate), ("float.__format__", float.__format__, 2.5),
            ("bytes.split", bytes.split), ("an attribute", float.__getattribute__, 2.5), ("numel", torch.Size.numel),
            ("an item", tuple.__getitem__, (1, 2)), ("a list's item", list.__getitem__, [1, 2]),
        )
        for kind in (Pair, Named, torch.Size)
    },
    **{
        f"{n}: {fn.__name__} of {', '.join(type(a).__name__ for a in args)}": (fn, lambda args=args: args)
        for n, (fn, *args) in enumerate((
            (torch._C._infer_size,), (torch._C._infer_size, (1, 2)), (torch.istft, slice(0, 1)), (torch.ctc_loss,), (torch.ctc_loss, 1, 2),
            (torch.corrcoef,), (torch.cov,), (bisect.insort, Table(a=1), {}), (bisect.bisect_left, [1], 1, FAR),
            (bisect.insort_left, 1.0, 1), (functools.reduce, float, 0.0), (itertools.islice, (1, 2), 1.5), (itertools.permutations, 1, 2.5),
            (itertools.combinations, -0.0, collections.OrderedDict()), (tuple.index, (1, 2), 3, None), (str.join, "ab", -0.0),
            (collections.deque.index, collections.deque([1]), 2, (1, 2)), (list.index, [1], 2, None), (dict, torch.tensor([True, False])),
            (object.__init__, iter([]), 1), (collections.OrderedDict.move_to_end, collections.OrderedDict(), None),
            (collections.OrderedDict.pop, collections.OrderedDict(), (1, 2)), (complex, Asked(), [1]), (operator.xor, Float(1.5), torch.ones(2)),
            (operator.lshift, torch.tensor([1j]), Float(1.5)), (torch.Size.numel, torch.Size([1]), 2), (sum, [], Text("ab")), (sum, [], b""),
            (dict.update, {}, torch.tensor([True])), (operator.concat, torch.ones(1), torch.ones(1)), (operator.concat, [1], torch.ones(1)),
            (operator.iconcat, torch.ones(1), [1]), (operator.countOf, 3, 3), (torch._C._has_torch_function, None),
            (torch._C._disabled_torch_function_impl, (1, 2), torch.float64, 1),
        ))
    },
    **{
        f"{fn.__name__} of a class with __add__ and {other!r}": (fn, lambda other=other: (Adder(), other))
        for fn in (operator.concat, operator.iconcat) for other in (1, [1], None, {})
    },
    "a stream with a keyword": (lambda: io.BytesIO("ab", bogus=1), lambda: ()),
    "an iterator times a text in place": (lambda a: operator.imul(iter(a), "ab"), lambda: ([1],)),
    "a class with a keyword": (lambda a: type(a, bogus=1), lambda: (2,)),
    "a count with a keyword": (lambda: itertools.count("ab", {}, bogus=1), lambda: ()),
    "a slice of what has no hash": (sliced, lambda: ({1: 2}, [1])),
    "a slice as a key": (lambda a: ({slice(0, a): 1}, {slice(0, 3): 1}[slice(0, a)]), lambda: (3,)),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_what_is_asked_of_them_is_eagers(name: str) -> None:
    fn, make = ROWS[name]

    def program(x: torch.Tensor, *args: Any) -> Any:
        try:
            return x + 1, fn(*args)
        except Exception as e:
            return x * 2, type(e), str(e)

    compiled = pycompiler.compile(program, backend="eager")
    assert_same_calls(compiled, program, lambda: (torch.ones(1), *make()), exact=True)


@pytest.mark.parametrize("opaque", [threading.Lock, lambda: random.Random(1)], ids=["lock", "generator"])
def test_the_reflected_method_answers_where_the_left_class_only_inherits_objects(opaque: Callable[[], Any]) -> None:
    class Equal:
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]

    def program(x: torch.Tensor, a: Any, b: Any) -> Any:
        return x + 1, a == b, a != b

    compiled = pycompiler.compile(program, backend="eager", fullgraph=True)
    assert compiled(torch.ones(1), opaque(), Equal())[1:] == (True, False)


def test_slices_with_equal_bounds_are_one_key() -> None:
    if sys.version_info < (3, 12):
        pytest.skip("slices have no hash")

    def program(x: torch.Tensor, table: dict[slice, int], k: int) -> Any:
        return x * table[slice(0, k)], {slice(0, k): 1, slice(0, 3): 2}

    table = {slice(0, 3): 5, slice(0, 4): 6}
    compiled = pycompiler.compile(program, backend="eager")
    for k in (3, 4, 3):
        assert repr(compiled(torch.ones(1), table, k)) == repr(program(torch.ones(1), table, k))


SEEN = [  # found by the fuzzer: a piece of syntax, and the kinds of its operands in each call
    ("r = a < b < c", ["bytes", "OwnFloat", "OwnDict"]),
    ("r = b == c", ["int", "OwnInt", "OwnDict"]),
    ("r = a % b", ["key", "OwnObject", "int"]),
    ("r = a; r %= b", ["zero", "OwnObject", "int"], ["key", "OwnObject", "int"]),
    ("r = a % b", ["bytes", "OwnObject", "int"]),
    ("del a[b]; r = a", ["program", "dict", "int"]),
    ("del a[b]; r = a", ["program", "program", "int"]),
    ("del a[b]; r = a", ["program", "big", "int"]),
    ("a[b] = c; r = a", ["Getter", "index", "int"]),
    ("a[b] = c; r = a", ["Getter", "64 bits", "int"]),
    ("a[b:] = c; r = a", ["Many", "zero", "nan"]),
    ("a[::b] = c; r = a", ["list", "int", "none"]),
    ("r = a[b]", ["list", "dtype", "int"]),
    ("r = a.n", ["alias", "int", "int"]),
    ("r = a >> b", ["OwnFloat", "integers", "int"]),
    ("with a:\n    r = b.nothing", ["size", "int", "int"], ["ordered", "int", "int"]),
    ("x, y = a; r = (x, y)", ["dtype", "int", "int"]),
    ("r = (*a, *b)", ["list", "dtype", "int"]),
    ("try:\n    raise KeyError(b)\nexcept a as e:\n    r = type(e)", ["OwnTuple", "int", "int"], ["error", "int", "int"]),
    ("r = f'{a:{b}}'", ["OwnDict", "row", "int"]),
    ("r = f'{a}' + b", ["row", "text", "int"]),
    ("r = b + f'{a}'", ["row", "text", "int"]),
    ("r = f'{a}' * b", ["row", "int", "int"]),
    ("r = f'{a}' < b", ["row", "text", "int"]),
    ("r = max(f'{a}', b)", ["row", "text", "int"]),
    ("r = a % b", ["text", "OwnStr", "int"], ["text", "Way", "int"]),
    ("r = a % b", ["OwnDict", "OwnDict", "int"]),
    ("r = max(a, b, c)", ["Named", "Named", "ones"]),
    ("r = a >= b", ["tuple", "Named", "int"]),
    ("r = a < b", ["pairs", "Many", "one"], ["Many", "OwnList", "zero"], ["Many", "OwnTuple", "zero"]),
    ("r = a > b", ["size", "OwnTuple", "int"]),
    ("r = a + b", ["size", "int", "int"], ["size", "list", "int"], ["size", "text", "int"]),
    ("r = sorted([a, b, c])", ["program", "OwnTuple", "size"]),
    ("r = a; r += b", ["ones", "size", "int"], ["size", "ones", "int"]),
    ("r = a; r += b", ["OwnList", "integers", "int"], ["OwnList", "no rows", "int"]),
    ("r = a; r *= b", ["Color", "size", "int"], ["iterator", "tuple", "int"]),
    ("r = [v for v in a]", ["iterator", "int", "int"], ["OwnDict", "int", "int"], ["iterator", "int", "int"]),
]  # fmt: skip


@pytest.mark.parametrize(("source", "calls"), [(source, calls) for source, *calls in SEEN])
def test_what_syntax_asks_of_operands(source: str, calls: list[list[str]]) -> None:
    assert difference(source, calls, False) is None


def test_a_class_of_errors_in_a_tuple_of_the_programs() -> None:
    class Errors(tuple):
        def __iter__(self) -> Any:
            raise AssertionError("C does not ask")

    def fn(kinds: Any, x: torch.Tensor) -> Any:
        y = x * 2
        try:
            try:
                raise KeyError(1)
            except kinds as e:
                return y, type(e)
        except Exception as e:  # an error that leaves the frame would start a rerun
            return y, repr(e)

    compiled = pycompiler.compile(fn, backend="eager")
    for kinds, told in (((ValueError, KeyError), KeyError), ((ValueError,), "KeyError(1)")):
        assert compiled(Errors(kinds), torch.ones(2))[1] == told
