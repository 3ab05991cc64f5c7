"""The memory of a graph's inputs: whether a call writes it, and which writes eager may refuse.

In: the inputs, as they come.  Out: answers about tensors that calls have written, by the storage in which these lie.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from pycompiler.ir.kernels import memory_of
from pycompiler.ir.places import apart


@dataclass
class Place:
    """A storage in which inputs lie, by their numbers: whether any of them stands for a tensor that there is, for one of
    inference mode."""

    inputs: list[int] = field(default_factory=list)
    exists: bool = False
    is_inference: bool = False


class InputMemory:
    """Which storages inputs lie in.  Each input is looked at once, when first something is asked after it came."""

    def __init__(self) -> None:
        self._inputs: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # fakes, and what they stand for
        self._looked_at = 0  # how many of them
        self._places: dict[int, Place] = {}
        self._storages: dict[int, int] = {}  # by identity of a fake

    def add(self, fake: torch.Tensor, real: torch.Tensor | None) -> None:
        self._inputs.append((fake, real))

    def replace(self, at: int, fake: torch.Tensor) -> None:
        """An input is from now on another fake, which lies in the same storage."""
        was, real = self._inputs[at]
        self._inputs[at] = (fake, real)
        if (storage := self._storages.pop(id(was), None)) is not None:
            self._storages[id(fake)] = storage

    def _begin_anew(self) -> None:
        self._looked_at, self._places, self._storages = 0, {}, {}

    def _look(self, written: Iterable[torch.Tensor]) -> dict[int, Place]:
        """The places, after a call that may have given inputs among what it wrote another storage."""
        if any(self._storages.get(id(t), place) != place for t, place in ((t, memory_of(t)) for t in written)):
            self._begin_anew()
        for at, (fake, real) in enumerate(self._inputs[self._looked_at :], self._looked_at):
            if fake.layout is torch.strided:
                self._storages[id(fake)] = storage = memory_of(fake)
                place = self._places.setdefault(storage, Place())
                place.inputs.append(at)
                place.exists |= real is not None
                with torch._C.DisableTorchFunctionSubclass():  # the class of the program's is not asked
                    place.is_inference |= real is not None and real.is_inference()
        self._looked_at = len(self._inputs)
        return self._places

    def has(self, written: Iterable[torch.Tensor]) -> bool:
        """Whether any of these lies in memory of an input, seen or not (`.data`), or where nobody knows."""
        plain = [t for t in written if t.layout is torch.strided]
        places = self._look(plain)
        return not plain or any(memory_of(t) in places for t in plain)

    def inputs_in(self, storages: Iterable[int]) -> list[int]:
        """The numbers of inputs that lie in these."""
        places = self._look(())
        return [at for storage in storages if storage in places for at in places[storage].inputs]

    def may_refuse(self, written: torch.Tensor) -> bool:
        """Whether eager may refuse a write that fakes allow: into elements that share memory (its kernels know), or what is
        given as a view of a leaf."""
        if written.layout is not torch.strided:
            return False
        shape, stride = written.shape, written.stride()
        known = all(type(n) is int for n in (*shape, *stride))
        if not apart(shape, stride) if known else any(type(s) is int and s == 0 for s in stride):
            return True
        if written.requires_grad and torch.is_grad_enabled():
            return self._look([written]).get(memory_of(written), _NOWHERE).exists
        return False

    def is_inference(self, written: Iterable[torch.Tensor]) -> bool:
        """Whether any of these lies in memory of a tensor that was made under inference mode."""
        plain = [t for t in written if t.layout is torch.strided]
        places = self._look(plain)
        return any(places.get(memory_of(t), _NOWHERE).is_inference for t in plain)


_NOWHERE = Place()
