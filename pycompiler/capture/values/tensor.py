"""Tensors: a node of the graph and the fake tensor that carries its metadata.

Methods and attributes are graph calls; what gives no tensor (shapes, dtypes, flags) is a constant, since a
tensor's metadata is guarded.
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
from pycompiler.capture.polyfills import OF_TENSORS
from pycompiler.capture.values import indexing
from pycompiler.capture.values.attributes import MISSING, is_data_descriptor, lookup, mro_lookup
from pycompiler.capture.values.base import Capture, Value, class_name
from pycompiler.capture.values.constant import Const, Withheld
from pycompiler.capture.values.dicts import Dict
from pycompiler.capture.values.functions import BOUND, Builtin
from pycompiler.capture.values.sequences import Tuple
from pycompiler.ir import arrays
from pycompiler.ir.heard import Listening
from pycompiler.ir.jagged import CACHED, is_jagged
from pycompiler.ir.source import const as const_source
from pycompiler.ir.subclasses import held_by, is_wrapper
from pycompiler.ir.symbols import expr_of, is_symbolic

# Attributes that read data or autograd state that the graph does not have.
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
# Attributes and methods that depend on more than what the guard of a tensor compares.
UNGUARDED = frozenset({"is_leaf", "output_nr", "retains_grad", "grad_fn", "_version"})
UNGUARDED_METHODS = frozenset({"storage_offset", "_is_view", "is_shared", "is_pinned", "is_set_to"})
# What depends on how a transform wraps a tensor: on its levels, on where its batch dimension lies.
LEVELLED = frozenset({"requires_grad", "is_leaf", "grad", "grad_fn", "output_nr", "retains_grad"})
LEVELLED_METHODS = frozenset({"stride", "is_contiguous"})
# Methods that work on memory, or take the object apart: a fake tensor has no memory (torch crashes), and parts of its own.
UNFAKEABLE = frozenset({"apply_", "map_", "map2_", "__deepcopy__", "__copy__", "__reduce__", "__reduce_ex__",
                        "_reduce_ex_internal", "__setstate__", "__getstate__", "_typed_storage", "_storage"})  # fmt: skip
TENSOR_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag", "data"})


# Of what wrappers hold besides tensors: types of constants.
HELD = (int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format)
"""Classes of what a wrapper may hold beside tensors, alone or in tuples."""

MOST_ITEMS = 64  # numbers that one `tolist` reads


class Kept(Value):
    """A value of the graph that is no tensor, and that the program does not see."""

    def __init__(self, node: fx.Node) -> None:
        self.node = node

    def describe(self) -> str:
        return "what a transform has kept"

    def identity(self) -> object:
        return ("kept", id(self))

    def python_type(self) -> type:
        return type(self.node.meta["example_value"])


class Tensor(Value):
    """A tensor of the graph."""

    def __init__(
        self, node: fx.Node, fake: torch.Tensor, real: torch.Tensor | None = None, cls: type | None = None
    ) -> None:
        self.node = node
        self.fake = self.known_by = fake
        self.real = real  # an input's own tensor
        self.cls: type = cls or (type(real) if real is not None else torch.Tensor)
        self.is_special = cls is not None  # of a class of the program's, which may have methods of its own
        self.wrapper = cls is not None and is_wrapper(cls)  # of a class with `__torch_dispatch__`, in the graph, too
        self.overrides = cls is not None and takes_part(cls)  # its `__torch_function__` is asked (`capture/funnel.py`)
        self.overlay: dict[str, Value] = {}  # attributes that the program has set
        self.parted = (
            False  # whether it has other data than its node in the graph tells gradients of (`builtins/data.py`)
        )

    @property
    def exists(self) -> bool:
        return self.source is not None

    def describe(self) -> str:
        return f"Tensor({list(self.fake.shape) or 'no dimensions'}, {self.fake.dtype})"

    __repr__ = describe

    def python_type(self) -> type:
        return self.cls

    def identity(self) -> object:
        return ("tensor", id(self.known_by))

    def assume(self, cx: Capture, name: str) -> None:
        """That its class still has this method: it may be replaced (`torch.Tensor.cos = mine`)."""
        lookup(cx, self.cls, name)

    def own(self, cx: Capture, name: str) -> Value | None:
        """What the program's own class, or the tensor itself, has by this name; None where torch.Tensor answers."""
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
        """What the instance dict of an existing tensor has."""
        attributes = getattr(self.real, "__dict__", None)
        if attributes is None or self.source is None:
            return None
        cx.effects.namespaces.reached(attributes, self)
        if name not in attributes:
            return None
        return cx.wrap(attributes[name], self.source.then("instance_dict").dict_item(name))

    def plain_getattr(self, cx: Capture, name: str) -> Value:
        """What torch.Tensor gives."""
        name = OTHER_NAMES.get(name, name)
        if name == "__dict__":
            raise Break("unsupported-attribute", "Tensor.__dict__")
        if name in UNGUARDED or name == "grad":  # what guards and generated code read
            if self.overrides:
                raise Break("tensor-subclass", f"{self.cls.__name__}.{name}")
            if cx.functions.modes_around():
                raise Break("unsupported-attribute", f"Tensor.{name} under a function mode")
        if name == "__torch_function__":
            return cx.class_attribute(self, name)
        if name in ("requires_grad", "grad_fn") and cx.graph.follows(self):
            raise Break("unsupported-attribute", f"Tensor.{name} of a view of what requires_grad_() was called of")
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
                raise Break("unsupported-operation", "Tensor.data of an inference tensor")  # which may be written
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
        """What the guard of a tensor does not compare has one of its own, if nobody has written it; else fakes tell."""
        if name == "grad_fn" and not self.fake.requires_grad:
            return Const(None)
        if name == "retains_grad" and any(known is self for known, _ in cx.graph.retained):
            return Const(True)
        given = self.real is not None and self.source is not None
        read = given and name != "_version" and not cx.graph.is_written(self)
        if (
            name == "grad_fn"
            and given
            and not read
            and type(self.real) is torch.nn.Parameter
            and self.fake.grad_fn is None
        ):
            return cx.wrap(self.real.grad_fn, self.source.attr(name))  # type: ignore[union-attr]  # no view, so still a leaf
        if not read and (given or not cx.graph.tells_history(self, name)):
            raise Break("unsupported-attribute", f"Tensor.{name}")
        if read:
            return cx.wrap(getattr(self.real, name), self.source.attr(name))  # type: ignore[union-attr]
        try:
            found = getattr(self.fake, name)
        except RuntimeError as error:  # of a view whose history a write has lost
            raise Break("unsupported-attribute", f"Tensor.{name}, which raises: {error}") from None
        if name != "grad_fn" or found is None:
            return Const(found)
        broke = cx.frames[-1].here(Break("unsupported-attribute", f"what Tensor.{name} is"))
        hooks = cx.graph.hooks.get(found)
        return History(found, broke) if hooks is None or not hooks.after else HookedNode(found, hooks, broke)

    def _grad(self, cx: Capture) -> Value:
        if "grad" in self.overlay:
            return self.overlay["grad"]
        if self.real is None or self.source is None:
            if not self.fake.is_leaf and not any(known is self for known, _ in cx.graph.retained):
                cx.warns_of("the gradient of no leaf")
            return Const(None)  # a backward would have been told
        with Listening() as heard:
            gradient = self.real.grad
        if self.fake.requires_grad and not issubclass(self.cls, torch.nn.Parameter):
            kept = [cx.wrap(getattr(self.real, n), self.source.attr(n)) for n in ("is_leaf", "retains_grad")]
            if heard and not any(v.const() for v in kept):  # guards would be warned, too
                raise Break("unsupported-attribute", "Tensor.grad of no leaf, of which torch warns")
        found = cx.wrap(gradient, self.source.then("grad"))
        cx.effects.looks.at("grad", self, None, found, self.source)
        return found

    def setattr(self, cx: Capture, name: str, value: Value) -> None:
        if name in STORES and not self.is_special:
            STORES[name](cx, [self, value], {})
            return
        if self.wrapper:  # `__torch_dispatch__` may look at it
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
        """A method of the program's own class, bound; None where torch.Tensor's is meant."""
        if self.cls is torch.Tensor or mro_lookup(self.cls, name) is mro_lookup(torch.Tensor, name):
            return None
        return cx.class_attribute(self, name)

    def asked(self, cx: Capture, name: str, *args: Value) -> Value | None:
        """What a special method gives where it is the program's own, or asks somebody; else None."""
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
        key = indexing.plain_key(key)
        found = None if self.is_special else indexing.selected(cx, self, key) or indexing.by_mapped(cx, self, key)
        if self.wrapper and is_jagged(self.cls):
            found = self._row(cx, key)
        try:
            return cx.graph.call_function(operator.getitem, [self, key], {}) if found is None else found
        except Break as asked:  # for the number in a tensor
            known = None if self.is_special or asked.kind != "data-dependent-value" else indexing.picked(cx, self, key)
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
        key = indexing.plain_key(key)
        place = None if self.is_special else indexing.selected(cx, self, key, value)
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

    def length(self, cx: Capture) -> int:
        found = self.asked(cx, "__len__")
        if found is not None:
            return int(found.const())
        if self.fake.dim() == 0:
            cx.throw(TypeError, "len() of a 0-d tensor")
        return int(self.fake.shape[0])

    def iterate(self, cx: Capture) -> Iterator[Value]:
        found = self.asked(cx, "__iter__")
        if found is not None:
            return cx.elements(found)
        if self.fake.dim() == 0:
            cx.throw(TypeError, "iteration over a 0-d tensor")
        return call_tensor_method(cx, "unbind", [self, Const(0)], {}).iterate(cx)

    def _made_with(self, cx: Capture, name: str, held: Any) -> Value:
        """What a wrapper that an operator made holds: its class made it of guarded things, of fakes as of real tensors."""
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
        """What a slot of an existing wrapper holds."""
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
        raise Break("data-dependent-value", "in a tensor")


def _constant(cx: Capture, held: Any) -> Value | None:
    """The value of what a wrapper that an operator made holds, if nobody can change it: the program's own where it gave it."""
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
    """Whether nobody can change it, nor what it holds."""
    return type(held) in HELD or isinstance(held, enum.Enum) or isinstance(held, tuple) and all(map(_is_fixed, held))


def is_row(tensor: Tensor, index: Any) -> bool:
    """Whether it is the number of a row."""
    count = tensor.fake.shape[0]
    return type(index) is int and bool(-count <= index < count)


def takes_part(cls: type) -> bool:
    """Whether torch asks `__torch_function__` of a class of tensors."""
    hook = getattr(cls, "__torch_function__", None)
    return cls is not torch.Tensor and hook is not torch._C._disabled_torch_function_impl and not is_wrapper(cls)


class History(Withheld):
    """What `grad_fn` is of a tensor that is made here: that there is one, and which tensors have it in common."""

    def __init__(self, node: Any, broke: Break) -> None:
        super().__init__(broke)
        self.node = node

    def identity(self) -> object:
        return ("history", id(self.node))

    def truth(self, cx: Capture) -> bool:
        return True


class HookedNode(History):
    """`grad_fn` of what a module with full backward hooks gets or gives."""

    def __init__(self, node: Any, hooks: Any, broke: Break) -> None:
        super().__init__(node, broke)
        self.hooks = hooks

    def getattr(self, cx: Capture, name: str) -> Value:
        if name == "name":
            return Answer(lambda: Const(self.node.name()))
        if name == "register_hook":
            return Answer(self._register)
        return super().getattr(cx, name)

    def _register(self, hook: Value) -> Value:
        self.hooks.of_node.append(hook)
        return Const(None)  # to torch's own code, which drops it


class Answer(Value):
    """A method that is called with positional arguments, and that the capture answers."""

    def __init__(self, answer: Callable[..., Value]) -> None:
        self.answer = answer

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if kwargs or len(args) != len(inspect.signature(self.answer).parameters):
            raise Break("builtin-call", "a method of autograd's with other arguments")
        return self.answer(*args)


class Handle(Value):
    """What `register_hook` gives.  `owner`: the existing tensor whose hook is registered when the graph has run; `remove`: of a
    hook that backwards inside call."""

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
        return Answer(lambda: self._removed(cx))

    def _removed(self, cx: Capture) -> Value:
        if self.remove is not None:
            self.remove()
        else:
            cx.effects.defer(Builtin(RemovableHandle.remove), [self])
        return Const(None)


METHODS: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""Methods that are more than a call in the graph, by name; filled by `builtins/`."""

STAY_TENSORS: set[types.CodeType] = set()
"""Code that only computes with the numbers that it reads of tensors, and gives none away; filled by `builtins/`."""

STORES: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""The methods that assignments to attributes are, by the attribute; filled by `builtins/`."""


DELETIONS: dict[str, Callable[[Capture, list[Value], dict[str, Value]], Value]] = {}
"""The same of `del`."""


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
    """`tensor.untyped_storage()`, of which the size is known; each call gives another object."""

    def __init__(self, tensor: Tensor, size: Value) -> None:
        self.tensor, self.size = tensor, size

    def python_type(self) -> type:
        return torch.UntypedStorage

    def getattr(self, cx: Capture, name: str) -> Value:
        if name in ("nbytes", "size"):
            return StorageMethod(self, name)
        raise Break("data-dependent-value", f"{name} of the storage of a tensor")

    def length(self, cx: Capture) -> int:
        return int(self.size.const())

    def truth(self, cx: Capture) -> bool:
        return self.length(cx) > 0


class StorageMethod(Value):
    """A method of it that gives its size, bound."""

    def __init__(self, storage: Storage, name: str) -> None:
        self.storage, self.name = storage, name

    def python_type(self) -> type:
        return types.MethodType

    def call(self, cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            raise Break("builtin-call", f"UntypedStorage.{self.name} of arguments")
        return self.storage.size


def item(cx: Capture, value: Value, name: str = "item") -> Value:
    """The number in a tensor, a symbol that a call binds; `tolist` of one element."""
    fake = value.fake if isinstance(value, Tensor) else None
    if fake is None or cx.graph.levels:
        raise Break("data-dependent-value", f"Tensor.{name}()")
    if name == "tolist" and fake.dim():
        if any(s in cx.sizes.known_symbols.bound for n in fake.shape if is_symbolic(n) for s in expr_of(n).symbols):
            raise Break("data-dependent-value", f"Tensor.{name}() of as many elements as data say")
        if fake.numel() > MOST_ITEMS:
            raise Break("data-dependent-value", f"Tensor.{name}() of many elements")
        return cx.sequence([item(cx, v, name) for v in value.iterate(cx)], list)
    if fake.dtype == torch.bool:
        return truth_in(cx, value)  # type: ignore[arg-type]
    return cx.graph.call_method("item", [value], {})


def truth_in(cx: Capture, value: Tensor) -> Value:
    """`bool(tensor)`, read as the integer that it is."""
    if value.fake.numel() != 1:
        raise Break("data-dependent-jump", value.describe())
    holds = value
    if value.fake.dtype != torch.bool:
        holds = cx.graph.call_function(operator.ne, [value, Const(0)], {})  # type: ignore[assignment]
    number = cx.graph.call_method("to", [holds, Const(torch.uint8)], {})
    return cx.call(cx.make(bool), [item(cx, number)], {})


READS = frozenset(("item", "tolist", "__int__", "__index__", "__bool__"))


def _listed(cx: Capture, numbers: Any) -> Value:
    return cx.sequence([_listed(cx, n) for n in numbers], list) if isinstance(numbers, list) else Const(numbers)


def call_tensor_method(cx: Capture, name: str, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`args[0].name(*args[1:])`, of a tensor's own method, in the graph, or as it is overridden."""
    if isinstance(args[0], Tensor):
        args[0].assume(cx, name)
    if cx.functions.concerns(args, kwargs):
        written = mro_lookup(torch.Tensor, name)
        if isinstance(written, types.FunctionType):  # it asks by itself
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
        return cx.call_builtin(arrays.of_tensor, args, kwargs)
    if name in METHODS:
        return METHODS[name](cx, args, kwargs)
    if name in DATA_ATTRIBUTES:
        raise Break("data-dependent-value", f"Tensor.{name}()")
    if name in AUTOGRAD_ATTRIBUTES:
        raise Break("unsupported-attribute", f"Tensor.{name}()")
    outermost = isinstance(args[0], Tensor) and args[0].node.graph is cx.effects.graph
    outside = outermost and not cx.errors_of_data.levelled  # of all transforms
    if name in LEVELLED_METHODS and cx.graph.levels and not outside:
        raise Break("inner-graph", f"Tensor.{name}() under a transform")
    if name in UNGUARDED_METHODS or name in UNFAKEABLE:
        raise Break("unsupported-operation", f"Tensor.{name}()")
    if name == "is_inference":  # a fake never is one
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
            return cx.evaluate(getattr(fake, name), *[a.const() for a in args[1:]],
                               **{k: v.const() for k, v in kwargs.items()})  # fmt: skip
    for keyword, value in kwargs.items():
        if isinstance(value, Tensor) and (name, keyword) in OF_TENSORS:
            return cx.call(cx.make(OF_TENSORS[name, keyword]), args, kwargs)
    if name == "new" and len(args) == 2 and isinstance(args[1], Tuple) and args[1].cls is torch.Size:
        args = [args[0], *args[1].items]  # a size, which in the graph is a tuple, and that would be data
    if name == "__bool__":
        args[0].truth(cx)
    if name == "__len__":
        return Const(args[0].length(cx))
    if name == "__iter__":
        return cx.iterator(args[0])
    return cx.graph.call_method(name, args, kwargs)


def as_subclass(cx: Capture, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """An alias of another class: of the class is only what the program sees of it, the graph computes with plain tensors."""
    given = [*args, *kwargs.values()]
    cls = given[-1].const() if len(given) == 2 and given[-1].is_const() else None
    if not isinstance(cls, type) or not isinstance(given[0], Tensor) or not (cls is torch.Tensor or is_modelled(cls)):
        raise Break("tensor-subclass", f"as_subclass({', '.join(v.describe() for v in given[1:])})")
    if given[0].wrapper:  # what operators give of it has a class by then, which it keeps
        raise Break("tensor-subclass", f"as_subclass of a {type(given[0].fake).__qualname__}")
    made = cx.graph.call_function(torch.ops.aten.alias.default, given[:1], {})
    assert isinstance(made, Tensor)
    made.cls, made.is_special, made.overrides = cls, cls is not torch.Tensor, takes_part(cls)
    if made.overrides:
        lookup(cx, cls, "__torch_function__")
    return made


# What a class of tensors may not define, since C code asks for it, or attributes depend on it.
_UNMODELLED = ("__getattribute__", "__torch_dispatch__", "__del__", "__class__", "__hash__", "__eq__")


def is_modelled(cls: type) -> bool:
    """Whether capture knows all about a class of tensors: of a class written in Python torch asks `__torch_function__` only."""
    if not issubclass(cls, torch.Tensor) or not any(type(cls) is type(c) for c in (torch.Tensor, torch.nn.Parameter)):
        return False
    return all(mro_lookup(cls, n) is mro_lookup(torch.Tensor, n) for n in _UNMODELLED)
