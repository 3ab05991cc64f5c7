"""Helpers that generated frame code calls to build objects and replay side effects.  Plain functions on real objects."""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from pycompiler.capture.breaks import Break
from pycompiler.capture.recipe.graph_failures import had_no_effect
from pycompiler.capture.semantics.tracebacks import raised_in_graph
from pycompiler.capture.values.attributes import instance_dict, is_mutable
from pycompiler.capture.values.containers.iterators import INDEXING, ITERATED
from pycompiler.capture.values.finalizers import ends_quietly, in_slot, runs_code
from pycompiler.capture.values.functions import unshadowed
from pycompiler.errors import PyCompilerError, Unfit
from pycompiler.ir import iterator_state
from pycompiler.ir.guards import function_modes_off
from pycompiler.ir.source import mro_of, namespace_of
from pycompiler.operators import numpy_random


def of_saving(error: BaseException) -> bool:
    """Whether the error comes from a hook for saved tensors, not from an operator.

    A checkpoint ends its recomputation by such an error, and must receive it.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)  # type: ignore[attr-defined]
    code = getattr(hooks[0], "__code__", None) if hooks else None
    frames = traceback.walk_tb(error.__traceback__)
    return code is not None and any(frame.f_code is code for frame, _ in frames)


def failed(error: BaseException, again: bool | None, ours: bool, states: tuple[Any, ...] | None) -> None:
    """Handle the failure of a graph.

    - `again`: whether the frame runs again eagerly, by `Unfit`; None: only if the graph had no lasting effect.
      An interrupt, or an error of the compiler itself, is raised unchanged.
    - `ours`: the backend is this compiler's, so the error gets the program's lines.
    - `states`: states of the generators that were drawn from for the graph; they are put back before a second run.
    """
    theirs = isinstance(error, Exception) and not isinstance(error, PyCompilerError)
    left = theirs and (had_no_effect(error) if again is None else again) and not of_saving(error)
    for put_back, state in reversed(states or ()) if left or isinstance(error, Unfit) else ():
        put_back(state)
    if isinstance(error, Unfit):
        try:
            raise error
        finally:
            del error  # else this frame, which the traceback holds, would hold the error
    if left:
        raise Unfit("an operator raised") from error
    if ours:
        raised_in_graph(error)


def plan_failed(again: bool | None, ours: bool, inside: bool, error: BaseException) -> bool | None:
    """The same for a graph that the engine calls.  True if the error is raised where the frame continues."""
    if not isinstance(error, Unfit):
        failed(error, again, ours, None)
    return inside or None


def quietly(fn: Any, *args: Any, **kwargs: Any) -> None:
    """A call that raises; the program has handled the error."""
    with contextlib.suppress(Exception):
        fn(*args, **kwargs)


def states_of(*generators: Any) -> tuple[Any, ...]:
    """Functions and states that restore generators of Python and NumPy to their current state."""
    return tuple(
        (g.setstate, g.getstate()) if isinstance(g, random.Random) else numpy_random.state_of(g) for g in generators
    )


def keep(value: Any) -> None:
    """Ignore a value that was created only for its side effects."""


def open_range(name: tuple[Any, ...], left: bool) -> Any:
    """A profiler range that is open from now on, or closed again."""
    made = torch.ops.profiler._record_function_enter_new(*name)
    if left:
        torch.ops.profiler._record_function_exit._RecordFunction(made)
    return made


def compute(number: Any, names: tuple[str, ...], *values: int) -> Any:
    """A size or a float computed from sizes: `number` is an Expr, a Real or a Truth over `names`."""
    return number.eval(dict(zip(names, values, strict=True)))


def bound(tensor: Any, read: Any, args: tuple[int, ...]) -> Any:
    """An unbacked symbol, read from a tensor: a size, or a part of its one element (None: all of it)."""
    if args:
        return read(tensor, *args)
    return tensor.item() if read is None else read(tensor.item())


def make_object(cls: type, args: tuple[Any, ...] | None) -> Any:
    """An instance without running Python-level `__new__` and `__init__`; `args` are an exception's."""
    base: Any = next(c for c in mro_of(cls) if not is_mutable(c))  # the most derived class written in C
    made = base.__new__(cls, *args or ())
    if args is not None:
        base.__init__(made, *args)
    return made


def new_leaf(size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device, requires_grad=True)


def new_parameter(*kind: Any) -> torch.nn.Parameter:
    """A parameter of these sizes, strides, dtype and device, which the graph fills."""
    with torch._C.DisableTorchFunction():
        size, stride, dtype, device = kind
        return torch.nn.Parameter(torch.empty_strided(size, stride, dtype=dtype, device=device))


def start_leaf(tensor: torch.Tensor) -> None:
    """Let the tensor require grad from now on."""
    with torch._C.DisableTorchFunction():
        tensor.requires_grad_()


def set_grad(tensor: torch.Tensor, grad: torch.Tensor | None) -> None:
    with torch._C.DisableTorchFunction():
        tensor.grad = grad


def set_flag(tensor: torch.Tensor, flag: bool) -> None:
    with torch._C.DisableTorchFunction():
        tensor.requires_grad_(flag)


class _Spent(torch.autograd.Function):
    """A tensor whose history has been freed."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
        return value.detach()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        raise RuntimeError(SPENT)


SPENT = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True "
    "if you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


def spent(value: torch.Tensor, *leaves: torch.Tensor) -> torch.Tensor:
    """`value` with a history that leads to these leaves through nodes whose saved tensors are freed."""
    with torch._C.DisableTorchFunction(), torch.enable_grad():
        known = tuple(leaf for leaf in leaves if leaf.requires_grad)  # the flags of others change after this
        anchors = known or (torch.zeros((), requires_grad=True),)
        return _Spent.apply(value, *anchors)  # type: ignore[no-any-return, no-untyped-call]


def set_data(tensor: torch.Tensor, data: torch.Tensor, writes: int) -> None:
    """`writes`: number of writes to the tensor after it got the data."""
    with torch._C.DisableTorchFunction():
        tensor.data = data
    count(tensor, writes)


def set_(tensor: torch.Tensor, data: torch.Tensor, writes: int) -> None:
    with torch._C.DisableTorchFunction():
        tensor.set_(data)  # type: ignore[call-overload]
    count(tensor, writes)


def count(tensor: torch.Tensor, writes: int) -> None:
    for _ in range(writes):
        torch.autograd.graph.increment_version(tensor)


def as_subclass(tensor: Any, cls: type) -> Any:
    """An alias of another class, without a call of the class."""
    with torch._C.DisableTorchFunction():
        return tensor.as_subclass(cls)


def take_handles(count: int) -> int:
    """Reserve numbers for `count` handles and return the first."""
    first: int = RemovableHandle.next_id
    RemovableHandle.next_id += count
    return first


def skip_handle() -> None:
    """Skip the number of a handle that was created."""
    RemovableHandle.next_id += 1


def as_inference(tensor: torch.Tensor) -> torch.Tensor:
    """A graph's result as an inference tensor in the same memory."""
    if tensor.is_inference():  # a call under inference mode
        return tensor
    with torch._C.DisableTorchFunction(), torch._C._InferenceMode(True):
        place = tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(*place)
        made = made.conj() if tensor.is_conj() else made
        return torch._neg_view(made) if tensor.is_neg() else made


def call_graph(run: Any, aliased: tuple[bool, ...], *inputs: Any) -> Any:
    """Call a graph with function modes off.  Inputs of a class with `__torch_function__` become plain aliases."""
    with function_modes_off():
        with torch._C.DisableTorchFunction():
            given = [t.as_subclass(torch.Tensor) if plain else t for t, plain in zip(inputs, aliased, strict=True)]
        return run(*given)


def set_attributes(obj: Any, names: tuple[str, ...], *values: Any) -> Any:
    store = BaseException.__setattr__ if issubclass(type(obj), BaseException) else object.__setattr__
    for name, value in zip(names, values, strict=True):
        store(obj, name, value)
    return obj


def hold_attributes(obj: Any, names: tuple[str, ...], *values: Any) -> Any:
    """Store into the instance dict, bypassing descriptors."""
    object.__getattribute__(obj, "__dict__").update(zip(names, values, strict=True))
    return obj


def drop_held(obj: Any, name: str) -> None:
    """Remove the attribute from the instance dict, bypassing descriptors."""
    object.__getattribute__(obj, "__dict__").pop(name, None)


def delete_attribute(remove: Any, obj: Any, name: str) -> None:
    """Remove the attribute.  It may be absent, if the program both stored and deleted it."""
    with contextlib.suppress(AttributeError):
        remove(obj, name)


def base_of(cls: type, *bases: type) -> type:
    """The builtin container class that stores an instance's items."""
    import collections

    return next(b for b in (collections.OrderedDict, *bases) if issubclass(cls, b))


def fill_dict(target: Any, *items: Any) -> Any:
    """Replace the contents of a dict (or subclass) by key, value, key, value, ... without running overrides."""
    base: Any = base_of(type(target), dict)
    wanted = dict(zip(items[::2], items[1::2], strict=True))
    kept = [key for key in base.keys(target) if key in wanted]
    if any(a is not b and a != b for a, b in zip(kept, wanted, strict=False)):
        base.clear(target)  # another order
    else:  # in place, since a live iterator knows its position in the table
        for key in [key for key in base.keys(target) if key not in wanted]:
            base.__delitem__(target, key)
    for key, value in wanted.items():
        base.__setitem__(target, key, value)
    return target


def fill_emptied(target: Any, *items: Any) -> Any:
    """Empty a dict (or subclass), then store key, value, key, value, ... without running overrides."""
    base: Any = base_of(type(target), dict)
    base.clear(target)
    for key, value in zip(items[::2], items[1::2], strict=True):
        base.__setitem__(target, key, value)
    return target


def change_dict(target: Any, n_out: int, *items: Any) -> Any:
    """Remove the first `n_out` keys from a dict (or subclass), then store key, value, key, value, ...

    No overrides run.  The change is in place, since a live iterator knows its position in the table.  An entry that a
    finalizer adds meanwhile stays.
    """
    base: Any = base_of(type(target), dict)
    for key in items[:n_out]:
        base.pop(target, key, None)
    for key, value in zip(items[n_out::2], items[n_out + 1 :: 2], strict=True):
        base.__setitem__(target, key, value)
    return target


def store_deque(target: Any, *items: Any) -> Any:
    """Store into places of a deque, so that its iterators stay valid."""
    for place, item in enumerate(items):
        if target[place] is not item:
            target[place] = item
    return target


def replace_part(target: Any, begin: int, end: int | None, *items: Any) -> Any:
    """Replace the elements of a list (or subclass) from `begin` to `end`."""
    list.__setitem__(target, slice(begin, end), items)
    return target


def replace_in_deque(target: Any, begin: int, end: int | None, *items: Any) -> Any:
    """Replace elements near one end of a deque.  With equally many new elements its iterators stay valid."""
    at_end = begin < 0 or end is None
    stay, gone = (-(end or 0), (end or 0) - begin) if at_end else (begin, (end or 0) - begin)
    if gone == len(items):
        for place, item in enumerate(items, begin):
            target[place] = item
        return target
    take, add = (target.pop, target.extend) if at_end else (target.popleft, target.extendleft)
    kept = [take() for _ in range(stay)]
    for _ in range(gone):
        take()
    add(items if at_end else items[::-1])
    add(kept[::-1])
    return target


def replace_ends(target: Any, left: int, right: int, first: int, *items: Any) -> Any:
    """Replace elements at both ends of a deque, which may be full."""
    for _ in range(left):
        target.popleft()
    for _ in range(right):
        target.pop()
    target.extendleft(items[:first][::-1])
    target.extend(items[first:])
    return target


def fill_list(target: Any, *items: Any) -> Any:
    """Replace the contents of a list (or subclass)."""
    list.__setitem__(target, slice(None), items)
    return target


def extend_list(target: Any, *items: Any) -> Any:
    """Append to a list (or subclass); an element that a finalizer appended meanwhile stays."""
    list.extend(target, items)
    return target


def fill_deque(target: Any, *items: Any) -> Any:
    """Replace the contents of a deque."""
    target.clear()
    target.extend(items)
    return target


def fill_set(target: Any, *items: Any) -> Any:
    """Replace the contents of a set (or subclass)."""
    set.clear(target)
    set.update(target, items)
    return target


def make_function(
    code: types.CodeType,
    namespace: dict[str, Any],
    names: tuple[str, str],
    defaults: tuple[Any, ...] | None,
    kwdefaults: dict[str, Any] | None,
    closure: tuple[types.CellType, ...] | None,
    attributes: dict[str, Any] | None,
) -> types.FunctionType:
    made = types.FunctionType(code, namespace, names[0], defaults, closure or None)
    made.__qualname__ = names[1]
    made.__kwdefaults__ = kwdefaults
    for name, value in (attributes or {}).items():
        if (entry := unshadowed(name)) != name:
            made.__dict__[entry] = value
        else:
            setattr(made, name, value)
    return made


def _place() -> Iterator[None]:
    yield


def _empty_iterators() -> Iterator[Iterator[Any]]:
    """One iterator of each class that can be created from empty arguments."""
    yield from map(iter, ITERATED)
    yield from (reversed(empty) for empty in ITERATED if hasattr(empty, "__reversed__") or isinstance(empty, tuple))
    yield from (zip(), itertools.chain(), itertools.zip_longest(()), itertools.islice((), 0), itertools.repeat(None, 0))
    yield from (
        kind(()) for kind in (enumerate, itertools.accumulate, itertools.cycle, itertools.groupby, itertools.pairwise)
    )
    for filtering in (map, filter, itertools.filterfalse, itertools.takewhile, itertools.dropwhile, itertools.starmap):
        yield filtering(keep, ())  # type: ignore[operator]
    yield from (itertools.compress((), ()), itertools.combinations((), 1), itertools.permutations((), 1))


def ended_iterator(cls: type) -> Iterator[Any]:
    """An iterator of this class that has ended."""
    made = next((it for it in _empty_iterators() if type(it) is cls), iter(()))
    next(made, None)
    return made


def ended_generator(names: tuple[str, str]) -> Iterator[None]:
    """An ended generator with these names (plain and qualified)."""
    made = _place()
    made.__name__, made.__qualname__ = names  # type: ignore[attr-defined]
    made.close()  # type: ignore[attr-defined]
    return made


def make_tuple_subclass(cls: type, *items: Any) -> Any:
    """A namedtuple or structseq."""
    if hasattr(cls, "n_fields"):
        return cls(items)
    return tuple.__new__(cls, items)


def set_state(iterator: Any, state: int) -> None:
    iterator.__setstate__(state)


def advance(iterator: Iterator[Any], steps: int) -> None:
    """Advance an existing iterator by `steps`; the last step may be its end."""
    next(itertools.islice(iterator, steps, steps), None)


def only_apart(iterator: Iterator[Any], *changed: Any) -> None:
    """Called first by generated code.  Raises `Unfit` if the iterator iterates a container that the frame changes."""
    if any(iterator_state.is_over(iterator, c) for c in changed):
        raise Unfit(f"a {type(iterator).__qualname__} iterates over an object that the frame changes")


def only_at_ease(iterator: Iterator[Any]) -> None:
    """Called first by generated code.  Raises `Unfit` if the iterator's end would run code of the program."""
    if not ends_quietly(iterator):
        raise Unfit(f"a {type(iterator).__qualname__} drops an object whose end runs code")


def _own(iterable: Any, name: str, generic: Callable[[Any], Any]) -> Any:
    """The result of a method of the container's C class, or of the `generic` function if there is none."""
    base = next(c for c in mro_of(type(iterable)) if not is_mutable(c))
    return getattr(base, name, generic)(iterable)


def iterator_at(iterable: Any, taken: int) -> Iterator[Any]:
    """The iterator of a container after `taken` elements, ignoring overrides."""
    it: Iterator[Any] = _own(iterable, "__iter__", iter)
    if isinstance(iterable, (list, tuple, str, bytes)) or type(it) is INDEXING:
        set_state(it, taken)
    else:
        next(itertools.islice(it, taken, taken), None)
    return it


def reversed_at(iterable: Any, length: int, taken: int) -> Iterator[Any]:
    """reversed(iterable) as of length `length`, after `taken` elements."""
    it: Iterator[Any] = _own(iterable, "__reversed__", reversed)
    if isinstance(iterable, list):  # it may have grown since
        set_state(it, length - taken - 1)
    else:
        next(itertools.islice(it, taken, taken), None)
    return it


class Begun:
    """An iterable whose `__iter__` has been called, so that the program's method runs once."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Iterator[Any]) -> None:
        self.iterator = iterator

    def __iter__(self) -> Iterator[Any]:
        return self.iterator


def zip_strict(*iterators: Iterator[Any]) -> Iterator[Any]:
    return zip(*iterators, strict=True)


def chain_from(current: Iterator[Any], rest: Iterator[Any]) -> Iterator[Any]:
    """The state of an itertools.chain: the current iterator, and the iterator of the iterables to come."""
    return itertools.chain(current, itertools.chain.from_iterable(rest))


def zip_longest(fill: Any, *iterators: Iterator[Any]) -> Iterator[Any]:
    return itertools.zip_longest(*iterators, fillvalue=fill)


def pairwise(rest: Iterator[Any], *last: Any) -> Iterator[Any]:
    """itertools.pairwise(rest), which has taken its first element already."""
    return itertools.pairwise(itertools.chain(last, rest))


def dropped(rest: Iterator[Any]) -> Iterator[Any]:
    """An itertools.dropwhile that has found its first element."""
    return itertools.dropwhile(lambda _: False, rest)


def accumulate(fn: Any, rest: Iterator[Any], *initial: Any) -> Iterator[Any]:
    return itertools.accumulate(rest, fn, initial=initial[0]) if initial else itertools.accumulate(rest, fn)


def accumulated(fn: Any, rest: Iterator[Any], total: Any) -> Iterator[Any]:
    """An itertools.accumulate that has returned `total` last."""
    made = accumulate(fn, itertools.chain([total], rest))
    next(made)
    return made


def rows_of(make: Any, pools: Any, rest: Any, named: Any, taken: int) -> Iterator[Any]:
    """itertools.product or a similar iterator, after `taken` rows."""
    made: Iterator[Any] = make(*pools, *rest, **named)
    next(itertools.islice(made, taken, taken), None)
    return made


def make_cell(*contents: Any) -> types.CellType:
    return types.CellType(*contents)


def set_cell(cell: types.CellType, *contents: Any) -> None:
    """Store into a cell, or empty it."""
    if contents:
        cell.cell_contents = contents[0]
    else:
        del cell.cell_contents


def set_global(namespace: dict[str, Any], name: str, value: Any) -> None:
    namespace[name] = value


def delete_global(namespace: dict[str, Any], name: str) -> None:
    """Remove the name from the namespace.  It may be absent, if the program both stored and deleted it."""
    namespace.pop(name, None)


def stored_at(kind: str, owner: Any, name: str | None) -> list[Any]:
    """The contents of a place before a write (kinds as in `side_effects.Write`), or the dropped value itself."""
    if kind == "value":
        return [owner]
    if kind == "global":
        return [owner.get(name)]
    if kind == "cell":
        return [owner.cell_contents] if owner != types.CellType() else []
    if kind == "attribute":
        memory = instance_dict(owner)  # None: only slots; `__getattr__` does not run
        return [memory[name]] if type(memory) is dict and name in memory else in_slot(owner, name or "")
    return [*dict.values(owner)] if isinstance(owner, dict) else [*owner]


def at_key(mapping: Any, key: Any) -> Any:
    return dict.get(mapping, key)


def counted_at(mapping: Any, key: Any, zero: bool) -> None:
    """Called first by generated code.  Raises `Unfit` if a dict has no int to add to."""
    if type(dict.get(mapping, key, 0 if zero else None)) is not int:
        raise Unfit("a counted value in a dict is not an int")


def count_up(target: Any, *items: Any) -> Any:
    """Add a number to the value of each key."""
    for i in range(0, len(items), 2):
        dict.__setitem__(target, items[i], dict.get(target, items[i], 0) + items[i + 1])
    return target


def only_quiet(places: tuple[tuple[str, str | None], ...], *owners: Any) -> None:
    """Called first by generated code.  Raises `Unfit` if a write of the frame would drop an object whose end runs code."""
    for (kind, name), owner in zip(places, owners, strict=True):
        for value in stored_at(kind, owner, name):
            if runs_code(value):
                raise Unfit(f"the end of a {type(value).__qualname__} runs code")


def living(reference: Any) -> Any:
    """Called first by generated code: the class, which guards found alive.

    Raises `Unfit` if another thread has let the class end since.
    """
    if (found := reference()) is None:
        raise Unfit("a class no longer exists")
    return found


def make_class(
    name: str, bases: tuple[Any, ...], words: dict[str, Any], cell: Any, keys: tuple[str, ...], *values: Any
) -> type:
    """A class as its statement creates it from the namespace of the body; `cell` is the `__class__` of its methods."""
    names = dict(zip(keys, values, strict=True))
    if cell is not None:
        names["__classcell__"] = cell

    def fill(space: Any) -> None:
        for key, value in names.items():
            space[key] = value

    return types.new_class(name, bases, words, fill)


def member(cls: Any, name: str | None, value: Any) -> Any:
    """The member of an Enum with this name.  Combined flags have only a value."""
    return cls(value) if name is None else cls._member_map_[name]


def new_class(
    meta: type,
    name: str,
    bases: tuple[type, ...],
    cell: Any,
    keys: tuple[str, ...],
    later: tuple[str, ...],
    *values: Any,
) -> Any:
    """A class in its final state.

    `__set_name__` of the attributes `later`, and `__init_subclass__` of the bases, do not run again.
    """
    names = dict(zip(keys, values, strict=True))
    space = {**names, **dict.fromkeys(later)}
    if cell is not None:
        space["__classcell__"] = cell
    told = any("__init_subclass__" in namespace_of(c) for base in bases for c in mro_of(base) if c is not object)
    failed = None
    try:
        made: Any = type.__new__(meta, name, (_silent(bases), *bases) if told else bases, space)
    except TypeError as e:
        failed = e
    if failed is not None:
        try:
            if told:
                _check_order(meta, bases)
            raise failed
        finally:
            del failed  # its traceback holds this frame
    if told:
        try:
            type.__dict__["__bases__"].__set__(made, bases)
        except TypeError as e:  # the layouts differ
            raise Break("builtin-call", f"a class whose base has __init_subclass__: {e}") from None
    for key in later:
        type.__setattr__(made, key, names[key])
    return made


def _check_order(meta: type, bases: tuple[type, ...]) -> None:
    """Raise Python's error if the bases have no consistent mro: it precedes every hook call."""
    ordered = False
    with contextlib.suppress(RuntimeError):
        functools._c3_merge([*([*mro_of(base)] for base in bases), [*bases]])  # type: ignore[attr-defined]
        ordered = True
    if not ordered:
        type.__new__(meta, "", bases, {})


def _silent(bases: tuple[type, ...]) -> type:
    """A first base that hides the `__init_subclass__` of the others.

    It must add the same fields to the instance layout as they do.
    """
    best = bases[0]
    for base in bases[1:]:
        if _in_c(base) is not _in_c(best) and issubclass(_in_c(base), _in_c(best)):
            best = base
    while is_mutable(best) and not _adds(best):
        best = best.__base__  # type: ignore[assignment]
    root, own = (best.__base__, {}) if is_mutable(best) else (best, {"__slots__": ()})
    assert root is not None
    if is_mutable(root) and any("__init_subclass__" in namespace_of(c) for c in mro_of(root) if c is not object):
        raise Break("builtin-call", f"a class whose base {root.__qualname__} has __init_subclass__ and slots")
    return type.__new__(type(root), "Silent", (root,), {"__init_subclass__": classmethod(lambda cls: None), **own})


def _in_c(cls: type) -> type:
    return next(c for c in mro_of(cls) if not is_mutable(c))


def _adds(cls: type) -> bool:
    """Whether a class adds a dict, or a slot for weak references, to its base."""
    base = cls.__base__
    return any(bool(getattr(cls, n)) != bool(getattr(base, n)) for n in ("__dictoffset__", "__weakrefoffset__"))


def subscript(cls: Any, *parts: Any) -> Any:
    return cls[parts if len(parts) != 1 else parts[0]]
