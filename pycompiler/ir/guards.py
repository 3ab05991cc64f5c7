"""Assumptions that a compiled entry rests on, as data.

In: sources and values seen during capture.  Out: `Guard` records.  The native engine turns them into a guard
tree (`guards-rs/src/guard/`, one kind a file); `check` and `explain` below are the Python evaluator of the same
data, the oracle of the native one.

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

from pycompiler.ir import arrays
from pycompiler.ir.source import Scope, Source, mro_of, namespace_of, read

_TORCH = os.path.join(os.path.dirname(torch.__file__), "")


@dataclass(frozen=True)
class UserFrame:
    """A place in the user's program: file, 1-based line, function name.  The line's text is read when asked for."""

    filename: str
    lineno: int
    function: str
    text: str | None = None

    @property
    def line(self) -> str:
        """The source line, stripped; empty when the source is not to be had."""
        return linecache.getline(self.filename, self.lineno).strip() if self.text is None else self.text

    @property
    def place(self) -> str:
        return f"{self.filename}:{self.lineno} in {self.function}"

    def __str__(self) -> str:
        return f"{self.place}\n    {self.line}" if self.line else self.place


def own_frame(stack: Sequence[UserFrame]) -> UserFrame:
    """Where the program's own code is: the innermost frame that is none of torch's."""
    return next((f for f in reversed(stack) if not f.filename.startswith(_TORCH)), stack[-1])


def own_place(stack: Sequence[UserFrame]) -> str:
    return own_frame(stack).place


@dataclass(frozen=True)
class TensorSpec:
    """All that a `tensor` guard compares.  A size or stride of None is not compared (dynamic).

    `keys` is `torch._C._dispatch_keys(t).raw_repr()`, which includes device and autograd keys.  `cls` is a weak reference where
    the class may end; then a guard of kind `type_is` stands beside.
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
        """The same, of which symbolic sizes and strides are not compared."""
        known = [tuple(n if type(n) is int else None for n in numbers) for numbers in (sizes, strides)]
        return replace(self, sizes=known[0], strides=known[1])


@dataclass(frozen=True, eq=False)
class Guard:
    """One assumption: `kind` (a row of GUARD_KINDS) holds of the value at `source`, given `arg`.

    `others` are further sources for relational kinds.  `user` says where the assumption was made.
    """

    kind: str
    source: Source
    arg: Any = None
    others: tuple[Source, ...] = ()
    user: tuple[UserFrame, ...] = field(default=(), compare=False)

    def __str__(self) -> str:
        return GUARD_KINDS[self.kind].show(self)


@dataclass(frozen=True)
class Kind:
    """`holds(value, arg)`; `show(guard)` renders the assumption; `seen(value, arg)` what was found instead.

    `parts`: `seen` names the parts that differ, each with the expected one: an explanation does not repeat the assumption.
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
    if arrays.is_taken(type(a)):
        return same_constant(a.item(), b.item())
    return bool(a == b)


def storage_length(value: Any) -> int:
    """len() of a builtin container or of an instance of its subclass, whatever `__len__` the subclass has."""
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
    """The aspects in which a tensor differs, each as a text with the expected one.  What follows from another aspect is none:
    dispatch keys from a device, strides of contiguous tensors from sizes.  A size or stride that is not compared is `*`."""
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
    """Whether strides are those of a contiguous tensor, as far as they are compared."""
    step: int | None = 1
    for size, stride in zip(reversed(spec.sizes), reversed(spec.strides), strict=False):
        if None not in (stride, step) and stride != step and size != 1:
            return False
        step = None if step is None or size is None else step * size
    return True


def _keys_seen(now: int, wanted: int) -> str:
    """Dispatch keys by name: those that are there beside the expected ones, and those that are missing."""
    shown = [repr(torch._C.DispatchKeySet.from_raw_repr(keys)).partition("(")[2].rstrip(")") for keys in (now, wanted)]
    have, want = (dict.fromkeys(text.split(", ")) for text in shown)
    rows = (("with", have.keys() - want), ("without", want.keys() - have))
    return " and ".join(f"{word} dispatch key {', '.join(sorted(keys))}" for word, keys in rows if keys)


SINGLETONS = (torch.dtype, torch.layout, torch.memory_format, type(None), bool, enum.Enum, type)


def is_singleton(value: object) -> bool:
    """Whether an object is named by its value: there is no other one like it."""
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
    """What is active that has to see, or changes, every operator one by one: under it a call runs as eager would."""
    return next((name for name, active in _FOREIGN if active()), None)


skips_next: Callable[[], bool] = getattr(torch._C, "_peek_should_skip_torch_function", bool)
"""Whether who asks `__torch_function__` next is told that nobody answers (`torch.overrides.redispatch_function`, newer torch)."""


def function_modes() -> list[Any]:
    """The function modes that are on, innermost last: those of the program lie on top of torch's for a default device."""
    return [*getattr(_off, "modes", ()), *_on_stack()]


def mode_at(place: int) -> Any:
    """The function mode at a place of the thread's stack, 0 being the outermost; asking torch for it would be the call that it
    skips, where it skips one."""
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


class modes_off:
    """Inside, the function modes of the program see nothing; `function_modes` still tells them.  Wherever a signal's handler
    raises, they are on again behind it."""

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
    """Whether a function mode is on that capture does not inline: one of torch's own."""
    return any(type(mode).__module__.partition(".")[0] == "torch" for mode in function_modes())


_OWN_HOOKS = ("torch.utils.checkpoint", "torch.autograd.graph")  # give back what they were given


def _saved_tensor_hooks() -> bool:
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return hooks is not None and any(getattr(hook, "__module__", None) not in _OWN_HOOKS for hook in hooks)


def in_checkpoint() -> bool:
    """Whether a checkpoint of torch's is around the call: it, or what it computes again, ends where the last tensor is saved."""
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    return getattr(_off, "checkpoint", False) or getattr(hooks and hooks[0], "__module__", None) == _OWN_HOOKS[0]


@contextlib.contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Inside, nobody packs what is saved; `in_checkpoint` still tells of the program's checkpoint."""
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


_TRANSFORMS = ("VmapMode", "Functionalize", "PythonDispatcher", "Tracer")  # included while they are on


def levels() -> tuple[tuple[Any, ...], ...]:
    """The transforms of torch.func around the call, outermost first: name, number, and what `vmap` does with random numbers."""
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
    """In the kernel of an operator: operators record nothing although gradients are on."""
    return getattr(_off, "kernel", False) or _below_autograd()


@functools.cache
def _usual() -> tuple[Any, Any]:
    """The dispatch keys included and excluded where nothing is on: those of a thread that begins."""
    found: list[Any] = []

    def look_up() -> None:
        found.extend((torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()))

    look = threading.Thread(target=look_up)
    look.start()
    look.join()
    return found[0], found[1]


@contextlib.contextmanager
def as_usual() -> Iterator[None]:
    """Inside, operators are dispatched as at the top of a program: transforms of torch.func, and the operator whose kernel
    this is, see nothing; `levels` and `in_kernel` still tell them."""
    found, kernel = _on_levels(), _below_autograd()
    if not (found or kernel):
        yield
        return
    _off.levels, _off.kernel = found, kernel
    try:
        with (
            temporarily_clear_interpreter_stack() if found else contextlib.nullcontext(),
            torch._C._ForceDispatchKeyGuard(*_usual()) if kernel else contextlib.nullcontext(),  # type: ignore[attr-defined]
        ):
            yield
    finally:
        _off.levels, _off.kernel = None, False


def _transform() -> bool:
    """Whether a transform is on under which nothing is captured: tangents and functionalization are more than the program's
    operators on other tensors."""
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
    if skips_next():  # a look at any other would be the call that is skipped
        return ("a call that torch skips", *[None] * (len(GLOBAL_STATE_FIELDS) - 1))
    asked = torch._C._is_torch_function_enabled(), torch._C._is_torch_function_all_disabled()
    if torch._C._len_torch_function_stack() == 0:
        return _global_state(*asked)
    with (
        torch._C.DisableTorchFunction()
    ):  # a guard asks: a signal's handler may raise anywhere, and modes stay on behind it
        return _global_state(*asked)


def _default_device() -> str:
    """That of the thread, and of torch's modes below the program's, with its index; as the program said it, where there is no
    such device."""
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
    """The parts that differ; dispatch keys follow from others, and are told alone only."""
    rows = [*zip(GLOBAL_STATE_FIELDS, global_state(), arg, strict=True)]
    changed = [(name, have, want) for name, have, want in rows if have != want]
    told = [row for row in changed if "dispatch keys" not in row[0]] or changed
    return "; ".join(f"{name} {have}, expected {want}" for name, have, want in told)


def _plain(value: Any, _: Any) -> str:
    text = (
        repr(value) if isinstance(value, (int, float, complex, str, bytes, type(None), tuple)) else type(value).__name__
    )
    return text if len(text) < 200 else text[:197] + "..."


def _shown(constant: Any) -> str:
    return reprlib.repr(constant) if type(constant) is list else repr(constant)


def keys_of(value: Any) -> tuple[Any, ...]:
    """The keys of a dict in order, whatever its class says of them."""
    bases = (collections.OrderedDict, dict, type(value))
    return tuple(next(c for c in bases if issubclass(type(value), c)).__iter__(value))


def has_keys(keys: tuple[Any, ...], wanted: tuple[Any, ...]) -> bool:
    same = (x is y or same_constant(x, y) for x, y in zip(keys, wanted, strict=False))
    return len(keys) == len(wanted) and all(same)


# One row a kind.  `arg` per kind:
#   type_is: the class, or a weakref.ref to it    id_is: the object, or a weakref.ref to it
#   equals: the constant (see same_constant)
#   tensor: TensorSpec           length: int (of the storage: storage_length)     dict_keys: tuple of keys, in order
#   dict_contains, dict_absent: a key (exact `dict` storage)                      set_equals: frozenset
#   instance_absent: attribute name missing in the instance dict                  class_absent: name in no class of the mro
#   global_state: tuple from global_state(); its source is ignored                truth: bool(value) of a known-harmless type
#   no_alias: value at source and at each of `others` are pairwise distinct objects (used for tensors)
#   same_object: value at source is the very object at others[0]
#   cell_empty: the cell has no contents (source: the cell)
#   sizes: a `size_checks.SizeChecks` over the sizes, strides and integers at source and `others`
#   data: a `data_checks.DataChecks` over the numbers in the tensors at source and the first of `others`
GUARD_KINDS: dict[str, Kind] = {
    "type_is": Kind(
        lambda v, a: type(v) is deref(a),
        lambda g: f"type({g.source}) is {_path(deref(g.arg))}",
        lambda v, a: f"{'another ' * (type(v).__qualname__ == _path(deref(a)))}{type(v).__qualname__}",
    ),
    "id_is": Kind(
        lambda v, a: v is deref(a),
        lambda g: (
            f"{g.source} is {_identity(deref(g.arg)) or f'the {type(deref(g.arg)).__name__} seen at compile time'}"
        ),
        lambda v, a: (
            shown if (shown := _identity(v)) not in (None, _identity(deref(a))) else f"another {type(v).__name__}"
        ),
    ),
    "equals": Kind(same_constant, lambda g: f"{g.source} == {_shown(g.arg)}", _plain),
    "tensor": Kind(
        tensor_holds,
        lambda g: (
            f"{g.source} is {_name(deref(g.arg.cls))}[{_shown_numbers(g.arg.sizes)}] {g.arg.dtype} {g.arg.device}"
            f" strides [{_shown_numbers(g.arg.strides)}] requires_grad={g.arg.requires_grad}"
        ),
        _tensor_seen,
        parts=True,
    ),
    "length": Kind(
        lambda v, a: storage_length(v) == a,
        lambda g: f"len({g.source}) == {g.arg}",
        lambda v, a: f"{storage_length(v)}",
    ),
    "dict_keys": Kind(
        lambda v, a: has_keys(keys_of(v), a),
        lambda g: f"list({g.source}) == {list(g.arg)!r}",
        lambda v, a: f"{list(keys_of(v))!r}"[:200],
    ),
    "dict_contains": Kind(
        lambda v, a: dict.__contains__(v, a), lambda g: f"{g.arg!r} in {g.source}", lambda v, a: "missing"
    ),
    "dict_absent": Kind(
        lambda v, a: not dict.__contains__(v, a), lambda g: f"{g.arg!r} not in {g.source}", lambda v, a: "present"
    ),
    "set_equals": Kind(
        set_holds,
        lambda g: f"{g.source} == {set(g.arg)!r}",
        lambda v, a: f"{v!r}"[:200],
    ),
    "instance_absent": Kind(
        _instance_lacks, lambda g: f"{g.arg!r} not in vars({g.source})", lambda v, a: "attribute set on the instance"
    ),
    "class_absent": Kind(
        _class_lacks, lambda g: f"no class of {g.source} defines {g.arg!r}", lambda v, a: "attribute set on a class"
    ),
    "truth": Kind(lambda v, a: bool(v) is a, lambda g: f"bool({g.source}) is {g.arg}", lambda v, a: f"{bool(v)}"),
    "cell_empty": Kind(
        lambda v, a: isinstance(v, types.CellType) and v == types.CellType(),
        lambda g: f"{g.source} is empty",
        _plain,
    ),
    "global_state": Kind(lambda v, a: global_state() == a, lambda g: "global torch state is unchanged", _state_seen),
    "no_alias": Kind(
        lambda vs, a: len({id(v) for v in vs}) == len(vs),
        lambda g: f"distinct objects: {', '.join(s.name for s in (g.source, *g.others))}",
        lambda vs, a: "the same object twice",
    ),
    "same_object": Kind(
        lambda vs, a: vs[0] is vs[1],
        lambda g: f"{g.source} is {g.others[0]}",
        lambda vs, a: _both(*vs) or "two different objects",
    ),
    "sizes": Kind(
        lambda vs, a: a.holds(vs),
        lambda g: g.arg.show((g.source, *g.others)),
        lambda vs, a: a.seen(vs),
    ),
    "data": Kind(
        lambda vs, a: a.holds(vs),
        lambda g: g.arg.show((g.source, *g.others)),
        lambda vs, a: a.seen(vs),
    ),
}

RELATIONAL = ("no_alias", "same_object", "sizes", "data")


def holds(guard: Guard, scope: Scope) -> bool:
    """Whether one guard holds; a path that cannot be read is a failed guard."""
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
    """Index of the first guard that does not hold, or None: the oracle of the native check."""
    return next((i for i, g in enumerate(guards) if not holds(g, scope)), None)


def explain(guard: Guard, scope: Scope) -> str:
    """Why `guard` fails in `scope`: expected, seen, and the user's line."""
    kind = GUARD_KINDS[guard.kind]
    try:
        if guard.kind in RELATIONAL:
            seen = kind.seen([read(s, scope) for s in (guard.source, *guard.others)], guard.arg)
        else:
            seen = kind.seen(None if guard.kind == "global_state" else read(guard.source, scope), guard.arg)
    except Exception as e:
        seen = f"{guard.source} cannot be read ({type(e).__name__}: {e})"
    where = f"  # {guard.user[-1].filename}:{guard.user[-1].lineno}" if guard.user else ""
    return f"{guard.source if kind.parts else guard}: seen {seen}{where}"
