"""The autograd node of a compiled graph, as data: what a call saves on its node, and what the node's backward reads.

In: a joint graph and its partition.  Out: recipes, which the engine runs (`guards-rs/src/autograd/`).

Example: the forward graph of ``x.sin()`` has one input, which its backward reads.  The forward recipe has
``tensors=(("input", 0),)``; the gradient recipe has one tangent and ``gradients=(("result", 0),)``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pycompiler.symbolic.expr import Expr

Place = tuple[str, int]
"""A value of the forward graph: ``("input", i)`` or ``("output", k)``."""
Gradient = tuple[str, int] | None
"""``("result", k)`` of the backward graph, ``("tangent", k)`` or ``("saved", k)`` unchanged; None: no gradient."""


@dataclass(frozen=True)
class ForwardRecipe:
    """The forward of an autograd node.

    graph: called with the graph's inputs, if the node is `alone`; other nodes get the results of one call.
    states: called with the inputs before the graph; its result is saved as `rng`.  None: nothing to save.
    writes: called with inputs and results after the graph, before tensors are saved.
    tensors, numbers: saved values.  versions: inputs whose version is saved, if the node `takes_apart` its tensors.
    watched: (input, held, has a version): inputs of which the node has a reference, weak unless held.
    made: results to which the node has weak references.
    kept: values whose versions are checked in the backward, with the number of writes that are still to come.
    empty: a tensor without memory, for counters of versions.  holder: makes a strong reference.
    fixed: results without gradients.  ends: whether the node keeps the ends of gradients that it is given.
    results: (result, detached) of the graph that are results of the node.
    """

    graph: Callable[..., Sequence[Any]]
    alone: bool
    states: Callable[..., Any] | None
    writes: Callable[..., None] | None
    tensors: tuple[Place, ...]
    numbers: tuple[Place, ...]
    takes_apart: bool
    versions: tuple[int, ...]
    watched: tuple[tuple[int, bool, bool], ...]
    made: tuple[int, ...]
    kept: tuple[tuple[Place, int], ...]
    fixed: tuple[int, ...]
    ends: bool
    results: tuple[tuple[int, bool], ...]
    empty: torch.Tensor
    holder: Callable[[torch.Tensor], Callable[[], torch.Tensor]]


@dataclass(frozen=True)
class BackwardRecipe:
    """The backward of an autograd node.

    is_unusual: a `PlainState`.  In unusual states ``unusual(backward, ctx, tangents)`` runs.
    tangents: positions of the tangents among the arguments.  n_inputs: the number of gradients that the node returns.
    n_outputs: the number that it gets, also for outputs without one.
    find: returns the `NodeGradients` for a tuple that says for each tangent whether it is missing.
    """

    is_unusual: Any
    unusual: Callable[..., tuple[Any, ...]]
    find: Callable[[tuple[bool, ...]], Any]
    tangents: tuple[int, ...]
    n_inputs: int
    n_outputs: int


@dataclass(frozen=True)
class Tangent:
    """An input of the backward graph.

    argument: its position among the arguments of the backward.  strides: those that the graph was compiled for.
    fit: called with a tangent that has other strides, and the saved numbers; returns it with these strides.
    """

    argument: int
    strides: tuple[int | Expr, ...]
    fit: Callable[[torch.Tensor, Sequence[int]], torch.Tensor]


@dataclass(frozen=True)
class GradientRecipe:
    """The gradients of a node for one set of defined tangents.

    graph: has `call`, which takes a list of the graph's inputs, or None, and then `compile`, which returns it.
    symbols: symbols of the strides, each with its position among the saved numbers.
    from_odd: called with the node and its tangents, if a tangent has no dense memory.
    saved: returns the saved tensors of a node with several outputs.  Without it, the node's tensors are taken, if the
    backward `asks` for them.  is_tensor: for each saved value, whether it is a tensor or a number.
    checks: positions in `kept`, each with a function that raises.  clears: saved tensors are freed before the graph runs.
    keeps_graph: whether this backward retains the graph, for nodes that have strong references.
    gradients: of the node's inputs.  None: all results of the graph.  beside: leading inputs without a gradient.
    """

    graph: Any
    tangents: tuple[Tangent, ...]
    symbols: tuple[tuple[str, int], ...]
    from_odd: Callable[..., tuple[Any, ...]]
    saved: Any  # an `autograd.saved_tensors.SavedTensors`, or None
    asks: bool
    is_tensor: tuple[bool, ...]
    checks: tuple[tuple[int, Callable[..., None]], ...]
    clears: bool
    keeps_graph: Callable[[], bool] | None
    gradients: tuple[Gradient, ...] | None
    beside: int
