"""Gradients that can be differentiated again: the captured graph is run once more, under autograd, by the backward.

In: a captured graph, its `Joint` and `Partition`. Out: a `Replay`, which a backward calls where its compiled graph will
not do: under ``create_graph=True`` (second derivatives), for batched gradients (`torch.vmap` over a backward), for
gradients that are not strided.
Example: ``hessian(compiled, x)`` gets its first derivatives from eager operators, which autograd can differentiate.

The forward keeps nothing for it but weak references to inputs that the compiled backward does not need (it keeps values
computed from them), their versions, and, where random numbers are drawn, the generators' states.  What gradients do
not depend on is replaced by zeros, unless it is still there and operators are asked that refuse some values.
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
from pycompiler.autograd.linear import is_linear, may_run_again
from pycompiler.autograd.partition import Partition, is_copied
from pycompiler.autograd.recorder import identity
from pycompiler.autograd.replayed import Onward, as_of, bare, end_of, go_on, is_asked, led_to, results_of
from pycompiler.autograd.saved import TWICE, Look
from pycompiler.autograd.unsupported import AutogradUnsupported
from pycompiler.errors import DoubleBackwardError
from pycompiler.ir import transforms
from pycompiler.ir.effects import draws, node_stays, writes_unseen
from pycompiler.ir.fake import is_inference
from pycompiler.ir.numbers import SYMBOLIC, symbol_of, value_of
from pycompiler.ir.symbols import expr_of
from pycompiler.ir.texts import forward_of

aten = torch.ops.aten

_GONE = "is gone, and the compiled backward had kept other values"
_CUT_OFF = "has been detached, and eager had kept its history"
_AUTOCAST_DEVICES = ("cpu", "cuda")
_VMAP = "VmapMode"  # set by the vmap of `is_grads_batched`, which is not functorch's


def transformed(
    functorch: Callable[[], Any] = torch._C._functorch.peek_interpreter_stack,
    included: Callable[[Any], bool] = torch._C._dispatch_tls_is_dispatch_key_included,
    watched: Callable[[], int] = torch._C._len_torch_dispatch_stack,
) -> bool:
    """Whether tensors may be more than their memory, batched by a vmap, or with a tangent of forward-mode AD; or a
    dispatch mode is to see each operator."""
    return functorch() is not None or included(_VMAP) or forward_ad._current_level >= 0 or watched() > 0


class Replay:
    """`watched`: the inputs to which the forward keeps references, in order, weak ones but for `held`, which are small and
    which else nobody may have; `random`: the devices whose generators'
    states it keeps; `before`: small inputs that the graph writes, of whose old values it keeps copies."""

    def __init__(self, gm: fx.GraphModule, joint: Joint, part: Partition, examples: Sequence[Any], name: str) -> None:
        ends = [_node_of(gm, joint, cut) for cut in joint.cuts]
        self.module, self.linked = bare(gm, joint, ends)
        self.kept = _kept_results(joint, self.linked)
        _refuse_asked(gm, [end for end, cut in zip(ends, joint.cuts, strict=True) if cut[1] in self.kept])
        self.joint = joint
        self.name = name
        self.origins = joint.origins
        self.differentiable = joint.differentiable
        self.wanted = [i for i, g in enumerate(joint.grads) if g is not None]
        self.count = len(joint.inputs)
        self.cuts = joint.cuts
        self.written = set(joint.written)
        unseen = {a for n in joint.graph.nodes if writes_unseen(n.target) for a in n.all_input_nodes}
        self.unseen = {i for i, n in enumerate(joint.inputs) if n in unseen}
        self.likes = [_like(e) for e in examples]
        self.generators = [i for i, e in enumerate(examples) if isinstance(e, torch.Generator)]
        bodies = [m for m in gm.modules() if isinstance(m, fx.GraphModule) and m is not gm]
        self.repeats = not self.generators and all(map(may_run_again, bodies))
        self.random = sorted({_device(n) for n in joint.graph.nodes if draws(n.target)}, key=str)
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
        lost = self.lost if len(joint.ways()) < 2 else [i for i in self.needed if i in self.written]  # each saves less
        self.before = [i for i in lost if not self.likes[i].requires_grad and is_copied(joint.inputs[i])]
        self._find(part)

    def of(self, part: Partition) -> Replay:
        """The replay for a node that saves what `part` says."""
        other = copy.copy(self)
        other._find(part)
        return other

    def _find(self, part: Partition) -> None:
        inputs, needed = self.joint.inputs, [*self.needed, *self.asked, *self.led]
        tensors = [j for j, n in enumerate(part.saved_nodes) if isinstance(n.meta["val"], torch.Tensor)]
        numbers = [n.meta["val"] for n in part.saved_nodes if not isinstance(n.meta["val"], torch.Tensor)]
        self.sizes = {name: k for k, v in enumerate(numbers) if (name := symbol_of(v)) is not None}
        place = {part.saved_nodes[j]: p for p, j in enumerate(tensors)}
        # A copy has no history: of an input that requires grad it is no use.
        copies = {n for n, (kind, _) in zip(part.saved_nodes, part.saved, strict=True) if kind == "output"}
        found = {i: place[inputs[i]] for i in needed if inputs[i] in place}
        self.saved = {i: p for i, p in found.items() if inputs[i] not in copies or not self.likes[i].requires_grad}
        self.tensors = [part.saved_nodes[j] for j in tensors]
        self._needs: dict[tuple[int, ...], frozenset[int]] = {}
        rest = [i for i in needed if i not in self.saved]
        # An input that the graph writes has another value now.
        self.lost = [i for i in rest if i in self.written and i not in self.before]
        self.watched = [i for i in rest if i not in self.written]
        self.held = {i for i in self.watched if i in self.holding and is_copied(inputs[i])}

    def needs(self, positions: tuple[int, ...]) -> frozenset[int]:
        """The inputs whose values decide those of the gradients that a backward computes of the saved tensors at `positions`."""
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
        """Whether `states_before` has anything to keep; generators are drawn from."""
        return bool(self.random or self.before)

    # what the forward keeps ----------------------------------------------------------------------------------------
    def has_version(self, index: int) -> bool:
        return not self.likes[index].inference

    # the backward --------------------------------------------------------------------------------------------------
    def __call__(
        self, ctx: Any, tangents: Sequence[torch.Tensor | None], look: Look
    ) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the graph's inputs, then of its cuts, where those of outputs behind end; `ctx` is the autograd
        node, `tangents` has one for each fresh output, which is None where another node has it; `look` is of the others."""
        create_graph = torch.is_grad_enabled()
        with _untransformed():
            inputs = self._inputs(ctx, look)
        _native.pause_hook()
        try:
            with torch.enable_grad(), self._ambient():
                with _untransformed():
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
        """The gradients, whose derivatives reach the results `kept`, and where there are any, which of these each one's do: what
        reaches none in eager does not run their hooks, and frees nothing there."""
        found: list[torch.Tensor | None] = [None] * (self.count + len(self.cuts))
        with _untransformed():
            onward = Onward(kept)
            roots = self._roots(ctx, onward)
            own = [self._own(i, x, onward, roots) for i, x in enumerate(inputs)]
            # The graph writes copies: gradients are those of what was there before.
            mine = [x.clone() if i in self.written or i in self.unseen else x for i, x in enumerate(own)]
        with transforms.shown_to(self._check_linear) if create_graph else contextlib.nullcontext():
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
        with torch._C._DisableAutocast(), transforms.ending([t for _, t in ends if t.requires_grad]):
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

    def _inputs(self, ctx: Any, look: Look) -> list[Any]:
        """What the graph is given: of inputs that these gradients do not depend on what is there as it was, else zeros."""
        items, needed = look(ctx), self.needs(look.positions)
        if lost := [self.names[i] for i in self.lost if i in needed]:
            raise self._error(f"it writes {', '.join(lost)}, whose old value is gone")
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
        """Of a hook, or the backward of an autograd Function: derivatives come to it from here and through the node."""
        if transformed() or not may_run_again(body) or is_linear(forward_of(body), gradients, others):
            return
        raise DoubleBackwardError(
            f"double backward through the compiled graph {self.name!r}: a hook, or the backward of an autograd Function, makes "
            "of gradients what is not linear in them (it may cut them off at a bound), and would be asked for parts of one. Put "
            "pycompiler.disable on the function that registers the hook, or applies the Function, to differentiate it twice."
        )

    def _refuse_derivatives(self, ctx: Any, ends: Sequence[tuple[int, torch.Tensor]]) -> None:
        """Derivatives of gradients by a cut that could not be linked reach what stands for it here, not the caller's tensor: an
        error where that one would show it."""

        def check(reference: Callable[[], torch.Tensor | None], gradients: Sequence[Any]) -> None:
            end = reference()
            if end is not None and (end.retains_grad or end._backward_hooks):
                raise self._error("an intermediate that it gave back keeps its gradient or has a hook")

        own: dict[int, Any] = getattr(ctx, "ends", {})  # none where its gradients end at no output
        for i, t in ends:
            c = i - self.count
            if c in own and not self.linked[c] and t.grad_fn is not None:
                t.grad_fn.register_prehook(functools.partial(check, own[c][0]))

    def _ends(self, ctx: Any, tangents: Sequence[torch.Tensor | None]) -> dict[int, torch.Tensor]:
        """For the results that somebody still has and that are kept on the way of these `tangents`: hooks of others stay unasked.
        What is kept by a call that gives others, too, only that knows."""
        defined = [j for j, k in enumerate(self.joint.tangent_of) if tangents[k] is not None]
        kept = self.joint.kept(defined) | {("fresh", self.joint.tangent_of[j]) for j in defined}
        kept |= {cut for cut, is_linked in zip(self.cuts, self.linked, strict=True) if not is_linked}
        ends = dict[int, torch.Tensor]()
        for k, reference in ctx.made.items():
            t = reference() if ("fresh", k) in kept else None
            if t is not None and t.requires_grad and _is_as_made(k, reference, t):
                ends[k] = end_of(t)
        return ends

    def _roots(self, ctx: Any, onward: Onward) -> dict[int, list[int]]:
        """For the inputs, then cuts, from which this replay begins, the results that depend on them."""
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

    def _own(self, index: int, value: Any, onward: Onward, roots: Mapping[int, list[int]]) -> Any:
        """What the graph gets: gradients with respect to it do not flow on into inputs that it was computed from.  They are
        handed on as they are: two views of one gradient would be two leaves' own, and added to twice."""
        if not isinstance(value, torch.Tensor):
            return value
        if not value.requires_grad:
            return value.detach()
        root = self._root(index, value, onward, roots)
        return aten.alias.default(value) if root is value else root

    def _root(self, index: int, value: torch.Tensor, onward: Onward, roots: Mapping[int, list[int]]) -> torch.Tensor:
        return value if index not in roots else onward.root(value, roots[index], has_memory=True)

    def _end_root(
        self, index: int, end: torch.Tensor, version: int, onward: Onward, roots: Mapping[int, list[int]]
    ) -> torch.Tensor:
        with as_of(end, version) as written:
            return onward.root(end, roots.get(index, ()), has_memory=False) if written or index in roots else end

    def _run(self, ctx: Any, inputs: list[Any], onward: Onward, roots: Mapping[int, list[int]]) -> Sequence[Any]:
        own: dict[int, tuple[Any, torch.Tensor, int]] = getattr(ctx, "ends", {})
        cuts = range(len(self.cuts))
        ends = [self._end_root(self.count + c, *own[c][1:], onward, roots) if c in own else None for c in cuts]
        with _untransformed(), self._numbers(ctx):
            made = self.module(*inputs, *ends)
            results = made if isinstance(made, (tuple, list)) else (made,)
        if own:
            go_on(results[len(results) - len(ends) :])
        return results

    @contextlib.contextmanager
    def _numbers(self, ctx: Any) -> Iterator[None]:
        """The generators draw what the forward drew, and go on afterwards where they were."""
        if not self.random:
            yield
            return
        with torch.random.fork_rng([d for d in self.random if d.type == "cuda"]):
            for device, state in zip(self.random, ctx.rng, strict=False):
                torch.cuda.set_rng_state(state, device) if device.type == "cuda" else torch.set_rng_state(state)
            yield

    @contextlib.contextmanager
    def _ambient(self) -> Iterator[None]:
        """Autocast as it was when the graph was captured."""
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


def states_before(
    devices: Sequence[torch.device], generators: Sequence[int], written: Sequence[int], inputs: Sequence[Any]
) -> list[Any]:
    """The states of the generators of the devices that a graph draws from, then `copies` of those that it is given, then of what
    it writes."""
    states: list[Any] = [torch.cuda.get_rng_state(d) if d.type == "cuda" else torch.get_rng_state() for d in devices]
    return [*states, *copies([inputs[i] for i in generators]), *(inputs[i].clone() for i in written)]


def copies(generators: Sequence[torch.Generator]) -> list[torch.Generator]:
    """Generators that draw what these will, which stay as they are; one of a device comes as it is, and one twice is one."""
    made = {identity(g): g for g in (torch.default_generator, *torch.cuda.default_generators)}
    for g in generators:
        if identity(g) not in made:
            made[identity(g)] = g.clone_state()
    return [made[identity(g)] for g in generators]


def _is_as_made(k: int, reference: Any, result: torch.Tensor) -> bool:
    """Whether a fresh output has the history that it came with; who writes one that its node makes again gives it another."""
    node: Any = result.grad_fn
    if node is not None and node.name() == _HANDED_ON:
        return True
    made = getattr(node, "made", None)
    return isinstance(made, dict) and made.get(k) is reference


_HANDED_ON = "LiftBackward0"  # the node of what begins one of its own (`runtime.Node.begun`)


def _like(example: Any) -> Any:
    """What stands for an input of which the forward keeps nothing."""
    if isinstance(example, torch.Generator):
        return None
    return _Like(example) if isinstance(example, torch.Tensor) else example


class _Like:
    """What a tensor is, without its memory."""

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
    )  # a number, where the graph's compile settled it
    return value.eval(sizes) if hasattr(value, "eval") else value


@contextlib.contextmanager
def _untransformed() -> Iterator[None]:
    """Outside of every vmap, whose modes refuse random numbers, while a batch is in the gradients, not in the inputs; and
    unseen by dispatch modes, which are to see a backward."""
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
    """The inputs, tensors, that one of these depends on."""
    seen: set[fx.Node] = set()
    stack = [*nodes]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            stack.extend(node.all_input_nodes)
    return [i for i, n in enumerate(joint.inputs) if n in seen and isinstance(n.meta["val"], torch.Tensor)]


def _decides(node: fx.Node) -> bool:
    """A call that takes more or fewer random numbers by what it is given: those behind it would be others."""
    return getattr(node.target, "overloadpacket", None) in _TAKE_AS_MANY


def _refuses(node: fx.Node) -> bool:
    """A call that is there for more than its result, which may be an error."""
    return node.op == "call_function" and node_stays(node) and not draws(node.target)


_TAKE_AS_MANY = frozenset((aten.poisson, aten.binomial, aten._standard_gamma, aten._sample_dirichlet, aten.multinomial))


def _kept_results(joint: Joint, linked: Sequence[bool]) -> list[int]:
    """The fresh outputs that nodes of autograd's graph keep, or from which no replay goes on."""
    apart = {cut for cut, is_linked in zip(joint.cuts, linked, strict=True) if not is_linked}
    found = zip(joint.tangent_of, joint.paths, strict=True)
    return [k for k, path in found if (path.held or ("fresh", k) in apart) and joint.origins[k][0] == "result"]


def _refuse_asked(gm: fx.GraphModule, kept: Sequence[fx.Node | None]) -> None:
    """A gradient that the graph asks for itself depends on a result by what that result's node keeps of it, too, from before the
    caller's takes its place: the part by the node would reach the inputs beside it."""
    for result in kept:
        if result is not None and is_asked(result, gm.graph.nodes):
            raise AutogradUnsupported(
                "a result that its own node keeps, behind gradients that the graph asks for",
                result.format_node() or result.name,
                "do not return it beside them",
            )


def _node_of(gm: fx.GraphModule, joint: Joint, cut: tuple[str, int]) -> fx.Node | None:
    """The captured graph's result or input that a cut is; None for the memory that some view."""
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
