"""Guards: the assumptions of a compiled entry, as data.

In: sources and values read during capture.  Out: `Guard` records.
The native engine turns them into a guard tree (`guards-rs/src/guard/`, one kind per file).
`holds` and `explain` below evaluate the same data in Python; they are the oracle of the native engine.

Example: `Guard("type_is", local("x"), torch.Tensor)`.
"""

from __future__ import annotations

import collections
import contextlib
import enum
import functools
import linecache
import os
import reprlib
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

from pycompiler.ir.source import ClassKey, Scope, Source, mro_of, namespace_of, read
from pycompiler.operators import numpy_arrays

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


@dataclass(frozen=True)
class UserFrame:
    """A place in the user's program: file, 1-based line, function name.  The source line is read on demand."""

    filename: str
    lineno: int
    function: str
    text: str | None = None

    @property
    def line(self) -> str:
        """The source line, stripped; empty if the source is not available."""
        return linecache.getline(self.filename, self.lineno).strip() if self.text is None else self.text

    @property
    def place(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}"

    def __str__(self) -> str:
        return f"{self.place}\n    {self.line}" if self.line else self.place


def own_frame(stack: Sequence[UserFrame]) -> UserFrame:
    """The program's own place in a stack: the innermost frame outside torch."""
    return next((f for f in reversed(stack) if not f.filename.startswith(_TORCH)), stack[-1])


def own_place(stack: Sequence[UserFrame]) -> str:
    return own_frame(stack).place


@dataclass(frozen=True)
class TensorSpec:
    """The properties that a `tensor` guard compares.  A size or stride of None is not compared (dynamic).

    `keys` is `torch._C._dispatch_keys(t).raw_repr()`; it includes device and autograd keys.
    `cls` is a weak reference if the class may be freed; a separate `type_is` guard then checks the class.
    """

    cls: Any
    keys: int
    dtype: torch.dtype
    device: torch.device
    requires_grad: bool
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @staticmethod
    def of(t: torch.Tensor) -> TensorSpec:
        return TensorSpec(
            type(t),
            torch._C._dispatch_keys(t).raw_repr(),
            t.dtype,
            t.device,
            t.requires_grad,
            tuple(t.size()),
            tuple(t.stride()) if t.layout is torch.strided else (),
        )

    def opened(self, sizes: Sequence[Any], strides: Sequence[Any]) -> TensorSpec:
        """The same spec without comparison of symbolic sizes and strides."""
        known = [tuple(n if type(n) is int else None for n in numbers) for numbers in (sizes, strides)]
        return replace(self, sizes=known[0], strides=known[1])


@dataclass(frozen=True, eq=False)
class Guard:
    """One assumption: `kind` (a row of GUARD_KINDS) holds for the value at `source`, given `arg`.

    `others`: further sources of relational kinds.  `user`: where in the program the assumption arose.
    """

    kind: str
    source: Source
    arg: Any = None
    others: tuple[Source, ...] = ()
    user: tuple[UserFrame, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return GUARD_KINDS[self.kind].show(self)


@dataclass(frozen=True)
class GuardKind:
    """A kind of guard: `holds(value, arg)` checks it, `show(guard)` prints it, `seen(value, arg)` prints the value found.

    `parts`: `seen` prints each differing part with its expected value.  An explanation then does not repeat the guard.
    """

    holds: Callable[[Any, Any], bool]
    show: Callable[[Guard], str]
    seen: Callable[[Any, Any], str]
    parts: bool = False


def same_constant(a: Any, b: Any) -> bool:
    """Equality of guarded constants: same type, same value, NaN equal to itself, 0.0 not equal to -0.0."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return a.hex() == b.hex()  # type: ignore[no-any-return]
    if isinstance(a, complex):
        return same_constant(a.real, b.real) and same_constant(a.imag, b.imag)
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(map(same_constant, a, b))
    if isinstance(a, (frozenset, set)):
        return bool(a == b) and sorted(map(repr, a)) == sorted(map(repr, b))
    if numpy_arrays.is_taken(type(a)):
        return same_constant(a.item(), b.item())
    return bool(a == b)


def storage_length(value: Any) -> int:
    """len() of a builtin container or of a subclass instance; a subclass's `__len__` is not called."""
    base = next((b for b in (list, tuple, dict) if issubclass(type(value), b)), None)
    return len(value) if base is None else base.__len__(value)


def set_holds(value: Any, elements: frozenset[Any]) -> bool:
    return len(value) == len(elements) and same_constant(frozenset(value), elements)


def tensor_holds(t: Any, spec: TensorSpec) -> bool:
    if type(t) is not deref(spec.cls) or torch._C._dispatch_keys(t).raw_repr() != spec.keys:
        return False
    if t.dtype != spec.dtype or t.device != spec.device or t.requires_grad != spec.requires_grad:
        return False
    if t.dim() != len(spec.sizes):
        return False
    pairs = [*zip(spec.sizes, t.size(), strict=True)]
    if spec.strides:
        pairs += zip(spec.strides, t.stride(), strict=True)
    return all(want is None or want == have for want, have in pairs)


def _tensor_seen(t: Any, spec: TensorSpec) -> str:
    if not isinstance(t, torch.Tensor):
        return f"type {type(t).__name__}, expected {_name(deref(spec.cls))}"
    return "; ".join(spec_differences(TensorSpec.of(t), spec).values())


def spec_differences(now: TensorSpec, spec: TensorSpec) -> dict[str, str]:
    """Aspect -> str with both values, for each aspect in which a tensor differs.

    Aspects that follow from another one are left out: dispatch keys from a device, strides of contiguous tensors from
    sizes.  A size or stride that is not compared is printed as `*`.
    """
    if (cls := deref(now.cls)) is not (expected := deref(spec.cls)):
        another = "another class of that name" if _name(cls) == _name(expected) else _name(cls)
        return {"class": f"type {another}, expected {_name(expected)}"}
    found = {
        row: f"{row} {getattr(now, row)}, expected {getattr(spec, row)}"
        for row in ("dtype", "device", "requires_grad")
        if getattr(now, row) != getattr(spec, row)
    }
    if len(now.sizes) != len(spec.sizes):
        return found | {"dimensions": f"sizes {_open(now.sizes)}, expected {_open(spec.sizes)}"}
    if not _fit(now.sizes, spec.sizes):
        found["sizes"] = f"sizes {_open(now.sizes)}, expected {_open(spec.sizes)}"
    follow = "sizes" in found and _contiguous(now) and _contiguous(spec)
    if now.keys != spec.keys and now.device == spec.device:
        found["keys of dispatch"] = _keys_seen(now.keys, spec.keys)
    elif spec.strides and not _fit(now.strides, spec.strides) and not follow:
        found["strides"] = f"strides {_open(now.strides)}, expected {_open(spec.strides)}"
    return found


def _fit(now: Sequence[int | None], wanted: Sequence[int | None]) -> bool:
    return len(now) == len(wanted) and all(n == w or w is None or n is None for n, w in zip(now, wanted, strict=True))


def _open(found: Sequence[int | None]) -> str:
    return f"({_shown_numbers(found)}{',' * (len(found) == 1)})"


def _shown_numbers(found: Sequence[int | None]) -> str:
    return ", ".join("*" if n is None else str(n) for n in found)


def _contiguous(spec: TensorSpec) -> bool:
    """Whether the compared strides fit a contiguous tensor."""
    step: int | None = 1
    for size, stride in zip(reversed(spec.sizes), reversed(spec.strides), strict=False):
        if None not in (stride, step) and stride != step and size != 1:
            return False
        step = None if step is None or size is None else step * size
    return True


def _keys_seen(now: int, wanted: int) -> str:
    """Unexpected and missing dispatch keys, by name."""
    shown = [repr(torch._C.DispatchKeySet.from_raw_repr(keys)).partition("(")[2].rstrip(")") for keys in (now, wanted)]
    have, want = (dict.fromkeys(text.split(", ")) for text in shown)
    rows = (("with", have.keys() - want), ("without", want.keys() - have))
    return " and ".join(f"{word} dispatch key {', '.join(sorted(keys))}" for word, keys in rows if keys)


SINGLETONS = (torch.dtype, torch.layout, torch.memory_format, type(None), bool, enum.Enum, type)


def is_singleton(value: object) -> bool:
    """Whether equality of such objects implies identity."""
    return isinstance(value, SINGLETONS)


def _identity(value: Any) -> str | None:
    if isinstance(value, type):
        return value.__qualname__
    return repr(value) if is_singleton(value) else None


def _both(one: Any, other: Any) -> str | None:
    return f"{_identity(one)} and {_identity(other)}" if is_singleton(one) and is_singleton(other) else None


def deref(arg: Any) -> Any:
    return arg() if isinstance(arg, weakref.ref) else arg


def _name(cls: type | None) -> str:
    return "a class that is gone" if cls is None else cls.__name__


def _path(cls: type | None) -> str:
    return "a class that is gone" if cls is None else cls.__qualname__


def _instance_lacks(value: Any, name: str) -> bool:
    try:
        return name not in object.__getattribute__(value, "__dict__")
    except AttributeError:
        return True


def _class_lacks(cls: Any, name: str) -> bool:
    return all(name not in namespace_of(base) for base in mro_of(cls))


def foreign_state() -> str | None:
    """Name of the active torch state that must see, or that changes, each operator; a call under it runs eagerly.  None
    without one."""
    return next((name for name, active in _FOREIGN if active()), None)


skips_next: Callable[[], bool] = getattr(torch._C, "_peek_should_skip_torch_function", bool)
"""Whether torch skips the next `__torch_function__` query (`torch.overrides.redispatch_function`, newer torch only)."""


def function_modes() -> list[Any]:
    """The active function modes, innermost last.  The program's modes lie above torch's modes for a default device."""
    return [*getattr(_off, "modes", ()), *_on_stack()]


def mode_at(place: int) -> Any:
    """The function mode at a position of this thread's stack; 0 is the outermost.

    If torch skips the next query, a query here would consume the skip.  The stack is then popped and pushed instead.
    """
    if not skips_next():
        return torch._C._get_function_stack_at(place)
    above = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack() - place)]
    for mode in reversed(above):
        torch._C._push_on_torch_function_stack(mode)
    return above[-1]


def _on_stack() -> list[Any]:
    found = [mode_at(i) for i in range(torch._C._len_torch_function_stack())]
    below = next((i for i, mode in enumerate(found) if type(mode) is not DeviceContext), len(found))
    return found[below:]


_off = threading.local()


class function_modes_off:
    """Context manager: inside, the program's function modes are off; `function_modes` still lists them.

    The modes are restored on exit even if a signal handler raises at any point.
    """

    def __enter__(self) -> None:
        self.before, self.found = getattr(_off, "modes", ()), _on_stack()
        self.floor: int | None = torch._C._len_torch_function_stack() - len(self.found)
        try:
            for _ in self.found:
                torch._C._pop_torch_function_stack()
            _off.modes = (*self.before, *self.found)
            self.floor = None
        except BaseException:
            self._put_back()
            raise

    def __exit__(self, *exc: object) -> None:
        self._put_back()

    def _put_back(self) -> None:
        try:
            _off.modes = self.before
            if self.floor is None:
                self.floor = torch._C._len_torch_function_stack()
            while (there := torch._C._len_torch_function_stack() - self.floor) < len(self.found):
                torch._C._push_on_torch_function_stack(self.found[there])
        except BaseException:
            self._put_back()
            raise


def _function_mode() -> bool:
    """Whether one of torch's own function modes is active; capture does not inline these."""
    return any(type(mode).__module__.partition(".")[0] == "torch" for mode in function_modes())


_OWN_HOOKS = ("torch.utils.checkpoint", "torch.autograd.graph")  # these hooks return the tensors unchanged


def _saved_tensor_hooks() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return hooks is not None and any(getattr(hook, "__module__", None) not in _OWN_HOOKS for hook in hooks)


def in_checkpoint() -> bool:
    """Whether the call is inside one of torch's checkpoints.  A checkpoint, or its recompute, ends where the last
    tensor is saved."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return getattr(_off, "checkpoint", False) or getattr(hooks and hooks[0], "__module__", None) == _OWN_HOOKS[0]


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Context manager: inside, no hook packs saved tensors; `in_checkpoint` still reports the program's checkpoint."""
    before, _off.checkpoint = getattr(_off, "checkpoint", False), in_checkpoint()
    autograd_c = torch._C._autograd
    hooks = []
    try:
        while (top := autograd_c._top_saved_tensors_default_hooks(True)) is not None:  # type: ignore[attr-defined]
            hooks.append(top)
            autograd_c._pop_saved_tensors_default_hooks()  # type: ignore[attr-defined]
        yield
    finally:
        for pack, unpack in reversed(hooks):
            autograd_c._push_saved_tensors_default_hooks(pack, unpack)  # type: ignore[attr-defined]
        _off.checkpoint = before


def _below_autograd() -> bool:
    excluded = torch._C._dispatch_tls_is_dispatch_key_excluded(torch._C.DispatchKey.AutogradFunctionality)
    return excluded and not torch.is_inference_mode_enabled()


# dispatch keys that are included while a transform is active
_TRANSFORMS = ("VmapMode", "Functionalize", "PythonDispatcher", "Tracer")


def transform_levels() -> tuple[tuple[Any, ...], ...]:
    """The torch.func transforms around the call, outermost first: name, level, and the randomness mode of `vmap`."""
    return getattr(_off, "levels", None) or _on_levels()


def _on_levels() -> tuple[tuple[Any, ...], ...]:
    def told(level: Any) -> tuple[Any, ...]:
        name = level.key().name
        mapped = torch._C._functorch.CVmapInterpreterPtr(level).randomness().name if name == "Vmap" else None
        return (name, level.level(), mapped)

    if torch._C._functorch.peek_interpreter_stack() is None:
        return ()
    return tuple(map(told, torch._C._functorch.get_interpreter_stack() or ()))


def in_kernel() -> bool:
    """Whether the call is inside an operator's kernel, where autograd records nothing although gradients are enabled."""
    return getattr(_off, "kernel", False) or _below_autograd()


@functools.cache
def _fresh_dispatch_keys() -> tuple[Any, Any]:
    """The included and excluded dispatch keys of a fresh thread, where no transform or mode is active."""
    found: list[Any] = []

    def look_up() -> None:
        found.extend((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()))

    look = threading.Thread(target=look_up)
    look.start()
    look.join()
    return found[0], found[1]


@contextlib.contextmanager
def outside_transforms() -> Iterator[None]:
    """Context manager: inside, operators are dispatched as at the top of a program.

    Surrounding torch.func transforms and a surrounding operator kernel have no effect; `transform_levels` and `in_kernel` still
    report them.
    """
    found, kernel = _on_levels(), _below_autograd()
    if not (found or kernel):
        yield
        return
    _off.levels, _off.kernel = found, kernel
    try:
        with (
            temporarily_clear_interpreter_stack() if found else contextlib.nullcontext(),
            torch._C._ForceDispatchKeyGuard(*_fresh_dispatch_keys()) if kernel else contextlib.nullcontext(),  # type: ignore[attr-defined]
        ):
            yield
    finally:
        _off.levels, _off.kernel = None, False


def _transform() -> bool:
    """Whether a transform is active that prevents capture.

    Tangents and functionalisation do more than run the program's operators on other tensors.
    """
    included = torch._C._dispatch_tls_is_dispatch_key_included
    return any(name not in ("Vmap", "Grad") for name, *_ in _on_levels()) or any(map(included, _TRANSFORMS))


_FOREIGN: tuple[tuple[str, Callable[[], bool]], ...] = (
    ("a dispatch mode", lambda: torch._C._len_torch_dispatch_stack() > 0),
    ("a function mode of torch's", _function_mode),
    ("a transform", _transform),
    ("forward-mode AD", lambda: forward_ad._current_level >= 0),
    ("anomaly detection", torch.is_anomaly_enabled),
    ("saved-tensor hooks", _saved_tensor_hooks),
)


_ATTENTION = (
    torch._C._get_flash_sdp_enabled,
    torch._C._get_mem_efficient_sdp_enabled,
    torch._C._get_math_sdp_enabled,
    torch._C._get_cudnn_sdp_enabled,
    torch._C._get_overrideable_sdp_enabled,  # type: ignore[attr-defined]
)


def global_state() -> tuple[Any, ...]:
    """The torch state that captured code depends on, in the order of GLOBAL_STATE_FIELDS."""
    if skips_next():  # any other query would consume the skip
        return ("a call that torch skips", *[None] * (len(GLOBAL_STATE_FIELDS) - 1))
    asked = torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled()
    with torch._C.DisableTorchFunction():  # a signal handler may raise in a guard: modes off the stack would be lost
        return _global_state(*asked)


def _default_device() -> str:
    """The default device of the thread, and of torch's modes below the program's, with its index.

    A device that does not exist is returned as the program named it.
    """
    outermost = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    device = None if outermost is None else outermost.device
    for place in range(torch._C._len_torch_function_stack()):
        mode = mode_at(place)
        if type(mode) is not DeviceContext:
            break
        device = mode.device
    if device is None:
        return "cpu"
    try:
        known = device if device.index is not None else torch.empty(0, device=device).device
        return str(known)
    except (RuntimeError, AssertionError):
        return f"{device}, which this machine lacks"


def _global_state(enabled: bool, disabled: bool) -> tuple[Any, ...]:
    return (
        foreign_state(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.is_autocast_enabled("cuda"),
        torch.get_autocast_dtype("cpu"),
        torch.get_autocast_dtype("cuda"),
        torch.is_autocast_cache_enabled(),
        torch.get_default_dtype(),
        _default_device(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch._C._get_deterministic_fill_uninitialized_memory(),
        tuple(is_on() for is_on in _ATTENTION),
        len(function_modes()),
        enabled,
        disabled,
        in_checkpoint(),
        torch._C._dispatch_tls_local_include_set().raw_repr(),
        torch._C._dispatch_tls_local_exclude_set().raw_repr(),
    )


GLOBAL_STATE_FIELDS = (
    "active", "grad mode", "inference mode", "cpu autocast", "cuda autocast", "cpu autocast dtype",
    "cuda autocast dtype", "autocast cache", "default dtype", "default device", "deterministic algorithms",
    "deterministic warn only", "deterministic fill", "attention kernels",
    "function modes", "torch function", "torch function all disabled", "checkpoint",
    "dispatch keys", "excluded dispatch keys",
)  # fmt: skip


def _state_seen(_: Any, arg: Any) -> str:
    """The parts of the state that differ.  Dispatch keys follow from other parts, so they are printed only when nothing
    else differs."""
    rows = [*zip(GLOBAL_STATE_FIELDS, global_state(), arg, strict=True)]
    changed = [(name, have, want) for name, have, want in rows if have != want]
    told = [row for row in changed if "dispatch keys" not in row[0]] or changed
    return "; ".join(f"{name} {have}, expected {want}" for name, have, want in told)


_PRINTED = (int, float, complex, str, bytes, type(None))  # constants with a `repr` that a person can read
LISTED = 8  # most keys in the text of a difference
COMPARED = 1_000  # keys: the difference of longer lists is not computed


def _plain(value: Any, _: Any) -> str:
    text = _element(value) if isinstance(value, (*_PRINTED, tuple)) else type(value).__name__
    return text if len(text) < 200 else text[:197] + "..."


def _shown(constant: Any) -> str:
    return reprlib.repr(constant) if type(constant) is list else repr(constant)


def _element(value: Any) -> str:
    """A key or element as text: a tensor by its class and sizes, never by its numbers."""
    if isinstance(value, torch.Tensor):
        with torch._C.DisableTorchFunction():
            return f"{type(value).__name__}[{', '.join(map(str, value.shape))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_element, value))}{',' * (len(value) == 1)})"
    if isinstance(value, (*_PRINTED, type, ClassKey)) or is_singleton(value):
        return repr(value)
    return f"a {type(value).__name__}"


def _elements(values: Iterable[Any], most: int | None = None) -> str:
    """Elements as a list; beyond `most` their number."""
    texts = [_element(value) for value in values]
    more = [f"and {len(texts) - most} more"] if most is not None and len(texts) > most else []
    return f"[{', '.join(texts[:most] + more)}]"


def _changed_keys(now: tuple[Any, ...], expected: tuple[Any, ...]) -> str:
    """The difference of two lists of keys: `2 added ['a', 'b']`, `1 missing ['c']`, or another order."""
    if len(now) + len(expected) > COMPARED:
        return f"{len(now)} keys, expected {len(expected)}"
    left = list(expected)
    added = []
    for key in now:
        found = next((i for i, k in enumerate(left) if k is key or same_constant(k, key)), None)
        if found is None:
            added.append(key)
        else:
            del left[found]
    told = [
        f"{len(keys)} {what} {_elements(keys, LISTED)}" for what, keys in (("added", added), ("missing", left)) if keys
    ]
    return ", ".join(told) or "another order"


def keys_of(value: Any) -> tuple[Any, ...]:
    """The keys of a dict in order; methods of a subclass are not called."""
    bases = (collections.OrderedDict, dict, type(value))
    return tuple(next(c for c in bases if issubclass(type(value), c)).__iter__(value))


def has_keys(keys: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    same = (x is y or same_constant(x, y) for x, y in zip(keys, wanted, strict=False))
    return len(keys) == len(wanted) and all(same)


# One row per kind.  `arg` by kind:
#   type_is: the class, or a weakref.ref to it    id_is: the object, or a weakref.ref to it
#   equals: the constant (see same_constant)
#   tensor: TensorSpec           length: int (of the storage: storage_length)     dict_keys: tuple of keys, in order
#   dict_contains, dict_absent: a key (exact `dict` storage)                      set_equals: frozenset
#   instance_absent: name of an attribute missing in the instance dict            class_absent: name in no class of the MRO
#   global_state: tuple from global_state(); its source is ignored                truth: bool(value) of a known-harmless type
#   no_alias: the values at source and at `others` are pairwise distinct objects (used for tensors)
#   same_object: the values at source and at others[0] are one object
#   cell_empty: the cell has no contents (source: the cell)
#   sizes: a `size_checks.SizeChecks` over the sizes, strides and integers at source and `others`
#   data: a `data_checks.DataChecks` over the numbers in the tensors at source and the first of `others`
GUARD_KINDS: dict[str, GuardKind] = {
    "type_is": GuardKind(
        lambda v, a: type(v) is deref(a),
        lambda g: f"type({g.source}) is {_path(deref(g.arg))}",
        lambda v, a: f"{'another ' * (type(v).__qualname__ == _path(deref(a)))}{type(v).__qualname__}",
    ),
    "id_is": GuardKind(
        lambda v, a: v is deref(a),
        lambda g: (
            f"{g.source} is {_identity(deref(g.arg)) or f'the {type(deref(g.arg)).__name__} seen at compile time'}"
        ),
        lambda v, a: (
            shown if (shown := _identity(v)) not in (None, _identity(deref(a))) else f"another {type(v).__name__}"
        ),
    ),
    "equals": GuardKind(same_constant, lambda g: f"{g.source} == {_shown(g.arg)}", _plain),
    "tensor": GuardKind(
        tensor_holds,
        lambda g: (
            f"{g.source} is {_name(deref(g.arg.cls))}[{_shown_numbers(g.arg.sizes)}] {g.arg.dtype} {g.arg.device}"
            f" strides [{_shown_numbers(g.arg.strides)}] requires_grad={g.arg.requires_grad}"
        ),
        _tensor_seen,
        parts=True,
    ),
    "length": GuardKind(
        lambda v, a: storage_length(v) == a,
        lambda g: f"len({g.source}) == {g.arg}",
        lambda v, a: f"{storage_length(v)}",
    ),
    "dict_keys": GuardKind(
        lambda v, a: has_keys(keys_of(v), a),
        lambda g: f"list({g.source}) == {_elements(g.arg)}",
        lambda v, a: _changed_keys(keys_of(v), a),
    ),
    "dict_contains": GuardKind(
        lambda v, a: dict.__contains__(v, a), lambda g: f"{_element(g.arg)} in {g.source}", lambda v, a: "missing"
    ),
    "dict_absent": GuardKind(
        lambda v, a: not dict.__contains__(v, a),
        lambda g: f"{_element(g.arg)} not in {g.source}",
        lambda v, a: "present",
    ),
    "set_equals": GuardKind(
        set_holds,
        lambda g: f"{g.source} == {{{_elements(g.arg)[1:-1]}}}",
        lambda v, a: _changed_keys(tuple(v), tuple(a)),
    ),
    "instance_absent": GuardKind(
        _instance_lacks, lambda g: f"{g.arg!r} not in vars({g.source})", lambda v, a: "attribute set on the instance"
    ),
    "class_absent": GuardKind(
        _class_lacks, lambda g: f"no class of {g.source} defines {g.arg!r}", lambda v, a: "attribute set on a class"
    ),
    "truth": GuardKind(lambda v, a: bool(v) is a, lambda g: f"bool({g.source}) is {g.arg}", lambda v, a: f"{bool(v)}"),
    "cell_empty": GuardKind(
        lambda v, a: isinstance(v, types.CellType) and v == types.CellType(),
        lambda g: f"{g.source} is empty",
        _plain,
    ),
    "global_state": GuardKind(
        lambda v, a: global_state() == a, lambda g: "global torch state is unchanged", _state_seen
    ),
    "no_alias": GuardKind(
        lambda vs, a: len({id(v) for v in vs}) == len(vs),
        lambda g: f"distinct objects: {', '.join(s.name for s in (g.source, *g.others))}",
        lambda vs, a: "the same object twice",
    ),
    "same_object": GuardKind(
        lambda vs, a: vs[0] is vs[1],
        lambda g: f"{g.source} is {g.others[0]}",
        lambda vs, a: _both(*vs) or "two different objects",
    ),
    "sizes": GuardKind(
        lambda vs, a: a.holds(vs),
        lambda g: g.arg.show((g.source, *g.others)),
        lambda vs, a: a.seen(vs),
    ),
    "data": GuardKind(
        lambda vs, a: a.holds(vs),
        lambda g: g.arg.show((g.source, *g.others)),
        lambda vs, a: a.seen(vs),
    ),
}

RELATIONAL = ("no_alias", "same_object", "sizes", "data")


def holds(guard: Guard, scope: Scope) -> bool:
    """Whether one guard holds.  A path that cannot be read is a failed guard."""
    kind = GUARD_KINDS[guard.kind]
    try:
        if guard.kind == "global_state":
            return kind.holds(None, guard.arg)
        if guard.kind in RELATIONAL:
            return kind.holds([read(s, scope) for s in (guard.source, *guard.others)], guard.arg)
        return kind.holds(read(guard.source, scope), guard.arg)
    except Exception:
        return False


def first_failure(guards: Iterable[Guard], scope: Scope) -> int | None:
    """Index of the first guard that fails, or None: the oracle of the native check."""
    return next((i for i, g in enumerate(guards) if not holds(g, scope)), None)


def seen(guard: Guard, scope: Scope) -> str:
    """The value in `scope` that a guard sees, as far as it differs from the expected one."""
    kind = GUARD_KINDS[guard.kind]
    try:
        if guard.kind in RELATIONAL:
            return kind.seen([read(s, scope) for s in (guard.source, *guard.others)], guard.arg)
        return kind.seen(None if guard.kind == "global_state" else read(guard.source, scope), guard.arg)
    except Exception as e:
        return f"{guard.source} cannot be read ({type(e).__name__}: {e})"


def explain(guard: Guard, scope: Scope) -> str:
    """Why `guard` fails in `scope`: the expected value, the actual value, and the user's line."""
    where = f"  # {guard.user[-1].filename}:{guard.user[-1].lineno}" if guard.user else ""
    return f"{guard.source if GUARD_KINDS[guard.kind].parts else guard}: seen {seen(guard, scope)}{where}"
