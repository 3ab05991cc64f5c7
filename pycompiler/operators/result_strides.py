"""Strides of results: those that eager's call has, where torch's shape functions have rules of their own.

In: a call of the captured program with its FakeTensor arguments and results. Out: nothing; fresh results lie as eager's do.
Example: of ``F.huber_loss`` with two tensors of shape (1,) and stride (3,) it is a tensor of stride (3,): it copies them.

The contract: a value of the captured graph has the strides that it has when the program runs as it is written. Capture
makes them so, a call at a time, and notes them (`meta["strides"]`); later stages are held to them.

Shape functions are in doubt for dimensions of one element, tensors without elements, arguments that are not contiguous,
and on other devices than the CPU for all but ordinary operators. There the program's own call is made, on tensors of ones
and zeros that lie as the arguments do, on their device: so composite functions take the way that they take for real
tensors. Of large tensors the shape functions (and `iterator.py`) have the last word.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler.ir.effects import acts, draws
from pycompiler.ir.heard import ALWAYS, Listening
from pycompiler.ir.kernels import memory_of, tensors_of
from pycompiler.ir.modes import OwnMode
from pycompiler.ir.shapes import is_plain
from pycompiler.ir.symbols import Symbols, expr_of, hint_of
from pycompiler.ir.today import Today, symbols_in

# Elements that an argument spans, or a result: kernels answer in little time.
_LARGE = {"cpu": 1 << 16, "cuda": 1 << 20}

# What symbols are where it is asked whether an answer is one for all sizes: what divides them divides twice them.
_OTHERS: tuple[Callable[[int], int], ...] = (lambda n: 2 * n, lambda n: n + 1)

Strides = tuple[int, ...]
Layout = tuple[tuple[int, ...], Strides]
_PLAIN = (int, float, complex, bool, str, slice, type(None), type(...), torch.dtype, torch.device, torch.layout,
          torch.memory_format)  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, OpOverload, OpOverloadPacket)


class Asker:
    """Makes the calls of one capture on small real tensors; what was answered once is known."""

    def __init__(self) -> None:
        self._answers: dict[Any, list[Layout]] = {}
        self._right: set[Any] = set()  # calls with symbols of which shape functions are right, by today's sizes

    def forget(self) -> None:
        """State that calls depend on (autocast, gradients) is another one now."""
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
        """Gives the fresh tensors of `out`, a call's results, eager's strides.

        `ordinary`: all its operators are (`propagate.is_ordinary`), whose kernels do the same on all devices, and are not
        loaded only to be asked.  `once`: some draw random numbers, or act.
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
        """The same for today's sizes. Where shape functions are wrong about them, a result lies by its dimensions in the order
        of eager's, if other sizes give that, too; else the sizes are numbers from now on."""
        if not results or not given or not (_is_odd(given, ordinary) or any(map(_has_single, results))):
            return
        fresh = _fresh(given, results)
        try:
            key = (target, _key(args), _key(kwargs), _key(results), *fresh)
        except TypeError:  # an argument of another kind
            key = None
        if not any(fresh) or key in self._right:
            return

        def laid(today: Today) -> tuple[list[Strides], list[Strides]]:
            """What shape functions say, and what eager does."""
            twins = [today.twin(t) for t in results]
            said = [t.stride() for t in twins]
            self.lay(target, run, today.of(args), today.of(kwargs), twins, ordinary=ordinary, once=once)
            return said, [t.stride() for t in twins]

        said, done = laid(Today())
        wrong = [i for i, is_fresh in enumerate(fresh) if is_fresh and said[i] != done[i]]
        if not wrong:
            self._right |= {key} - {None}
            return
        others = (Today(sizes={name: change(n) for name, n in symbols.hints.items()}) for change in _OTHERS)
        other = next((o for o in others if _may_run(target, o.of(given), o.of(results))), None)
        there = [] if other is None else laid(other)[1]
        for i in wrong:
            strides = in_order(results[i].shape, done[i])
            if other is None or Today().of(strides) != done[i] or other.of(strides) != there[i]:
                for n in (*results[i].shape, *results[i].stride()):
                    symbols.pin(expr_of(n))
                strides = done[i]
            _restride(results[i], strides)


def _today(numbers: Sequence[Any]) -> tuple[int, ...]:
    return tuple(map(hint_of, numbers))


def in_order(shape: Sequence[Any], strides: Strides) -> Strides:
    """Strides without gaps, of dimensions in the order of `strides`; of equal ones, those of one element lie inside."""
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
    """Whether it has no elements, or a dimension of one."""
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
    # An index of 0 into nothing ends the CUDA context; what is recorded into a CUDA graph would run with it.
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
    """Which results have memory of their own, that no argument and no other result has."""
    taken = {memory_of(t) for t in given}
    found = [memory_of(t) for t in results]
    times = collections.Counter(found)
    return [m not in taken and times[m] == 1 for m in found]


def _ask(run: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], once: bool) -> list[Layout]:
    mode = Apart() if once else contextlib.nullcontext()
    try:
        with _disable_current_modes(), mode, ALWAYS, Listening():
            real = run(*map(_stand_in, args), **{k: _stand_in(v) for k, v in kwargs.items()})
    except Exception:  # it does not take these values: they are not the program's
        return []
    return [(tuple(t.shape), t.stride()) for t in tensors_of(real) if t.layout is torch.strided]


# Of the dropout between their layers shape functions do not tell.
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


class Apart(OwnMode):
    """Random numbers come from generators that nobody else has; what acts is refused."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if acts(func):
            raise NotImplementedError(f"{func} acts")
        if draws(func) and not any(isinstance(a, torch.Generator) for a in (*args, *kwargs.values())):
            device = next(t.device for t in tensors_of((args, kwargs)))
            return _with_generator(func)(*args, **kwargs, generator=torch.Generator(device))
        return func(*args, **kwargs)


@functools.cache
def _with_generator(op: OpOverload) -> OpOverload:
    """The overload of a drawing operator that takes a generator besides its arguments."""
    names = [a.name for a in op._schema.arguments if a.name != "generator"]
    packet = op.overloadpacket
    for overload in (getattr(packet, name) for name in packet.overloads()):
        taken = [a.name for a in overload._schema.arguments]
        if "generator" in taken and [name for name in taken if name != "generator"] == names:
            return overload  # type: ignore[no-any-return]
    raise NotImplementedError(f"{op} takes no generator")


def _stand_in(value: Any) -> Any:
    if isinstance(value, torch.Generator):
        return torch.Generator(value.device)
    if isinstance(value, torch.Tensor):
        made = torch.ones if value.dtype.is_floating_point else torch.zeros
        memory = made(_span(value.shape, value.stride()), dtype=value.dtype, device=value.device)
        if value.requires_grad:
            memory.requires_grad_()
        return memory.as_strided(value.shape, value.stride())
    if isinstance(value, list):  # of a graph's arguments, too
        return [_stand_in(v) for v in value]
    if type(value) is tuple:
        return tuple(_stand_in(v) for v in value)
    if type(value) is dict:
        return {k: _stand_in(v) for k, v in value.items()}
    return value


def _key(value: Any) -> Any:
    """Equal for what an answer depends on; of symbols it is what they are today."""
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
    """`t`, a fake whose memory nobody else has, lies by `strides` from now on; for autograd nothing happened."""
    with _metadata_only():
        needed = _span(t.shape, strides) * t.element_size()
        if t.untyped_storage().nbytes() < needed:
            t.untyped_storage().resize_(needed)
        t.as_strided_(t.shape, strides, 0)
