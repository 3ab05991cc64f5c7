"""Python's operators on values: binary, comparison, unary, subscripts.

In: an operator as in bytecode ("+", "+=", "<") and values.  Out: a value.

Order: two constants are evaluated.  A tensor operand makes a graph node.  Containers follow their own rules.  All
others use the special methods of their classes, as Python dispatches them.
"""

from __future__ import annotations

import collections.abc
import decimal
import operator
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from pycompiler.capture.arrays import constant_arrays, numpy_calls, numpy_numbers
from pycompiler.capture.assumptions import list_guards
from pycompiler.capture.breaks import Break, Raised
from pycompiler.capture.semantics import container_elements, formatting
from pycompiler.capture.semantics.kind_table import KindTable
from pycompiler.capture.semantics.polyfills import is_inlined
from pycompiler.capture.values import deferred, native_objects, symbolic_numbers
from pycompiler.capture.values.array import Array
from pycompiler.capture.values.attributes import MISSING, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.classes import Class
from pycompiler.capture.values.constant import LITERALS, Const, Identity, UnknownObject, UnknownStr
from pycompiler.capture.values.containers.dicts import Dict, DictView
from pycompiler.capture.values.containers.keys import Key, keys_of
from pycompiler.capture.values.containers.sequences import Deque, List, Sequence, Slice, Tuple
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.deferred import Deferred
from pycompiler.capture.values.enum_members import Member
from pycompiler.capture.values.exceptions import builtin_base
from pycompiler.capture.values.functions import ALIASES, Builtin, Method
from pycompiler.capture.values.native_objects import NativeObject
from pycompiler.capture.values.objects import Object, annotation
from pycompiler.capture.values.opaque import Opaque
from pycompiler.capture.values.symbolic_numbers import PLAIN_VALUES, NestedInt, Symbolic, compute, compute_nested
from pycompiler.capture.values.tensor import Tensor, truth_in
from pycompiler.ir.source import mro_of, namespace_of

# Differences between Python versions that the opcode handlers need.
FOR_ITER_POPS = sys.version_info < (3, 12)
END_FOR_POPS_TWO = sys.version_info[:2] == (3, 12)
NULL_AFTER_CALLABLE = sys.version_info >= (3, 13)

# operator -> (function, special method, reflected special method)
BINARY: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "+": (operator.add, "__add__", "__radd__"),
    "-": (operator.sub, "__sub__", "__rsub__"),
    "*": (operator.mul, "__mul__", "__rmul__"),
    "/": (operator.truediv, "__truediv__", "__rtruediv__"),
    "//": (operator.floordiv, "__floordiv__", "__rfloordiv__"),
    "%": (operator.mod, "__mod__", "__rmod__"),
    "**": (operator.pow, "__pow__", "__rpow__"),
    "@": (operator.matmul, "__matmul__", "__rmatmul__"),
    "&": (operator.and_, "__and__", "__rand__"),
    "|": (operator.or_, "__or__", "__ror__"),
    "^": (operator.xor, "__xor__", "__rxor__"),
    "<<": (operator.lshift, "__lshift__", "__rlshift__"),
    ">>": (operator.rshift, "__rshift__", "__rrshift__"),
    "divmod()": (divmod, "__divmod__", "__rdivmod__"),
}
INPLACE: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "+=": (operator.iadd, "__iadd__"),
    "-=": (operator.isub, "__isub__"),
    "*=": (operator.imul, "__imul__"),
    "/=": (operator.itruediv, "__itruediv__"),
    "//=": (operator.ifloordiv, "__ifloordiv__"),
    "%=": (operator.imod, "__imod__"),
    "**=": (operator.ipow, "__ipow__"),
    "@=": (operator.imatmul, "__imatmul__"),
    "&=": (operator.iand, "__iand__"),
    "|=": (operator.ior, "__ior__"),
    "^=": (operator.ixor, "__ixor__"),
    "<<=": (operator.ilshift, "__ilshift__"),
    ">>=": (operator.irshift, "__irshift__"),
}
OPERANDS = (*PLAIN_VALUES, Tensor)
MOST_ELEMENTS = 10**6  # of a repeated sequence
SETS = ("|", "&", "-", "^")
CHANGED_IN_PLACE = (list, set, collections.deque, dict, collections.OrderedDict, collections.defaultdict)
# Their comparison with a number depends on the number's class only.
NON_NUMERIC = (str, bytes, type(None), type(Ellipsis))
COMPARE: dict[str, tuple[Callable[[Any, Any], Any], str, str]] = {
    "<": (operator.lt, "__lt__", "__gt__"),
    "<=": (operator.le, "__le__", "__ge__"),
    "==": (operator.eq, "__eq__", "__eq__"),
    "!=": (operator.ne, "__ne__", "__ne__"),
    ">": (operator.gt, "__gt__", "__lt__"),
    ">=": (operator.ge, "__ge__", "__le__"),
}
UNARY: dict[str, tuple[Callable[[Any], Any], str]] = {
    "-": (operator.neg, "__neg__"),
    "+": (operator.pos, "__pos__"),
    "~": (operator.invert, "__invert__"),
}

BY_KIND = KindTable(("binary", "compare", "unary"), (Identity, Deferred, NestedInt, Array, Tensor, NativeObject))
"""Handlers ``(cx, op, function, *operands)`` of kinds whose rules come before those of special methods.  `function` is
the operator's, such as `operator.add`."""


def binary(cx: Capture, op: str, left: Value, right: Value) -> Value:
    inplace = op in INPLACE
    fn, special, reflected = BINARY[op.rstrip("=") if inplace else op]
    left, right = numpy_calls.tensor_operands(cx, op, left, right)
    if (of_kind := BY_KIND.handler("binary", left, right)) is not None:
        return of_kind(cx, op, fn, left, right)  # type: ignore[no-any-return]
    told = INPLACE[op][0] if inplace else fn  # error messages name the operator of this function
    if isinstance(left, PLAIN_VALUES) and isinstance(right, PLAIN_VALUES):
        if fn is operator.mod and isinstance(right, Member) and isinstance(left, Const) and type(left.value) is str:
            return formatting.printf(cx, left.value, right)
        return _of_plain(cx, fn, told, left, right)
    if inplace:
        found = _mapping_in_place(cx, op, left, right) or _special(cx, left, INPLACE[op][1], right)
        if found is not None:
            return found
    if _of_types(cx, left, right):
        return cx.make(cx.evaluate_raw(told, annotation(cx, left), annotation(cx, right)))
    plain = op.rstrip("=") if inplace else op
    tuples = plain in ("+", "*") and (
        isinstance(left, Tuple) or isinstance(right, Tuple)
    )  # its elements keep their identity
    constant = left.is_const() and right.is_const() and not (_has_metaclass(left) or _has_metaclass(right))
    if constant and not tuples:
        return cx.evaluate(told, left, right)
    # `*=` repeats a sequence on the right only if the left class is from C and has no sequence slots.
    repeated = op == "*=" and issubclass(right.python_type(), (list, tuple, str, bytes, bytearray))
    if repeated and left.python_type() not in (*EXAMPLES, *LITERALS):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    first = _reflected_first(cx, left, right, reflected)
    found = _special(cx, right, reflected, left) if first else None
    if found is None:
        found = _mapping_operator(cx, plain, left, right) or _special(cx, left, special, right)
    if found is None and plain == "%":  # bytes and str never leave `%` to the other operand
        if isinstance(left, Const) and isinstance(left.value, str):
            return formatting.printf(cx, left.value, right)
        if left.python_type() in (bytes, bytearray):
            raise Break("unsupported-operation", f"{left.describe()} % {right.describe()}")
    if found is None and not first and left.python_type() is not right.python_type():
        _check_opaque_first(left, special, right)
        found = _special(cx, right, reflected, left)
    if found is None and plain in ("+", "*"):  # the methods of both operands come before sequence operations
        found = _sequence_in_place(cx, op, left, right) if inplace else None
        found = found or _sequences(
            cx, plain, *(_as_sequence(cx, v, n) for v, n in ((left, special), (right, reflected)))
        )
    if found is not None:
        return found
    return _unsupported(cx, op, told, left, right)


@BY_KIND.row("binary", Identity)
def _binary_of_ids(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    return binary(cx, op, *(_number_of(cx, v) if isinstance(v, Identity) else v for v in (left, right)))


@BY_KIND.row("binary", Deferred)
@BY_KIND.row("compare", Deferred)
@BY_KIND.row("unary", Deferred)
def _of_deferred(cx: Capture, op: str, fn: Callable[..., Any], *operands: Value) -> Value:
    return deferred.compute(cx, fn, operands)


@BY_KIND.row("binary", NestedInt)
@BY_KIND.row("compare", NestedInt)
def _of_nested_ints(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    return compute_nested(cx, fn, left, right)


@BY_KIND.row("binary", NativeObject)
@BY_KIND.row("compare", NativeObject)
@BY_KIND.row("unary", NativeObject)
def _of_native_objects(cx: Capture, op: str, fn: Callable[..., Any], *operands: Value) -> Value:
    inplace = op in INPLACE
    return native_objects.compute(cx, INPLACE[op][0] if inplace else fn, [*operands], reads=not inplace)


def _formatted(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """`left % right` for a text.  Its method runs before an array's, and never returns NotImplemented."""
    if not op.startswith("%") or not issubclass(left.python_type(), (str, bytes, bytearray)):
        return None
    if isinstance(left, Const) and isinstance(left.value, str):
        return formatting.printf(cx, left.value, right)
    if not isinstance(left, Object):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    return None


@BY_KIND.row("binary", Array)
def _binary_of_arrays(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    if isinstance(left, Tensor) and not cx.functions.concerns([left], {}):
        return numpy_calls.tensor_and_array(cx, op.rstrip("="), left, right)
    known = _formatted(cx, op, left, right) or constant_arrays.binary(cx, op, left, right)
    return known or numpy_calls.binary(cx, op, INPLACE[op][1] if op in INPLACE else BINARY[op][1], left, right)


@BY_KIND.row("binary", Tensor)
def _binary_of_tensors(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    inplace = op in INPLACE
    special, reflected = BINARY[op.rstrip("=") if inplace else op][1:]
    if (text := _formatted(cx, op, left, right)) is not None:
        return text
    found = _overridden(cx, INPLACE[op][1] if inplace else special, reflected, left, right)
    if found is not None:
        return found
    # The method of a left operand that is an object runs first, also if its class has `__torch_function__`.
    if not isinstance(left, OPERANDS):
        # A list is extended by the tensor's elements.
        found = _sequence_in_place(cx, op, left, right) if op == "+=" else None
        found = found or (_special(cx, left, INPLACE[op][1], right) if inplace else None)
        found = found or _special(cx, left, special, right)
        if found is not None:
            return found
    if not (isinstance(left, OPERANDS) and isinstance(right, OPERANDS) or _has_torch_function(cx, left, right)):
        if isinstance(right, Object) and lookup(cx, right.cls, "__getattr__") is not MISSING:
            raise Break(
                "unsupported-operation", f"{left.describe()} {op} {right.describe()}, whose __getattr__ torch calls"
            )
        found = _special(cx, right, reflected, left)
        if found is not None:
            return found
        names = (special, reflected, *([INPLACE[op][1]] if inplace else []))
        others = [v.python_type() for v in (left, right) if not isinstance(v, Tensor)]
        if any(issubclass(cls, (int, float, complex)) or hasattr(cls, n) for cls in others for n in names):
            # torch accepts a number of a program's class too.  A sequence uses the tensor as a repeat count, or raises
            # its own error.
            raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
        asked = "** or pow()" if op == "**" else op
        cx.throw(TypeError, f"unsupported operand type(s) for {asked}: {_type(left)!r} and {_type(right)!r}")
    if isinstance(left, Tensor):
        left.assume(cx, INPLACE[op][1] if inplace else special)
    elif isinstance(right, Tensor):
        right.assume(cx, reflected)
    if inplace and isinstance(left, Tensor) and not cx.items.is_number(left):
        return cx.graph.call_function(INPLACE[op][0], [left, right], {}, always=True)
    return cx.graph.call_function(fn, [*cx.items.beside(fn, left, right)], {})


def _of_types(cx: Capture, left: Value, right: Value) -> bool:
    """Whether one operand is a type expression (`list[int]`, `int | None`), and the other one too, or a plain class or
    None."""

    kinds = [_annotates(cx, v) for v in (left, right)]
    return None not in kinds and True in kinds


ASKED_OF_CLASSES = ("__or__", "__ror__", "__eq__")


def _annotates(cx: Capture, value: Value) -> bool | None:
    """True for a type expression, False for a plain class or None, None for other values.  Reads no symbol's value."""
    if value.python_type() in ALIASES:
        return isinstance(value, (Object, Opaque, Builtin)) or None
    cls = value.cls if isinstance(value, Class) else value.fn if isinstance(value, Builtin) else type
    plain = isinstance(cls, type) and all(mro_lookup(type(cls), n) is getattr(type, n) for n in ASKED_OF_CLASSES)
    return False if plain and (cls is not type or cx.is_none(value)) else None


def _number_of(cx: Capture, value: Identity) -> Value:
    """The id of an existing object as a number, which is guarded from then on."""
    cx.looks_at_address()
    return value.settled(cx)


def _has_torch_function(cx: Capture, *values: Value) -> bool:
    """Whether a tensor operator calls an operand's `__torch_function__`: its class need not be a tensor class."""
    return bool(cx.functions.concerns(list(values), {}))


def _overridden(cx: Capture, special: str, reflected: str, left: Value, right: Value) -> Value | None:
    """left.special(right), or its equivalent if a tensor class defines its own methods."""
    mine = left.special(cx, special) if isinstance(left, Tensor) and left.is_special else None
    theirs = right.special(cx, reflected) if isinstance(right, Tensor) and right.is_special else None
    if theirs is not None and (isinstance(left, Tensor) or mine is not None):
        raise Break("tensor-subclass", f"{left.describe()} and {right.describe()}.{reflected}")
    for method, other in ((mine, right), (theirs, left)):
        if method is not None:
            result = cx.call(method, [other], {})
            if isinstance(result, Const) and result.value is NotImplemented:
                raise Break("tensor-subclass", f"{method.describe()} returns NotImplemented")
            return result
    return None


def _of_plain(cx: Capture, fn: Callable[..., Any], told: Callable[..., Any], *values: Const | Symbolic) -> Value:
    """An operator on constants and symbolic numbers.  `told`: the function whose error messages name the operator."""
    found = compute(cx, fn, values) if any(isinstance(v, Symbolic) for v in values) else None
    return found or cx.evaluate(told, *values)


def _reflected_first(cx: Capture, left: Value, right: Value, reflected: str, *, compared: bool = False) -> bool:
    """Whether the right operand's method runs first.

    Its class must derive from the left one's and override the method; for comparisons an inherited method is enough.
    """
    if not isinstance(right, (Object, Opaque, Class)) or not isinstance(
        left, (Object, Class, Sequence, Set, Dict, *PLAIN_VALUES)
    ):
        return False
    ours, theirs = right.python_type(), left.python_type()
    if ours is theirs or theirs not in mro_of(ours):  # an abstract class need not be in its mro
        return False
    first = compared or lookup(cx, ours, reflected) is not lookup(cx, theirs, reflected)
    if first and isinstance(right, Opaque):
        raise Break(
            "unsupported-operation",
            f"{right.describe()}.{reflected}, which Python calls before the method of {left.describe()}",
        )
    return first


# An instance that represents its class in a TypeError about operands.
EXAMPLES: dict[type, Any] = {
    list: [], tuple: (), torch.Size: torch.Size(()), dict: {}, set: set(), frozenset: frozenset(),
    types.BuiltinFunctionType: len, types.FunctionType: lambda: 0,
}  # fmt: skip


def _unsupported(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    """Raise Python's TypeError for an operator that neither operand supports."""
    _must_be_known(left, right)
    counts = op in ("*", "*=") and (_is_index(left) or _is_index(right))  # as a repeat count of a sequence
    if not counts and not any(isinstance(v, Opaque) or _native_operand(v) for v in (left, right)):
        cx.evaluate_raw(fn, _example(left), _example(right))
    raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")


def _must_be_known(*values: Value) -> None:
    """Break if a value is not known."""
    for value in values:
        if isinstance(value, (UnknownStr, UnknownObject)):
            raise value.broke


def _has_metaclass(value: Value) -> bool:
    """Whether the value is a class whose metaclass may define operators."""
    return isinstance(value, Class) and type(value.cls) is not type


def _example(value: Value) -> Any:
    """An object for which an operator raises the same error."""
    if value.is_const() and not _has_metaclass(value):
        return value.const()
    cls = value.python_type()
    if isinstance(value, Symbolic):
        return value.like().value
    found = next((e for c, e in EXAMPLES.items() if c is cls), None)
    return type(class_name(cls), (tuple,) if isinstance(value, Tuple) else (), {})() if found is None else found


def _is_index(value: Value) -> bool:
    if value.is_const() or isinstance(value, Symbolic):
        return False
    return any("__index__" in namespace_of(c) for c in mro_of(value.python_type()))


def _native_operand(value: Value) -> bool:
    """Whether the operators of an object may be written in C and are not modelled here."""
    if value.python_type() in ALIASES:
        return True
    if not isinstance(value, (Object, Opaque)):
        return False
    bases = [c for c in mro_of(value.python_type()) if c is not object]  # C types may also be created at run time
    return builtin_base(value.python_type()) is not object or any(
        isinstance(found, types.WrapperDescriptorType) for c in bases for found in namespace_of(c).values()
    )


def _type(value: Value) -> str:
    return class_name(value.python_type())


def _changed(cx: Capture, op: str, left: Value) -> Value | None:
    """The container that `op` changes in place by a C method: a container value, or the storage of an object that
    inherits it."""
    if not isinstance(left, Object) or left.storage is None:
        return left
    name, base = INPLACE[op][1], builtin_base(left.python_type())
    own = base in CHANGED_IN_PLACE and lookup(cx, left.python_type(), name) is mro_lookup(base, name)
    return left.storage if own else None


def _must_be_a_set(left: Value | None, right: Value) -> None:
    """Break for a set operand of a subclass with unknown contents, which a set would accept."""
    if isinstance(left, Set) and not isinstance(right, Set) and issubclass(right.python_type(), (set, frozenset)):
        raise Break(
            "unsupported-operation", f"{left.describe()} and {right.describe()}, a set subclass of unknown contents"
        )


def _mapping_in_place(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """In-place operators of dicts and sets, which run before the right operand's method.

    Also `+=` of a sequence subclass, which inherits it as a number's method.
    """
    if op == "+=" and isinstance(left, Object):
        return _sequence_in_place(cx, op, left, right)
    target, other = _changed(cx, op, left), container_elements.unwrapped(right)
    _must_be_a_set(target, other)
    if isinstance(target, Dict) and op == "|=":
        container_elements.dict_update(cx, target, right)
        return left
    if isinstance(target, Set) and issubclass(target.cls, set) and isinstance(other, Set) and op[:-1] in SETS:
        if op == "|=":
            container_elements.set_update(cx, target, other)
        else:
            container_elements.set_in_place(cx, op[0], target, other)
        return left
    return None


def _sequence_in_place(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """In-place operators of lists and deques, which run after all methods of numbers."""
    target = _changed(cx, op, left)
    if not isinstance(target, List):
        return None
    reflected = BINARY[op[:-1]][2]
    if left is target and isinstance(right, Opaque) and mro_lookup(right.python_type(), reflected) is not MISSING:
        raise Break(
            "unsupported-operation",
            f"{right.describe()}.{reflected}, which Python calls before the method of {left.describe()}",
        )
    if op == "+=":
        cx.effects.mutate(target, target.dropped())
        for value in container_elements.additions(cx, target, right):
            target.push(value) if isinstance(target, Deque) else target.add(value)
        return left
    if op == "*=" and not isinstance(target, Deque):
        right = cx.realize(right, "as the number of times a list is repeated")
        if not right.is_const():
            return None
        cx.effects.mutate(target)
        target.items[:] = cx.evaluate_raw(operator.mul, target.items, right.const())
        return left
    return None


def _as_sequence(cx: Capture, value: Value, name: str) -> Value:
    """The storage of an object whose class inherits this method of a sequence from C."""
    if not isinstance(value, Object) or not isinstance(value.storage, Sequence):
        return value
    base = builtin_base(value.python_type())
    return value.storage if lookup(cx, value.python_type(), name) is mro_lookup(base, name) else value


def _sequences(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """+ and * of sequences."""
    if isinstance(left, Deque) or isinstance(right, Deque):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    if isinstance(left, Sequence) and isinstance(right, Sequence) and op == "+":
        if isinstance(left, Tuple) and isinstance(right, Tuple) and _plain(left, right) is tuple:
            if right.cls is tuple and not left.truth(cx):
                return right
            if left.cls is tuple and not right.truth(cx):
                return left
            if right.reach is None and right.cls is tuple and (grown := left.more(right.items)) is not None:
                return grown
        if isinstance(left, List) is isinstance(right, List):
            items, cls = [*left.items, *right.items], list if isinstance(left, List) else _plain(left, right)
            if issubclass(cls, torch.Size) and not all(issubclass(cx.realize(v).python_type(), int) for v in items):
                raise Break(
                    "unsupported-operation",
                    f"a torch.Size of {left.describe()} and {right.describe()}, whose elements are not all ints",
                )
            return cx.sequence(items, cls)
    if op == "*":
        for a, b in ((left, right), (right, left)):
            if not isinstance(a, Sequence):
                continue
            b = cx.realize(b, "as the number of times a sequence is repeated")
            if isinstance(b, Const) and isinstance(b.value, int):
                cx.evaluate_raw(operator.mul, (), b.value)
                if isinstance(a, Tuple) and a.cls is tuple and (b.value == 1 or not a.truth(cx)):
                    return a
                if len(a.items) * b.value > MOST_ELEMENTS:
                    raise Break("unsupported-operation", f"a {a.cls.__name__} of {len(a.items) * b.value} elements")
                return cx.sequence(a.items * b.value, list if isinstance(a, List) else _plain(a, b, operator.mul))
    return None


def _mapping_operator(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """Operators of dicts, sets and views of dicts."""
    given, right = right, container_elements.unwrapped(right) if isinstance(right, Object) else right
    _must_be_a_set(left, right)
    if isinstance(left, Dict) and isinstance(right, Dict) and op == "|":
        ours = right if issubclass(right.cls, left.cls) and right.cls.__ror__ is not left.cls.__ror__ else left
        # The result is a plain dict, also for a subclass.
        plain = issubclass(ours.cls, dict) and ours.cls.__or__ is dict.__or__
        if not plain and any(isinstance(lookup(cx, ours.cls, n), types.FunctionType) for n in FILLED_BY):
            raise Break(
                "unsupported-operation", f"{ours.describe()} | …, which calls user-defined methods of the class"
            )
        keys_of(left)
        merged = Dict({cx.key(k): v for k, v in left.pairs(cx)}, dict if plain else ours.cls,
                      default_factory=None if plain else ours.default_factory)  # fmt: skip
        container_elements.dict_update(cx, merged, given)
        return merged
    if op in SETS and any(isinstance(v, (Set, DictView)) for v in (left, right)):
        return _set_operator(cx, op, left, right)
    return None


FILLED_BY = ("__new__", "__init__", "__setitem__")
"""Methods by which C creates and fills a new instance of a dict class."""


def _set_operator(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """|, &, - and ^ of sets and of dict views.  A view converts itself to a set and accepts any iterable."""
    viewed = any(isinstance(v, DictView) for v in (left, right))
    if not viewed and not (isinstance(left, Set) and isinstance(right, Set)):
        return None
    if any(isinstance(v, DictView) and v.what == "values" for v in (left, right)):
        return None
    ours, mine = container_elements.members(cx, left)
    others, theirs = container_elements.members(cx, right)
    cls = set if viewed or not isinstance(left, Set) else left.cls
    if isinstance(left, Set) and viewed and op in ("&", "^"):
        theirs = None  # the view determines the order
    base = Set({cx.key(v): v for v in ours}, cls)
    base.plain, base.shadow = False, mine
    made = container_elements.set_operation(cx, op, base, others, BINARY[op][0], theirs)
    if isinstance(left, Set) and isinstance(right, Set):
        operands = [v for v in (left.operand(cx), right.operand(cx)) if v is not None]
        made.recipe = (BINARY[op][0], operands) if len(operands) == 2 else None
    return made


def _plain(left: Sequence, right: Value, fn: Callable[[Any, Any], Any] = operator.add) -> type:
    """The class of fn(left, right), for tuples or a tuple and a number."""
    empty = [v.cls(()) if isinstance(v, Sequence) and v.cls is torch.Size else () for v in (left, right)]
    return type(fn(empty[0], empty[1] if isinstance(right, Sequence) else 1))


def _special(cx: Capture, value: Value, name: str, other: Value) -> Value | None:
    """value.name(other), or None when the class has no such method or it returns NotImplemented."""
    own = value.special(cx, name) if isinstance(value, Class) else None
    if own is not None:
        result = cx.call(own, [other], {})
    elif isinstance(value, Class):
        if name in ("__eq__", "__ne__") or not (other := cx.realize(other, "as an operand of a class")).is_const():
            return None
        method = getattr(type(value.cls), name, None)
        if method is None:
            return None
        result = cx.evaluate(method, value, other)
    elif isinstance(value, Object):
        bound = value.special(cx, name)
        if bound is None:
            return None
        if isinstance(bound, Method) and isinstance(bound.function, Builtin) and not is_inlined(bound.function.fn):
            if value.storage is None:
                return None
            return binary_on_storage(cx, name, value, other)
        result = cx.call(bound, [other], {})
    else:
        return None
    return None if isinstance(result, Const) and result.value is NotImplemented else result


def binary_on_storage(cx: Capture, name: str, value: Object, other: Value) -> Value | None:
    """An operator that a subclass of a builtin container inherits."""
    assert value.storage is not None
    if isinstance(value.storage, Dict) and any(
        isinstance(v, Object) and container_elements.as_dict(cx, v) is v for v in (value, other)
    ):
        raise Break("unsupported-operation", f"{value.describe()}.{name} of a dict with user-defined iteration")
    text = next((t for t, (_, s, _) in BINARY.items() if s == name), None)
    if text is None:
        return _compared_in_c(cx, name, value, other)
    if not isinstance(value.storage, Sequence):
        return _mapping_operator(cx, text, value.storage, other)
    if lookup(cx, value.cls, BINARY[text][2]) is mro_lookup(builtin_base(value.cls), BINARY[text][2]):
        return None
    # A class with the reflected method treats the other operand as a number's, and raises at once.
    found = _sequences(cx, text, value.storage, container_elements.unwrapped(other))
    if found is None:
        raise Break("unsupported-operation", f"{value.describe()}.{name} with {other.describe()}")
    return found


def _compared_in_c(cx: Capture, name: str, value: Value, other: Value) -> Value | None:
    """The result of a container's C comparison with a container of the same kind; None: not implemented."""
    op = next((t for t, (_, s, _) in COMPARE.items() if s == name), None)
    left, right = container_elements.unwrapped(value), container_elements.unwrapped(other)
    alike = isinstance(left, Sequence) and isinstance(right, Sequence) and _family(left) is _family(right)
    alike = alike or (isinstance(left, Set) and isinstance(right, Set))
    alike = alike or (isinstance(left, Dict) and isinstance(right, Dict) and op in ("==", "!="))
    return compare(cx, op, left, right) if op is not None and alike else None


def compare(cx: Capture, op: str, left: Value, right: Value) -> Value:
    fn = COMPARE[op][0]
    left, right = numpy_calls.tensor_operands(cx, op, left, right)
    if (of_kind := BY_KIND.handler("compare", left, right)) is not None:
        return of_kind(cx, op, fn, left, right)  # type: ignore[no-any-return]
    if isinstance(left, PLAIN_VALUES) and isinstance(right, PLAIN_VALUES):
        if any(isinstance(v, Const) and type(v.value) in NON_NUMERIC for v in (left, right)):
            return cx.evaluate(fn, *(v.like().value if isinstance(v, Symbolic) else v.value for v in (left, right)))
        return _of_plain(cx, fn, fn, left, right)
    if _of_types(cx, left, right):
        return cx.make(cx.evaluate_raw(fn, annotation(cx, left), annotation(cx, right)))
    found = _compare_special(cx, op, left, right)
    if found is not None:
        return found
    given = left, right
    left, right = container_elements.unwrapped(left), container_elements.unwrapped(right)
    if isinstance(left, Slice) and isinstance(right, Slice):  # slices compare like tuples
        left, right = Tuple(left.parts), Tuple(right.parts)
    if op in ("==", "!="):
        if isinstance(left, Opaque) and cx.same(left, right) and not _equals_itself(cx, op, left.python_type()):
            raise Break("unsupported-operation", f"{left.describe()} {op} itself")
        return Const(_equal(cx, left, right) is (op == "=="))
    if isinstance(left, Sequence) and isinstance(right, Sequence) and _family(left) is _family(right):
        apart = first_difference(cx, left, right)
        if apart is not None:
            return compare(cx, op, *apart)
        return Const(fn(len(left.items), len(right.items)))
    if isinstance(left, (Set, DictView)) and isinstance(right, (Set, DictView)):
        return Const(fn(_keys(cx, left), _keys(cx, right)))
    constant = left is given[0] and right is given[1] and left.is_const() and right.is_const()
    if constant and not (_has_metaclass(left) or _has_metaclass(right)):
        return cx.evaluate(fn, left, right)
    left, right = given  # the error names their classes
    _must_be_known(left, right)
    if any(isinstance(v, Opaque) or _native_operand(v) for v in (left, right)):
        raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    cx.throw(TypeError, f"{op!r} not supported between instances of {_type(left)!r} and {_type(right)!r}")
    raise AssertionError


@BY_KIND.row("compare", Array)
def _compare_arrays(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    return constant_arrays.binary(cx, op, left, right) or numpy_calls.binary(cx, op, COMPARE[op][1], left, right)


@BY_KIND.row("compare", Tensor)
def _compare_tensors(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    found = _overridden(cx, COMPARE[op][1], COMPARE[op][2], left, right)
    if found is None and not isinstance(left, OPERANDS):
        found = _special(cx, left, COMPARE[op][1], right)
    if found is not None:
        return found
    for v in (left, right):
        if (
            not isinstance(v, Tensor)
            and not _has_torch_function(cx, v)
            and not (isinstance(v, PLAIN_VALUES) and issubclass(v.python_type(), (int, float, complex, bool)))
        ):
            if op in ("==", "!=") and not (isinstance(v, Object) or _has_own_eq(v)):
                return Const(op == "!=")
            raise Break("unsupported-operation", f"{left.describe()} {op} {right.describe()}")
    if isinstance(left, Tensor):
        left.assume(cx, COMPARE[op][1])
    elif isinstance(right, Tensor):
        right.assume(cx, COMPARE[op][2])
    return cx.graph.call_function(fn, [left, right], {})


@BY_KIND.row("compare", Identity)
def _compare_ids(cx: Capture, op: str, fn: Callable[..., Any], left: Value, right: Value) -> Value:
    """A comparison of an id with another id or a number."""
    both = isinstance(left, Identity) and isinstance(right, Identity)
    if both and op in ("==", "!="):
        if not cx.identical(left.value, right.value) and (left.is_gone() or right.is_gone()):  # type: ignore[attr-defined]
            raise Break("unsupported-operation", "the id of an object that no longer exists")
        return Const(cx.identical(left.value, right.value) is (op == "=="))  # type: ignore[attr-defined]
    return compare(cx, op, *(v.settled(cx) if isinstance(v, Identity) else v for v in (left, right)))


def _has_own_eq(value: Value) -> bool:
    """Whether an existing object's class defines `__eq__`: a NumPy number equals a tensor elementwise."""
    return isinstance(value, Opaque) and mro_lookup(value.python_type(), "__eq__") is not mro_lookup(object, "__eq__")


def by_method(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """The result of a comparison by the left operand's own method; None if it has none."""
    return _special(cx, left, COMPARE[op][1], right)


def _compare_special(cx: Capture, op: str, left: Value, right: Value) -> Value | None:
    """The comparison methods of user classes; `!=` without `__ne__` is `not ==`."""
    special, reflected = COMPARE[op][1:]
    order = [(left, special, right), (right, reflected, left)]
    if _reflected_first(cx, left, right, reflected, compared=True):
        order.reverse()
    for value, name, other in order:
        found = _special(cx, value, name, other)
        if found is None and isinstance(value, (Sequence, Set, Dict)) and isinstance(other, Object):
            found = _compared_in_c(cx, name, value, other)
        if found is not None:
            return found
        if op == "!=" and _differs_by_eq(cx, value):
            equal = _special(cx, value, "__eq__", other)
            if equal is not None:
                return Const(not cx.truth(equal))
        _check_opaque_first(value, name, other)
    return None


def _check_opaque_first(value: Value, name: str, other: Value) -> None:
    """Break if an opaque object's method may answer before a method of the program is called."""
    if isinstance(value, Opaque) and isinstance(other, Object):
        own = mro_lookup(value.python_type(), name)
        if own is not MISSING and own is not mro_lookup(object, name):
            raise Break("unsupported-operation", f"{value.describe()}.{name} with {other.describe()}")


def _equals_itself(cx: Capture, op: str, cls: type) -> bool:
    """Whether instances of this class equal themselves.  A nan does not, nor does an array, which compares elementwise."""
    if not issubclass(cls, (*PLAIN_EQUALS, float, complex, decimal.Decimal)):
        root = cls.__module__.partition(".")[0]
        plain = mro_lookup(cls, "__eq__") is mro_lookup(object, "__eq__")
        return plain or root in sys.stdlib_module_names or root in ("torch", "pycompiler")
    return lookup(cx, cls, COMPARE[op][1]) in [getattr(c, COMPARE[op][1]) for c in PLAIN_EQUALS if issubclass(cls, c)]


PLAIN_EQUALS = (int, str, bytes, bytearray)


def _differs_by_eq(cx: Capture, value: Value) -> bool:
    """Whether `object.__ne__` applies and calls a Python `__eq__`."""
    cls = value.cls if isinstance(value, Object) else type(value.cls) if isinstance(value, Class) else None
    if cls is None or lookup(cx, cls, "__ne__") is not object.__ne__:
        return False
    return isinstance(lookup(cx, cls, "__eq__"), types.FunctionType)


def _equal(cx: Capture, left: Value, right: Value) -> bool:
    if cx.same(left, right):
        return True
    if isinstance(left, Sequence) and isinstance(right, Sequence):
        elements_first = isinstance(left, Tuple)
        if _family(left) is not _family(right) or (not elements_first and len(left.items) != len(right.items)):
            return False
        return first_difference(cx, left, right) is None and len(left.items) == len(right.items)
    if isinstance(left, Dict) and isinstance(right, Dict):
        for d in (left, right):
            keys_of(d)
        a, b = ({cx.key(k): v for k, v in d.pairs(cx)} for d in (left, right))
        ordered = all(issubclass(d.cls, collections.OrderedDict) for d in (left, right))
        if ordered and list(a) != list(b):
            return False
        sizes = len(a), len(b)
        same = a.keys() == b.keys() and all(cx.alike(a[k], b[k]) for k in a)
        if sizes != (len(left.entries), len(right.entries)):
            raise Break("unsupported-operation", "dicts that change while they are compared")
        return same
    if isinstance(left, Method) and isinstance(right, Method):
        return cx.identical(left.receiver, right.receiver) and cx.equal(left.function, right.function)
    if any(isinstance(v, DictView) and v.what == "values" for v in (left, right)):
        return False  # compared by identity
    if isinstance(left, (Set, DictView)) and isinstance(right, (Set, DictView)):
        return _keys(cx, left) == _keys(cx, right)
    if left.is_const() and right.is_const() and not (_has_metaclass(left) or _has_metaclass(right)):
        return bool(cx.evaluate_raw(operator.eq, left.const(), right.const()))
    for v, other in ((left, right), (right, left)):
        if isinstance(v, Opaque) or isinstance(v, Object) and _compares_natively(cx, v.cls):
            raise Break("unsupported-operation", f"comparison of {left.describe()} and {right.describe()}")
        if isinstance(v, Deferred):
            raise v.is_asked()
        if isinstance(v, UnknownStr) and issubclass(other.python_type(), str):
            raise v.broke
    return bool(cx.identical(left, right))  # False: two distinct objects, which must stay distinct


def first_difference(cx: Capture, left: Sequence, right: Sequence) -> tuple[Value, Value] | None:
    """The first unequal elements of two lists or tuples, or None.  Lists may change during the comparison."""
    list_guards.assume_compared(cx, left, right)
    place = 0
    while place < min(len(left.items), len(right.items)):
        a, b = left.at(cx, place), right.at(cx, place)
        if not cx.alike(a, b):
            return (a, b) if place < min(len(left.items), len(right.items)) else None
        place += 1
    return None


def _keys(cx: Capture, value: Value) -> set[Key]:
    return {cx.key(v) for v in container_elements.members(cx, value)[0]}


def _family(value: Sequence) -> type:
    return Deque if isinstance(value, Deque) else List if isinstance(value, List) else Tuple


def _compares_natively(cx: Capture, cls: type) -> bool:
    """Whether == is written in C for this class, and is not object's."""
    found = lookup(cx, cls, "__eq__")
    return found is not object.__eq__ and not isinstance(found, types.FunctionType) and not is_inlined(found)


def unary(cx: Capture, op: str, value: Value) -> Value:
    fn, special = UNARY[op]
    if isinstance(value, PLAIN_VALUES):
        return _of_plain(cx, fn, fn, value)
    if (of_kind := BY_KIND.handler("unary", value)) is not None:
        return of_kind(cx, op, fn, value)  # type: ignore[no-any-return]
    method = value.special(cx, special) if isinstance(value, Object) else None
    if method is None:
        if lookup(cx, value.python_type(), special) is not MISSING:
            raise Break("unsupported-operation", f"{op}{value.describe()}")
        cx.throw(TypeError, f"bad operand type for unary {op}: {_type(value)!r}")
    return cx.call(method, [], {})


@BY_KIND.row("unary", Identity)
def _unary_of_id(cx: Capture, op: str, fn: Callable[..., Any], value: Identity) -> Value:
    return unary(cx, op, _number_of(cx, value))


@BY_KIND.row("unary", Array)
def _unary_of_array(cx: Capture, op: str, fn: Callable[..., Any], value: Array) -> Value:
    return numpy_numbers.unary(cx, op, value) or numpy_calls.unary(cx, op, value)


@BY_KIND.row("unary", Tensor)
def _unary_of_tensor(cx: Capture, op: str, fn: Callable[..., Any], value: Tensor) -> Value:
    value.assume(cx, UNARY[op][1])
    own = value.special(cx, UNARY[op][1]) if value.is_special else None
    return cx.graph.call_function(fn, [value], {}) if own is None else cx.call(own, [], {})


def attribute(cx: Capture, owner: Value, name: str) -> Value:
    """owner.name.  An AttributeError without name and object gets them here, as in CPython."""
    try:
        return owner.getattr(cx, name)
    except Raised as e:
        add_error_attributes(e.value, AttributeError, name=Const(name), obj=owner)
        raise


def add_error_attributes(exception: Value, kind: type[BaseException], **known: Value) -> None:
    """Set the attributes that the interpreter adds to an exception of this kind, if it has none of them."""
    if not isinstance(exception, Object) or not issubclass(exception.cls, kind):
        return
    if any(mro_lookup(exception.cls, n) is not vars(kind)[n] for n in known):
        raise Break(
            "unsupported-operation", f"{exception.describe()}, whose class redefines attributes that Python sets"
        )
    if exception.exists:  # it has them since it was first raised, or the program wrote them
        if all(getattr(exception.real, n) is None for n in known) and not known.keys() & exception.overlay.keys():
            raise Break("mutation-unsupported", f"an existing {exception.cls.__name__} that is raised again")
        return
    if not any(n in exception.overlay and not _is_none(exception.overlay[n]) for n in known):
        exception.overlay |= known


def _is_none(value: Value) -> bool:
    return isinstance(value, Const) and value.value is None


def getitem(cx: Capture, owner: Value, key: Value) -> Value:
    found = owner.getitem(cx, key)
    return cx.realize(found)


def truth_of(cx: Capture, value: Value) -> Value:
    """bool(value); an unbacked truth if it depends on tensor data."""
    value = cx.realize(value)
    if isinstance(value, Tensor) and cx.graph.takes_items() and not cx.functions.concerns([value], {}):
        return truth_in(cx, value)
    bound = symbolic_numbers.call(cx, bool, [value])
    return Const(cx.truth(value)) if bound is None else bound


def negation_of(cx: Capture, value: Value) -> Value:
    truth = truth_of(cx, value)
    bound = symbolic_numbers.call(cx, operator.not_, [truth])
    return Const(not truth.const()) if bound is None else bound
