"""Inputs and results of graphs with tensor subclasses, as their plain inner tensors.

In: inputs of a captured graph, fake or real.  Out: the distinct inner tensors.  Also rules that build inputs, results and
gradients from tensors computed by plain graphs and from inner tensors of inputs.
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
from pycompiler.symbolic.number_nodes import number_at, symbol_of
from pycompiler.torch_compat.fake_mode import fake_like
from pycompiler.torch_compat.jagged_tensors import SHAPED
from pycompiler.torch_compat.tensor_subclasses import (
    Spec,
    alike,
    at,
    context_has_symbols,
    count,
    flatten,
    flatten_all,
    leaves_of,
    rebuild,
    rebuild_all,
    structural,
)


def refuse(what: str) -> NoReturn:
    raise AutogradUnsupported("a graph of tensor subclasses", what, "it runs as it was captured")


@dataclass(frozen=True)
class Inputs:
    """The graph's inputs: tensors and numbers.  An inner tensor of several inputs is one input of the plain graphs."""

    examples: Sequence[Any]
    tensors: list[int]  # indices of the tensors among the examples
    specs: list[Spec | None]  # for each tensor its spec
    firsts: list[int]  # among the inner tensors of all: the first occurrence of each distinct one
    numbers: list[int]  # for the inner tensors of all: the number of the distinct tensor

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
        """The values of the symbols in a call."""
        return dict(zip(self.names, self.numbers_of(inputs), strict=True)) if self.names else {}

    def leaves(self, inputs: Sequence[Any] | None = None) -> list[torch.Tensor]:
        """The inner tensors of all tensors."""
        found: list[torch.Tensor] = []
        inputs = self.examples if inputs is None else inputs
        for i in self.tensors:
            leaves_of(inputs[i], found)
        return found

    def distinct(self, leaves: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [leaves[i] for i in self.firsts]

    def within(self) -> list[bool]:
        """For each distinct tensor, whether it is inside of a tensor subclass."""
        inside = inside_of(self.specs)
        return [any(w for n, w in zip(self.numbers, inside, strict=True) if n == i) for i in range(len(self.firsts))]

    def rebuilt(self, plain: Sequence[torch.Tensor]) -> list[Any]:
        """The inputs, built from distinct tensors."""
        made = [*self.examples]
        tensors = rebuild_all(self.specs, [plain[n] for n in self.numbers])
        for i, t in zip(self.tensors, tensors, strict=True):
            made[i] = t
        return made

    def are_jagged(self) -> bool:
        return any(any(structural(spec)) for spec in self.specs)

    def place(self, number: int) -> tuple[int, int]:
        """The first input that contains a distinct tensor, and its index among the inner tensors there."""
        i, j = places_of(self.specs)[self.firsts[number]]
        return self.tensors[i], j


@dataclass(frozen=True)
class RebuildRule:
    """How to build tensors from computed ones.

    `places`: for each inner tensor its index among the computed tensors, or -1 - k for inner tensor k of the inputs.
    """

    specs: list[Spec | None]
    places: list[int]

    @staticmethod
    def of(specs: list[Spec | None], places: list[int]) -> RebuildRule:
        if any(map(context_has_symbols, specs)):
            refuse("a tensor subclass whose context has symbolic sizes")
        return RebuildRule(specs, places)

    def rebuilt(
        self, computed: Sequence[torch.Tensor], given: Sequence[torch.Tensor], env: Mapping[str, Any]
    ) -> list[torch.Tensor]:
        specs = [at(spec, env) for spec in self.specs] if env else self.specs
        return rebuild_all(specs, [computed[p] if p >= 0 else given[-1 - p] for p in self.places])


@dataclass
class TraceResult:
    """Observations of a trace of a captured graph below the classes."""

    gm: fx.GraphModule
    inputs: Inputs
    tracks: bool  # whether gradients of inputs may be needed
    written: list[int] = field(default_factory=list)  # the tensor subclasses among the inputs that are written
    results: RebuildRule = field(default_factory=lambda: RebuildRule([], []))  # how to build the outputs
    n_results: int = 0  # number of tensors that the forward computes for the outputs
    tracked: list[int] = field(default_factory=list)  # the outputs that may get gradients
    # for each of them, the numbers of eager's nodes with saved tensors
    saving: list[frozenset[int]] = field(default_factory=list)
    held: dict[int, frozenset[int]] = field(default_factory=dict)  # outputs that nodes save → the inputs they depend on
    has_grad: list[bool] = field(default_factory=list)  # for each tensor among the inputs, whether it has a gradient
    grads: RebuildRule = field(default_factory=lambda: RebuildRule([], []))  # how to build these gradients


def data_of(tensor: torch.Tensor) -> list[torch.Tensor]:
    """The inner tensors except the structure."""
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
    """Whether a tangent is built like its output.

    It must contain the output's own structure objects, except for numbers cached by torch.
    """
    if spec is None or known is None or not any(structural(known)):
        return alike(spec, known)
    found, wanted = ({n: t for (n, _), t in zip(s.parts, ts, strict=False) if n in SHAPED}
                     for s, ts in ((spec, leaves), (known, (None, *structure))))  # fmt: skip
    same = found.keys() == wanted.keys() and all(found[n] is wanted[n] for n in found)
    return same and (spec.cls, spec.context) == (known.cls, known.context)


@dataclass(frozen=True)
class SymbolicLayout:
    """The layout of a tensor, over symbols."""

    shape: tuple[Any, ...]
    strides: tuple[Any, ...]
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(t: torch.Tensor) -> SymbolicLayout:
        return SymbolicLayout(tuple(t.shape), t.stride(), t.dtype, t.device)

    def at(self, env: Mapping[str, Any]) -> SymbolicLayout:
        shape, strides = (tuple(number_at(n, env) for n in ns) for ns in (self.shape, self.strides))
        return SymbolicLayout(shape, strides, self.dtype, self.device)


def lies_as(t: torch.Tensor, form: SymbolicLayout) -> bool:
    plain = type(t) is torch.Tensor and t.layout is torch.strided
    return plain and (tuple(t.shape), t.dtype, t.device) == (form.shape, form.dtype, form.device)


def laid_as(t: torch.Tensor, form: SymbolicLayout) -> torch.Tensor:
    """`t` with the strides that the backward was compiled for, and with resolved conjugate and negative bits."""
    t = t.resolve_conj().resolve_neg()
    if t.stride() == form.strides:
        return t
    return torch.empty_strided(form.shape, form.strides, dtype=form.dtype, device=form.device).copy_(t)


def mode_of(tensors: Sequence[torch.Tensor]) -> Any:
    mode = detect_fake_mode(list(tensors))
    assert mode is not None
    return mode


def like(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Other fake tensors with the same layouts."""
    if not tensors:
        return []
    mode = mode_of(tensors)
    return [fake_like(mode, t.size(), t.stride(), int(t.storage_offset()), t.dtype, t.device) for t in tensors]


def storage_of(t: torch.Tensor) -> int:
    return int(t.untyped_storage()._cdata)


def version_of(t: Any) -> int | None:
    return None if not isinstance(t, torch.Tensor) or t.is_inference() else t._version


def inside_of(specs: Sequence[Spec | None]) -> list[bool]:
    """For each tensor, whether it is inside of a tensor subclass."""
    return [spec is not None for spec in specs for _ in range(count(spec))]


def places_of(specs: Sequence[Spec | None]) -> list[tuple[int, int]]:
    """For each inner tensor: the index of its outer tensor, and its own index there."""
    return [(i, j) for i, spec in enumerate(specs) for j in range(count(spec))]
