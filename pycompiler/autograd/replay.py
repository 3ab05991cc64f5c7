"""Replay: for double backward, the backward runs the captured graph once more, under autograd.

In: a captured graph, its `Joint` and `Partition`. Out: a `Replay`, which a backward calls if its compiled graph cannot
be used: under ``create_graph=True`` (second derivatives), for batched gradients (`torch.vmap` over a backward), for
gradients that are not strided.

Example: ``hessian(compiled, x)`` gets its first derivatives from eager operators, which autograd can differentiate.

The forward saves little for the replay:

- weak references, with versions, to inputs that the compiled backward does not need (it saves values computed from them);
- the states of random generators, if the graph draws random numbers.

Inputs that gradients do not depend on are replaced by zeros.  They keep their values only if they are still alive and
some operator raises for certain values.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._functorch import pyfunctorch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _disable_current_modes

from pycompiler import _native
from pycompiler.autograd.joint import Joint
from pycompiler.autograd.linearity import is_linear, may_run_again
from pycompiler.autograd.partition import Partition, is_copied
from pycompiler.autograd.recorder import generator_identity
from pycompiler.autograd.replay_graph import (
    DerivativeRoots,
    end_of,
    has_inner_gradient,
    history_at_version,
    led_to,
    mark_run_ended,
    replay_module,
    results_of,
)
from pycompiler.autograd.saved_tensors import TWICE, SavedTensorCheck
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.errors import DoubleBackwardError
from pycompiler.ir import higher_order
from pycompiler.ir.generated_source import forward_of
from pycompiler.operators.operator_facts import facts_of, node_stays
from pycompiler.symbolic.number_nodes import SYMBOLIC, symbol_of, value_of
from pycompiler.symbolic.symbols import expr_of
from pycompiler.torch_compat import torch_compile
from pycompiler.torch_compat.fake_mode import is_inference

aten = torch.ops.aten

_GONE = "was freed, and the compiled backward had saved other values"
_CUT_OFF = "has been detached, and eager had kept its history"
_AUTOCAST_DEVICES = ("cpu", "cuda")
_VMAP = "VmapMode"  # set by the vmap of `is_grads_batched`, which is not functorch's


def transformed(
    functorch: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack,
    included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included,
    watched: Callable[[], int] = torch._C._len_torch_dispatch_stack,
) -> bool:
    """Whether tensors may be batched by a vmap or have a forward-mode tangent, or a dispatch mode must see each operator."""
    return functorch() is not None or included(_VMAP) or forward_ad._current_level >= 0 or watched() > 0


class Replay:
    """The replay of one compiled graph.

    `watched`: the inputs to which the forward keeps references, in order.  The references are weak, except for `held`:
    small inputs that may have no other owner.
    `random`: the devices whose generator states it keeps.
    `before`: small inputs that the graph writes, whose old values it copies.
    """

    def __init__(self, gm: fx.GraphModule, joint: Joint, part: Partition, examples: Sequence[Any], name: str) -> None:
        ends = [_node_of(gm, joint, cut) for cut in joint.cuts]
        self.module, self.linked = replay_module(gm, joint, ends)
        self.kept = _kept_results(joint, self.linked)
        _refuse_inner_gradients(gm, [end for end, cut in zip(ends, joint.cuts, strict=True) if cut[1] in self.kept])
        self.joint = joint
        self.name = name
        self.origins = joint.origins
        self.differentiable = joint.differentiable
        self.wanted = [i for i, g in enumerate(joint.grads) if g is not None]
        self.count = len(joint.inputs)
        self.cuts = joint.cuts
        self.written = set(joint.written)
        unseen = {a for n in joint.graph.nodes if facts_of(n.target).writes_unseen for a in n.all_input_nodes}
        self.unseen = {i for i, n in enumerate(joint.inputs) if n in unseen}
        self.likes = [_like(e) for e in examples]
        self.generators = [i for i, e in enumerate(examples) if isinstance(e, torch.Generator)]
        bodies = [m for m in gm.modules() if isinstance(m, fx.GraphModule) and m is not gm]
        self.repeats = not self.generators and all(map(may_run_again, bodies))
        self.random = sorted({_device(n) for n in joint.graph.nodes if facts_of(n.target).draws}, key=str)
        self.autocast = [(d, torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in _AUTOCAST_DEVICES]
        self.names = [n.name for n in joint.inputs]
        gradients = _inputs_of(joint, [g for g in joint.grads if g is not None])
        deciding, asked = (_inputs_of(joint, [*filter(of, joint.graph.nodes)]) for of in (_decides, _refuses))
        self.needed, self.deciding = sorted({*gradients, *deciding}), deciding
        self.asked = [i for i in asked if i not in self.needed and i not in self.written]
        led = frozenset[int]().union(*(path.led for path in joint.paths))
        self.led = sorted(i for i in led.difference(self.needed, self.asked, self.written) if i < self.count)
        self.holding = {*joint.arrived, *self.asked, *{*deciding}.difference(gradients)}
        self.before: list[int] = []
        self._find(part)
        # with several nodes each saves less
        lost = self.lost if len(joint.ways()) < 2 else [i for i in self.needed if i in self.written]
        self.before = [i for i in lost if not self.likes[i].requires_grad and is_copied(joint.inputs[i])]
        self._find(part)

    def of(self, part: Partition) -> Replay:
        """The replay for an autograd node that saves the values of `part`."""
        other = copy.copy(self)
        other._find(part)
        return other

    def _find(self, part: Partition) -> None:
        inputs, needed = self.joint.inputs, [*self.needed, *self.asked, *self.led]
        tensors = [j for j, n in enumerate(part.saved_nodes) if isinstance(n.meta["val"], torch.Tensor)]
        numbers = [n.meta["val"] for n in part.saved_nodes if not isinstance(n.meta["val"], torch.Tensor)]
        self.sizes = {name: k for k, v in enumerate(numbers) if (name := symbol_of(v)) is not None}
        place = {part.saved_nodes[j]: p for p, j in enumerate(tensors)}
        # A copy has no history, so it cannot replace an input that requires grad.
        copies = {n for n, (kind, _) in zip(part.saved_nodes, part.saved, strict=True) if kind == "output"}
        found = {i: place[inputs[i]] for i in needed if inputs[i] in place}
        self.saved = {i: p for i, p in found.items() if inputs[i] not in copies or not self.likes[i].requires_grad}
        self.tensors = [part.saved_nodes[j] for j in tensors]
        self._needs: dict[tuple[int, ...], frozenset[int]] = {}
        rest = [i for i in needed if i not in self.saved]
        # An input that the graph writes has another value by now.
        self.lost = [i for i in rest if i in self.written and i not in self.before]
        self.watched = [i for i in rest if i not in self.written]
        self.held = {i for i in self.watched if i in self.holding and is_copied(inputs[i])}

    def needs(self, positions: tuple[int, ...]) -> frozenset[int]:
        """The inputs whose values affect the gradients computed from the saved tensors at `positions`."""
        if positions not in self._needs:
            taken = _inputs_of(self.joint, [self.tensors[p] for p in positions])
            self._needs[positions] = frozenset((*taken, *self.deciding))
        return self._needs[positions]

    def reads(self, positions: Sequence[int]) -> set[int]:
        """The positions of the saved tensors that are such inputs."""
        needed = self.needs(tuple(positions))
        return {p for i, p in self.saved.items() if i in needed}

    @property
    def keeps_states(self) -> bool:
        """Whether `states_before` has anything to save; generators are drawn from."""
        return bool(self.random or self.before)

    # state saved by the forward -------------------------------------------------------------------------------------
    def has_version(self, index: int) -> bool:
        return not self.likes[index].inference

    # the backward --------------------------------------------------------------------------------------------------
    def __call__(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None], look: SavedTensorCheck
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the graph's inputs, then of its cuts, where gradients of other outputs end.

        `ctx`: the autograd node.  `tangents`: one per fresh output; None if another node has it.  `look`: checks and
        frees the saved tensors of the given tangents.
        """
        create_graph = torch.is_grad_enabled()
        with _outside_transforms():
            inputs = self._inputs(ctx, look)
        _native.pause_hook()
        try:
            with torch.enable_grad(), self._ambient():
                with _outside_transforms():
                    ends = self._ends(ctx, tangents) if create_graph and self.kept else {}
                found, led = self._gradients(ctx, inputs, tangents, ends, create_graph)
                for some in {*led.values()} - {frozenset(ends)} if self.repeats else ():
                    part = {k: ends[k] for k in some}
                    others, _ = self._gradients(ctx, inputs, tangents, part, create_graph)
                    found = [others[i] if led.get(i) == some else g for i, g in enumerate(found)]
        finally:
            _native.resume_hook()
        return tuple(found)

    def _gradients(
        self, ctx: Any, inputs: Sequence[Any], tangents: Sequence[torch.Tensor | None], kept: Mapping[int, torch.Tensor],
        create_graph: bool
    ) -> tuple[list[torch.Tensor | None], dict[int, frozenset[int]]]:  # fmt: skip
        """The gradients, whose derivatives reach the results `kept`; and which of these results each gradient's
        derivative reaches.

        In eager, a derivative that does not reach a result does not run the hooks of the result, and frees nothing there.
        """
        found: list[torch.Tensor | None] = [None] * (self.count + len(self.cuts))
        with _outside_transforms():
            onward = DerivativeRoots(kept)
            roots = self._roots(ctx, onward)
            own = [self._own(i, x, onward, roots) for i, x in enumerate(inputs)]
            # The graph writes copies: gradients belong to the values before the writes.
            mine = [x.clone() if i in self.written or i in self.unseen else x for i, x in enumerate(own)]
        with higher_order.check_hook_bodies(self._check_linear) if create_graph else contextlib.nullcontext():
            results = self._run(ctx, mine, onward, roots)
        pairs = self._differentiated(mine, results, tangents)
        begun = {(out.grad_fn, out.output_nr) for out, _ in pairs}
        made = [
            self._end(*found, results)
            for found in zip(self.cuts, results[len(results) - len(self.cuts) :], strict=True)
        ]
        ends = [(i, t) for i, t in enumerate(made, self.count) if (t.grad_fn, t.output_nr) not in begun]
        wanted = [(i, own[i]) for i in self.wanted if i < self.count]
        wanted = [(i, t) for i, t in (*wanted, *ends) if t.requires_grad]
        if not pairs or not wanted:
            return found, {}
        outs, gradients = zip(*pairs, strict=True)
        with torch._C._DisableAutocast(), higher_order.ending_gradients([t for _, t in ends if t.requires_grad]):
            asked = torch.autograd.grad(
                outs, [t for _, t in wanted], gradients, create_graph=create_graph, allow_unused=True
            )
        for (i, _), g in zip(wanted, asked, strict=True):
            found[i] = g
        if create_graph:
            self._refuse_derivatives(ctx, ends)
        if not kept:
            return found, {}
        places = {k: results[self.origins[k][1]] for k in kept}
        behind = {t.grad_fn for t in (*own, *gradients) if isinstance(t, torch.Tensor)}
        led = led_to({i: g for i, g in enumerate(found) if g is not None and g.requires_grad}, places, behind)
        for k, t in places.items():
            onward.take(k, t)
        return found, led

    def _end(self, cut: tuple[str, int], made: torch.Tensor | None, results: Sequence[Any]) -> torch.Tensor:
        if made is None:
            made = results[self.origins[cut[1]][1]]._base
            assert made is not None
        return made

    def _inputs(self, ctx: Any, look: SavedTensorCheck) -> list[Any]:
        """The graph's inputs: their values if these gradients depend on them, else the unchanged value if still alive,
        else zeros."""
        items, needed = look(ctx), self.needs(look.positions)
        if lost := [self.names[i] for i in self.lost if i in needed]:
            raise self._error(f"the graph writes {', '.join(lost)}, whose old value is gone")
        sizes = {name: ctx.numbers[k] for name, k in self.sizes.items()}
        inputs = [like.zeros(sizes) if isinstance(like, _Like) else _known(like, sizes) for like in self.likes]
        found = ctx.rng[len(self.random) :] if self.generators or self.before else ()
        given = copies(found[: len(self.generators)])
        for i, value in zip([*self.generators, *self.before], [*given, *found[len(given) :]], strict=True):
            inputs[i] = value
        there = {i: items[p] for i, p in self.saved.items() if items and items[p] is not None}
        watched = ctx.watched if self.watched else ()
        if not watched and not needed.isdisjoint(self.watched):
            raise RuntimeError(TWICE)
        there |= {i: (reference(), version) for i, (reference, version) in zip(self.watched, watched, strict=False)}
        for i, (value, version) in there.items():
            changed = value is not None and version is not None and value._version != version
            cut_off = value is not None and self.likes[i].requires_grad and not value.requires_grad  # by `detach_`
            if value is not None and not changed and not (cut_off and torch.is_grad_enabled()):
                inputs[i] = value.detach().requires_grad_() if cut_off else value
            elif i in needed:
                what = "has been modified by an inplace operation" if changed else _CUT_OFF if cut_off else _GONE
                raise self._error(f"its input {self.names[i]} {what}")
        look.free(ctx, items)
        return inputs

    def _error(self, what: str) -> DoubleBackwardError:
        return DoubleBackwardError(
            f"double backward through the compiled graph {self.name!r}: {what}. Keep the inputs alive and unchanged "
            "until the last backward, or run this function without pycompiler (pycompiler.disable) to differentiate it "
            "twice."
        )

    def _check_linear(self, body: fx.GraphModule, gradients: Sequence[Any], others: Sequence[Any]) -> None:
        """Raises if a hook, or the backward of an autograd Function, is not linear.

        Derivatives reach it in two parts, from the replay and through the autograd node.
        """
        if transformed() or not may_run_again(body) or is_linear(forward_of(body), gradients, others):
            return
        raise DoubleBackwardError(
            f"double backward through the compiled graph {self.name!r}: a hook, or the backward of an autograd Function, is "
            "not linear in the gradients (it may clip them), so it cannot run on parts of a gradient. Put "
            "pycompiler.disable on the function that registers the hook, or applies the Function, to differentiate it twice."
        )

    def _refuse_derivatives(self, ctx: Any, ends: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Prepare an error for cuts that could not be linked to the caller's tensor.

        A derivative by such a cut reaches the replay's stand-in.  It is an error if the caller's tensor would show the
        difference.
        """

        def check(reference: Callable[[], torch.Tensor | None], gradients: Sequence[Any]) -> None:
            end = reference()
            if end is not None and (end.retains_grad or end._backward_hooks):
                raise self._error("an intermediate tensor that the graph returned retains its gradient or has a hook")

        own: dict[int, Any] = getattr(ctx, "ends", {})  # empty if its gradients end at no output
        for i, t in ends:
            c = i - self.count
            if c in own and not self.linked[c] and t.grad_fn is not None:
                t.grad_fn.register_prehook(functools.partial(check, own[c][0]))

    def _ends(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """Ends for live results that eager's nodes save on the path of these `tangents`; hooks of other results must
        not run.

        Only a call with other tangents can decide about the results saved for those.
        """
        defined = [j for j, k in enumerate(self.joint.tangent_of) if tangents[k] is not None]
        kept = self.joint.kept(defined) | {("fresh", self.joint.tangent_of[j]) for j in defined}
        kept |= {cut for cut, is_linked in zip(self.cuts, self.linked, strict=True) if not is_linked}
        ends = dict[int, torch.Tensor]()
        for k, reference in ctx.made.items():
            t = reference() if ("fresh", k) in kept else None
            if t is not None and t.requires_grad and _is_as_made(k, reference, t):
                ends[k] = end_of(t)
        return ends

    def _roots(self, ctx: Any, onward: DerivativeRoots) -> dict[int, list[int]]:
        """For the inputs, then cuts, from which this replay begins: the results that depend on them."""
        own, found = getattr(ctx, "ends", {}), dict[int, list[int]]()
        paths = {k: path.inputs for k, path in zip(self.joint.tangent_of, self.joint.paths, strict=True)}

        def reached(k: int) -> frozenset[int]:
            passed = [
                i for i in paths[k] if i >= self.count and not (i - self.count in own and self.linked[i - self.count])
            ]
            return paths[k].difference(passed).union(*map(behind, passed))

        def behind(i: int) -> frozenset[int]:
            cut = self.cuts[i - self.count]
            begins, outputs, k = self.joint.begins(cut), self.joint.outputs, cut[1]
            if begins is not None:
                return reached(begins) if begins in paths else frozenset()
            while not outputs[k].of_input:  # a view of an input
                k = outputs[k].index
            return frozenset((outputs[k].index,))

        for k in onward.ends:
            for i in reached(k):
                found.setdefault(i, []).append(k)
        return found

    def _own(self, index: int, value: Any, onward: DerivativeRoots, roots: Mapping[int, list[int]]) -> Any:
        """The replay's version of an input: its gradients do not flow on into the history of the input.

        Gradients must be passed on unchanged.  As two views, one gradient would be accumulated twice, by two leaves.
        """
        if not isinstance(value, torch.Tensor):
            return value
        if not value.requires_grad:
            return value.detach()
        root = self._root(index, value, onward, roots)
        return aten.alias.default(value) if root is value else root

    def _root(
        self, index: int, value: torch.Tensor, onward: DerivativeRoots, roots: Mapping[int, list[int]]
    ) -> torch.Tensor:
        return value if index not in roots else onward.root(value, roots[index], has_memory=True)

    def _end_root(
        self, index: int, end: torch.Tensor, version: int, onward: DerivativeRoots, roots: Mapping[int, list[int]]
    ) -> torch.Tensor:
        with history_at_version(end, version) as written:
            return onward.root(end, roots.get(index, ()), has_memory=False) if written or index in roots else end

    def _run(
        self, ctx: Any, inputs: list[Any], onward: DerivativeRoots, roots: Mapping[int, list[int]]
    ) -> Sequence[Any]:
        own: dict[int, tuple[Any, torch.Tensor, int]] = getattr(ctx, "ends", {})
        cuts = range(len(self.cuts))
        ends = [self._end_root(self.count + c, *own[c][1:], onward, roots) if c in own else None for c in cuts]
        with _outside_transforms(), self._numbers(ctx):
            made = self.module(*inputs, *ends)
            results = made if isinstance(made, (tuple, list)) else (made,)
        if own:
            mark_run_ended(results[len(results) - len(ends) :])
        return results

    @contextlib.contextmanager
    def _numbers(self, ctx: Any) -> Iterator[None]:
        """Context manager: generators draw the forward's numbers, and are restored afterwards."""
        if not self.random:
            yield
            return
        with torch.random.fork_rng([d for d in self.random if d.type == "cuda"]):
            for device, state in zip(self.random, ctx.rng, strict=False):
                torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
            yield

    @contextlib.contextmanager
    def _ambient(self) -> Iterator[None]:
        """Context manager: autocast as at capture."""
        with contextlib.ExitStack() as stack:
            if torch._C._is_any_autocast_enabled() or any(enabled for _, enabled, _ in self.autocast):
                for device, enabled, dtype in self.autocast:
                    stack.enter_context(torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=False))
            yield

    def _differentiated(
        self, inputs: Sequence[Any], results: Sequence[Any], tangents: Sequence[torch.Tensor | None]
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        find: dict[str, Callable[[int], torch.Tensor]] = {
            "input": inputs.__getitem__,
            "result": results.__getitem__,
            "base": lambda k: results[k]._base,
        }
        pairs = []
        for (kind, index), differentiable, tangent in zip(self.origins, self.differentiable, tangents, strict=True):
            if tangent is not None and differentiable and (out := find[kind](index)).requires_grad:
                pairs.append((out, tangent))
        return pairs


@torch_compile.skipped
def states_before(
    devices: Sequence[torch.device], generators: Sequence[int], written: Sequence[int], inputs: Sequence[Any]
) -> list[Any]:
    """The states saved before a forward.

    In order: states of the devices' generators, `copies` of the generators among the inputs, and clones of written inputs.
    """
    states: list[Any] = [torch.cuda.get_rng_state(d) if d.type == "cuda" else torch.get_rng_state() for d in devices]
    return [*states, *copies([inputs[i] for i in generators]), *(inputs[i].clone() for i in written)]


def copies(generators: Sequence[torch.Generator]) -> list[torch.Generator]:
    """Clones of generators, which draw the same numbers without advancing the originals.

    A device's default generator is not cloned, and a generator that occurs twice is cloned once.
    """
    made = {generator_identity(g): g for g in (torch.default_generator, *torch.cuda.default_generators)}
    for g in generators:
        if generator_identity(g) not in made:
            made[generator_identity(g)] = g.clone_state()
    return [made[generator_identity(g)] for g in generators]


def _is_as_made(k: int, reference: Any, result: torch.Tensor) -> bool:
    """Whether a fresh output still has the history with which the call returned it; a write by the caller changes the history."""
    node: Any = result.grad_fn
    if node is not None and node.name() == _HANDED_ON:
        return True
    made = getattr(node, "made", None)
    return isinstance(made, dict) and made.get(k) is reference


_HANDED_ON = "LiftBackward0"  # the autograd node that starts a node of its own (`runtime.AutogradNode.begun`)


def _like(example: Any) -> Any:
    """A stand-in for an input of which the forward keeps nothing."""
    if isinstance(example, torch.Generator):
        return None
    return _Like(example) if isinstance(example, torch.Tensor) else example


class _Like:
    """Metadata of a tensor, without its memory."""

    def __init__(self, example: torch.Tensor) -> None:
        self.shape, self.stride = (tuple(map(expr_of, sizes)) for sizes in (example.shape, example.stride()))
        self.dtype, self.device = example.dtype, example.device
        self.requires_grad, self.inference = example.requires_grad, is_inference(example)

    def zeros(self, sizes: Mapping[str, int]) -> torch.Tensor:
        shape, stride = ([n.eval(sizes) for n in ns] for ns in (self.shape, self.stride))
        made = torch.empty_strided(shape, stride, dtype=self.dtype, device=self.device)
        return made.zero_().requires_grad_(self.requires_grad)


def _known(number: Any, sizes: Mapping[str, int]) -> Any:
    value = (
        value_of(number) if isinstance(number, SYMBOLIC) else number
    )  # a number, if the compile made the symbol constant
    return value.eval(sizes) if hasattr(value, "eval") else value


@contextlib.contextmanager
def _outside_transforms() -> Iterator[None]:
    """Context manager outside of every vmap, and hidden from dispatch modes.

    vmap modes refuse random numbers.  Here only the gradients are batched, not the inputs.
    Dispatch modes must only see the backward.
    """
    levels = 0
    while torch._C._dispatch_tls_is_dispatch_key_included(_VMAP):
        torch._C._vmapmode_decrement_nesting()
        levels += 1
    inside = torch._C._functorch.peek_interpreter_stack() is not None
    try:
        with pyfunctorch.temporarily_clear_interpreter_stack() if inside else contextlib.nullcontext():
            with _disable_current_modes():
                yield
    finally:
        for _ in range(levels):
            torch._C._vmapmode_increment_nesting()


def _inputs_of(joint: Joint, nodes: Sequence[fx.Node]) -> list[int]:
    """Indices of the tensor inputs that any of these nodes depends on."""
    seen: set[fx.Node] = set()
    stack = [*nodes]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return [i for i, n in enumerate(joint.inputs) if n in seen and isinstance(n.meta["val"], torch.Tensor)]


def _decides(node: fx.Node) -> bool:
    """Whether a call draws a number of random values that depends on its arguments: later draws would differ."""
    return facts_of(node.target).draws_by_value


def _refuses(node: fx.Node) -> bool:
    """Whether a call has an effect beside its result, such as an error."""
    return node.op == "call_function" and node_stays(node) and not facts_of(node.target).draws


def _kept_results(joint: Joint, linked: Sequence[bool]) -> list[int]:
    """The fresh outputs that eager's nodes save, or from which no replay continues."""
    apart = {cut for cut, is_linked in zip(joint.cuts, linked, strict=True) if not is_linked}
    found = zip(joint.tangent_of, joint.paths, strict=True)
    return [k for k, path in found if (path.held or ("fresh", k) in apart) and joint.origins[k][0] == "result"]


def _refuse_inner_gradients(gm: fx.GraphModule, kept: Sequence[fx.Node | None]) -> None:
    """Refuse gradients inside the graph that depend on a saved result.

    The result's own node saves it before the caller's tensor takes its place, so a part of the derivative would reach
    the inputs in another way.
    """
    for result in kept:
        if result is not None and has_inner_gradient(result, gm.graph.nodes):
            raise AutogradUnsupported(
                "a gradient inside the graph depends on a result that its own autograd node saves",
                result.format_node() or result.name,
                "do not return the result beside the gradient",
            )


def _node_of(gm: fx.GraphModule, joint: Joint, cut: tuple[str, int]) -> fx.Node | None:
    """The captured graph's result or input that a cut stands for; None for memory that several results view."""
    kind, k = ("result", cut[1]) if cut[0] == "view" else joint.origins[cut[1]]
    named: dict[str, Sequence[fx.Node]] = {
        "input": [n for n in gm.graph.nodes if n.op == "placeholder"],
        "result": [*results_of(gm), *joint.more],
    }
    return named[kind][k] if kind in named else None


def _device(node: fx.Node) -> torch.device:
    value = node.meta["val"]
    while isinstance(value, (tuple, list)):
        value = value[0]
    return torch.device(value.device)
