"""Handlers of Python's builtin functions."""

from __future__ import annotations

import abc
import builtins
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler import _native, config
from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.bytecode.resume import origin_of
from pycompiler.capture.interpreter.calls import Args, Kwargs, allocate, builtin, constructor, instantiate, takes_none
from pycompiler.capture.interpreter.evaluation import breaking_frame
from pycompiler.capture.library.torch_functions.torch_api import guarded_query
from pycompiler.capture.semantics import container_elements, formatting, operators
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.semantics.special_methods import call_special
from pycompiler.capture.values import deferred
from pycompiler.capture.values.attributes import (
    MISSING,
    bind,
    guard_identity,
    is_of_abstract,
    is_subclass,
    lookup,
    mro_lookup,
)
from pycompiler.capture.values.base import Capture, Cell, Value, class_name
from pycompiler.capture.values.classes import Class, MadeMethod, MadeProperty, Super
from pycompiler.capture.values.constant import LITERALS, Const, Identity
from pycompiler.capture.values.containers.dicts import Dict, LocalsDict
from pycompiler.capture.values.containers.keys import UserKey
from pycompiler.capture.values.containers.sequences import List, Tuple
from pycompiler.capture.values.functions import HOLES, PLACEHOLDER, Builtin, Function, Method, Partial
from pycompiler.capture.values.objects import Object, tuple_of
from pycompiler.capture.values.tensor import Tensor, TensorMethod, item
from pycompiler.ir.source import Source


@builtin(_native.entered, _native.arrive)
def entered(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Calls in a resume function's head, for when the head itself is captured.  Generated code calls `entered` later,
    when it no longer needs its arguments."""
    return Const(None)


# types and identity -------------------------------------------------------------------------------------------
def type_of(cx: Capture, value: Value) -> Value:
    return cx.make(value.python_type())


def classes_of(cx: Capture, value: Value) -> tuple[type, ...]:
    if isinstance(value, Tuple):
        return tuple(c for v in value.iterate(cx) for c in classes_of(cx, v))
    if isinstance(value, Class):
        return (value.cls,)
    real = value.const() if value.is_const() else getattr(value, "real", getattr(value, "fn", None))
    if hasattr(real, "__origin__") and not typing.get_args(real):
        return (real.__origin__,)  # type: ignore[union-attr]  # typing.Hashable and similar
    if isinstance(real, types.UnionType):
        return tuple(c for c in typing.get_args(real))
    raise Break("unsupported-operation", f"isinstance(..., {value.describe()})")


NO_CLASSES = (int, float, complex, str, bytes, bool)


def _among(cx: Capture, fn: Callable[..., bool], value: Value, classes: Value) -> Value | None:
    """isinstance or issubclass with a plain constant among the classes, an error if the check reaches it; otherwise
    None."""
    classes = cx.realize(classes)
    if isinstance(classes, Const) and type(classes.value) in NO_CLASSES:
        cx.evaluate_raw(fn, int, classes.value)
    if not isinstance(classes, Tuple) or not any(type(cx.realize(v)) is Const for v in classes.items):
        return None
    return Const(any(cx.truth(cx.call_builtin(fn, [value, v], {})) for v in classes.iterate(cx)))


@builtin(isinstance)
def isinstance_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if (told := _among(cx, isinstance, *args)) is not None:
        return told
    value, classes = args[0], classes_of(cx, args[1])
    if isinstance(value, Tensor):
        if value.real is None and issubclass(value.cls, classes):
            return Const(True)
        plain = tuple(c for c in classes if (type(c) is type or issubclass(c, torch.Tensor)) and c is not FakeTensor)
        named = tuple(c for c in classes if type(c) is type(torch.FloatTensor))
        # The check of a parameter's class uses the tensor.  A fake tensor that stands for a tensor is no FakeTensor.
        if isinstance(value.fake if value.real is None else value.real, plain) or _is_named(value, named):
            return Const(True)
        classes = tuple(c for c in classes if c not in (*plain, *named))
    if lookup(cx, value.python_type(), "__class__") is not object.__dict__["__class__"]:
        raise Break("unsupported-operation", f"isinstance({value.describe()}), whose class defines __class__")
    return Const(is_subclass(cx, value.python_type(), classes, instance=value))


@builtin(abc.ABCMeta.__dict__["__instancecheck__"])
def of_abstract(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`super().__instancecheck__(value)` of a metaclass in Python."""
    value, (base,) = args[1], classes_of(cx, args[0])
    if lookup(cx, value.python_type(), "__class__") is not object.__dict__["__class__"] or isinstance(value, Tensor):
        raise Break(
            "unsupported-operation",
            f"super().__instancecheck__({value.describe()}) of a tensor, or of an object whose class defines __class__",
        )
    return Const(is_subclass(cx, value.python_type(), (base,)))


@builtin(abc.ABCMeta.__dict__["__subclasscheck__"])
def under_abstract(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """`super().__subclasscheck__(cls)` of a metaclass in Python."""
    (base,), (cls,) = classes_of(cx, args[0]), classes_of(cx, args[1])
    return Const(is_of_abstract(cx, cls, base))


def _is_named(value: Tensor, classes: tuple[type, ...]) -> bool:
    """Whether a tensor is of one of the kinds that have class names (`torch.FloatTensor`)."""
    fake = value.fake
    if classes and fake.device.type not in ("cpu", "cuda"):
        raise Break("unsupported-operation", f"isinstance of a tensor on {fake.device} and {classes[0].__name__}")
    kind = fake.dtype, fake.layout, fake.device.type == "cuda"
    return any((c.dtype, c.layout, c.is_cuda) == kind for c in classes)  # type: ignore[attr-defined]


@builtin(issubclass)
def issubclass_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls = args[0].const()
    if type(cls) in NO_CLASSES:
        cx.evaluate_raw(issubclass, cls, int)
    if not isinstance(cls, type):  # CPython also accepts an object with `__bases__`
        raise Break("builtin-call", f"issubclass() of {args[0].describe()}")
    if (told := _among(cx, issubclass, *args)) is not None:
        return told
    return Const(is_subclass(cx, cls, classes_of(cx, args[1])))


@builtin(callable)
def callable_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    value = args[0]
    if isinstance(value, (Function, Method, Builtin, Class, Partial, TensorMethod)):
        return Const(True)
    return Const(lookup(cx, value.python_type(), "__call__") is not MISSING)


@builtin(id)
def id_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return Identity.of(args[0])


@builtin(len)
def len_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return args[0].length(cx)


@constructor(bool)
def bool_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return operators.truth_of(cx, args[0]) if args else Const(False)


def _number(cls: type) -> Callable[[Capture, Args, Kwargs], Value]:
    def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        if args and isinstance(args[0], Tensor):
            known = cx.graph.known_number(args[0].fake)
            if known is not None and not cx.functions.concerns(args, kwargs):
                return cx.call(cx.make(cls), [known, *args[1:]], kwargs)
            if not config.capture_scalar_outputs or cls is complex or args[0].dtype == torch.bool:
                raise Break("data-dependent-value", f"{cls.__name__}(tensor)")
            return cx.call(cx.make(cls), [item(cx, args[0]), *args[1:]], kwargs)
        if len(args) == 1 and not kwargs and isinstance(args[0], Object):
            for name in (f"__{cls.__name__}__", "__index__"):
                method = args[0].special(cx, name)
                if method is not None:
                    return call_special(cx, cls, args[0], name, method)
        return cx.evaluate(cls, *(cx.snapshot(a) for a in args), **kwargs)

    return make


for _cls in (int, float, complex):
    constructor(_cls)(_number(_cls))


@constructor(str)
def str_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 1 and not kwargs:
        return formatting.text(cx, args[0], str)
    return cx.evaluate(str, *args, **kwargs)


@builtin(repr)
def repr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return formatting.text(cx, args[0], repr)


@builtin(format)
def format_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return formatting.format_value(cx, args[0], 0, args[1] if len(args) > 1 else Const(""))


@builtin(str.format)
def str_format(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if any(map(deferred.holds, args)) and not kwargs:
        return deferred.compute(cx, str.format, args)
    positional = [formatting.formatted(cx, a) for a in args]
    named = {k: formatting.formatted(cx, v) for k, v in kwargs.items()}
    return cx.evaluate(str.format, *positional, **named)


@builtin(str.join)
def str_join(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return cx.evaluate(str.join, args[0], [v.const() for v in cx.listed(cx.iterator(args[1]))])


@builtin(hash)
@constant_arguments("for its hash")
def hash_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if isinstance(args[0], Object):
        method = args[0].special(cx, "__hash__")
        if isinstance(method, Method) and isinstance(method.function, Function):
            return call_special(cx, hash, args[0], "__hash__", method)
    value = args[0]
    key = cx.key_of(value)  # raises TypeError for an unhashable value
    if not value.is_const():
        return Const(_hash_of_key(cx, key, value))
    if isinstance(value, Class) and value.made is not None:
        raise Break("builtin-call", "the hash of a class that each call creates")
    cx.looks_at_hashes([value.const()], "a hash")
    return cx.evaluate(hash, value)


class _Hashed:
    """An object with a given hash."""

    def __init__(self, hashed: int) -> None:
        self.hashed = hashed

    def __hash__(self) -> int:
        return self.hashed


def _hash_of_key(cx: Capture, key: Any, value: Value) -> int:
    """The hash of a value with this key (`Capture.key_of`). A tuple's hash follows from the hashes of its items."""
    if isinstance(key, UserKey):
        return key.hash
    if isinstance(key, tuple) and key[0] == "c":
        cx.looks_at_hashes([key[1]], "a hash")
        return hash(key[1])
    if isinstance(key, tuple) and key[0] == "t":
        return hash(tuple(_Hashed(_hash_of_key(cx, part, value)) for part in key[1:]))
    raise Break("unsupported-operation", f"hash({value.describe()})")


# attributes ---------------------------------------------------------------------------------------------------
def _name_given(cx: Capture, fn: Callable[..., Any], args: Args) -> str:
    """The attribute name that `fn` is called with; raises its TypeError if the name is no string."""
    name = args[1].const()
    if not isinstance(name, str):
        cx.evaluate(fn, *(None, name, None)[: len(args)])
    assert isinstance(name, str)
    return name


@builtin(getattr)
def getattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    name = _name_given(cx, getattr, args)
    if len(args) == 3:
        found = cx.catching(AttributeError, lambda: args[0].getattr(cx, name))
        return args[2] if found is None else found
    return operators.attribute(cx, args[0], name)


@builtin(hasattr)
def hasattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    name = _name_given(cx, hasattr, args)
    if isinstance(args[0], Partial) and args[0].cls is functools.partial and name == "__dict__":
        return Const(True)
    return Const(cx.catching(AttributeError, lambda: args[0].getattr(cx, name)) is not None)


@builtin(setattr)
def setattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].setattr(cx, _name_given(cx, setattr, args), args[2])
    return Const(None)


@builtin(delattr)
def delattr_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    args[0].delattr(cx, _name_given(cx, delattr, args))
    return Const(None)


@builtin(object.__setattr__)
def object_setattr(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        raise Break("mutation-unsupported", f"object.__setattr__({args[0].describe()}, ...)")
    args[0].plain_setattr(cx, _name_given(cx, object.__setattr__, args), args[2])
    return Const(None)


@builtin(object.__getattribute__)
def object_getattribute(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        return operators.attribute(cx, args[0], _name_given(cx, object.__getattribute__, args))
    name = _name_given(cx, object.__getattribute__, args)
    found = args[0].plain_getattr(cx, name)
    if found is None:
        text = f"{class_name(args[0].cls)!r} object has no attribute {name!r}"
        cx.throw(AttributeError, text, name=args[1], obj=args[0])
    assert found is not None
    return found


@builtin(object.__delattr__)
def object_delattr(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Object):
        raise Break("mutation-unsupported", f"object.__delattr__({args[0].describe()}, ...)")
    args[0].plain_delattr(cx, _name_given(cx, object.__delattr__, args))
    return Const(None)


@builtin(type.__call__)
def type_call(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not isinstance(args[0], Class):
        raise Break("builtin-call", f"type.__call__({args[0].describe()})")
    return instantiate(cx, args[0], args[1:], kwargs)


@builtin(type.__subclasses__)
def subclasses(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if cx.made_classes:
        raise Break("builtin-call", "type.__subclasses__() in a frame that creates classes")
    return guarded_query(cx, args[0].const().__subclasses__)


@builtin(types.SimpleNamespace.__init__)
def namespace_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    made, *given = args
    if not isinstance(made, Object):
        raise Break("builtin-call", f"SimpleNamespace.__init__ of {made.describe()}")
    if given and sys.version_info < (3, 13):
        cx.throw(TypeError, "no positional arguments expected")
    if len(given) > 1:
        cx.throw(TypeError, f"{made.cls.__name__} expected at most 1 argument, got {len(given)}")
    pairs = list(container_elements.mapping_pairs(cx, given[0], looked_at=False)) if given else []
    if not all(issubclass(k.python_type(), str) for k, _ in pairs):
        cx.throw(TypeError, "keywords must be strings")
    for name, value in ({k.const(): v for k, v in pairs} | kwargs).items():
        made.plain_setattr(cx, name, value)
    return Const(None)


@builtin(object.__init__)
def object_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) > 1 or kwargs:
        takes_none(cx, args[0].python_type(), "__init__")
    return Const(None)


def _plain_exceptions() -> Iterator[Any]:
    """`__init__` of the exception classes that store only their arguments."""
    for cls in vars(builtins).values():
        if isinstance(cls, type) and issubclass(cls, BaseException):
            if cls.__basicsize__ == BaseException.__basicsize__ and "__init__" in vars(cls):
                yield vars(cls)["__init__"]


@builtin(*dict.fromkeys(_plain_exceptions()))
def exception_init(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    exception = args[0]
    if not isinstance(exception, Object) or exception.exists:
        raise Break("mutation-unsupported", "__init__ of an exception from outside of the frame")
    exception.args = list(args[1:])
    return Const(None)


@builtin(object.__new__)
def object_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls = _class_to_make(args, object)
    if len(args) > 1 or kwargs:
        takes_none(cx, cls, "__new__")
    return allocate(cx, cls, args[1:])


def _class_to_make(args: Args, of: type) -> Any:
    """The class that ``of.__new__`` is called for."""
    cls = args[0].const() if args and issubclass(args[0].python_type(), type) else None
    if cls is None or not issubclass(cls, of):
        raise Break("builtin-call", f"{of.__name__}.__new__({', '.join(a.describe() for a in args)})")
    return cls


def _allocating(of: type) -> Callable[[Capture, Args, Kwargs], Value]:
    return lambda cx, args, kwargs: allocate(cx, _class_to_make(args, of), args[1:])


for _made in (dict, list, set, BaseException, Exception, BaseExceptionGroup):
    builtin(_made.__new__)(_allocating(_made))


@builtin(tuple.__new__)
def tuple_new(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    cls = _class_to_make(args, tuple)
    items = list(cx.elements(args[1])) if len(args) > 1 else []
    return Tuple(items) if cls is tuple else tuple_of(cls, items)


@builtin(vars)
def vars_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not args and not kwargs:
        return locals_dict(cx)
    found = cx.catching(AttributeError, lambda: args[0].getattr(cx, "__dict__"))
    return found if found is not None else cx.throw(TypeError, "vars() argument must have __dict__ attribute")


@builtin(globals)
def globals_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    namespace, scope = cx.frames[-1].globals, cx.frames[-1].scope
    if isinstance(scope, Value):
        return scope
    return cx.wrap(namespace, cx.dict_source(namespace))


def _applies_super(cx: Capture, cls: type, receiver: Value) -> Value:
    """The object that super(cls, receiver) finds attributes for: an instance, or a subclass."""
    if isinstance(receiver, Class) and issubclass(receiver.cls, cls) or issubclass(receiver.python_type(), cls):
        return receiver
    if lookup(cx, receiver.python_type(), "__class__") is not object.__dict__["__class__"]:
        raise Break("builtin-call", f"super(type, {receiver.describe()}), whose class defines __class__")
    answered_by_cpython = type(class_name(receiver.python_type()), (), {})()
    cx.evaluate_raw(super, cls, receiver.cls if isinstance(receiver, Class) else answered_by_cpython)
    raise AssertionError


@constructor(super)
def super_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) == 2 and isinstance(args[0], Class):
        return Super(args[0].cls, _applies_super(cx, args[0].cls, args[1]))
    if args:
        raise Break("builtin-call", "super(type)")
    frame = cx.frames[-1]
    if not frame.code.co_argcount:
        cx.throw(RuntimeError, "super(): no arguments")
    if "__class__" not in frame.code.co_freevars:
        cx.throw(RuntimeError, "super(): __class__ cell not found")
    cell = frame.cell("__class__")
    first = frame.code.co_varnames[0]
    receiver = frame.locals[first]
    contents = cx.realize(getattr(receiver, "contents", None) or receiver)
    if cell.contents is None:
        cx.throw(RuntimeError, "super(): empty __class__ cell")
    cls = cell.contents = cx.realize(cell.contents)
    if not isinstance(cls, Class):
        cx.throw(RuntimeError, f"super(): __class__ is not a type ({cls.python_type().__name__})")
    return Super(cls.cls, _applies_super(cx, cls.cls, contents))


@constructor(types.MethodType)
def method_type(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if mro_lookup(args[0].python_type(), "__call__") is MISSING:
        cx.throw(TypeError, "first argument must be callable")
    return Method(args[1], args[0])


@builtin(property.__init__)
def init_property(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if not args or not isinstance(args[0], MadeProperty):
        raise Break("builtin-call", "property.__init__ of a value that is not a property created in the frame")
    args[0].initialise(args[1:], kwargs)
    return Const(None)


@constructor(property)
def property_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    made = MadeProperty(property)
    made.initialise(args, kwargs)
    return made


@constructor(staticmethod)
def staticmethod_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return MadeMethod(staticmethod, args[0])


@constructor(classmethod)
def classmethod_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return MadeMethod(classmethod, args[0])


def _effectful(name: str) -> Callable[[Capture, Args, Kwargs], Value]:
    def handler(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
        raise Break("builtin-call", f"{name}({', '.join(a.describe() for a in args)})")

    return handler


FRAME_STATE = {"f_locals", "f_lineno", "f_lasti"}
READS_OWN_VARIABLES = "reads its own variables (locals(), dir(), eval, exec)"


def _own_variables(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args:
        raise Break("builtin-call", "locals() or dir() with arguments")
    return break_for_own_frame(cx)


def break_for_own_frame(cx: Capture) -> Value:
    """Break because a real frame is needed: at the call of the captured function that needs it, or the whole frame."""
    if len(cx.frames) > 1:
        asks = f"{cx.frames[-1].code.co_qualname}, which {READS_OWN_VARIABLES}"
        raise Break("builtin-call", asks, step=breaking_frame(cx.frames[:-1]).begin)
    raise SkipFrame(f"the frame {READS_OWN_VARIABLES}")


def locals_dict(cx: Capture) -> Dict:
    """The dict of `locals()`. Before CPython 3.13 there is one dict per frame, which each call updates."""
    frame = cx.frames[-1]
    if isinstance(frame.names, Dict):  # code without slots: the dict holds the variables themselves
        return frame.names
    # `locals()` of inlined comprehensions shows other variables
    if any(i.opname == "LOAD_FAST_AND_CLEAR" for i in frame.instructions):
        break_for_own_frame(cx)
    code = origin_of(frame.code)[0]
    names = dict.fromkeys([*code.co_varnames, *code.co_cellvars, *code.co_freevars])
    found = {n: frame.free.get(n) or frame.locals.get(n) for n in names}
    values = {n: v.contents if isinstance(v, Cell) else v for n, v in found.items()}
    if frame.shown is None or sys.version_info >= (3, 13):
        frame.shown = LocalsDict(frame)
    for name, value in values.items():
        key = Const(name)
        if value is not None:
            frame.shown.setitem(cx, key, value)
        elif frame.shown.contains(cx, key):
            frame.shown.delitem(cx, key)
    return frame.shown


@builtin(locals)
def locals_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return _own_variables(cx, args, kwargs) if args or kwargs else locals_dict(cx)


@builtin(dir)
def dir_(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if args or kwargs:
        return _own_variables(cx, args, kwargs)
    return List([Const(name) for name in sorted(k.value.const() for k in locals_dict(cx).entries)], list)


@builtin(*(getattr(sys, name) for name in ("_getframe", "_getframemodulename") if hasattr(sys, name)))
def getframe(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    """Break at the root frame: the call counts frames, so all of them must exist.

    If the root's code reads frame state, the whole frame runs eagerly: the frame may be its own.
    """
    if FRAME_STATE & {*cx.frames[0].code.co_names}:
        raise SkipFrame("the frame reads f_locals, f_lineno or f_lasti, which may be its own")
    raise Break("builtin-call", "sys._getframe(), which counts frames", step=cx.frames[0].begin)


for _name in ("input", "open", "breakpoint"):
    builtin(getattr(builtins, _name))(_effectful(_name))


@builtin(inspect.signature)
def signature(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn, bound = (args[0].function, True) if isinstance(args[0], Method) else (args[0], False)
    if not isinstance(fn, Function) or fn.real is None or fn.overlay or kwargs:
        raise Break("builtin-call", f"inspect.signature({args[0].describe()})")
    _hold_signature(cx, fn)
    return cx.make(inspect.signature(types.MethodType(fn.real, cx) if bound else fn.real))


def _hold_signature(cx: Capture, fn: Function) -> None:
    """Guard everything that a function's signature depends on.

    These are the code, defaults and annotations of the function, or of the function that it wraps.  A guard also
    checks that no other attribute defines the signature.
    """
    assert fn.real is not None and fn.source is not None
    said = [name for name in SAY_SIGNATURE if name in fn.real.__dict__]
    for name in SAY_SIGNATURE[: SAY_SIGNATURE.index(said[0]) if said else None]:
        cx.guard("instance_absent", fn.source, name)
    if said:
        inner = cx.realize(fn.getattr(cx, said[0]))
        if said[0] != "__wrapped__" or not isinstance(inner, Function) or inner.real is None or inner.source is None:
            raise Break(
                "builtin-call",
                "inspect.signature() of a function whose __signature__ or __wrapped__ defines the signature",
            )
        return _hold_signature(cx, inner)
    guard_identity(cx, fn.source.then("code"), fn.real.__code__)
    for place, value in zip(fn.defaults(cx), fn.real.__defaults__ or (), strict=True):
        assert place.source is not None
        _hold_value(cx, place.source, value)
    for name in ("__kwdefaults__", "__annotations__"):
        known = cx.realize(fn.getattr(cx, name))
        if not isinstance(known, Dict):
            continue
        if known.changed or known.source is None:
            raise Break("builtin-call", f"inspect.signature() of a function whose {name} the frame has changed")
        for key, _ in known.pairs(cx):
            _hold_value(cx, known.source.dict_item(key.const()), getattr(fn.real, name)[key.const()])


def _hold_value(cx: Capture, source: Source, value: Any) -> None:
    if type(value) in LITERALS:
        cx.guard("equals", source, value)
    else:
        guard_identity(cx, source, value)


SAY_SIGNATURE = ("__signature__", "__wrapped__", "__text_signature__")
"""The attributes that define a signature, in the order in which they are checked."""


@builtin(classmethod.__get__, staticmethod.__get__)
def bound_by_descriptor(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    raw, receiver, *owner = args
    real = getattr(raw, "real", None)
    if raw.source is None or type(real) not in (classmethod, staticmethod):
        raise Break("builtin-call", f"__get__ of {raw.describe()}")
    to = None if cx.is_none(receiver) else receiver
    return bind(cx, real, raw.source, to, owner[0] if owner else cx.class_of(receiver))


@builtin(typing.cast)
def cast(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    return args[1]


@constructor(functools.partial)
def partial(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    fn = args[0]
    if PLACEHOLDER is not None and any(
        cx.realize(a).python_type() is type(PLACEHOLDER) for a in (*args, *kwargs.values())
    ):
        raise Break("builtin-call", HOLES)
    if isinstance(fn, Partial) and not fn.has_dict:  # otherwise it is a partial of a partial, as in CPython
        return Partial(fn.function, [*fn.args, *args[1:]], {**fn.words(cx), **kwargs}, functools.partial)
    if not callable_(cx, [fn], {}).const():
        cx.throw(TypeError, "the first argument must be callable")
    return Partial(fn, args[1:], kwargs, functools.partial)
