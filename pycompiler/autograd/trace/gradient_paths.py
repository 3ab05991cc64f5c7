"""Paths of gradients through autograd's own graph of a trace, and the tensors that its nodes save.

In: the outputs of a trace.  Out: a `Path` per output, and the cuts at which gradients should end.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler.autograd.joint import MOST_NODES, Path
from pycompiler.autograd.recorder import tensors_in
from pycompiler.autograd.saved_tensors import modified
from pycompiler.autograd.trace.eager_formulas import refuse_phase
from pycompiler.autograd.trace.inputs import ARRIVED, storage_of
from pycompiler.autograd.trace.writes import FOREACH, name_of
from pycompiler.autograd.unsupported import AutogradUnsupported

Edge = tuple[Any, int]
"""An autograd node and the index of one of its results, as in `next_functions`."""

_MOST_SHARED = 64  # most pieces of shared work that become results of the graph: each needs a backward of its own
WRITE = "torch::autograd::CopySlices"  # saves the node of the operator that wrote a view, and no tensor


class HiddenSavedTensors:
    """Saved tensors that autograd nodes do not expose.

    - Tensors saved by operators that write a view: ``CopySlices`` hides them.  The key is the node of the view's base.
    - Tensors saved by an operator on lists, whose node has no names for them.
    """

    def __init__(self) -> None:
        self.kept: dict[Any, list[torch.Tensor]] = {}

    @contextlib.contextmanager
    def watch(self, node: fx.Node, given: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """Context manager around the call of `node`, which may write its arguments: yields the tensors that its
        operators save."""
        saved: list[torch.Tensor] = []
        views = node.target is operator.setitem or any(t._is_view() for t in given)
        if not (views or is_of_a_list(node)) or not torch.is_grad_enabled():
            yield saved
            return

        def pack(value: torch.Tensor) -> tuple[torch.Tensor, int]:
            saved.append(value)
            return value, value._version

        with torch.autograd.graph.saved_tensors_hooks(pack, _unpacked):  # type: ignore[no-untyped-call]
            yield saved

    def note(self, saved: list[torch.Tensor], written: Sequence[torch.Tensor]) -> None:
        """Assign the saved tensors to the written tensors' nodes."""
        for t in written if saved else ():
            base = t._base if t._is_view() else t
            if base is not None and base.grad_fn is not None and not _saved_names(type(base.grad_fn)):
                self.kept[base.grad_fn] = saved

    def note_results(self, saved: list[torch.Tensor], made: Any) -> None:
        """Assign the saved tensors to the nodes of an operator on lists, whose saved tensors may be among its results."""
        results = {storage_of(t): t for t in tensors_in(made) if t.grad_fn is not None}
        kept = [results.get(storage_of(t), t) for t in saved]
        for t in results.values() if saved else ():
            self.kept[t.grad_fn] = kept


def is_of_a_list(node: fx.Node) -> bool:
    """Whether the call creates one autograd node for all its results; in-place calls create separate nodes."""
    return name_of(node).startswith(FOREACH) and not name_of(node).endswith("_")


def _unpacked(packed: tuple[torch.Tensor, int]) -> torch.Tensor:
    """A saved tensor; autograd does not check versions if there are hooks."""
    value, version = packed
    if value._version != version:
        raise RuntimeError(modified(f"{value.type()} {list(value.shape)}", value._version, version))
    return value


def paths(
    outputs: Sequence[torch.Tensor],
    leaves: Mapping[int, int],
    kept_as: Mapping[int, tuple[str, int]],
    slices: HiddenSavedTensors,
    hooked: Mapping[Any, Sequence[torch.Tensor]],
    remade: Mapping[Any, Collection[int]],
    look: Callable[[Any, Sequence[torch.Tensor]], None],
    cut: Mapping[tuple[Any, int], int],
) -> list[Path]:
    """For each output the path of its gradient.

    - leaves: ids of leaves → inputs
    - kept_as: storages → names in `Path.kept`
    - hooked: nodes → tensors that the program's hooks on them read
    - remade: nodes → memory of tensors that they recompute and do not save
    - look: called with each node and its saved tensors
    - cut: nodes and indices of their results, at which gradients end → numbers in `Path.inputs`

    Sets are bits of integers, since networks have thousands of nodes.
    """
    names = list(dict.fromkeys(kept_as.values()))
    numbers = {name: 1 << i for i, name in enumerate(names)}
    bits = {storage: numbers[name] for storage, name in kept_as.items()}
    found: dict[Any, tuple[int, int, int, int, int, int]] = {}
    items: dict[
        Edge, int
    ] = {}  # inputs reached by the gradient of one of several results, where a node treats the results separately
    held = set[Edge]()
    for number, node in enumerate(nodes_in_order([t.grad_fn for t in outputs])):
        keeps = [*kept_tensors(node), *slices.kept.get(node, ())]
        look(node, keeps)
        once = bool(keeps) or node.name() == WRITE
        again = remade.get(node, ())
        leaf = leaves.get(id(getattr(node, "variable", None)))
        inputs, nodes, kept, led = 0 if leaf is None else 1 << leaf, once << number, 0, 0
        given: list[int] = []
        for t in (*keeps, *hooked.get(node, ())):  # tensors read by a hook must not change, but are not freed
            kept |= bits.get(storage_of(t), 0) if storage_of(t) not in again else 0
        held.update((t.grad_fn, t.output_nr) for t in keeps)
        for edge in node.next_functions:
            refuse_phase(*edge)
            a, b, c, d, _, e = (1 << cut[edge],) * 2 + (0,) * 4 if edge in cut else found.get(edge[0], (0,) * 6)
            inputs, nodes, kept, led = inputs | a, nodes | c, kept | d, led | e
            given.append(b if edge in cut else items.get(edge, b))
        for edge in itertools.chain.from_iterable(map(_edges_of, filter(_requires_grad, keeps))):
            led |= 1 << cut[edge] if edge in cut else inputs if edge[0] is node else found.get(edge[0], (0,))[0]
        found[node] = inputs, _joined([0 if leaf is None else 1 << leaf, *given]), nodes, kept, number, led
        if node.name().startswith(_OF_A_LIST):
            items |= {(node, k): bits for k, bits in enumerate(_by_item(given, len(node._input_metadata)))}
    made = []
    for edge in [(t.grad_fn, t.output_nr) for t in outputs]:
        refuse_phase(*edge)
        a, b, c, d, n, e = found[edge[0]]
        kept_by = frozenset(names[k] for k in _bits(d))
        made.append(Path(_bits(a), _bits(items.get(edge, b)), _bits(c), kept_by, n, edge in held, _bits(e)))
    return made


def _edges_of(t: torch.Tensor) -> Iterator[Edge]:
    """Where the history of a saved tensor begins.

    A piece taken with gradients disabled (`split` under `no_grad`) may claim to require grad without having a history.
    """
    with contextlib.suppress(AssertionError):
        node, number = torch.autograd.graph.get_gradient_edge(t)[:2]
        yield node, number


_requires_grad = operator.attrgetter("requires_grad")
_OF_A_LIST = "Foreach"  # prefix of the names of autograd nodes of operators on lists


def _by_item(given: Sequence[int], count: int) -> list[int]:
    """Inputs reached by the gradient of each result of an operator on lists of `count` tensors.

    Its arguments are lists of this length, and tensors shared by all items.
    """
    lists = len(given) - len(given) % count
    return [_joined([*given[k:lists:count], *given[lists:]]) for k in range(count)]


def _joined(bits: Sequence[int]) -> int:
    return functools.reduce(operator.or_, bits, 0)


def choose_cuts(
    outputs: Sequence[torch.Tensor],
    candidates: Mapping[Edge, int],
    known: Mapping[Edge, fx.Node],
    leaves: Collection[int],
) -> tuple[list[int], list[fx.Node]]:
    """The cuts of a trace.

    Chosen are numbers of `candidates` (of `outputs`, then of views) at which gradients of other outputs end.  Then no
    autograd node runs for outputs whose gradients end at different cuts or leaves.  Also returned: work shared by
    outputs, which must become further outputs.  `known`: possible further outputs; `leaves`: ids of leaves.
    If that work cannot become outputs, or there would be many nodes, leaves are not distinguished.
    """
    order = nodes_in_order([t.grad_fn for t in outputs])
    order.reverse()
    tops = [(node, 0) for node in order if id(getattr(node, "variable", None)) in leaves]
    if len(outputs) > 1 and tops:
        with contextlib.suppress(AutogradUnsupported):
            return _cuts(outputs, order, candidates, known, tops)
    return _cuts(outputs, order, candidates, known, []) if candidates else ([], [])


def _cuts(
    outputs: Sequence[torch.Tensor], order: Sequence[Any], candidates: Mapping[Edge, int],
    known: Mapping[Edge, fx.Node], leaves: Sequence[Edge]
) -> tuple[list[int], list[fx.Node]]:  # fmt: skip
    ends, first = dict(candidates), len(outputs) + len(candidates)
    roots: list[Edge] = [(t.grad_fn, t.output_nr) for t in outputs]
    more: list[Edge] = []
    while ends or leaves:
        chosen = ends | {edge: first + k for k, edge in enumerate(more)}
        behind = first + len(more)
        ended, conflicts = _conflicts(
            order, [*roots, *more], chosen | {leaf: behind + k for k, leaf in enumerate(leaves)}
        )
        reached = functools.reduce(operator.or_, ended)
        if not all(reached >> k & 1 for k in chosen.values()):
            ends = {edge: k for edge, k in ends.items() if reached >> k & 1}
            more = [edge for edge in more if reached >> chosen[edge] & 1]
            continue
        if leaves and len({ended[k] for k in range(len(outputs))}) > MOST_NODES:
            raise AutogradUnsupported("results whose gradients reach many sets of leaves", "", "return fewer results")
        if not conflicts:
            break
        lacking = {
            edge
            for node in order
            if node not in conflicts
            for edge in node.next_functions
            if edge[0] in conflicts and edge not in chosen
        }
        if lost := lacking - known.keys():  # written since, or one of several results that the graph does not use
            seen = ", ".join(sorted(edge[0].name() for edge in lost))
            raise AutogradUnsupported(
                "results share work with values computed from them", seen, "clone the results first"
            )
        if not lacking or len(more) + len(lacking) > _MOST_SHARED:
            what = f"results share work at more than {_MOST_SHARED} places" if lacking else "results share work"
            raise AutogradUnsupported(what, "", "return fewer results of one computation")
        more += lacking
    return sorted(ends.values()), sorted({known[edge] for edge in more})


def _conflicts(
    order: Sequence[Any], roots: Sequence[Edge], chosen: Mapping[Edge, int]
) -> tuple[list[int], dict[Any, int]]:
    """For each root, the bits of `chosen` at which its gradient ends; and the conflicting nodes with the bits that differ.

    A node conflicts if it runs for roots whose gradients end at different places.
    `order`: each node before the nodes that its gradients flow to.
    """
    owners = dict.fromkeys(order, 0)  # bits of the roots whose gradients a node runs for
    ended = [0] * len(roots)
    for k, (node, _) in enumerate(roots):
        owners[node] |= 1 << k
    for node in order:
        for edge in node.next_functions:
            if edge in chosen:
                for k in _bits(owners[node]):
                    ended[k] |= 1 << chosen[edge]
            elif edge[0] is not None:
                owners[edge[0]] |= owners[node]
    differences: dict[int, int] = {}
    # inputs add up all gradients that arrive
    inside = [node for node in order if node.next_functions and node.name() != ARRIVED]
    for bits in {owners[node] for node in inside}:
        found = [ended[k] for k in _bits(bits)]
        some, every = functools.reduce(operator.or_, found, 0), functools.reduce(operator.and_, found, -1)
        differences[bits] = some & ~every
    conflicts = {n: d for n in inside if (d := differences[owners[n]])}
    return ended, conflicts


def edges_between(roots: Sequence[Any], ends: Collection[Edge]) -> set[Edge]:
    """The edges that gradients pass from the nodes `roots` up to `ends`."""
    found, seen, stack = set[Edge](), set[Any](roots), [*roots]
    while stack:
        for edge in stack.pop().next_functions:
            found.add(edge)
            if edge[0] is not None and edge not in ends and edge[0] not in seen:
                seen.add(edge[0])
                stack.append(edge[0])
    return found


def _bits(number: int) -> frozenset[int]:
    return frozenset(k for k, digit in enumerate(reversed(bin(number)[2:])) if digit == "1")


def nodes_in_order(roots: Sequence[Any], ends: Sequence[Any] = ()) -> list[Any]:
    """The autograd nodes behind `roots`, each after the nodes that its gradients flow to; up to the nodes `ends`."""
    order: list[Any] = []
    seen: set[Any] = set(ends)
    stack: list[tuple[Any, bool]] = [(node, False) for node in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
        elif node is not None and node not in seen:
            seen.add(node)
            stack.append((node, True))
            stack.extend((n, False) for n, _ in node.next_functions)
    return order


def nodes_behind(root: Any) -> list[Any]:
    """The autograd nodes that gradients pass from the node `root`."""
    return nodes_in_order([root])


def kept_tensors(node: Any) -> list[torch.Tensor]:
    """The tensors that an autograd node saves until its gradient is computed."""
    if isinstance(node, torch.autograd.function.BackwardCFunction):
        return list(node.saved_tensors)
    kind: Any = type(node)
    return list(tensors_in([getattr(node, name) for name in _saved_names(kind)]))


@functools.cache
def _saved_names(kind: Any) -> list[str]:
    return [name for name in dir(kind) if name.startswith("_saved_")]
