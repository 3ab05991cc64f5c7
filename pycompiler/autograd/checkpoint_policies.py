"""Selective checkpoints: the operators whose results the program's policy saves.

In: the `context_fn` of a checkpoint.  Out: a `PolicyCall`, queried for each ATen operator while the checkpoint's body is
recorded.  Eager queries the policy at every call, compiled code only at compile time.  So a policy with side effects
runs eagerly.
"""

from __future__ import annotations

import collections
import functools
import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

from torch._ops import OperatorBase, OpOverloadPacket
from torch.utils import checkpoint as torch_checkpoint

from pycompiler.autograd.unsupported import AutogradUnsupported

HINT = "the graph runs eagerly"
MAX_OBJECTS = 20_000
"""The most objects that are checked for changes."""

_NOT_OF_THE_PROGRAM = (types.ModuleType, type, OperatorBase, OpOverloadPacket)
"""Objects that are not searched.  An operator of torch caches kernels and overloads in its attributes at its first call.
"""

_SAVING = (torch_checkpoint.CheckpointPolicy.MUST_SAVE, torch_checkpoint.CheckpointPolicy.PREFER_SAVE)
_TELLS_RESULTS = "op_output" in inspect.signature(torch_checkpoint.SelectiveCheckpointContext).parameters


class PolicyCall:
    """One call of `context_fn`."""

    def __init__(self, context_fn: Callable[[], Any]) -> None:
        self._places = dict(_places(context_fn))
        self._ask = self._policy_of(context_fn)

    def _policy_of(self, context_fn: Callable[[], Any]) -> Callable[..., Any]:
        try:
            forward, again = context_fn()
        except Exception as e:
            raise AutogradUnsupported("a checkpoint's context_fn raises", repr(e), HINT) from e
        modes = torch_checkpoint._CachingTorchDispatchMode, torch_checkpoint._CachedTorchDispatchMode
        if (type(forward), type(again)) != modes or forward.storage is not again.storage:
            raise AutogradUnsupported(
                "contexts of a checkpoint that create_selective_checkpoint_contexts did not make", repr(forward), HINT
            )
        return forward.policy_fn  # type: ignore[no-any-return]

    def saves(self, func: Any, args: Any, kwargs: Any, out: Any) -> bool:
        """Whether the backward takes the result of `func` from the forward."""
        if func in torch_checkpoint.SAC_IGNORED_OPS:
            return False
        given = {"op_output": out} if _TELLS_RESULTS else {}
        context = torch_checkpoint.SelectiveCheckpointContext(is_recompute=False, **given)
        try:
            found = self._ask(context, func, *args, **kwargs)
        except Exception as e:
            raise AutogradUnsupported("a checkpoint's policy raises", repr(e), HINT) from e
        return found in _SAVING or found is True

    def end(self) -> None:
        """The body is recorded.  Raises if the policy has changed existing objects, after restoring them."""
        changed = [(restore, old) for read, restore, old in self._places.values() if not _same(read(), old)]
        for restore, old in changed:
            restore(old)
        if changed:
            raise AutogradUnsupported("a checkpoint's policy changes an object from outside", repr(changed[0][1]), HINT)


# reads the current contents, restores them; the old contents
SettingAccess = tuple[Callable[[], Any], Callable[[Any], None], Any]


def _same(a: Any, b: Any) -> bool:
    """Whether two contents consist of the very same objects."""
    if type(a) is dict and type(b) is dict:
        return list(a) == list(b) and all(a[k] is b[k] for k in a)
    if type(a) is list and type(b) is list:
        return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))
    return a is b or (type(a) is set and type(b) is set and a == b)


def _places(root: Any) -> Iterator[tuple[Any, SettingAccess]]:
    """The objects that functions below `root` can reach and write: cells, globals, containers, attributes."""
    seen: set[int] = set()
    todo = [root]
    while todo:
        value = todo.pop()
        if id(value) in seen or isinstance(value, _NOT_OF_THE_PROGRAM):
            continue
        seen.add(id(value))
        if len(seen) > MAX_OBJECTS:
            raise AutogradUnsupported("a checkpoint's policy that reaches too many objects", repr(root), HINT)
        if isinstance(value, functools.partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, types.MethodType):
            todo += [value.__self__, value.__func__]
        elif isinstance(value, types.FunctionType):
            if str(value.__module__).partition(".")[0] == "torch":
                continue
            todo += [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
            for cell in value.__closure__ or ():
                todo += [*_contents(cell)]
                yield ("cell", id(cell)), _cell(cell)
            for name in _names(value.__code__) & value.__globals__.keys():
                todo.append(value.__globals__[name])
                yield (id(value.__globals__), name), _item(value.__globals__, name)
        elif isinstance(value, dict):
            todo += value.values()
            yield (
                ("dict", id(value)),
                (functools.partial(_copied, dict, value), functools.partial(_refill, value), dict(value)),
            )
        elif isinstance(value, (list, set, collections.deque)):
            kind: Any = set if isinstance(value, set) else list
            todo += value
            yield (
                ("items", id(value)),
                (functools.partial(_copied, kind, value), functools.partial(_refill, value), kind(value)),
            )
        elif isinstance(getattr(value, "__dict__", None), dict):
            todo.append(value.__dict__)


def _copied(kind: Callable[[Any], Any], value: Any) -> Any:
    return kind(value)


def _refill(value: Any, old: Any) -> None:
    value.clear()
    (value.extend if isinstance(old, list) else value.update)(old)


def _contents(cell: types.CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # empty
        return []


def _cell(cell: types.CellType) -> SettingAccess:
    def restore(old: list[Any]) -> None:
        if old:
            cell.cell_contents = old[0]
        else:
            del cell.cell_contents

    return functools.partial(_contents, cell), restore, _contents(cell)


def _item(namespace: dict[str, Any], name: str) -> SettingAccess:
    return functools.partial(namespace.get, name), functools.partial(namespace.__setitem__, name), namespace[name]


def _names(code: types.CodeType) -> set[str]:
    """The names that a function's code object, and nested code objects, look up."""
    inside = (c for c in code.co_consts if isinstance(c, types.CodeType))
    return set(code.co_names).union(*(_names(c) for c in inside))
