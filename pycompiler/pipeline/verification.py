"""Verification: a compiled graph beside eager.  Both run on copies of a call's inputs, forward and backward, and are
compared.

In: `compile(..., verify=share)` or `config.verify_correctness`, the captured graph, and the backend's callable.
Out: a callable of the graph's inputs.  A difference names the first operator whose value, or gradient, differs, with
its line.  Under `verify_correctness` a difference raises `VerificationError`.  Otherwise it is an error in the log,
and the graph runs eagerly from then on.

The first call of a graph waits for its comparison.  Later calls wait if random numbers are drawn, gradients are
wanted or a GPU computes.  Otherwise a worker compares (`background.py`), one call of a graph at a time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload, OpOverloadPacket

from pycompiler import background
from pycompiler.autograd.replay import copies
from pycompiler.errors import VerificationError
from pycompiler.ir import choices
from pycompiler.ir.generated_source import forward_of
from pycompiler.ir.node_effects import effects_of
from pycompiler.logs import stage
from pycompiler.pipeline.differences import Difference, first_difference, near
from pycompiler.pipeline.rounding_noise import roundings
from pycompiler.pipeline.uninitialized import unwritten, without
from pycompiler.torch_compat import torch_state
from pycompiler.torch_compat.fake_mode import fake_of, new_fake_mode

log = stage("dynamo")

CompiledCall = Callable[..., Sequence[Any]]
Rebuild = Callable[[fx.GraphModule, Sequence[Any]], CompiledCall]


class NotComparable(Exception):
    """A graph or a call contains an action that cannot happen twice; the message names it."""


class CallNotComparable(Exception):
    """This call cannot be compared; the message has the reason."""


@dataclass
class Copies:
    """Copies of a call's inputs. `leaves`: the tensors that gradients are taken of, by position."""

    values: list[Any]
    leaves: dict[int, torch.Tensor]

    @classmethod
    def of(cls, inputs: Sequence[Any], dtype: torch.dtype | None = None) -> Copies:
        """Copies with the layout of `inputs`, in separate memory, shared as the inputs share theirs; floats as `dtype`
        if given."""
        made = cls(list(inputs), {})
        shared: dict[int, list[int]] = {}  # by address: tensors in the same memory
        for k, given in enumerate(inputs):
            if isinstance(given, torch.Tensor):
                _comparable(given, k)
                shared.setdefault(given.untyped_storage().data_ptr() or -k, []).append(k)
        for group in shared.values():
            made.copy(group, dtype)
        generators = [k for k, given in enumerate(inputs) if isinstance(given, torch.Generator)]
        for k, generator in zip(generators, copies([inputs[k] for k in generators]), strict=True):
            made.values[k] = generator
        return made

    def copy(self, group: list[int], dtype: torch.dtype | None) -> None:
        """Copy tensors in the same memory. Computed tensors depend on all of the memory, a leaf, and may be written."""
        given = {k: self.values[k] for k in group}
        first = given[group[0]]
        computed = [k for k, t in given.items() if t.requires_grad and not t.is_leaf]
        converted = dtype is not None and any(t.dtype.is_floating_point for t in given.values())
        if (converted or computed) and any(t.dtype != first.dtype for t in given.values()):
            raise NotComparable(f"input {group[0]} is read as several dtypes")
        memory = _flat(first).clone()
        memory = memory.to(dtype) if converted else memory
        if computed:
            leaf = self.leaves[computed[0]] = memory.requires_grad_()
            with torch.enable_grad():
                memory = leaf.clone()
        for k, t in given.items():
            place = (t.shape, t.stride(), t.storage_offset())
            if k in computed:
                with torch.enable_grad():
                    self.values[k] = memory.as_strided(*place)
                continue
            empty = torch.empty(0, dtype=memory.dtype if converted else t.dtype, device=t.device)
            with torch.no_grad():
                self.values[k] = empty.set_(memory.untyped_storage(), place[2], place[0], place[1])
            if t.requires_grad:
                self.leaves[k] = self.values[k].requires_grad_()


def _comparable(given: torch.Tensor, k: int) -> None:
    if type(given) not in (torch.Tensor, torch.nn.Parameter) or given.layout is not torch.strided:
        raise NotComparable(f"input {k} is a {type(given).__name__} with layout {given.layout}")
    if given.is_conj() or given.is_neg() or given.is_quantized:
        raise NotComparable(f"input {k} is conjugated, negated or quantised")


def _flat(given: torch.Tensor) -> torch.Tensor:
    """All of the memory of a tensor's storage."""
    storage = given.untyped_storage()
    with torch.no_grad():
        empty = torch.empty(0, dtype=given.dtype, device=given.device)
        return empty.set_(storage, 0, (storage.nbytes() // given.itemsize,), (1,))


@dataclass
class VerifiedResults:
    names: list[str]
    values: list[Any]
    drew: bool  # random numbers
    has_gradients: bool
    left: torch.Tensor  # the state of the generator afterwards


def results(call: CompiledCall, copies: Copies, *, gradients: bool = True) -> VerifiedResults:
    """The results of a graph's call: outputs, inputs after it, and gradients for fixed tangents."""
    before = torch.get_rng_state()
    outputs = list(call(*copies.values))
    names = [f"output {k}" for k in range(len(outputs))]
    names += [f"input {k} after the call" for k in range(len(copies.values))]
    values = [_seen(v) for v in (*outputs, *copies.values)]
    roots = [o for o in outputs if isinstance(o, torch.Tensor) and o.requires_grad]
    if not (gradients and roots and copies.leaves):
        return _results(names, values, before, False)
    generator = torch.Generator().manual_seed(0)
    tangents = [torch.randn(o.shape, generator=generator).to(o.device, o.dtype) for o in roots]
    values += torch.autograd.grad(roots, list(copies.leaves.values()), tangents, allow_unused=True)
    names += [f"the gradient of input {k}" for k in copies.leaves]
    return _results(names, values, before, True)


def _seen(value: Any) -> Any:
    """The value to compare: for a generator its state."""
    if isinstance(value, torch.Generator):
        return value.get_state()
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _results(names: list[str], values: list[Any], before: torch.Tensor, has_gradients: bool) -> VerifiedResults:
    left = torch.get_rng_state()
    return VerifiedResults(names, values, not torch.equal(before, left), has_gradients, left)


def eager_results(
    graph: CompiledCall, inputs: Sequence[Any], dtype: torch.dtype | None = None, numbers: RandomNumbers | None = None
) -> VerifiedResults:
    """The results of eager; without gradients if eager refuses them."""
    numbers = numbers or RandomNumbers()
    try:
        with same_numbers(inputs, numbers):
            return results(graph, Copies.of(inputs, dtype))
    except RuntimeError:
        with same_numbers(inputs, numbers):
            return results(graph, Copies.of(inputs, dtype), gradients=False)


SHARED_BY_THREADS = {write for _, write in torch_state.ATTENTION.values()}


@dataclass
class RandomNumbers:
    """Whether a graph draws random numbers, or may.  A graph that does not draw leaves shared state of other threads
    alone."""

    drawn: bool = True


class same_numbers:
    """Random numbers drawn in this block come again after it, and torch's state (grad mode and so on) is restored."""

    def __init__(self, inputs: Sequence[Any], numbers: RandomNumbers) -> None:
        self.devices = {t.device for t in inputs if isinstance(t, torch.Tensor) and t.device.type == "cuda"}
        self.drawn = numbers.drawn

    def __enter__(self) -> None:
        self.state = torch_state.read_state() if self.drawn else torch_state.read_own_state()
        self.host = torch.get_rng_state() if self.drawn else None
        self.others = {d: torch.cuda.get_rng_state(d) for d in self.devices}

    def __exit__(self, *exc: object) -> None:
        torch_state.write_state(self.state)
        if self.host is not None:
            torch.set_rng_state(self.host)
        for device, state in self.others.items():
            torch.cuda.set_rng_state(state, device)


def compare(
    graph: CompiledCall,
    made: CompiledCall,
    inputs: Sequence[Any],
    tolerance: float = 0.0,
    numbers: RandomNumbers | None = None,
) -> Difference | None:
    """The difference between a call of `made` and a call of `graph`.  `inputs` stay unchanged.

    tolerance: relative error that is no difference, if a dtype's own tolerance (`differences.TOLERANCES`) is smaller.
    numbers: what is known about random draws of the graph; updated by the call.
    """
    numbers = numbers or RandomNumbers()
    given = any(isinstance(v, torch.Generator) for v in inputs)

    def run_eager() -> VerifiedResults:
        return eager_results(graph, inputs, None, numbers)

    def run_made() -> VerifiedResults:
        with same_numbers(inputs, numbers):
            return results(made, Copies.of(inputs), gradients=want.has_gradients)

    want = run_eager()
    try:
        seen = run_made()
    except Exception as error:
        return Difference("the call", f"it raised {type(error).__name__}: {error}; eager did not")
    on_host = all(t.device.type == "cpu" for t in inputs if isinstance(t, torch.Tensor))
    numbers.drawn = numbers.drawn and (want.drew or seen.drew or given or not on_host)
    if first_difference(want.names, seen.values, want.values, strict=True, tolerance=tolerance) is None:
        return None
    if numbers.drawn and not (is_steady(want, run_eager) and is_steady(seen, run_made)):
        raise CallNotComparable("another thread drew random numbers meanwhile")
    judged = [seen.values, want.values]
    if exact := None if numbers.drawn else in_float64(graph, inputs, want):
        judged.append(exact)

    def again() -> list[Any]:
        return run_eager().values

    if masks := unwritten(again):
        judged = [without(values, masks) for values in judged]
    found = first_difference(want.names, *judged, tolerance=tolerance)
    if found is None or masks:
        return found
    return first_difference(want.names, *judged, tolerance=tolerance, roundings=roundings(again, want.values, near))


def is_steady(before: VerifiedResults, run: Callable[[], VerifiedResults]) -> bool:
    """Whether a run leaves the generator as the previous run did: another thread may have drawn meanwhile."""
    try:
        return torch.equal(before.left, run().left)
    except Exception:
        return False


def in_float64(graph: CompiledCall, inputs: Sequence[Any], want: VerifiedResults) -> list[Any] | None:
    """The same results in float64, if the graph can run so."""
    try:
        made = eager_results(graph, inputs, torch.float64)
    except Exception:  # the program's own casts meet an unexpected float64
        return None
    return made.values if made.names == want.names else None


def can_wait(inputs: Sequence[Any]) -> bool:
    """Whether a comparison needs nothing of the calling thread but `SavedCall.surroundings`."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    gradients = torch.is_grad_enabled() and any(t.requires_grad for t in tensors)
    modes = torch._C._len_torch_function_stack() + torch._C._len_torch_dispatch_stack()
    return not gradients and not modes and all(t.device.type == "cpu" for t in tensors)


@dataclass
class SavedCall:
    """The inputs of a call, for later.  Parameters that the graph does not write are not copied; `changed`: other code
    wrote one."""

    inputs: list[Any]
    versions: dict[int, int]
    state: dict[str, Any]
    inference: bool

    @classmethod
    def of(cls, inputs: Sequence[Any], writes: bool) -> SavedCall:
        kept = {
            k: t._version for k, t in enumerate(inputs)
            if isinstance(t, torch.nn.Parameter) and not (writes or t.is_inference())
        }  # fmt: skip
        copies = iter(Copies.of([t for k, t in enumerate(inputs) if k not in kept]).values)
        held = [t if k in kept else next(copies) for k, t in enumerate(inputs)]
        return cls(held, kept, torch_state.read_own_state(), torch.is_inference_mode_enabled())

    def changed(self) -> bool:
        return any(self.inputs[k]._version != version for k, version in self.versions.items())

    @contextlib.contextmanager
    def surroundings(self) -> Iterator[None]:
        """The state of the calling thread."""
        before = torch_state.read_own_state()
        with torch.inference_mode(self.inference):
            torch_state.write_state(self.state)
            try:
                yield
            finally:
                torch_state.write_state(before)


class Verified:
    """See the module.  A `share` of the calls is compared, always the first; only the first if `share` is 0.

    gm: the captured graph, which no other code may change.  backend: the name of the user's backend that made `made`.
    """

    def __init__(
        self,
        gm: fx.GraphModule,
        made: CompiledCall,
        rebuild: Rebuild,
        name: str,
        *,
        share: float,
        raises: bool,
        backend: str = "",
    ) -> None:
        self.gm, self.made, self.rebuild, self.name, self.backend = gm, made, rebuild, name, backend
        self.share, self.raises, self.tolerance = share, raises, 0.0
        self.calls, self.compared = 0, 0
        self.lock = threading.Lock()
        self.difference: str | None = None
        self.found: Difference | None = None  # by the last comparison
        self.numbers = RandomNumbers()
        self.waiting = False  # for a worker
        graphs = [m for m in gm.modules() if isinstance(m, fx.GraphModule)]
        nodes = [n for g in graphs for n in g.graph.nodes]
        # False if branches may draw random numbers in one of them, or if process-wide state is set, which a worker
        # must not do.
        self.plain = len(graphs) == 1 and not any(n.target in SHARED_BY_THREADS for n in nodes)
        self.writes = any(effects_of(n).mutates for n in nodes)
        if acting := [n for n in nodes if happens_once(n)]:
            self.give_up(f"{_name(acting[0])} may have effects on more than tensors")

    def __call__(self, *inputs: Any) -> Sequence[Any]:
        if self.due() and not self.verified_later(inputs):
            self.verify(inputs)
        if self.difference is not None:
            return forward_of(self.gm)(*inputs)  # type: ignore[no-any-return]
        return self.made(*inputs)

    def due(self) -> bool:
        """Whether this call is compared: compared calls are evenly spread."""
        if self.difference is not None:
            return False
        with self.lock:
            self.calls += 1
            first = self.calls == 1 and self.share >= 0
            return first or int(self.calls * self.share) > int((self.calls - 1) * self.share)

    def give_up(self, why: str) -> None:
        log.warning("a graph of %s is not compared with eager: %s", self.name, why)
        self.share = -1.0

    def verified_later(self, inputs: Sequence[Any]) -> bool:
        """Whether a worker compares this call, or is still busy with another; then this call is not compared."""
        if self.raises or self.numbers.drawn or background.inside() or not can_wait(inputs):
            return False
        with self.lock:
            if self.waiting:
                return True
            self.waiting = True
        try:
            held = SavedCall.of(inputs, self.writes)
        except NotComparable:
            self.waiting = False
            return False
        background.submit(f"a comparison of {self.name}", lambda: self.verify_held(held))
        return True

    def verify_held(self, held: SavedCall) -> None:
        try:
            with held.surroundings():
                self.judge(held.inputs, held.changed)
        finally:
            self.waiting = False

    def verify(self, inputs: Sequence[Any]) -> None:
        self.judge(inputs, lambda: False)

    def judge(self, inputs: Sequence[Any], changed: Callable[[], bool]) -> None:
        graph = forward_of(self.gm)
        try:
            found = compare(graph, self.made, inputs, self.tolerance, self.numbers if self.plain else RandomNumbers())
        except NotComparable as reason:
            return self.give_up(str(reason))
        except CallNotComparable as reason:
            return log.info("a call of %s is not compared: %s", self.name, reason)
        except Exception as error:  # an error of eager itself: the call raises it
            return log.info("%s: eager raised %s: %s", self.name, type(error).__name__, error)
        if changed():
            return None
        self.compared += 1
        self.found = found
        if found is None:
            return None
        which = f"the graph of {self.name}, compiled by backend {self.backend!r}," if self.backend else ""
        text = f"{which or f'the compiled graph of {self.name}'} differs from eager in {found}"
        with self.lock:
            known, self.difference = self.difference, self.difference or text
        if known is None and not choices.active:  # a bisector finds the place itself
            text = self.difference = f"{text}\n{self.place(inputs)}"
        if self.raises:
            raise VerificationError(known or text, self.backend)
        if known is None:  # calls of other threads may have found it meanwhile
            log.error("%s\nthe graph runs eagerly from now on", text)
        return None

    def place(self, inputs: Sequence[Any]) -> str:
        """The first operator whose compiled value, or gradient, differs."""
        node = first_wrong(self.gm, self.rebuild, inputs)
        if node is None:
            return "  no single operator: the values are right when less of the graph is compiled"
        user = node.meta.get("user")
        where = f"\n    {str(user[-1]).replace(chr(10), chr(10) + '    ')}" if user else ""
        return f"  first at operator {_name(node)} (node {node.name}){where}"


LIBRARIES = ("torch", "pycompiler", "_operator", "builtins", "math")
NAMESPACES = ("aten", "prim", "prims", "pycompiler")


def happens_once(node: fx.Node) -> bool:
    """Whether a call may have effects that cannot be repeated on copies: operators of other libraries, which are
    unknown."""
    if node.op != "call_function" or not effects_of(node).acts:
        return False
    if isinstance(node.target, OpOverload):
        return node.target.namespace not in NAMESPACES
    if isinstance(node.target, OpOverloadPacket):
        return node.target._qualified_op_name.partition("::")[0] not in NAMESPACES
    module = str(getattr(node.target, "__module__", None) or type(node.target).__module__)
    return module.partition(".")[0] not in LIBRARIES


def _name(node: fx.Node) -> str:
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def first_wrong(gm: fx.GraphModule, rebuild: Rebuild, inputs: Sequence[Any]) -> fx.Node | None:
    """The first node up to which the graph, compiled by itself, differs from eager; found by bisection."""
    nodes = [
        n for n in gm.graph.nodes
        if n.op.startswith("call_") and isinstance(n.meta.get("example_value"), torch.Tensor)
    ]  # fmt: skip
    low, high = 0, len(nodes)  # the graph up to nodes[high] is wrong; len(nodes): the whole graph
    while low < high:
        middle = (low + high) // 2
        if is_wrong(up_to(gm, nodes[middle]), rebuild, inputs):
            high = middle
        else:
            low = middle + 1
    return nodes[high] if high < len(nodes) else None


def is_wrong(part: fx.GraphModule, rebuild: Rebuild, inputs: Sequence[Any]) -> bool:
    try:
        return compare(forward_of(part), rebuild(part, inputs), inputs) is not None
    except Exception as error:
        log.info("a part of the graph could not be compiled: %s: %s", type(error).__name__, error)
        return False


def up_to(gm: fx.GraphModule, last: fx.Node) -> fx.GraphModule:
    """The graph that ends with the value of `last`."""
    graph = fx.Graph()
    place: dict[fx.Node, fx.Node] = {}
    done = False
    for node in gm.graph.nodes:
        if node.op == "placeholder" or not done:
            place[node] = graph.node_copy(node, place.__getitem__)
        done = done or node is last
    graph.output((place[last],)).meta.update(gm.graph.output_node().meta)
    return fx.GraphModule(gm, graph)


def examples_of(inputs: Sequence[Any], ours: bool) -> list[Any]:
    """The examples that a backend gets for a part of a graph: fakes for this package's backends, copies for others."""
    if not ours:
        return Copies.of(inputs).values
    mode = new_fake_mode()
    return [fake_of(mode, x) if isinstance(x, torch.Tensor) else x for x in inputs]
