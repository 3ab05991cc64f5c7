"""The log of facts of one capture: what it knows about locations, and the writes to tensor memory in program order.

In: reads and writes of Python state by location, inputs of the graph, facts about the memory of fake tensors.
Out: queries, and a `Break` for a write that a recorded fact rules out (`WRITE_RULES`).

Example: the body of a checkpoint reads `w`.  A later ``w.add_(1)`` is reported once, and breaks the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import torch
from torch import fx

from pycompiler.capture.breaks import Break
from pycompiler.capture.effects.data_swaps import AliasWrites
from pycompiler.operators.kernel_type_checks import memory_of
from pycompiler.operators.memory_overlap import has_no_overlap


class Location(NamedTuple):
    """A place of state, under whatever name the program reaches it.

    `kind`: attribute, attributes (all of an object), class, global, cell, contents (of a container), grad, memory.
    `owner`: the identity of the object, class, dict, cell, tensor or storage.  `name`: of an attribute or global.
    """

    kind: str
    owner: int
    name: Any = None


class Reader(Protocol):
    """A body that runs again later, and then reads the same locations.  `step`: where the program calls it first."""

    step: int
    live: bool


@dataclass(eq=False)
class StorageFacts:
    """What is known of one storage.

    `held`: the storage, so that its identity stays valid.
    `inputs`: the indices of the inputs in it.  `exists`: one of them is an existing tensor.
    `of_inference`: one of them is an inference tensor.
    `in_inference`: the frame created the storage in inference mode.
    `waited`: the program waited for a collective's result in it, and knows it under another name.
    `writes`: positions in `FactLog.writes`.
    """

    held: torch.UntypedStorage
    inputs: list[int] = field(default_factory=list)
    exists: bool = False
    of_inference: bool = False
    in_inference: bool = False
    waited: bool = False
    writes: list[int] = field(default_factory=list)

    @property
    def location(self) -> Location:
        return Location("memory", self.held._cdata)


@dataclass(frozen=True, eq=False)
class IndexCopy:
    """A copy that stands for the view which a tensor index selects, created at a step."""

    copy: StorageFacts
    base: StorageFacts
    step: int | None


@dataclass(frozen=True, eq=False)
class MemoryWrite:
    """A call of the graph that writes memory.  `lasts`: the memory may be known outside of the graph."""

    name: str
    nodes: list[fx.Node]
    storages: list[StorageFacts]
    lasts: bool


class FactLog:
    """The facts of one capture: of its outermost graph and of inner graphs."""

    def __init__(self) -> None:
        self.writes: list[MemoryWrite] = []
        self.lasts = False  # whether one of them lasts
        self.copies: list[IndexCopy] = []
        self.swaps: dict[Any, AliasWrites] = {}  # tensors whose data were replaced
        self.regions: list[tuple[bool, int | None]] = []  # open inference modes: grad mode before, step of entry
        self._seen: set[Location] = set()
        self._constants: set[Location] = set()
        self._readers: dict[Location, list[Reader]] = {}
        self._kept: dict[int, Any] = {}  # owners of locations, held so that their identities stay valid
        self._storages: dict[int, StorageFacts] = {}
        self._inputs: list[tuple[torch.Tensor, torch.Tensor | None]] = []  # fakes, and the real tensors
        self._placed: dict[int, StorageFacts] = {}  # by identity of the fake: where the first inputs lie
        self._looked_at = 0  # their number

    # locations ------------------------------------------------------------------------------------------------
    def location(self, kind: str, owner: Any, name: str | None = None) -> Location:
        """The location of this kind, except for memory: `StorageFacts.location`."""
        self._kept[id(owner)] = owner
        return Location(kind, id(owner), name)

    def read(self, kind: str, owner: Any, name: str | None, *, constant: bool) -> Location:
        """The program reads the location; `constant`: a number or str that was there when the frame began."""
        self._kept[id(owner)] = owner
        location = Location(kind, id(owner), name)
        self._seen.add(location)
        if constant:
            self._constants.add(location)
        return location

    def saw(self, kind: str, owner: Any, name: str | None = None) -> bool:
        """Whether the program has read the location."""
        return Location(kind, id(owner), name) in self._seen

    def saw_constant(self, location: Location) -> bool:
        """Whether the program read a constant there that was there when the frame began."""
        return location in self._constants

    def read_again(self, location: Location, reader: Reader) -> None:
        """A body that runs again reads the location."""
        self._readers.setdefault(location, []).append(reader)

    def change(self, kind: str, owner: Any, name: str | None = None) -> Location:
        """The program writes the location: break if a body reads it again."""
        location = self.location(kind, owner, name)
        self.check_readers(location)
        return location

    def check_readers(self, location: Location) -> None:
        if reader := next((r for r in self._readers.get(location, ()) if r.live), None):
            why = "the frame changes an object that an earlier checkpoint has read"
            raise Break("inner-graph", why, reader.step)

    # memory ---------------------------------------------------------------------------------------------------
    def storage(self, fake: torch.Tensor) -> StorageFacts:
        """The facts about the memory of a strided fake tensor."""
        found = self._storages.get(memory_of(fake))
        if found is None:
            found = self._storages[memory_of(fake)] = StorageFacts(fake.untyped_storage())
        return found

    def known(self, fakes: Iterable[torch.Tensor]) -> list[StorageFacts]:
        """The storages of these tensors, as far as they have facts, and each tensor's in turn."""
        plain = (self._storages.get(memory_of(t)) for t in fakes if t.layout is torch.strided)
        return [s for s in plain if s is not None]

    def change_memory(self, fake: torch.Tensor) -> None:
        """The program changes a tensor's data or state without a call that writes it."""
        for storage in self.known([fake]):
            self.check_readers(storage.location)

    def add_input(self, fake: torch.Tensor, real: torch.Tensor | None) -> None:
        self._inputs.append((fake, real))

    def replace_input(self, at: int, fake: torch.Tensor) -> None:
        """Replace the fake of an input by another one in the same storage."""
        was, real = self._inputs[at]
        self._inputs[at] = (fake, real)
        if (storage := self._placed.pop(id(was), None)) is not None:
            self._placed[id(fake)] = storage

    def place_inputs(self, written: Iterable[torch.Tensor] = ()) -> None:
        """Note the storages of the inputs, again if a call gave a written input another one."""
        if any(self._placed.get(id(t), s) is not s for t, s in ((t, self.storage(t)) for t in written)):
            for storage in self._placed.values():
                storage.inputs, storage.exists, storage.of_inference = [], False, False
            self._placed, self._looked_at = {}, 0
        for at, (fake, real) in enumerate(self._inputs[self._looked_at :], self._looked_at):
            if fake.layout is torch.strided:
                self._placed[id(fake)] = storage = self.storage(fake)
                storage.inputs.append(at)
                storage.exists |= real is not None
                with torch._C.DisableTorchFunctionSubclass():  # the program's class is not called
                    storage.of_inference |= real is not None and real.is_inference()
        self._looked_at = len(self._inputs)

    def reaches_inputs(self, fakes: Iterable[torch.Tensor]) -> bool:
        """Whether one of these shares memory with an input, detected by version or not (`.data`), or no memory is
        known."""
        plain = [t for t in fakes if t.layout is torch.strided]
        self.place_inputs(plain)
        return not plain or any(s.inputs for s in self.known(plain))

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
            self.place_inputs([written])
            return self.storage(written).exists
        return False

    def write(self, name: str, nodes: list[fx.Node], *, lasts: bool = False) -> bool:
        """Record a call that has written these tensors; none: unknown ones.  Returns whether the write lasts.

        `lasts`: it does, wherever it goes.
        """
        fakes = [n.meta["example_value"] for n in nodes]
        plain = [t for t in fakes if t.layout is torch.strided]
        lasts |= self.reaches_inputs(plain)
        write = MemoryWrite(name, nodes, [*dict.fromkeys(map(self.storage, plain))], lasts)
        for rule in WRITE_RULES:
            rule(self, write)
        for storage in write.storages:
            storage.writes.append(len(self.writes))
        self.writes.append(write)
        self.lasts |= lasts
        return lasts

    def mark(self) -> int:
        """The current end of the log."""
        return len(self.writes)

    def undo(self, mark: int) -> None:
        """Forget the writes since then: their graph is dropped, or nothing else knows the memory."""
        for storage in {s for write in self.writes[mark:] for s in write.storages}:
            storage.writes = [at for at in storage.writes if at < mark]
        del self.writes[mark:]
        self.lasts = any(write.lasts for write in self.writes)

    def is_written(self, fake: torch.Tensor, since: int = 0) -> bool:
        """Whether calls have written the tensor's memory, under any name, since a mark."""
        return any(s.writes and s.writes[-1] >= since for s in self.known([fake]))

    def is_copy(self, fake: torch.Tensor) -> bool:
        """Whether the tensor has its own memory although eager has a view."""
        return bool(self.copies) and any(c.copy in self.known([fake]) for c in self.copies)

    def check_copies(self, storages: Collection[StorageFacts], *, written: bool = False) -> None:
        """Break if such a copy, or for writes its base, is among the storages.  They are passed outside or written."""
        for copy in self.copies:
            if copy.copy in storages or (written and copy.base in storages):
                why = "a view selected by a tensor index leaves the graph, or is written"
                raise Break("data-dependent-value", why, copy.step)


def _of_inference(log: FactLog, write: MemoryWrite) -> None:
    if not torch.is_inference_mode_enabled() and any(s.of_inference for s in write.storages):
        raise Break("global-state", f"{write.name}, which writes an inference tensor")  # eager raises after the write
    if not log.regions and any(s.in_inference for s in write.storages):
        raise Break("unsupported-operation", f"{write.name}, which writes an inference tensor")


def _of_bodies(log: FactLog, write: MemoryWrite) -> None:
    for storage in write.storages:
        log.check_readers(storage.location)


def _of_swaps(log: FactLog, write: MemoryWrite) -> None:
    for swap in log.swaps.values():
        swap.look(write.nodes)


def _of_collectives(log: FactLog, write: MemoryWrite) -> None:
    if any(s.waited for s in write.storages):
        raise Break("unsupported-operation", f"{write.name}, which writes a collective's result through an alias")


def _of_copies(log: FactLog, write: MemoryWrite) -> None:
    log.check_copies(write.storages, written=True)


WRITE_RULES: tuple[Callable[[FactLog, MemoryWrite], None], ...] = (
    _of_inference, _of_bodies, _of_swaps, _of_collectives, _of_copies,
)  # fmt: skip
"""Rules that break the graph at a write, by recorded facts."""
