"""Tensors: a graph node, and the fake tensor that carries its metadata.

Methods and attributes are graph calls.  A result that is no tensor (shape, dtype, flag) is a constant, since a tensor's
metadata is guarded.
"""

from __future__ import annotations

import enum
import inspect
import operator
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import fx
from torch.utils.hooks import RemovableHandle

from pycompiler.capture.breaks import Break
from pycompiler.capture.semantics.polyfills import OF_TENSORS
from pycompiler.capture.values import symbolic_indexing
from pycompiler.capture.values.attributes import MISSING, is_data_descriptor, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const, UnknownObject
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.capture.values.containers.sequences import Tuple
from pycompiler.capture.values.functions import BOUND, Builtin
from pycompiler.capture.values.symbolic_numbers import checked_length
from pycompiler.ir.source import const_source
from pycompiler.operators import numpy_arrays
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.symbolic.symbols import expr_of, is_symbolic
from pycompiler.torch_compat.jagged_tensors import CACHED, is_jagged
from pycompiler.torch_compat.tensor_subclasses import held_by, is_tensor_subclass
from pycompiler.torch_compat.warning_listener import Listening

# Attributes that read data or autograd state outside of the graph.
DATA_ATTRIBUTES = frozenset({"data_ptr", "storage", "untyped_storage", "numpy", "tolist", "item", "__array__",
                             "const_data_ptr", "mutable_data_ptr", "storage_type", "__dlpack__"})  # fmt: skip
AUTOGRAD_ATTRIBUTES = frozenset({"_backward_hooks", "register_hook", "backward", "retain_grad",
                                 "register_post_accumulate_grad_hook"})  # fmt: skip
FLAGS = frozenset(
    name
    for name in (
        "shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_leaf", "is_cuda", "is_cpu", "is_sparse",
        "is_quantized", "is_meta", "names", "is_mkldnn", "itemsize", "nbytes", "is_nested", "is_xpu", "is_mps",
        "is_sparse_csr", "output_nr", "is_xla", "is_hpu", "is_ipu", "is_vulkan", "is_mtia", "is_maia",
    )
    if hasattr(torch.Tensor, name)  # torch 2.15 has no names
)  # fmt: skip
SAME_OF_ALL = frozenset({"volatile", "name", "_has_symbolic_sizes_strides"})
OTHER_NAMES = {"_grad": "grad", "_grad_fn": "grad_fn"}
# Attributes and methods that depend on more than the tensor guard compares.
UNGUARDED = frozenset({"is_leaf", "output_nr", "retains_grad", "grad_fn", "_version"})
UNGUARDED_METHODS = frozenset({"storage_offset", "_is_view", "is_shared", "is_pinned", "is_set_to"})
# Attributes and methods that depend on a transform's levels, or on the position of its batch dimension.
LEVELLED = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "output_nr", "retains_grad"})
LEVELLED_METHODS = frozenset({"stride", "is_contiguous"})
# Methods that need memory or take the object apart.
#
# A fake tensor has no memory (torch crashes) and attributes of its own.
UNFAKEABLE = frozenset({"apply_", "map_", "map2_", "__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__",
                        "_reduce_ex_internal", "__setstate__", "__getstate__", "_typed_storage", "_storage"})  # fmt: skip
TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


# Types of constants that a tensor subclass may hold.
HELD = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Types that a tensor subclass may hold besides tensors, alone or in tuples."""

MOST_ITEMS = 64  # numbers that one `tolist` reads


class GraphOnly(Value):
    """A non-tensor value of the graph that the program does not see."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def describe(self) -> str:
        return "an internal value of a transform"

    def identity(self) -> object:
        return ("kept", id(self))

    def python_type(self) -> type:
        return type(self.node.meta["example_value"])


def _of_fake(name: str) -> Any:
    return property(operator.attrgetter(f"fake.{name}"))


class Tensor(Value):
    """A tensor of the graph.  Its metadata are read here, and nowhere else from the fake tensor."""

    dtype: torch.dtype = _of_fake("dtype")
    device: torch.device = _of_fake("device")
    layout: torch.layout = _of_fake("layout")
    shape: torch.Size = _of_fake("shape")
    requires_grad: bool = property(  # type: ignore[assignment]
        lambda self: self.fake.requires_grad, lambda self, flag: self.fake.requires_grad_(flag)
    )
    is_leaf: bool = _of_fake("is_leaf")
    grad_fn: Any = _of_fake("grad_fn")
    output_nr: int = _of_fake("output_nr")
    version: int = _of_fake("_version")
    counted: int | None = property(lambda self: None if self.fake.is_inference() else self.version)  # type: ignore[assignment]
    rank: int = property(lambda self: self.fake.dim())  # type: ignore[assignment]
    strides: tuple[int, ...] = property(lambda self: self.fake.stride())  # type: ignore[assignment]
    offset: int = property(lambda self: self.fake.storage_offset())  # type: ignore[assignment]
    numel: int = property(lambda self: self.fake.numel())  # type: ignore[assignment]
    is_contiguous: bool = property(lambda self: self.fake.is_contiguous())  # type: ignore[assignment]
    is_view: bool = property(lambda self: self.fake._is_view())  # type: ignore[assignment]
    memory: int = property(lambda self: memory_of(self.fake))  # type: ignore[assignment]
    base: torch.Tensor | None = _of_fake("_base")
    has_symbols: bool = _of_fake("_has_symbolic_sizes_strides")
    spec: Any = _of_fake("_spec")  # of a DTensor

    def __init__(
        self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor | None = None, cls: type | None = None
    ) -> None:
        self.node = node
        self.fake = self.known_by = fake
        self.real = real  # the input's own tensor
        self.cls: type = cls or (type(real) if real is not None else torch.Tensor)
        self.is_special = cls is not None  # of a class of the program, which may define methods
        self.wrapper = cls is not None and is_tensor_subclass(
            cls
        )  # of a class with `__torch_dispatch__`, also in the graph
        self.overrides = cls is not None and has_torch_function(
            cls
        )  # its `__torch_function__` is called (`capture/interpreter/torch_function.py`)
        self.overlay: dict[str, Value] = {}  # attributes set by the program
        self.parted = False  # whether its data differ from its node's data (`tensor_data.py`)
        self.shown = False  # whether an array of NumPy has its data

    def detached(self) -> torch.Tensor:
        """Another fake in the same memory, without a history."""
        return self.fake.detach()

    @property
    def exists(self) -> bool:
        return self.source is not None

    def describe(self) -> str:
        return f"Tensor({list(self.shape) or 'no dimensions'}, {self.dtype})"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> object:
        return ("tensor", id(self.known_by))

    def assume(self, cx: Capture, name: str) -> None:
        """Guard a method of its class: the program may replace it (`torch.Tensor.cos = mine`)."""
        lookup(cx, self.cls, name)

    def own(self, cx: Capture, name: str) -> Value | None:
        """The attribute of the program's class or of the tensor's instance dict; None if torch.Tensor defines it."""
        raw = mro_lookup(self.cls, name)
        if raw is not mro_lookup(torch.Tensor, name):
            if raw is MISSING or is_data_descriptor(raw):
                return None if raw is MISSING else cx.class_attribute(self, name)
        elif raw is not MISSING and is_data_descriptor(raw):
            return None
        if name in self.overlay:
            return self.overlay[name]
        found = self._of_instance(cx, name)
        if found is not None:
            return found
        return cx.class_attribute(self, name) if raw is not mro_lookup(torch.Tensor, name) else None

    def getattr(self, cx: Capture, name: str) -> Value:
        slot = mro_lookup(self.cls, name) if self.wrapper else None
        if isinstance(slot, types.MemberDescriptorType):
            return (
                self._in_slot(cx, name, slot)
                if self.exists
                else self._made_with(cx, name, held_by(self.fake).get(name, MISSING))
            )
        if self.is_special or self.overlay:
            found = self.own(cx, name)
            if found is not None:
                return found
        if isinstance(mro_lookup(torch.Tensor, name), types.GetSetDescriptorType) and name != "__dict__":
            found = cx.functions.ask(lambda t: getattr(t, name), [self], {})
            if found is not None:
                return found
        return self.plain_getattr(cx, name)

    def _of_instance(self, cx: Capture, name: str) -> Value | None:
        """The attribute in the instance dict of an existing tensor, or None."""
        attributes = getattr(self.real, "__dict__", None)
        if attributes is None or self.source is None:
            return None
        cx.effects.namespaces.reached(attributes, self)
        if name not in attributes:
            return None
        return cx.wrap(attributes[name], self.source.then("instance_dict").dict_item(name))

    def plain_getattr(self, cx: Capture, name: str) -> Value:
        """The attribute as torch.Tensor defines it."""
        name = OTHER_NAMES.get(name, name)
        if name == "__dict__":
            raise Break("unsupported-attribute", "Tensor.__dict__")
        if name in UNGUARDED or name == "grad":  # read by guards and by generated code
            if self.overrides:
                raise Break("tensor-subclass", f"{self.cls.__name__}.{name}")
            if cx.functions.modes_around():
                raise Break("unsupported-attribute", f"Tensor.{name} under a function mode")
        if name == "__torch_function__":
            return cx.class_attribute(self, name)
        if name in ("requires_grad", "grad_fn") and cx.graph.follows(self):
            raise Break("unsupported-attribute", f"Tensor.{name} of a view after requires_grad_() of its base")
        if name in LEVELLED and cx.graph.levels:
            raise Break("inner-graph", f"Tensor.{name} under a transform")
        if name in UNGUARDED:
            return self._unguarded(cx, name)
        if name in FLAGS:
            return cx.evaluate(getattr, self.fake, name)
        if name == "grad":
            return self._grad(cx)
        if name in TENSOR_PROPERTIES:
            if name == "data" and cx.inference.is_made(self.fake) and not cx.inference.open:
                # The program may write it.
                raise Break("unsupported-operation", "Tensor.data of an inference tensor")
            return cx.graph.call_function(getattr, [self, Const(name)], {})
        if name == "__class__":
            return cx.make(self.cls)
        if name in AUTOGRAD_ATTRIBUTES and name not in ("backward", "register_hook", "retain_grad"):
            raise Break("unsupported-attribute", f"Tensor.{name}")
        found = self._of_instance(cx, name)
        if found is not None:
            return found
        if not hasattr(self.cls, name):
            if self.wrapper and not self.exists:
                return self._made_with(cx, name, vars(self.fake).get(name, MISSING))
            if self.real is not None and self.source is not None:
                cx.guard("instance_absent", self.source, name)
            lookup(cx, self.cls, name)
            handler = lookup(cx, self.cls, "__getattr__")
            if handler is not MISSING:
                raise Break("tensor-subclass", f"{self.cls.__name__}.__getattr__")
            cx.throw(AttributeError, f"{class_name(self.cls)!r} object has no attribute {name!r}")
        if not hasattr(torch.nn.Parameter, name):  # of a subclass
            return cx.class_attribute(self, name)
        if not callable(getattr(self.cls, name)):
            if name not in SAME_OF_ALL:
                raise Break("unsupported-attribute", f"Tensor.{name}")
            return cx.evaluate(getattr, self.fake, name)
        return TensorMethod(self, name)

    def _unguarded(self, cx: Capture, name: str) -> Value:
        """An attribute that the tensor guard does not compare.

        An input that the frame has not written gets a guard of its own.  For other tensors the fake tensor has the
        value.
        """
        if name == "grad_fn" and not self.requires_grad:
            return Const(None)
        if name == "retains_grad" and any(known is self for known, _ in cx.graph.retained):
            return Const(True)
        given = self.real is not None and self.source is not None
        read = given and name != "_version" and not cx.graph.is_written(self)
        if name == "grad_fn" and given and not read and type(self.real) is torch.nn.Parameter and self.grad_fn is None:
            return cx.wrap(self.real.grad_fn, self.source.attr(name))  # type: ignore[union-attr]  # no view, so still a leaf
        if not read and (given or not cx.graph.tells_history(self, name)):
            raise Break("unsupported-attribute", f"Tensor.{name}")
        if read:
            return cx.wrap(getattr(self.real, name), self.source.attr(name))  # type: ignore[union-attr]
        try:
            found = getattr(self.fake, name)
        except RuntimeError as error:  # the history of a view that an in-place write has invalidated
            raise Break("unsupported-attribute", f"Tensor.{name}, which raises: {error}") from None
        if name != "grad_fn" or found is None:
            return Const(found)
        broke = cx.frames[-1].here(Break("unsupported-attribute", f"a use of Tensor.{name}"))
        hooks = cx.graph.hooks.get(found)
        return GradFn(found, broke) if hooks is None or not hooks.after else HookedNode(found, hooks, broke)

    def _grad(self, cx: Capture) -> Value:
        if "grad" in self.overlay:
            return self.overlay["grad"]
        if self.real is None or self.source is None:
            if not self.is_leaf and not any(known is self for known, _ in cx.graph.retained):
                cx.warns_of("the gradient of no leaf")
            return Const(None)  # a captured backward would have set the overlay
        with Listening() as heard:
            gradient = self.real.grad
        if self.requires_grad and not issubclass(self.cls, torch.nn.Parameter):
            kept = [cx.wrap(getattr(self.real, n), self.source.attr(n)) for n in ("is_leaf", "retains_grad")]
            if heard and not any(v.const() for v in kept):  # the guard's read would warn, too
                raise Break(
                    "unsupported-attribute", "Tensor.grad of a tensor that is not a leaf, about which torch warns"
                )
        found = cx.wrap(gradient, self.source.then("grad"))
        cx.effects.looks.at("grad", self, None, found, self.source)
        return found

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if name in STORES and not self.is_special:
            STORES[name](cx, [self, value], {})
            return
        if self.wrapper:  # `__torch_dispatch__` may read it
            raise Break("tensor-attribute-store", f"{self.cls.__name__}.{name}")
        raw = mro_lookup(self.cls, name)
        store = mro_lookup(self.cls, "__setattr__")
        if raw is not MISSING and is_data_descriptor(raw) or store is not mro_lookup(torch.Tensor, "__setattr__"):
            raise Break("tensor-attribute-store", f"Tensor.{name} = {value.describe()}")
        lookup(cx, self.cls, name)
        lookup(cx, self.cls, "__setattr__")
        cx.effects.set_attr(self, name, value)

    def delattr(self, cx: Capture, name: str) -> None:
        if name not in DELETIONS or self.is_special:
            super().delattr(cx, name)
        DELETIONS[name](cx, [self], {})

    def special(self, cx: Capture, name: str) -> Value | None:
        """A method of the program's class, bound; None if torch.Tensor's method applies."""
        if self.cls is torch.Tensor or mro_lookup(self.cls, name) is mro_lookup(torch.Tensor, name):
            return None
        return cx.class_attribute(self, name)

    def asked(self, cx: Capture, name: str, *args: Value) -> Value | None:
        """The result of a special method if the program defines it or a `__torch_function__` handles it; else None."""
        method = self.special(cx, name) if self.is_special else None
        if method is not None:
            return cx.call(method, list(args), {})
        if not cx.functions.concerns([self, *args], {}):
            return None
        return call_tensor_method(cx, name, [self, *args], {})

    def getitem(self, cx: Capture, key: Value) -> Value:
        self.assume(cx, "__getitem__")
        method = self.special(cx, "__getitem__") if self.is_special else None
        if method is not None:
            return cx.call(method, [key], {})
        key = symbolic_indexing.plain_key(key)
        found = (
            None
            if self.is_special
            else symbolic_indexing.index_by_symbols(cx, self, key) or symbolic_indexing.index_by_mapped(cx, self, key)
        )
        if self.wrapper and is_jagged(self.cls):
            found = self._row(cx, key)
        try:
            return cx.graph.call_function(operator.getitem, [self, key], {}) if found is None else found
        except Break as asked:  # breaks because the key contains a number in a tensor
            known = (
                None
                if self.is_special or asked.kind != "data-dependent-value"
                else symbolic_indexing.index_by_copy(cx, self, key)
            )
            if known is None:
                raise
            return known

    def _row(self, cx: Capture, key: Value) -> Value | None:
        """``self[i]`` and ``self[i, ...]`` of a jagged tensor; None for another key."""
        key = cx.realize(key)
        items = [cx.realize(v) for v in key.items] if isinstance(key, Tuple) and key.cls is tuple else [key]
        if (
            cx.functions.concerns([self], {})
            or not items
            or not items[0].is_const()
            or not is_row(self, items[0].const())
        ):
            return None
        found = call_tensor_method(cx, "select", [self, Const(0), items[0]], {})
        return found.getitem(cx, Tuple(items[1:])) if items[1:] else found

    def setitem(self, cx: Capture, key: Value, value: Value) -> None:
        self.assume(cx, "__setitem__")
        method = self.special(cx, "__setitem__") if self.is_special else None
        if method is not None:
            cx.call(method, [key, value], {})
            return
        key = symbolic_indexing.plain_key(key)
        place = None if self.is_special else symbolic_indexing.index_by_symbols(cx, self, key, value)
        target = [self, key] if place is None else [place, Const(...)]
        cx.graph.call_function(operator.setitem, [*target, value], {}, always=True)

    def truth(self, cx: Capture) -> bool:
        found = self.asked(cx, "__bool__")
        if found is not None and not isinstance(found, Tensor):
            return cx.truth(found)
        if (known := cx.items.truth(self)) is not None:
            return known
        if (number := cx.graph.known_number(self.fake)) is not None:
            return bool(number.value)
        raise Break("data-dependent-jump", self.describe())

    def length(self, cx: Capture) -> Value:
        found = self.asked(cx, "__len__")
        if found is not None:
            return checked_length(cx, found)
        if self.rank == 0:
            cx.throw(TypeError, "len() of a 0-d tensor")
        return cx.make(self.shape[0])

    def iterate(self, cx: Capture) -> Iterator[Value]:
        found = self.asked(cx, "__iter__")
        if found is not None:
            return cx.elements(found)
        if self.rank == 0:
            cx.throw(TypeError, "iteration over a 0-d tensor")
        return call_tensor_method(cx, "unbind", [self, Const(0)], {}).iterate(cx)

    def _made_with(self, cx: Capture, name: str, held: Any) -> Value:
        """An attribute of a tensor subclass that an operator created.

        Its class computed the attribute from guarded objects, in the same way for fake and real tensors.
        """
        if name in self.fake.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
            return cx.graph.call_function(getattr, [self, Const(name)], {})
        if (known := _constant(cx, held)) is not None:
            return known
        if isinstance(held, torch.SymInt):
            return cx.make(held)
        if name == "_metadata_cache" and is_jagged(self.cls) and held.keys() <= {*CACHED.values()}:
            places = {cx.key(Const(key)): Const(place) for place, key in CACHED.items() if key in held}
            return Dict({k: cx.graph.call_function(getattr, [self, place], {}) for k, place in places.items()})
        raise Break("tensor-subclass", f"{name!r} of a {self.cls.__name__} that an operator made")

    def _in_slot(self, cx: Capture, name: str, slot: types.MemberDescriptorType) -> Value:
        """The contents of a slot of an existing tensor subclass."""
        lookup(cx, self.cls, name)
        hooks = ("__getattribute__", "__getattr__")
        if self.source is None or any(isinstance(mro_lookup(self.cls, n), types.FunctionType) for n in hooks):
            raise Break("unsupported-attribute", f"{self.cls.__name__}.{name}, a slot")
        try:
            held = slot.__get__(self.real)
        except AttributeError:
            raise Break("unsupported-attribute", f"the empty slot {self.cls.__name__}.{name}") from None
        return cx.wrap(held, self.source.attr(name))

    def contains(self, cx: Capture, item: Value) -> bool:
        found = self.asked(cx, "__contains__", item)
        if found is not None:
            return cx.truth(found)
        raise Break("data-dependent-value", "the operator `in` on a tensor")


def _constant(cx: Capture, held: Any) -> Value | None:
    """The value of an immutable attribute that a tensor subclass holds: the program's own object if the program passed it."""
    given = cx.graph.held.get(id(held))
    if given is not None:
        return given[1]
    if not _is_fixed(held):
        return None
    made = cx.make(held)
    if isinstance(held, tuple):
        cx.graph.held[id(held)] = held, made
    return made


def _is_fixed(held: Any) -> bool:
    """Whether the object and its contents are immutable."""
    return type(held) in HELD or isinstance(held, enum.Enum) or isinstance(held, tuple) and all(map(_is_fixed, held))


def is_row(tensor: Tensor, index: Any) -> bool:
    """Whether the index is an int within the number of rows."""
    count = tensor.shape[0]
    return type(index) is int and bool(-count <= index < count)


def has_torch_function(cls: type) -> bool:
    """Whether torch calls the `__torch_function__` of a tensor class."""
    hook = getattr(cls, "__torch_function__", None)
    return (
        cls is not torch.Tensor and hook is not torch._C._disabled_torch_function_impl and not is_tensor_subclass(cls)
    )


class GradFn(UnknownObject):
    """The `grad_fn` of a tensor created in the frame: only its existence and its identity are known."""

    def __init__(self, node: Any, broke: Break) -> None:
        super().__init__(broke)
        self.node = node

    def identity(self) -> object:
        return ("history", id(self.node))

    def truth(self, cx: Capture) -> bool:
        return True


class HookedNode(GradFn):
    """`grad_fn` of an input or output of a module with full backward hooks."""

    def __init__(self, node: Any, hooks: Any, broke: Break) -> None:
        super().__init__(node, broke)
        self.hooks = hooks

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "name":
            return CaptureMethod(lambda: Const(self.node.name()))
        if name == "register_hook":
            return CaptureMethod(self._register)
        return super().getattr(cx, name)

    def _register(self, hook: Value) -> Value:
        self.hooks.of_node.append(hook)
        return Const(None)  # the caller is torch's own code, which drops it


class CaptureMethod(Value):
    """A method with positional arguments, implemented by a Python function of the capture."""

    def __init__(self, answer: Callable[..., Value]) -> None:
        self.answer = answer

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or len(args) != len(inspect.signature(self.answer).parameters):
            raise Break("builtin-call", "an autograd method with keywords or another number of arguments")
        return self.answer(*args)


class Handle(Value):
    """The result of `register_hook`.

    - `owner`: the existing tensor whose hook is registered after the graph.
    - `remove`: removes a hook that backwards inside the frame call.
    """

    def __init__(
        self, owner: Tensor | None = None, hook: Value | None = None, remove: Callable[[], None] | None = None
    ) -> None:
        self.owner = owner
        self.hook = hook
        self.remove = remove

    def describe(self) -> str:
        return "the handle of a hook"

    def python_type(self) -> type:
        return RemovableHandle

    def getattr(self, cx: Capture, name: str) -> Value:
        if name != "remove" or (self.owner is None and self.remove is None):
            raise Break("unsupported-attribute", f"{name} of {self.describe()}")
        return CaptureMethod(lambda: self._removed(cx))

    def _removed(self, cx: Capture) -> Value:
        if self.remove is not None:
            self.remove()
        else:
            cx.effects.defer(Builtin(RemovableHandle.remove), [self])
        return Const(None)


METHODS: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""Methods that need more than a call in the graph, by name; filled by `library/`."""

STAY_TENSORS: set[types.CodeType] = set()
"""Code that only computes with the numbers it reads from tensors, and lets none escape; filled by `library/`."""

STORES: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""Attribute name -> the method that implements its assignment; filled by `library/`."""


DELETIONS: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""The same for `del`."""


class TensorMethod(Value):
    """A bound method of a tensor."""

    def __init__(self, tensor: Tensor, name: str) -> None:
        self.tensor = tensor
        self.name = name

    def python_type(self) -> type:
        kind = type(getattr(torch.Tensor, self.name))
        return types.MethodType if kind is types.FunctionType else BOUND.get(kind, kind)

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return call_tensor_method(cx, self.name, [self.tensor, *args], kwargs)

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "__self__":
            return self.tensor
        if name == "__name__":
            return Const(self.name)
        if name == "__qualname__" and self.python_type() is types.BuiltinMethodType:
            return Const(f"{self.tensor.cls.__qualname__}.{self.name}")
        if name in ("__doc__", "__qualname__"):
            return cx.make(getattr(getattr(torch.Tensor, self.name), name))
        if name == "__class__":
            return cx.make(self.python_type())
        if name in ("__module__", "__dict__"):
            if self.python_type() is types.BuiltinMethodType:
                return cx.make(cx.evaluate_raw(getattr, [].append, name))
            function = getattr(torch.Tensor, self.name)
            return cx.wrap(function, const_source(function)).getattr(cx, name)
        return super().getattr(cx, name)


class Storage(Value):
    """`tensor.untyped_storage()`: only its size is known.  Each call returns a new object."""

    def __init__(self, tensor: Tensor, size: Value) -> None:
        self.tensor, self.size = tensor, size

    def python_type(self) -> type:
        return torch.UntypedStorage

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("nbytes", "size"):
            return StorageMethod(self, name)
        raise Break("data-dependent-value", f"{name} of the storage of a tensor")

    def length(self, cx: Capture) -> Value:
        return self.size

    def truth(self, cx: Capture) -> bool:
        return self.size.truth(cx)


class StorageMethod(Value):
    """A bound method of a storage that returns its size."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name = storage, name

    def python_type(self) -> type:
        return types.MethodType

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise Break("builtin-call", f"UntypedStorage.{self.name} with arguments")
        return self.storage.size


def item(cx: Capture, value: Value, name: str = "item") -> Value:
    """The number in a tensor, an unbacked symbol; also `tolist` of few elements."""
    fake = value.fake if isinstance(value, Tensor) else None
    if fake is None or cx.graph.levels:
        raise Break("data-dependent-value", f"Tensor.{name}()")
    if name == "tolist" and fake.dim():
        if any(cx.sizes.known_symbols.is_late(expr_of(n).symbols) for n in fake.shape if is_symbolic(n)):
            raise Break("data-dependent-value", f"Tensor.{name}() of a number of elements that depends on data")
        if fake.numel() > MOST_ITEMS:
            raise Break("data-dependent-value", f"Tensor.{name}() of too many elements")
        return cx.sequence([item(cx, v, name) for v in value.iterate(cx)], list)
    if fake.dtype == torch.bool:
        return truth_in(cx, value)  # type: ignore[arg-type]
    return cx.graph.call_method("item", [value], {})


def truth_in(cx: Capture, value: Tensor) -> Value:
    """`bool(tensor)`, read as an integer."""
    if value.numel != 1:
        raise Break("data-dependent-jump", value.describe())
    holds = value
    if value.dtype != torch.bool:
        holds = cx.graph.call_function(operator.ne, [value, Const(0)], {})  # type: ignore[assignment]
    number = cx.graph.call_method("to", [holds, Const(torch.uint8)], {})
    return cx.call(cx.make(bool), [item(cx, number)], {})


READS = frozenset(("item", "tolist", "__int__", "__index__", "__bool__"))


def _listed(cx: Capture, numbers: Any) -> Value:
    return cx.sequence([_listed(cx, n) for n in numbers], list) if isinstance(numbers, list) else Const(numbers)


def call_tensor_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].name(*args[1:])` for a tensor's method: a graph call, or the override of a `__torch_function__`."""
    if isinstance(args[0], Tensor):
        args[0].assume(cx, name)
    if cx.functions.concerns(args, kwargs):
        written = mro_lookup(torch.Tensor, name)
        if isinstance(written, types.FunctionType):  # it calls `__torch_function__` itself
            return cx.inline(cx.make(written), args, kwargs)
        found = cx.functions.ask(
            lambda t, *rest, **named: getattr(t, name)(*rest, **named) if named else getattr(t, name)(*rest),
            args,
            kwargs,
        )
        if found is not None:
            return found
    if name == "as_subclass":
        return as_subclass(cx, args, kwargs)
    if name == "item" and len(args) == 1 and not kwargs and cx.frames[-1].code in STAY_TENSORS:
        number = cx.items.take(args[0]) if isinstance(args[0], Tensor) else None
        if number is not None:
            return number
    if name in READS and len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
        real = cx.graph.folded.of(args[0].fake)
        if real is not None and (name == "tolist" or real.numel() == 1):
            return _listed(cx, getattr(real, name)())
    if name in ("item", "tolist") and cx.graph.takes_items() and len(args) == 1 and not kwargs:
        return item(cx, args[0], name)
    if name == "numpy" and isinstance(args[0], Tensor):
        return cx.call_builtin(numpy_arrays.of_tensor, args, kwargs)
    if name in METHODS:
        return METHODS[name](cx, args, kwargs)
    if name in DATA_ATTRIBUTES:
        raise Break("data-dependent-value", f"Tensor.{name}()")
    if name in AUTOGRAD_ATTRIBUTES:
        raise Break("unsupported-attribute", f"Tensor.{name}()")
    outermost = isinstance(args[0], Tensor) and args[0].node.graph is cx.effects.graph
    outside = outermost and not cx.errors_of_data.levelled  # outside of all transforms
    if name in LEVELLED_METHODS and cx.graph.levels and not outside:
        raise Break("inner-graph", f"Tensor.{name}() under a transform")
    if name in UNGUARDED_METHODS or name in UNFAKEABLE:
        raise Break("unsupported-operation", f"Tensor.{name}()")
    if name == "is_inference":  # a fake tensor never is one
        if isinstance(args[0], Tensor) and cx.inference.is_made(args[0].fake):
            return Const(True)
        if not isinstance(args[0], Tensor) or args[0].real is None:
            raise Break("unsupported-operation", "Tensor.is_inference() of an intermediate")
        return Const(args[0].real.is_inference())
    if name in ("set_", "share_memory_", "resize_", "resize_as_", "rename_", "rename"):
        raise Break("unsupported-operation", f"Tensor.{name}()")
    if name in ("size", "stride", "dim", "numel", "nelement", "is_contiguous", "is_floating_point", "is_complex",
                "element_size", "get_device", "ndimension", "is_signed", "type"):  # fmt: skip
        fake: Any = args[0].fake if isinstance(args[0], Tensor) else None
        if name != "type" or (len(args) == 1 and not kwargs):
            return cx.evaluate(getattr(fake, name), *args[1:], **kwargs)
    for keyword, value in kwargs.items():
        if isinstance(value, Tensor) and (name, keyword) in OF_TENSORS:
            return cx.call(cx.make(OF_TENSORS[name, keyword]), args, kwargs)
    if name == "new" and len(args) == 2 and isinstance(args[1], Tuple) and args[1].cls is torch.Size:
        args = [args[0], *args[1].items]  # in the graph a size is a tuple, which `new` would take as data
    if name == "__bool__":
        args[0].truth(cx)
    if name == "__len__":
        found = args[0].asked(cx, "__len__") if isinstance(args[0], Tensor) else None  # only len() checks it
        return args[0].length(cx) if found is None else found
    if name == "__iter__":
        return cx.iterator(args[0])
    return cx.graph.call_method(name, args, kwargs)


def as_subclass(cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An alias with another class.  Only the program sees the class; the graph computes with plain tensors."""
    given = [*args, *kwargs.values()]
    cls = given[-1].const() if len(given) == 2 and given[-1].is_const() else None
    if not isinstance(cls, type) or not isinstance(given[0], Tensor) or not (cls is torch.Tensor or is_modelled(cls)):
        raise Break("tensor-subclass", f"as_subclass({', '.join(v.describe() for v in given[1:])})")
    if given[0].wrapper:  # results of operators on a tensor subclass already have a class and keep it
        raise Break("tensor-subclass", f"as_subclass of a {type(given[0].fake).__qualname__}")
    made = cx.graph.call_function(torch.ops.aten.alias.default, given[:1], {})
    assert isinstance(made, Tensor)
    made.cls, made.is_special, made.overrides = cls, cls is not torch.Tensor, has_torch_function(cls)
    if made.overrides:
        lookup(cx, cls, "__torch_function__")
    return made


# Attributes that a tensor class must not define, since C code calls them or other attributes depend on them.
_UNMODELLED = ("__getattribute__", "__torch_dispatch__", "__del__", "__class__", "__hash__", "__eq__")


def is_modelled(cls: type) -> bool:
    """Whether the capture models a tensor class completely: for such a class torch calls `__torch_function__` only."""
    if not issubclass(cls, torch.Tensor) or not any(type(cls) is type(c) for c in (torch.Tensor, torch.nn.Parameter)):
        return False
    return all(mro_lookup(cls, n) is mro_lookup(torch.Tensor, n) for n in _UNMODELLED)
