"""What graphs of wrappers are called with and give, as the plain tensors inside.

In: inputs of a captured graph, fakes or a call's.  Out: the distinct tensors inside, and how inputs, results and gradients are
made of tensors that plain graphs compute, and of inputs' own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NoReturn

import torch
from torch import fx
from torch._guards import detect_fake_mode

from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.ir.fake import fake_like
from pycompiler.ir.jagged import SHAPED
from pycompiler.ir.numbers import number_at, symbol_of
from pycompiler.ir.subclasses import (
    Spec,
    alike,
    at,
    count,
    flatten,
    flatten_all,
    leaves_of,
    rebuild,
    rebuild_all,
    structural,
    told_by_symbols,
)


def refuse(what: str) -> NoReturn:
    raise AutogradUnsupported("a graph of tensor subclasses", what, "it runs as it was captured")


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs: tensors and numbers.  A tensor inside of several of them is one input of the plain graphs."""

    examples: Sequence[Any]
    tensors: list[int]  # which of them are tensors
    specs: list[Spec | None]  # of these, how each is made
    firsts: list[int]  # of the tensors inside of all: those that were not seen before
    numbers: list[int]  # of the tensors inside of all: which of the distinct ones each is

    @staticmethod
    def of(examples: Sequence[Any]) -> Inputs:
        tensors = [i for i, e in enumerate(examples) if isinstance(e, torch.Tensor)]
        leaves, specs = flatten_all([examples[i] for i in tensors])
        known: dict[int, int] = {}
        numbers = [known.setdefault(id(t), len(known)) for t in leaves]
        firsts = [numbers.index(n) for n in range(len(known))]
        return Inputs(examples, tensors, specs, firsts, numbers)

    @property
    def symbols(self) -> list[Any]:
        return self.numbers_of(self.examples)

    def numbers_of(self, inputs: Sequence[Any]) -> list[Any]:
        known = {*self.tensors}
        return [v for i, v in enumerate(inputs) if i not in known]

    @cached_property
    def names(self) -> list[str]:
        return [symbol_of(v) or "" for v in self.symbols]

    def env(self, inputs: Sequence[Any]) -> dict[str, Any]:
        """The numbers that the symbols are in a call."""
        return dict(zip(self.names, self.numbers_of(inputs), strict=True)) if self.names else {}

    def leaves(self, inputs: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """What is inside of all tensors."""
        found: list[torch.Tensor] = []
        inputs = self.examples if inputs is None else inputs
        for i in self.tensors:
            leaves_of(inputs[i], found)
        return found

    def distinct(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [leaves[i] for i in self.firsts]

    def within(self) -> list[bool]:
        """Of each distinct tensor: whether it is inside of a wrapper."""
        inside = inside_of(self.specs)
        return [any(w for n, w in zip(self.numbers, inside, strict=True) if n == i) for i in range(len(self.firsts))]

    def rebuilt(self, plain: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs, made of distinct tensors."""
        made = [*self.examples]
        tensors = rebuild_all(self.specs, [plain[n] for n in self.numbers])
        for i, t in zip(self.tensors, tensors, strict=True):
            made[i] = t
        return made

    def are_jagged(self) -> bool:
        return any(any(structural(spec)) for spec in self.specs)

    def place(self, number: int) -> tuple[int, int]:
        """In which input a distinct tensor is first, and which one of those inside."""
        i, j = places_of(self.specs)[self.firsts[number]]
        return self.tensors[i], j


@dataclass(frozen=True)
class Made:
    """How tensors are made of what graphs compute.  Of each tensor inside `places` has the number among those computed, or -1 - k
    for the input's number k itself."""

    specs: list[Spec | None]
    places: list[int]

    @staticmethod
    def of(specs: list[Spec | None], places: list[int]) -> Made:
        if any(map(told_by_symbols, specs)):
            refuse("a context with sizes that are symbols")
        return Made(specs, places)

    def rebuilt(
        self, computed: Sequence[torch.Tensor], given: Sequence[torch.Tensor], env: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        specs = [at(spec, env) for spec in self.specs] if env else self.specs
        return rebuild_all(specs, [computed[p] if p >= 0 else given[-1 - p] for p in self.places])


@dataclass
class Seen:
    """What a trace of a captured graph below the classes has shown."""

    gm: fx.GraphModule
    inputs: Inputs
    tracks: bool  # whether gradients of inputs may be asked for
    written: list[int] = field(default_factory=list)  # the wrappers among the inputs that are
    results: Made = field(default_factory=lambda: Made([], []))  # how the outputs are made
    n_results: int = 0  # how many tensors the forward computes for them
    tracked: list[int] = field(default_factory=list)  # the outputs that gradients come to
    # for each of them eager's nodes that save something, numbered
    saving: list[frozenset[int]] = field(default_factory=list)
    held: dict[int, frozenset[int]] = field(default_factory=dict)  # outputs that nodes keep → the inputs they depend on
    has_grad: list[bool] = field(default_factory=list)  # of each tensor among the inputs
    grads: Made = field(default_factory=lambda: Made([], []))  # how those that have one are made


def data_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """What is inside but the structure."""
    leaves: list[torch.Tensor] = []
    spec = flatten(tensor, leaves)
    return [t for t, s in zip(leaves, structural(spec), strict=True) if not s]


def like_output(output: torch.Tensor, spec: Spec | None, data: Iterator[torch.Tensor]) -> torch.Tensor:
    """A tangent: other data in the output's structure."""
    leaves: list[torch.Tensor] = []
    leaves_of(output, leaves)
    marks = structural(spec)
    return rebuild(spec, iter([t if s else next(data) for t, s in zip(leaves, marks, strict=True)]))


def structural_of(specs: Sequence[Spec | None]) -> list[bool]:
    return [s for spec in specs for s in structural(spec)]


def structure_of(tensor: torch.Tensor, spec: Spec | None) -> list[torch.Tensor]:
    leaves: list[torch.Tensor] = []
    leaves_of(tensor, leaves)
    return [t for t, s in zip(leaves, structural(spec), strict=True) if s]


def fits_structure(
    spec: Spec | None, leaves: Sequence[torch.Tensor], known: Spec | None, structure: Sequence[torch.Tensor]
) -> bool:
    """Whether a tangent is made as its output: around the output's very structure, but for numbers that torch has cached."""
    if spec is None or known is None or not any(structural(known)):
        return alike(spec, known)
    found, wanted = ({n: t for (n, _), t in zip(s.parts, ts, strict=False) if n in SHAPED}
                     for s, ts in ((spec, leaves), (known, (None, *structure))))  # fmt: skip
    same = found.keys() == wanted.keys() and all(found[n] is wanted[n] for n in found)
    return same and (spec.cls, spec.context) == (known.cls, known.context)


@dataclass(frozen=True)
class Form:
    """How a tensor lies, over symbols."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(t: torch.Tensor) -> Form:
        return Form(tuple(t.shape), t.stride(), t.dtype, t.device)

    def at(self, env: Mapping[str, Any]) -> Form:
        shape, strides = (tuple(number_at(n, env) for n in ns) for ns in (self.shape, self.strides))
        return Form(shape, strides, self.dtype, self.device)


def lies_as(t: torch.Tensor, form: Form) -> bool:
    plain = type(t) is torch.Tensor and t.layout is torch.strided
    return plain and (tuple(t.shape), t.dtype, t.device) == (form.shape, form.dtype, form.device)


def laid_as(t: torch.Tensor, form: Form) -> torch.Tensor:
    """`t` with the strides that the backward was compiled for, and its elements as they are in memory."""
    t = t.resolve_conj().resolve_neg()
    if t.stride() == form.strides:
        return t
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device).copy_(t)


def mode_of(tensors: Sequence[torch.Tensor]) -> Any:
    mode = detect_fake_mode(list(tensors))
    assert mode is not None
    return mode


def like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other fakes that lie as these."""
    if not tensors:
        return []
    mode = mode_of(tensors)
    return [fake_like(mode, t.size(), t.stride(), int(t.storage_offset()), t.dtype, t.device) for t in tensors]


def storage_of(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def version_of(t: Any) -> int | None:
    return None if not isinstance(t, torch.Tensor) or t.is_inference() else t._version


def inside_of(specs: Sequence[Spec | None]) -> list[bool]:
    """Of each tensor: whether it is inside of a wrapper."""
    return [spec is not None for spec in specs for _ in range(count(spec))]


def places_of(specs: Sequence[Spec | None]) -> list[tuple[int, int]]:
    """Of each tensor inside: which of the tensors it is inside of, and its number there."""
    return [(i, j) for i, spec in enumerate(specs) for j in range(count(spec))]
