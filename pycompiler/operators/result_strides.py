"""Strides of results as in eager, where torch's shape functions differ.

In: a call of the captured program with its FakeTensor arguments and results.  Out: nothing; fresh results get eager's strides.

Example: ``F.huber_loss`` with two tensors of shape (1,) and stride (3,) gives stride (3,), because it copies its arguments.

The contract: a value of the captured graph has the same strides as in the eager program.  Capture establishes this call
by call and records the strides (`meta["strides"]`); later stages must keep them.

Shape functions are in doubt for dimensions of one element, tensors without elements and non-contiguous arguments.  On
other devices than the CPU, they are in doubt for all but ordinary operators.  Then the program's own call runs on
tensors of ones and zeros with the arguments' layouts, on their device.  So a composite function takes the same path as
for real tensors.  For large tensors, the shape functions (and `tensor_iterator.py`) decide.
"""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.operators.kernel_type_checks import memory_of, tensors_of
from pycompiler.operators.operator_facts import facts_of, overload_by_generator
from pycompiler.operators.symbolic_shape_rules import is_plain
from pycompiler.symbolic.concretize import Concretizer, symbols_in
from pycompiler.symbolic.symbols import Symbols, expr_of, hint_of
from pycompiler.torch_compat.dispatch_modes import OwnMode
from pycompiler.torch_compat.warning_listener import ALWAYS, Listening

# most elements that an argument or a result spans: kernels then answer quickly
_LARGE = {"cpu": 1 << 16, "cuda": 1 << 20}

# Further sizes for the check whether an answer holds for all sizes.  `2 * n` keeps all divisors of a size.
_OTHERS: tuple[Callable[[int], int], ...] = (lambda n: 2 * n, lambda n: n + 1)

Strides = tuple[int, ...]
Layout = tuple[tuple[int, ...], Strides]
_PLAIN = (int, float, complex, bool, str, slice, type(None), type(...), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, OpOverload, OpOverloadPacket)


class StrideProbe:
    """Runs the calls of one capture on small real tensors, and stores the answers."""

    def __init__(self) -> None:
        self._answers: dict[Any, list[Layout]] = {}
        self._right: set[Any] = set()  # calls with symbols, keyed by hints, for which the shape functions are right

    def forget(self) -> None:
        """Drop the answers, because state that calls depend on (autocast, gradients) has changed."""
        self._answers.clear()
        self._right.clear()

    def lay(
        self,
        target: Any,
        run: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        out: Any,
        *,
        ordinary: bool,
        once: bool = False,
    ) -> None:
        """Give the fresh tensors of `out`, a call's results, eager's strides.

        `ordinary`: all its operators are ordinary (`propagate.is_ordinary`).  Their kernels do the same on all devices,
        and are not loaded for this query alone.  `once`: some operators draw random numbers or have side effects.
        """
        given, results = tensors_of((args, kwargs)), tensors_of(out)
        symbols = next(filter(None, map(symbols_in, (*given, *results))), None)
        if symbols is not None:
            self._lay_symbolic(symbols, target, run, args, kwargs, given, results, ordinary=ordinary, once=once)
            return
        if not results or not given or not _in_doubt(given, results, ordinary) or not _may_run(target, given, results):
            return
        fresh = _fresh(given, results)
        if not any(fresh):
            return
        try:
            key = (target, _key(args), _key(kwargs))
        except TypeError:  # an argument of another kind
            return
        answer = self._answers.get(key)
        if answer is None:
            answer = self._answers[key] = _ask(run, args, kwargs, once or target in _RECURRENT)
        if [shape for shape, _ in answer] == [tuple(t.shape) for t in results]:
            for t, is_fresh, (_, strides) in zip(results, fresh, answer, strict=True):
                if is_fresh and t.stride() != strides:
                    _restride(t, strides)

    def _lay_symbolic(
        self, symbols: Symbols, target: Any, run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any],
        given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], *, ordinary: bool, once: bool,
    ) -> None:  # fmt: skip
        """`lay` for symbolic sizes, by their hints.

        If the shape functions are wrong, a result gets the dimension order of eager's, provided that other sizes give
        the same order.  Otherwise the sizes become numbers.
        """
        if not results or not given or not (_is_odd(given, ordinary) or any(map(_has_single, results))):
            return
        fresh = _fresh(given, results)
        try:
            key = (target, _key(args), _key(kwargs), _key(results), *fresh)
        except TypeError:  # an argument of another kind
            key = None
        if not any(fresh) or key in self._right:
            return

        def laid(today: Concretizer) -> tuple[list[Strides], list[Strides]]:
            """The strides by the shape functions, and eager's strides."""
            twins = [today.twin(t) for t in results]
            said = [t.stride() for t in twins]
            self.lay(target, run, today.of(args), today.of(kwargs), twins, ordinary=ordinary, once=once)
            return said, [t.stride() for t in twins]

        said, done = laid(Concretizer())
        wrong = [i for i, is_fresh in enumerate(fresh) if is_fresh and said[i] != done[i]]
        if not wrong:
            self._right |= {key} - {None}
            return
        others = (Concretizer(sizes={name: change(n) for name, n in symbols.hints.items()}) for change in _OTHERS)
        other = next((o for o in others if _may_run(target, o.of(given), o.of(results))), None)
        there = [] if other is None else laid(other)[1]
        for i in wrong:
            strides = in_order(results[i].shape, done[i])
            if other is None or Concretizer().of(strides) != done[i] or other.of(strides) != there[i]:
                for n in (*results[i].shape, *results[i].stride()):
                    symbols.pin(expr_of(n))
                strides = done[i]
            _restride(results[i], strides)


def _today(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(hint_of, numbers))


def in_order(shape: Sequence[Any], strides: Strides) -> Strides:
    """Strides without gaps, with dimensions in the order of `strides`; among equal strides, dimensions of one element
    are innermost."""
    order = sorted(range(len(shape)), key=lambda i: (strides[i], hint_of(shape[i]) != 1))
    made, step = [1] * len(shape), 1
    for i in order:
        made[i], step = step, step * shape[i]
    return tuple(made)


def layouts(out: Any) -> list[Strides]:
    """The strides of the tensors of a call's results, in order."""
    return [t.stride() if t.layout is torch.strided else () for t in tensors_of(out)]


def _in_doubt(given: Sequence[torch.Tensor], results: Sequence[torch.Tensor], ordinary: bool) -> bool:
    return _is_odd(given, ordinary) or any(map(_has_single, results))


def _is_odd(given: Sequence[torch.Tensor], ordinary: bool) -> bool:
    if not ordinary and any(t.device.type != "cpu" for t in given):
        return True
    return not all(_is_plain(t) for t in given)


def _is_plain(t: torch.Tensor) -> bool:
    if t.layout is not torch.strided:
        return False
    if t._has_symbolic_sizes_strides:
        return is_plain(t)
    return t.is_contiguous() and (1 not in t.shape or is_plain(t))


def _has_single(t: torch.Tensor) -> bool:
    """Whether the tensor has no elements, or a dimension of one."""
    today = [hint_of(n) for n in t.shape]
    return 0 in today or 1 in today


def _may_run(target: Any, given: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> bool:
    if not isinstance(target, str):
        module = getattr(target, "__module__", None) or getattr(type(target), "__module__", None)
        root = str(module).split(".")[0]
        if not isinstance(target, _FUNCTIONS) or root not in ("torch", "_operator", "builtins"):
            return False
    if not all(type(t) is FakeTensor and _is_small(t) for t in (*given, *results)):
        return False
    if all(t.device.type == "cpu" for t in given):
        return True
    # An index of 0 into an empty tensor ends the CUDA context.  During CUDA graph capture, a call would be recorded.
    integers = any(not (t.is_floating_point() or t.is_complex() or t.dtype == torch.bool) for t in given)
    indexes = integers and len(given) > 1
    return not (indexes and any(t.numel() == 0 for t in given)) and not torch.cuda.is_current_stream_capturing()


def _is_small(t: torch.Tensor) -> bool:
    if t.layout is not torch.strided or t.is_neg() or t.is_conj():
        return False
    return _span(t.shape, t.stride()) <= _LARGE.get(t.device.type, -1)


def _span(shape: Sequence[int], strides: Sequence[int]) -> int:
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def _fresh(given: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> list[bool]:
    """Whether each result has its own memory, shared with no argument and no other result."""
    taken = {memory_of(t) for t in given}
    found = [memory_of(t) for t in results]
    times = collections.Counter(found)
    return [m not in taken and times[m] == 1 for m in found]


def _ask(run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], once: bool) -> list[Layout]:
    mode = IsolatedEffects() if once else contextlib.nullcontext()
    try:
        with _disable_current_modes(), mode, ALWAYS, Listening():
            real = run(*map(_stand_in, args), **{k: _stand_in(v) for k, v in kwargs.items()})
    except Exception:  # these are not the program's values, so the call may refuse them
        return []
    return [(tuple(t.shape), t.stride()) for t in tensors_of(real) if t.layout is torch.strided]


# Shape functions do not report the dropout between their layers.
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class IsolatedEffects(OwnMode):
    """Random numbers come from fresh generators; operators with side effects are refused."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        facts = facts_of(func)
        if facts.acts:
            raise NotImplementedError(f"{func} has side effects")
        if facts.draws and not any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            device = next(t.device for t in tensors_of((args, kwargs)))
            taking = overload_by_generator(func, taken=True)
            if taking is None:
                raise NotImplementedError(f"{func} takes no generator")
            return taking(*args, **kwargs, generator=torch.Generator(device))
        return func(*args, **kwargs)


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device)
    if isinstance(value, torch.Tensor):
        made = torch.ones if value.dtype.is_floating_point else torch.zeros
        memory = made(_span(value.shape, value.stride()), dtype=value.dtype, device=value.device)
        if value.requires_grad:
            memory.requires_grad_()
        return memory.as_strided(value.shape, value.stride())
    if isinstance(value, list):  # also fx's list class of a graph's arguments
        return [_stand_in(v) for v in value]
    if type(value) is tuple:
        return tuple(_stand_in(v) for v in value)
    if type(value) is dict:
        return {k: _stand_in(v) for k, v in value.items()}
    return value


def _key(value: Any) -> Any:
    """A key for all properties that an answer depends on; symbols count with their hints."""
    if isinstance(value, torch.Tensor):
        return (value.dtype, value.device, _today(value.shape), _today(value.stride()), value.requires_grad)
    if isinstance(value, (list, tuple)):
        return (type(value), *map(_key, value))
    if isinstance(value, dict):
        return tuple((k, _key(v)) for k, v in value.items())
    if isinstance(value, slice):
        return (slice, _key(value.start), _key(value.stop), _key(value.step))
    if isinstance(value, torch.Generator):
        return (torch.Generator, value.device)
    number = hint_of(value)
    if not isinstance(number, _PLAIN):
        raise TypeError(type(value))
    return (type(number), number)


@contextlib.contextmanager
def _metadata_only() -> Iterator[None]:
    with torch._C._AutoDispatchBelowADInplaceOrView(), torch._C._DisableTorchDispatch():
        yield


def _restride(t: torch.Tensor, strides: Strides) -> None:
    """Change the strides of `t`, a fake tensor with memory of its own; autograd does not notice."""
    with _metadata_only():
        needed = _span(t.shape, strides) * t.element_size()
        if t.untyped_storage().nbytes() < needed:
            t.untyped_storage().resize_(needed)
        t.as_strided_(t.shape, strides, 0)
