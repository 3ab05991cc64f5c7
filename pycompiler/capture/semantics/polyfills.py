"""Python versions of C functions, for inlining: of the standard library, and of torch functions whose scalar is a
tensor.

In: nothing.  Out: `POLYFILLS`: function or class -> the function to inline.  `OF_TENSORS`: (tensor method, scalar
argument) -> the function to inline if the argument is a tensor.  Captured code sees no difference.
"""

from __future__ import annotations

import collections
import contextlib
import copyreg
import functools
import logging
import operator
import types
from collections.abc import Callable
from typing import Any

import torch
from torch._higher_order_ops.associative_scan import associative_scan_op, generic_associative_scan
from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.hints_wrap import hints_wrapper
from torch._higher_order_ops.invoke_subgraph import invoke_subgraph
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.strict_mode import strict_mode_op
from torch._higher_order_ops.utils import _stack_pytree
from torch._higher_order_ops.wrap import wrap, wrap_with_autocast, wrap_with_set_grad_enabled
from torch.fx.immutable_collections import immutable_dict, immutable_list
from torch.utils import _pytree as pytree

State = torch._C._TorchFunctionState  # type: ignore[attr-defined]
read_state, write_state = torch._C._get_torch_function_state, torch._C._set_torch_function_state  # type: ignore[attr-defined]


class Ranked:
    """The key object that functools.cmp_to_key creates."""

    def __init__(self, compare: Callable[[Any, Any], Any], obj: Any) -> None:
        self.compare = compare
        self.obj = obj

    def __lt__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) < 0)

    def __gt__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) > 0)

    def __eq__(self, other: object) -> bool:
        return bool(self.compare(self.obj, other.obj) == 0)  # type: ignore[attr-defined]

    def __le__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) <= 0)

    def __ge__(self, other: Ranked) -> bool:
        return bool(self.compare(self.obj, other.obj) >= 0)

    __hash__ = None  # type: ignore[assignment]


def cmp_to_key(mycmp: Callable[[Any, Any], Any]) -> Callable[[Any], Ranked]:
    return lambda obj: Ranked(mycmp, obj)


def methodcaller(name: str, /, *args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    if not isinstance(name, str):
        raise TypeError("method name must be a string")
    return lambda obj: getattr(obj, name)(*args, **kwargs)


def turn_off(everyone: bool) -> Any:
    """Switch `__torch_function__` off, for tensor subclasses or for all classes (`everyone`). Returns the old state."""
    before = read_state()
    if everyone or before == State.ENABLED:
        write_state(State.ALL_DISABLED if everyone else State.SUBCLASSES_DISABLED)
    return before


def turn_back(before: Any) -> None:
    write_state(before)


class DisableTorchFunctionSubclass:
    everyone = False

    def __enter__(self) -> None:
        self.before = turn_off(self.everyone)

    def __exit__(self, *exc: object) -> None:
        turn_back(self.before)


class DisableTorchFunction(DisableTorchFunctionSubclass):
    everyone = True


def pullback(call: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function that `torch.func.vjp` returns."""

    def wrapper(cotangents: Any, retain_graph: bool = True, create_graph: bool | None = None) -> Any:
        if not retain_graph or create_graph is not None:
            graph_break("retain_graph or create_graph for a function that torch.func.vjp returned")
        return call(cotangents)

    return wrapper


def pushforward(call: Callable[[Any], Any]) -> Callable[..., Any]:
    """The function that `torch.func.linearize` returns."""

    def jvp_fn(*tangents: Any) -> Any:
        return call(tangents)

    return jvp_fn


def engine_of_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """Calls a hook as a backward does. Its callers stand for torch's frames, which warnings count."""
    with torch.no_grad():
        return hook(*args)


def backward_of_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """The frame of `torch.autograd.grad` or `torch.autograd.backward`."""
    return engine_of_hook(hook, *args)


def method_of_hook(hook: Callable[..., Any], *args: Any) -> Any:
    """The frame of `Tensor.backward`."""
    return backward_of_hook(hook, *args)


def graph_break(message: str) -> None:
    """Break the graph here."""


graph_break._pycompiler_break = True  # type: ignore[attr-defined]


MOST_STEPS = 128
"""The largest number of steps of a loop over a tensor's rows that is unrolled. A longer loop runs in torch."""


def _rows(xs: Any) -> range:
    if not 0 < xs[0].shape[0] <= MOST_STEPS:
        graph_break("a loop over no rows, or over too many rows")
    return range(int(xs[0].shape[0]))


def repeated(fn: Callable[..., Any], init: Any, xs: Any, others: Any) -> Any:
    """The result of `scan` from one call in the graph; None for few rows, or where `fn` cannot be
    the body of such a call. (Implemented by `capture/library/torch_functions/control_flow.py`.)"""
    raise NotImplementedError


def is_symbol(number: Any) -> bool:
    """Whether capture has a symbol for the number. (Implemented by `capture/library/torch_functions/control_flow.py`.)"""
    raise NotImplementedError


def joined(results: Any, operands: Any) -> Any:
    """The results of an operator behind one autograd node, which gives each operand a
    gradient, zeros if necessary. (Implemented by `capture/library/gradients/gradients.py`.)"""
    raise NotImplementedError


def call_first(self: Any, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """`wrap(fn, *args)`."""
    return fn(*args, **kwargs)


def call_strictly(self: Any, fn: Callable[..., Any], operands: Any) -> Any:
    return fn(*operands)


def call_hinted(self: Any, fn: Callable[..., Any], args: Any, kwargs: Any, hints: Any) -> Any:
    return fn(*args, **kwargs)


def call_cond(self: Any, pred: Any, yes: Any, no: Any, operands: Any = ()) -> Any:
    return torch.cond(pred, yes, no, operands)


def call_region(self: Any, fn: Callable[..., Any], identifier: Any, *operands: Any) -> Any:
    return fn(*operands)


def call_with_grad(self: Any, on: bool, fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with torch.set_grad_enabled(on):
        return fn(*args, **kwargs)


def call_with_autocast(
    self: Any, device: str, dtype: Any, on: bool, cache: Any, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> Any:
    with torch.autocast(device, dtype, on, cache):
        return fn(*args, **kwargs)


class Annotated(contextlib.ContextDecorator):
    """A context that changes nothing."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *exc: object) -> None:
        return None


def create_mask(mod_fn: Any, B: Any, H: Any, Q_LEN: Any, KV_LEN: Any, device: Any = None) -> Any:
    """The mask or scores of a `flex_attention` function for all index pairs. Inside the function, integer tensors are indices."""
    from torch.nn.attention import flex_attention as torchs

    if device is None:
        device = torch.accelerator.current_accelerator() or "cpu"
    counts = [1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN]
    places = [torch.arange(0, n, device=device) for n in counts]
    if torchs._get_mod_type(mod_fn) != torchs._ModificationType.SCORE_MOD:
        return torchs._vmap_for_bhqkv(mod_fn, prefix=())(*places)
    scores = torchs._vmap_for_bhqkv(mod_fn, prefix=(0,))(torch.zeros(*counts, device=device), *places)
    return torch.where(torch.isneginf(scores), False, True)


def map_rows(self: Any, fn: Callable[..., Any], xs: Any, others: Any = (), **kwargs: Any) -> Any:
    """The operator of `map`: `fn` of each row."""
    if (result := repeated(fn, (), xs, others)) is not None:
        return result
    made = _stack_pytree([fn(*[x[i] for x in xs], *others) for i in _rows(xs)])  # type: ignore[no-untyped-call]
    return joined(made, (*xs, *others))


def scan_rows(self: Any, fn: Callable[..., Any], init: Any, xs: Any, others: Any = (), **kwargs: Any) -> Any:
    """The operator of `scan`: `fn` of the carry and each row. The result has the tree of the results of `fn`."""
    if (result := repeated(fn, init, xs, others)) is not None:
        return result
    carry: Any = tuple(init)
    given = [(t.shape, t.dtype, t.device) for t in carry]
    outs: list[Any] = []
    for i in _rows(xs):
        made, tree = pytree.tree_flatten(fn(*carry, *[x[i] for x in xs], *others))
        carry = tuple(made[: len(given)])
        if [(t.shape, t.dtype, t.device) for t in carry] != given:
            graph_break("a scan whose carry changes its shape, dtype or device")
        outs.append(made[len(given) :])
    stacks = [torch.stack(column) if torch.is_tensor(column[0]) else None for column in zip(*outs)]
    return joined(pytree.tree_unflatten([*carry, *stacks], tree), (*init, *xs, *others))


_in_levels = types.FunctionType(
    generic_associative_scan.__code__,
    generic_associative_scan.__globals__,
    "in_levels",
    generic_associative_scan.__defaults__,
)


def combined(operator: Any, leaves: Any, dim: int = 0, additional_inputs: Any = ()) -> Any:
    """`generic_associative_scan`. Its levels follow from the number of rows; for a symbol, rows are combined one by one."""
    count = len(leaves)

    def step(*given: Any) -> Any:
        made = operator(*[t.unsqueeze(0) for t in given[: 2 * count]], *given[2 * count :])
        return [t.squeeze(0).clone(memory_format=torch.contiguous_format) for t in (*made, *made)]

    if dim == 0 and is_symbol(leaves[0].shape[0]) and leaves[0].shape[0] >= 2:
        first = [x[0].clone(memory_format=torch.contiguous_format) for x in leaves]
        result = repeated(step, first, [x[1:] for x in leaves], additional_inputs)
        if result is not None:
            return [torch.cat([x[:1], more]) for x, more in zip(leaves, result[count:], strict=True)]
    return _in_levels(operator, leaves, dim, additional_inputs)


def scan_tree(self: Any, fn: Callable[..., Any], xs: Any, others: Any = (), **kwargs: Any) -> Any:
    """The operator of `associative_scan`, in torch's own order of the calls. The result has the tree of the results of `fn`."""
    trees: list[Any] = []

    def noted(*given: Any) -> list[Any]:
        made, tree = pytree.tree_flatten(fn(*given))
        trees.append(tree)
        return made

    if len(_rows(xs)) < 2:
        graph_break("an associative_scan of one row, which does not call the function")
    made = generic_associative_scan(noted, xs, additional_inputs=others)  # type: ignore[no-untyped-call]
    return joined(pytree.tree_unflatten(made, trees[0]), xs)


def within_grad_mode(func: Any, *args: Any, **kwargs: Any) -> Any:
    """torch.optim's wrapper of an optimizer's `step`, without the wrapper's graph breaks."""
    before = torch.is_grad_enabled()
    try:
        torch.set_grad_enabled(args[0].defaults["differentiable"])
        return func(*args, **kwargs)
    finally:
        torch.set_grad_enabled(before)


def addcdiv_(self: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    if self.dtype == tensor1.dtype == tensor2.dtype and self.dtype in (torch.bfloat16, torch.float16):
        return self.copy_(self.float().addcdiv_(tensor1.float() * value, tensor2.float()))  # kernels round once
    return self.addcdiv_(tensor1 * value, tensor2)


def addcmul_(self: Any, tensor1: Any, tensor2: Any, *, value: Any) -> Any:
    if self.dtype == tensor1.dtype == tensor2.dtype and self.dtype in (torch.bfloat16, torch.float16):
        return self.copy_(self.float().addcmul_(tensor1.float() * value, tensor2.float()))
    return self.addcmul_(tensor1 * value, tensor2)


def tree_map_only(kind: Any, func: Any, tree: Any, is_leaf: Any = None) -> Any:
    cls = type(tree)
    if is_leaf is None or not is_leaf(tree):
        if cls is tuple or cls is list:
            return cls([tree_map_only(kind, func, item, is_leaf) for item in tree])
        if cls is dict:
            return {key: tree_map_only(kind, func, item, is_leaf) for key, item in tree.items()}
        if cls in pytree.SUPPORTED_NODES or hasattr(cls, "_fields"):
            graph_break(f"tree_map_only of a {cls.__name__}")
            return pytree.tree_map_only(kind, func, tree, is_leaf)
    chosen = isinstance(tree, kind) if isinstance(kind, (type, tuple, types.UnionType)) else kind(tree)
    return func(tree) if chosen else tree


def reduce_ex(self: Any) -> Any:
    """`object.__reduce_ex__(self, protocol)` for protocol 2 and above. The class decides whether `__reduce__` is overridden."""
    cls = type(self)
    reduce = getattr(self, "__reduce__", None)
    if reduce is not None and cls.__reduce__ is not object.__reduce__:  # type: ignore[comparison-overlap]
        return reduce()
    args, kwargs = (), {}
    if hasattr(cls, "__getnewargs_ex__"):
        args, kwargs = new_arguments(self.__getnewargs_ex__())
    elif hasattr(cls, "__getnewargs__"):
        args = self.__getnewargs__()
        if not isinstance(args, tuple):
            raise TypeError(f"__getnewargs__ should return a tuple, not '{type(args).__name__}'")
    state = self.__getstate__()
    elements = iter(self) if issubclass(cls, list) else None
    items = iter(self.items()) if issubclass(cls, dict) else None
    if kwargs:
        return copyreg.__newobj_ex__, (cls, args, kwargs), state, elements, items  # type: ignore[attr-defined]
    return copyreg.__newobj__, (cls, *args), state, elements, items  # type: ignore[attr-defined]


def new_arguments(given: Any) -> Any:
    """The result of `__getnewargs_ex__`: positional arguments and keyword arguments, after type checks."""
    if not isinstance(given, tuple):
        raise TypeError(f"__getnewargs_ex__ should return a tuple, not '{type(given).__name__}'")
    if len(given) != 2:
        raise ValueError(f"__getnewargs_ex__ should return a tuple of length 2, not {len(given)}")
    for which, part, kind in (("first", given[0], tuple), ("second", given[1], dict)):
        if not isinstance(part, kind):
            told = f"{which} item of the tuple returned by __getnewargs_ex__ must be a {kind.__name__}"
            raise TypeError(f"{told}, not '{type(part).__name__}'")
    return given


def reduce_set(self: Any) -> Any:
    """`set.__reduce__`."""
    return set, (list(self),), None


def reduce_ordered(self: Any) -> Any:
    """`collections.OrderedDict.__reduce__`."""
    return collections.OrderedDict, (), self.__getstate__(), None, iter(self.items())


UNSET = object()


def get_state(self: Any) -> Any:
    """`object.__getstate__`: the attributes, without a call of `__getattribute__`, and the slots, with such calls."""
    state = (object.__getattribute__(self, "__dict__") or None) if type(self).__dictoffset__ else None
    held = [(name, getattr(self, name, UNSET)) for name in slot_names(type(self))]
    slots = {name: value for name, value in held if value is not UNSET}
    return (state, slots) if slots else state


def slot_names(cls: type) -> list[str]:
    """`copyreg._slotnames`, but without a store of the result in the class."""
    known = cls.__dict__.get("__slotnames__")
    if known is not None:
        return known  # type: ignore[no-any-return]
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            private = name.startswith("__") and not name.endswith("__")
            if name not in ("__dict__", "__weakref__"):
                names.append(f"_{base.__name__.lstrip('_')}{name}" if private and base.__name__.strip("_") else name)
    return names


def batch_norm(
    input: torch.Tensor,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """torch's batch norm. Only the running statistics use the momentum; as in the kernels, their writes count no version."""
    if not training:
        return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, False, 0.0, eps)
    kept = [t for t in (running_mean, running_var) if t is not None]
    wide = torch.float32 if input.dtype in (torch.bfloat16, torch.float16) else input.dtype
    usual = all(t.dim() == 1 and not t.requires_grad and t.dtype in (input.dtype, wide) for t in kept)
    if not usual or len(kept) == 1 or len({t.dtype for t in kept}) > 1:  # the kernel raises its own error
        return torch.nn.functional.batch_norm(input, running_mean, running_var, weight, bias, True, momentum, eps)
    normal = torch.nn.functional.batch_norm(input, None, None, weight, bias, True, 0.0, eps)
    others = [0, *range(2, input.dim())]
    if running_mean is not None:
        mean = input.detach().to(running_mean.dtype).mean(others)
        running_mean.data.copy_(momentum * mean + (1 - momentum) * running_mean.data)
    if running_var is not None:
        var = input.detach().to(running_var.dtype).var(others)
        running_var.data.copy_(momentum * var + (1 - momentum) * running_var.data)
    return normal


def map_aggregate(a: Any, fn: Callable[[Any], Any]) -> Any:
    """`fn` of the elements of tuples, lists, dicts and slices."""
    if isinstance(a, tuple):
        items = [map_aggregate(item, fn) for item in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list([map_aggregate(item, fn) for item in a])
    if isinstance(a, dict):
        return immutable_dict({key: map_aggregate(item, fn) for key, item in a.items()})
    if isinstance(a, slice):
        return slice(map_aggregate(a.start, fn), map_aggregate(a.stop, fn), map_aggregate(a.step, fn))
    return fn(a)


def dispatch(registry: dict[type, Callable[..., Any]], cls: type) -> Callable[..., Any]:
    """The `dispatch` of functools.singledispatch, without its cache."""
    try:
        return registry[cls]
    except KeyError:
        return functools._find_impl(cls, registry)  # type: ignore[attr-defined, no-any-return]


def namespace_repr(self: types.SimpleNamespace) -> str:
    name = "namespace" if type(self) is types.SimpleNamespace else type(self).__name__
    return f"{name}({', '.join([f'{k}={v!r}' for k, v in vars(self).items() if k])})"


def namespace_eq(self: types.SimpleNamespace, other: Any) -> Any:
    return vars(self) == vars(other) if isinstance(other, types.SimpleNamespace) else NotImplemented


def namespace_ne(self: types.SimpleNamespace, other: Any) -> Any:
    return vars(self) != vars(other) if isinstance(other, types.SimpleNamespace) else NotImplemented


def namespace_reduce(self: types.SimpleNamespace) -> tuple[Any, ...]:
    return type(self), (), vars(self)


def infer_size(a: torch.Size, b: torch.Size, /) -> torch.Size:
    """The size that results when two sizes are broadcast."""
    if not (isinstance(a, torch.Size) and isinstance(b, torch.Size)):
        graph_break("the size of a broadcast of arguments that are not torch.Size")
    rank, size = max(len(a), len(b)), []
    for i in range(rank):
        m = a[i - rank + len(a)] if i >= rank - len(a) else 1
        n = b[i - rank + len(b)] if i >= rank - len(b) else 1
        if m != n and m != 1 and n != 1:
            text = f"The size of tensor a ({m}) must match the size of tensor b ({n}) at non-singleton dimension {i}"
            raise RuntimeError(text)
        size.append(n if m == 1 else m)
    return torch.Size(size)


def _inner(fn: Callable[..., Any], name: str) -> types.CodeType:
    """The code object of a function nested in another function."""
    return next(c for c in fn.__code__.co_consts if isinstance(c, types.CodeType) and c.co_name == name)


OF_CLOSURES: dict[types.CodeType, tuple[str, Callable[..., Any]]] = {
    _inner(functools.singledispatch, "dispatch"): ("registry", dispatch),
}
"""Closures created by standard library functions, by code object: a closure variable, and the function to inline with it."""
OF_TENSORS: dict[tuple[str, str], Callable[..., Any]] = {
    ("addcdiv_", "value"): addcdiv_,
    ("addcmul_", "value"): addcmul_,
}


def get_logger(name: Any = None) -> Any:
    """`logging.getLogger`. An existing logger is returned; logging creates a new one."""
    if not name or (isinstance(name, str) and name == logging.root.name):
        return logging.root
    manager = logging.Logger.manager
    found = manager.loggerDict.get(name) if isinstance(name, str) else None
    return found if isinstance(found, logging.Logger) else manager.getLogger(name)


def is_enabled_for(self: logging.Logger, level: int) -> bool:
    """`logging.Logger.isEnabledFor`, without a store in the logger's cache."""
    if self.disabled:
        return False
    known: dict[int, bool] = self._cache  # type: ignore[attr-defined]
    if level in known:
        return known[level]
    return self.manager._disable < level and level >= self.getEffectiveLevel()  # type: ignore[attr-defined, no-any-return]


def effective_level(self: logging.Logger) -> int:
    """`logging.Logger.getEffectiveLevel`."""
    logger: logging.Logger | None = self
    while logger:
        if logger.level:
            return logger.level
        logger = logger.parent
    return logging.NOTSET


POLYFILLS: dict[Any, Callable[..., Any]] = {
    types.SimpleNamespace.__repr__: namespace_repr,
    types.SimpleNamespace.__eq__: namespace_eq,
    types.SimpleNamespace.__ne__: namespace_ne,
    types.SimpleNamespace.__reduce__: namespace_reduce,
    logging.getLogger: get_logger,
    logging.Logger.isEnabledFor: is_enabled_for,
    logging.Logger.getEffectiveLevel: effective_level,
    functools.cmp_to_key: cmp_to_key,
    operator.methodcaller: methodcaller,
    pytree.tree_map_only: tree_map_only,
    torch.fx.node.map_aggregate: map_aggregate,
    torch._C._infer_size: infer_size,
    torch._C.DisableTorchFunctionSubclass: DisableTorchFunctionSubclass,
    torch._C.DisableTorchFunction: DisableTorchFunction,
    type(wrap).__call__: call_first,
    type(strict_mode_op).__call__: call_strictly,
    type(hints_wrapper).__call__: call_hinted,
    type(wrap_with_set_grad_enabled).__call__: call_with_grad,
    type(wrap_with_autocast).__call__: call_with_autocast,
    type(cond_op).__call__: call_cond,
    type(invoke_subgraph).__call__: call_region,
    type(map_impl).__call__: map_rows,
    type(scan_op).__call__: scan_rows,
    type(associative_scan_op).__call__: scan_tree,
    generic_associative_scan: combined,
}


def same_data(tensor: Any) -> Any:
    """A shallow copy of a tensor: a new tensor in the same memory, which does not count writes to the original."""
    return tensor.data


def is_inlined(method: Any) -> bool:
    """Whether capture inlines a Python version of a method written in C."""
    return isinstance(method, types.WrapperDescriptorType) and method in POLYFILLS
