"""The memory of a graph's inputs: which calls write it, and which writes eager may reject.

In: the inputs, in order of appearance.  Out: answers about tensors that calls have written, by storage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.operators.memory_overlap import has_no_overlap


@dataclass
class InputStorage:
    """A storage that inputs use, by their indices.

    `exists`: one of them is an existing tensor.  `is_inference`: one of them is an inference tensor.
    """

    inputs: list[int] = field(default_factory=list)
    exists: bool = False
    is_inference: bool = False


class InputMemory:
    """The storages of inputs.  Each input is processed once, at the first query after it was added."""

    def __init__(self) -> None:
        self._inputs: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # fakes, and the real tensors
        self._looked_at = 0  # number of processed inputs
        self._places: dict[int, InputStorage] = {}
        self._storages: dict[int, int] = {}  # by id of a fake

    def add(self, fake: torch.Tensor, real: torch.Tensor | None) -> None:
        self._inputs.append((fake, real))

    def replace(self, at: int, fake: torch.Tensor) -> None:
        """Replace the fake of an input by another one in the same storage."""
        was, real = self._inputs[at]
        self._inputs[at] = (fake, real)
        if (storage := self._storages.pop(id(was), None)) is not None:
            self._storages[id(fake)] = storage

    def _begin_anew(self) -> None:
        self._looked_at, self._places, self._storages = 0, {}, {}

    def _look(self, written: Iterable[torch.Tensor]) -> dict[int, InputStorage]:
        """The places, recomputed if a call gave a written input another storage."""
        if any(self._storages.get(id(t), place) != place for t, place in ((t, memory_of(t)) for t in written)):
            self._begin_anew()
        for at, (fake, real) in enumerate(self._inputs[self._looked_at :], self._looked_at):
            if fake.layout is torch.strided:
                self._storages[id(fake)] = storage = memory_of(fake)
                place = self._places.setdefault(storage, InputStorage())
                place.inputs.append(at)
                place.exists |= real is not None
                with torch._C.DisableTorchFunctionSubclass():  # the program's class is not called
                    place.is_inference |= real is not None and real.is_inference()
        self._looked_at = len(self._inputs)
        return self._places

    def has(self, written: Iterable[torch.Tensor]) -> bool:
        """Whether one of these shares memory with an input, detected by version or not (`.data`), or its memory is not
        known."""
        plain = [t for t in written if t.layout is torch.strided]
        places = self._look(plain)
        return not plain or any(memory_of(t) in places for t in plain)

    def inputs_in(self, storages: Iterable[int]) -> list[int]:
        """The indices of inputs in these storages."""
        places = self._look(())
        return [at for storage in storages if storage in places for at in places[storage].inputs]

    def may_refuse(self, written: torch.Tensor) -> bool:
        """Whether eager may reject a write that fakes allow.

        Examples: a write to overlapping elements (the kernels check), or to an input that may be a view of a leaf.
        """
        if written.layout is not torch.strided:
            return False
        shape, stride = written.shape, written.stride()
        known = all(type(n) is int for n in (*shape, *stride))
        if not has_no_overlap(shape, stride) if known else any(type(s) is int and s == 0 for s in stride):
            return True
        if written.requires_grad and torch.is_grad_enabled():
            return self._look([written]).get(memory_of(written), _NOWHERE).exists
        return False

    def is_inference(self, written: Iterable[torch.Tensor]) -> bool:
        """Whether one of these shares memory with an inference tensor."""
        plain = [t for t in written if t.layout is torch.strided]
        places = self._look(plain)
        return any(places.get(memory_of(t), _NOWHERE).is_inference for t in plain)


_NOWHERE = InputStorage()
