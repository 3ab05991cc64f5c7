"""Fake tensor modes: metadata without data.

In: nothing.  Out: `new_fake_mode()`, a `FakeTensorMode`.  torch's own mode imports torch.compile for three configuration
values and for the names of converted tensors, which costs about a second and nine hundred modules.  Here private copies
of torch's methods read `_TorchCompileConfig` and `plain_sources.py`, until other code loads torch.compile.  torch's own
functions stay as they are.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import itertools
import logging
import sys
import types
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch
import torch._refs.nn.functional
from torch import _decomp
from torch._ops import OpOverload
from torch._subclasses import fake_tensor, meta_utils
from torch._subclasses.fake_tensor import FakeTensorConverter, FakeTensorMode
from torch._subclasses.meta_utils import MetaConverter
from torch.utils._mode_utils import no_dispatch

from pycompiler.operators.argument_checks import check_arguments
from pycompiler.operators.composite_rules import python_rules
from pycompiler.operators.dtype_ranges import limit_numbers
from pycompiler.operators.kernel_type_checks import check_types
from pycompiler.operators.operator_facts import (
    DIVISION,
    NONE,
    OTHER,
    CallFacts,
    count_writes,
    describe,
    divides,
    facts_of,
)
from pycompiler.operators.propagate import (
    by_rule,
    counted,
    is_ordinary,
    short_path,
    static_path,
    with_kernel_layout,
    without_generator,
    wrapped,
)
from pycompiler.symbolic.concretize import Concretizer
from pycompiler.symbolic.symbols import Specialise, hint_of
from pycompiler.symbolic.unbacked_symbols import BINDS
from pycompiler.torch_compat import plain_sources
from pycompiler.torch_compat.jagged_tensors import new_nested_int
from pycompiler.torch_compat.tensor_subclasses import flatten, is_tensor_subclass

DYNAMO = "torch._dynamo"
# A query for a symbol's value is not a failure of a shape function.
fake_tensor.log.addFilter(lambda record: not (record.exc_info and isinstance(record.exc_info[1], Specialise)))


class _Quiet(logging.LoggerAdapter[logging.Logger]):
    """torch's log of fake tensors, at debug level: a failing operator is a graph break's reason or eager's error."""

    def exception(self, msg: object, *args: object, **kwargs: Any) -> None:
        self.debug(msg, *args, exc_info=True)


class _TorchCompileConfig:
    """Defaults of the configuration values of torch.compile that fake tensors read."""

    fake_tensor_cache_enabled = True
    fake_tensor_cache_crosscheck_enabled = False
    _custom_ops_profile = None


class _TorchView:
    """The torch module, with a replacement for torch.compile's configuration until torch.compile is loaded."""

    @property
    def _dynamo(self) -> Any:
        return sys.modules.get(DYNAMO) or types.SimpleNamespace(config=_TorchCompileConfig, source=plain_sources)

    def __getattr__(self, name: str) -> Any:
        value = getattr(torch, name)
        if isinstance(value, (type, types.ModuleType)):
            self.__dict__[name] = value
        return value


def _import(name: str, *args: Any, **kwargs: Any) -> Any:
    if name.startswith(DYNAMO) and DYNAMO not in sys.modules:
        return plain_sources if name == f"{DYNAMO}.source" else _VIEW
    module = builtins.__import__(name, *args, **kwargs)
    return _VIEW if module is torch else module


_VIEW = _TorchView()


if TYPE_CHECKING:

    class FakeMode(FakeTensorMode):  # type: ignore[no-untyped-call]
        """The class created by `_mode_class`."""

        seen: CallFacts
        foreign: tuple[OpOverload, ...]  # dispatched operators of other libraries
        nested: int
        asks: bool
        symbolic: bool
        binder: Any
        today: FakeMode | None  # for symbolic sizes: the mode that answers for the hints


_STATE = {
    "seen": NONE,
    "foreign": (),
    "nested": 0,
    "asks": False,
    "symbolic": False,
    "binder": None,
    "today": None,
}


_IDS = itertools.count(1 << 32)
# The size that a fake tensor of offsets stands for.  torch's own method creates a symbol of its shape environment.
_NESTED_INTS: dict[str, Any] = {"create_symbolic_nested_int": lambda mode, *, nt_tensor_id=None: new_nested_int(_IDS)}


@functools.cache
def _mode_class() -> type[FakeMode]:
    """FakeTensorMode whose methods read torch.compile's configuration from `_VIEW` instead of torch.

    `seen` sums the facts of dispatched calls.
    While `asks` is set, kernels check the dtypes of arguments (`operators/kernel_type_checks.py`).
    """
    changed = {
        "log": _Quiet(fake_tensor.log),
        "traceback": types.SimpleNamespace(
            extract_stack=list
        ),  # creation stacks: expensive in deep calls, and never used
    }
    methods = _copied_methods(FakeTensorMode, fake_tensor, ("__init__", "_dispatch_impl", "_make_cache_entry"), changed)
    methods |= {"dispatch": _dispatch, **_STATE, **_NESTED_INTS}
    return cast("type[FakeMode]", type("DetachedFakeTensorMode", (FakeTensorMode,), methods))


@functools.cache
def _converter_classes() -> tuple[type, type]:
    """The converters of real tensors to fake ones, and to meta ones, which name a tensor by a class of `plain_sources.py`."""
    fake = _copied_methods(FakeTensorConverter, fake_tensor, ("from_real_tensor",), {})
    meta = _copied_methods(MetaConverter, meta_utils, ("meta_tensor", "_empty_create_subclass"), {})
    return type("DetachedConverter", (FakeTensorConverter,), fake), type(
        "DetachedMetaConverter", (MetaConverter,), meta
    )


def _copied_methods(
    cls: type, module: types.ModuleType, names: Sequence[str], changed: Mapping[str, Any]
) -> dict[str, Any]:
    """Copies of a class's methods whose globals are `module`'s, except for `changed` and reads of torch.compile."""
    space = {**vars(module), "torch": _VIEW, "__builtins__": {**vars(builtins), "__import__": _import}, **changed}
    made: dict[str, Any] = {}
    for name in names:
        method: Any = cls.__dict__.get(name)
        if isinstance(method, types.FunctionType):
            made[name] = types.FunctionType(method.__code__, space, name, method.__defaults__, method.__closure__)
            made[name].__kwdefaults__ = method.__kwdefaults__
    return made


@functools.cache
def _counting_class() -> type[FakeMode]:
    made = type("CountingFakeTensorMode", (FakeTensorMode,), {"dispatch": _dispatch, **_STATE, **_NESTED_INTS})
    return cast("type[FakeMode]", made)


def _dispatch(
    mode: FakeMode, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] = {}
) -> Any:
    if any(cls is not fake_tensor.FakeTensor and hasattr(cls, "__tensor_flatten__") for cls in types):
        return NotImplemented  # the class's own `__torch_dispatch__` runs, and calls operators on the inner tensors
    if func is _DEVICE and type(args[0]) is fake_tensor.FakeTensor:
        mode.seen = mode.seen.plus(OTHER)
        return args[0].device
    if mode.binder is not None and func in BINDS:
        found = mode.binder(func, args, kwargs)
        if found is not NotImplemented:
            return found
    if (call := describe(func, args, kwargs)) is not NONE:
        mode.seen = mode.seen.plus(call)
        if call.fails:
            mode.foreign += (func,)
    if mode.asks and mode.nested == 0 and isinstance(func, OpOverload):
        check_types(func, args, kwargs, symbolic=mode.symbolic)
        mode.nested += 1
        try:
            check_arguments(func, args, kwargs)
        finally:
            mode.nested -= 1
    if func is torch.ops.aten.constant_pad_nd.default and mode.symbolic and mode.asks and mode.nested == 0:
        _check_cut(*args)
    if func is _CHECK_OF_VALUES:
        mode.seen = mode.seen.plus(OTHER)
        return None
    args = counted(func, args)
    if "generator" in kwargs:
        func, kwargs = without_generator(func, kwargs)
    out = by_rule(mode, func, args, kwargs, _ask_today) if mode.symbolic else None
    if out is not None:
        ordinary = is_ordinary(func)
    else:
        out = short_path(mode, func, args, kwargs)
        ordinary = out is not None
    if not ordinary:
        mode.seen = mode.seen.plus(OTHER)
    if out is None and not mode.symbolic:
        out = static_path(mode, func, args, kwargs)
    if out is None:
        mode.nested += 1
        try:
            told, named = _with_floats(func, args, kwargs) if mode.symbolic else (args, kwargs)
            out = with_kernel_layout(mode, func, args, FakeTensorMode.dispatch(mode, func, types, told, named))
        finally:
            mode.nested -= 1
    count_writes(func, args, kwargs)
    if divides(func, args, [out]):
        mode.seen = mode.seen.plus(DIVISION)
    if mode.asks and mode.nested == 0:
        limit_numbers(func, args, kwargs, out)
    return out


def _with_floats(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """The arguments of an operator on lists, with hints in place of symbolic floats.

    Neither sizes nor dtypes depend on these floats, but torch's shape functions would query their values.
    """
    if not facts_of(func).on_lists:
        return args, kwargs

    def told(value: Any) -> Any:
        if isinstance(value, (list, tuple)) and any(isinstance(v, torch.SymFloat) for v in value):
            return [*map(told, value)]
        return hint_of(value) if isinstance(value, torch.SymFloat) else value

    return tuple(map(told, args)), {k: told(v) for k, v in kwargs.items()}


_DEVICE = torch.ops.prim.device.default
_CHECK_OF_VALUES = torch.ops.aten._linalg_check_errors.default  # has no result: fake tensors have no values


def _ask_today(mode: FakeMode, func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """torch's answer for the hints, from a mode without symbols."""
    if mode.today is None:
        mode.today = new_fake_mode()
    today = Concretizer(mode.today)
    with torch._C._DisablePythonDispatcher():
        return _dispatch(mode.today, func, (fake_tensor.FakeTensor,), today.of(args), today.of(kwargs))


def _check_cut(x: torch.Tensor, pad: Sequence[Any], value: Any = 0) -> None:
    """Raises as the kernel does if negative padding cuts off more than there is.

    torch's shape function only checks the sizes of the result, which both ends of a dimension together may satisfy.
    """
    for i, more in enumerate(pad[: 2 * x.dim()]):
        torch._check(x.shape[-1 - i // 2] + more >= 0, lambda: "narrow(): length must be non-negative.")


_EMPTY = types.CellType()


@functools.cache
def _defer_marks() -> None:
    """Let torch's reference functions run without loading torch.compile.

    A wrapper marks them as hidden from torch.compile.  At its first call the wrapper imports torch.compile to look up
    the mark, and caches the result.  Until other code loads torch.compile, the cached result is the function itself.
    """
    wrapper = torch._disable_dynamo(len).__code__
    spaces = [vars(m) for n, m in list(sys.modules.items()) if n.startswith(("torch._refs", "torch._decomp")) and m]
    classes = [vars(FakeTensorMode), vars(fake_tensor.FakeTensor)]
    tables = [*_decomp.global_decomposition_table.values(), *spaces, *classes]
    pending = [v for table in tables for v in table.values() if isinstance(v, types.FunctionType)]  # type: ignore[attr-defined]
    seen: set[int] = set()
    while pending:
        fn = pending.pop()
        if id(fn) in seen:
            continue
        seen.add(id(fn))
        held = [c.cell_contents for c in fn.__closure__ or () if c != _EMPTY]
        inner = [v for v in held if isinstance(v, types.FunctionType)]
        pending += inner
        if fn.__code__ is wrapper:
            for wrapped in inner:
                _defer_mark(wrapped)


def _defer_mark(fn: types.FunctionType) -> None:
    if hasattr(fn, "__dynamo_disable"):
        return

    def unmarked(*args: Any, **kwargs: Any) -> Any:
        if DYNAMO in sys.modules and getattr(fn, "__dynamo_disable", None) is unmarked:
            delattr(fn, "__dynamo_disable")  # the next call looks the mark up
        return fn(*args, **kwargs)

    setattr(fn, "__dynamo_disable", unmarked)


def _symbolic(plain: type[FakeMode]) -> type[FakeMode]:
    """A version of `plain` for symbolic sizes: torch's Python dispatcher is active inside of the mode.

    C++ kernels of meta tensors do not accept symbolic sizes.  The mode's cache is off, since it would read sympy expressions.
    """

    def enter(mode: Any) -> Any:
        guard: Any = python_rules()
        guard.__enter__()
        mode.guards = [*mode.guards, guard]
        return plain.__enter__(mode)

    def leave(mode: Any, *exc: Any) -> None:
        plain.__exit__(mode, *exc)
        mode.guards.pop().__exit__(*exc)

    methods = {
        "__enter__": enter,
        "__exit__": leave,
        "guards": [],
        "symbolic": True,
        "cache_enabled": property(lambda _: False, lambda *_: None),
    }
    return cast("type[FakeMode]", type(f"Symbolic{plain.__name__}", (plain,), methods))


@functools.cache
def _symbolic_mode_class() -> type[FakeMode]:
    return _symbolic(_mode_class())


@functools.cache
def _begin_engine() -> None:
    """Run an empty backward before the first fake mode exists, so that autograd's engine sees no GPU.

    Without a GPU, a fake mode still makes torch believe in one.  The engine queries devices at its first backward.  It
    would start a thread for the GPU, and refuse to work in forked processes.
    """
    if torch.cuda.is_available():  # as fake modes query it
        return
    # the engine may already refuse
    with contextlib.suppress(RuntimeError), torch.inference_mode(False), torch.enable_grad():
        torch.zeros((), device="cpu", requires_grad=True).backward()  # type: ignore[no-untyped-call]


def new_fake_mode(*, symbolic: bool = False) -> FakeMode:
    """A FakeTensorMode that accepts real tensors among its inputs.  Sizes are ints, and with `symbolic` also our SymInts."""
    _begin_engine()
    if DYNAMO not in sys.modules:
        _defer_marks()
    try:
        made = (_symbolic_mode_class() if symbolic else _mode_class())(allow_non_fake_inputs=True)
        converter: Any = made.fake_tensor_converter
        converter.__class__, converter.meta_converter.__class__ = _converter_classes()
        return made
    except (AttributeError, TypeError):  # the constructor of another version of torch reads something else
        plain = _counting_class()
        return (_symbolic(plain) if symbolic else plain)(allow_non_fake_inputs=True)


def fake_like(
    mode: FakeTensorMode,
    shape: Sequence[Any],
    stride: Sequence[Any],
    offset: int,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """A fake leaf tensor with this layout."""
    with no_dispatch(), torch.no_grad(), torch.inference_mode(False):  # inference tensors have no version counter
        return wrapped(mode, _meta(shape, stride, offset, dtype), device)  # type: ignore[no-any-return]


Layout = tuple[Sequence[Any], Sequence[Any]]


def fake_of(mode: FakeTensorMode, real: torch.Tensor, layout: Layout | None = None) -> torch.Tensor:
    """A fake of `real`: same class, sizes, strides, dtype, device, leafness and `requires_grad`; no data.

    `layout`: its sizes and strides if they are symbolic (then `real` is a plain strided tensor).
    Plain strided tensors are converted here, cheaply; all others by the mode's own converter.
    """
    if not is_plain(real):
        assert layout is None
        if is_tensor_subclass(type(real)):
            return _fake_wrapper(mode, real)
        if torch._C._functorch.is_functorch_wrapped_tensor(real):  # the program sees the sizes of the functorch wrapper
            return fake_like(mode, real.size(), real.stride(), 0, real.dtype, real.device)
        return mode.from_tensor(real, static_shapes=True)
    sizes, strides = layout or (real.size(), real.stride())
    offset = int(real.storage_offset()) if layout is None else 0
    fake = fake_like(mode, sizes, strides, offset, real.dtype, real.device)
    if layout is None and (room := real.untyped_storage().nbytes()) > (memory := fake.untyped_storage()).nbytes():
        memory.resize_(room)  # strided views may reach all of it
    if real.is_inference():
        fake._of_inference = True  # type: ignore[attr-defined]
    if not real.requires_grad:
        return fake
    fake.requires_grad_()
    if not real.is_leaf:
        with mode, torch.inference_mode(False), torch.enable_grad():
            made = fake.clone(memory_format=torch.preserve_format)
            if layout is None and (room := fake.untyped_storage().nbytes()) > made.untyped_storage().nbytes():
                # the clone of a tensor with gaps lacks memory for the view; a write turns it into a view again
                made.untyped_storage().resize_(room)
            return made.as_strided(sizes, strides)
    if isinstance(real, torch.nn.Parameter):
        fake._is_param = True  # type: ignore[attr-defined]
    return fake


def _fake_wrapper(mode: FakeTensorMode, real: torch.Tensor) -> torch.Tensor:
    """The same tensor subclass with fake inner tensors."""
    leaves: list[torch.Tensor] = []
    spec = flatten(real, leaves)
    assert spec is not None
    with torch.inference_mode(False):
        # the inner `requires_grad` means nothing: autograd works above the class
        inside = (t.detach() if t.requires_grad else t for t in leaves)
        return with_history(mode, spec.rebuild(iter([fake_of(mode, t) for t in inside])), real)


def with_history(mode: FakeTensorMode, fake: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """The fake of a tensor subclass, with `requires_grad` and an autograd history as in `real`."""
    if not real.requires_grad:
        return fake
    fake.requires_grad_()
    if real.is_leaf:
        return fake
    with mode, torch.inference_mode(False), torch.enable_grad():
        return fake.clone()


def fake_as(mode: FakeTensorMode, fake: torch.Tensor) -> torch.Tensor:
    """Another fake tensor with the same layout and storage size; also for tensor subclasses."""
    if not is_tensor_subclass(type(fake)):
        offset = fake.storage_offset()
        made = fake_like(mode, fake.size(), fake.stride(), int(offset), fake.dtype, fake.device)
        room = fake.untyped_storage().nbytes()
        if type(room) is int and type(have := made.untyped_storage().nbytes()) is int and room > have:
            made.untyped_storage().resize_(room)
        return made
    leaves: list[torch.Tensor] = []
    spec = flatten(fake, leaves)
    assert spec is not None
    known = {id(t): fake_as(mode, t) for t in leaves}  # one fake per inner tensor: shared offsets stay one object
    with torch.inference_mode(False):
        return spec.rebuild(iter([known[id(t)] for t in leaves]))


def is_inference(t: torch.Tensor) -> bool:
    """Whether `t` is an inference tensor or a fake of one.  Fakes count versions, so they are not inference tensors
    themselves."""
    return t.is_inference() or getattr(t, "_of_inference", False)


_OWN_NAMES = frozenset(("__module__", "__doc__", "__qualname__", "__torch_function__", "__new__", "__init__", "__annotations__",
                        "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__", "__init_subclass__"))  # fmt: skip
_META = (type(torch.Tensor), type(torch.nn.Parameter))


def is_transparent(cls: type) -> bool:
    """Whether operators treat a subclass's tensors as plain tensors and return plain tensors.

    The class takes no part in calls (as `torch.nn.Parameter`), and overrides nothing that tensors have.
    """
    takes_part = (
        getattr(cls, "__torch_function__", None) is not torch._C._disabled_torch_function_impl
        or getattr(cls, "__torch_dispatch__", None) is not torch._C._disabled_torch_dispatch_impl
    )
    if takes_part or not issubclass(cls, torch.Tensor) or not any(type(cls) is meta for meta in _META):
        return False
    own = [c for c in cls.__mro__ if not issubclass(torch.nn.Parameter, c) and c is not torch.nn.Buffer]
    names = [n for c in own for n in vars(c) if n not in _OWN_NAMES]
    return not any(n.startswith("__") or hasattr(torch.nn.Parameter, n) for n in names)


def as_plain(real: torch.Tensor) -> torch.Tensor:
    """An alias of a subclass's tensor as a plain tensor, without a call of its class."""
    with torch._C.DisableTorchFunction():
        return real.as_subclass(torch.Tensor)


def is_plain(t: torch.Tensor) -> bool:
    return (
        (type(t) in (torch.Tensor, torch.nn.Parameter) or is_transparent(type(t)))
        and t.layout is torch.strided
        and not (t.is_quantized or t.is_nested or t.is_conj() or t.is_neg() or t.is_mkldnn)
        and not torch._C._functorch.is_functorch_wrapped_tensor(t)
    )


def _meta(shape: Sequence[Any], stride: Sequence[Any], offset: int, dtype: torch.dtype) -> torch.Tensor:
    """A meta tensor with this layout, in a storage just large enough."""
    if not offset:
        return torch.empty_strided(shape, stride, dtype=dtype, device="meta")
    last = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) if 0 not in shape else 0
    return torch.as_strided(torch.empty(offset + last + 1, dtype=dtype, device="meta"), shape, stride, offset)
