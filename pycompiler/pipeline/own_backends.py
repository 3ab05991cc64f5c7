"""The backends `native` and `aot_eager`: autograd, then a compiler for each functional graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler import _native, autograd, backends, background, config, regions
from pycompiler.errors import Unsupported
from pycompiler.graphs import STATISTICS, compile_aten, padded_columns
from pycompiler.ir import choices, compile_names, phases
from pycompiler.ir.cuda_graph_override import KINDS, OVERRIDE
from pycompiler.ir.generated_source import drop_source_when_freed, forward_of, readable
from pycompiler.ir.guards import UserFrame, own_frame
from pycompiler.ir.phases import phase
from pycompiler.logs import artifact, follow_torch, stage, step
from pycompiler.pipeline import region_parts
from pycompiler.pipeline.compile_environment import RESTING_COLLECTOR, own_knobs
from pycompiler.progress import compiling, current_name
from pycompiler.symbolic.symbols import hint_of, symbols_of
from pycompiler.torch_compat import program_builtins
from pycompiler.torch_compat.ddp_buckets import BUCKETS
from pycompiler.torch_compat.fake_mode import fake_of, is_plain, new_fake_mode
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass
from pycompiler.torch_compat.warning_listener import ALWAYS, Listening

log = stage("aot")
log_graphs = artifact("aot_graphs")

GRAPHS = "triton.cudagraphs"
FULLGRAPH = "fullgraph"  # in `meta` of a captured graph: it may not run eagerly
BackendCompiler = Callable[[fx.GraphModule, Sequence[Any]], Any]


def native(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd, then the compiler for each graph."""
    example_inputs = with_symbols(gm, example_inputs)
    if autograd.has_wrappers(gm):
        return of_wrappers(gm, example_inputs, native)
    return shared(gm, example_inputs, compile_aten, True)


def with_symbols(gm: fx.GraphModule, given: Sequence[Any]) -> Sequence[Any]:
    """The graph's fakes with symbolic sizes, in place of the tensors that a user's backend passes on with the graph.

    The tensors themselves if they differ from the captured ones, or if no size is a symbol.
    """
    if any(isinstance(t, FakeTensor) or is_tensor_subclass(type(t)) for t in given):
        return given
    examples = [n.meta.get("example_value") for n in gm.graph.find_nodes(op="placeholder")]
    fakes = [e for e in examples if isinstance(e, torch.Tensor)]
    numbers = [n for t in fakes for n in (*t.shape, *t.stride())]
    if len(examples) != len(given) or not any(symbols_of(n) for n in numbers):
        return given
    if not all(map(_is_like, examples, given)):
        return given
    if all(t._version == 0 for t in fakes):
        return examples
    if not all(is_plain(t) for t in given if isinstance(t, torch.Tensor)):
        return given
    mode = new_fake_mode(symbolic=True)  # the capture wrote to its fakes
    return [
        fake_of(mode, real, ([*e.shape], [*e.stride()])) if isinstance(e, torch.Tensor) else e
        for e, real in zip(examples, given, strict=True)
    ]


def _is_like(example: Any, real: Any) -> bool:
    """Whether a fake of the graph stands for this tensor, or a symbol for this number."""
    if not isinstance(example, torch.Tensor):
        return example is real or type(example) is type(real)
    if not isinstance(real, torch.Tensor) or is_tensor_subclass(type(example)) or example.dim() != real.dim():
        return False
    if (example.dtype, example.device, example.requires_grad) != (real.dtype, real.device, real.requires_grad):
        return False
    return all(hint_of(n) == m for n, m in zip(example.shape, real.shape, strict=True))


def shared(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Any, whole: bool
) -> Callable[..., Sequence[Any]]:
    """`joint` of a graph, unless an equal graph is compiled already.  The `whole` graph of a frame may have equal
    parts.  Under CUDA graphs nothing is shared: a recording belongs to the parameters of one graph."""
    if config.triton.cudagraphs or any(overridden(gm).values()):
        return joint(gm, example_inputs, compiler, 3)

    def build(compiler: Any) -> Callable[..., Sequence[Any]]:
        made = in_parts(gm, example_inputs, compiler) if whole else None
        return joint(gm, example_inputs, compiler, 3) if made is None else made

    return regions.shared(gm, example_inputs, compiler, build, background.inside(), buckets(gm))


def in_parts(gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: Any) -> Callable[..., Sequence[Any]] | None:
    """The callable that runs the graph's parts, if the program marked regions and several are equal; else None."""
    found = region_parts.split(gm, example_inputs)
    if found is None:
        return None
    return region_parts.chained(gm, found, [shared(p.module, p.examples, compiler, False) for p in found])


def buckets(gm: fx.GraphModule) -> tuple[int, ...]:
    """The limits of DDP's buckets; empty if the backward has one stage."""
    return gm.meta.get(BUCKETS, ()) if config.optimize_ddp else ()


def overridden(gm: fx.GraphModule) -> dict[str, bool | None]:
    """What the program says about CUDA graphs of this graph's forward and backward."""
    found: dict[str, bool | None] = gm.meta.get(OVERRIDE) or dict.fromkeys(KINDS)
    return found


def aot_eager(gm: fx.GraphModule, example_inputs: Sequence[Any], **options: Any) -> Callable[..., Sequence[Any]]:
    """Autograd without the compiler: the ATen graphs run as they are."""
    example_inputs = with_symbols(gm, example_inputs)
    if autograd.has_wrappers(gm):
        return of_wrappers(gm, example_inputs, aot_eager)
    return joint(gm, example_inputs, run_uncompiled)


def run_uncompiled(module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Sequence[Any]]:
    drop_source_when_freed(module)
    return _native.BackendCall(forward_of(module))


def of_wrappers(gm: fx.GraphModule, example_inputs: Sequence[Any], compile_plain: Any) -> Callable[..., Sequence[Any]]:
    """A graph of tensor subclasses, by `compile_plain` for graphs of their inner tensors."""

    def compile_inside(inside: fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Sequence[Any]]:
        inside.meta.update(gm.meta)
        made: Callable[..., Sequence[Any]] = compile_plain(inside, examples)
        return made

    try:
        return autograd.compile_wrappers(gm, example_inputs, compile_inside)
    except autograd.AutogradUnsupported as e:
        return left_eager(gm, str(e), e.user)


def left_eager(gm: fx.GraphModule, why: str, user: Sequence[UserFrame] = ()) -> Callable[..., Sequence[Any]]:
    """The captured graph as it is, with a log line that names its function; an error if the graph has to be
    compiled."""
    if gm.meta.get(FULLGRAPH):
        raise Unsupported(
            "graph-runs-eagerly",
            why,
            "remove the cause named in the reason, or remove fullgraph=True",
            user or whole(gm),
        )
    log.warning("a graph of %s runs eagerly: %s", current_name() or "a frame", why)
    for frame in user or whole(gm):
        log.warning("    %s", frame)
    STATISTICS["aten_fallbacks"] += 1
    return forward_of(gm)


def whole(gm: fx.GraphModule) -> tuple[UserFrame, ...]:
    """The program's places of a graph's first and last operator."""
    places = [own_frame(n.meta["user"]) for n in gm.graph.nodes if n.meta.get("user")]
    return tuple(dict.fromkeys(places[:1] + places[-1:]))


def joint(
    gm: fx.GraphModule, example_inputs: Sequence[Any], compiler: BackendCompiler, number_of_step: int | None = None
) -> Callable[..., Sequence[Any]]:
    """`gm` with its gradients, by `compiler` for each of its ATen graphs, which is a step of the log."""
    number = next(phases.numbers)
    log.info("model %d: %d nodes, %d inputs", number, len(gm.graph.nodes), len(example_inputs))
    seen = partial(compile_part, compiler, number, number_of_step)
    partition = "min_cut" if config.partition == "min_cut" else "default"
    of_forward, of_backward = ({} if v is None else {GRAPHS: v} for v in overridden(gm).values())
    knobs = {**own_knobs.now(), **(of_backward or ({GRAPHS: config.triton.cudagraphs} if of_forward else {}))}
    try:
        with compile_names.named_model(), phases.model(number), own_knobs(of_forward):
            return autograd.compile_joint(
                gm,
                example_inputs,
                fw_compiler=partial(seen, "forward"),
                bw_compiler=partial(compile_backward, seen, number, current_name(), knobs, compile_names.current()),
                inference_compiler=partial(seen, "inference"),
                partition=partition,
                activation_memory_budget=config.activation_memory_budget,
                ahead=background.inside(),
                layout=None if compiler is run_uncompiled else layout(),
                buckets=buckets(gm),
            )
    except autograd.AutogradUnsupported as e:
        return left_eager(gm, str(e), e.user)


def layout() -> Callable[[Any], None]:
    """The pass over a joint graph that chooses the strides of intermediate results, as the settings have it."""
    pads = partial(autograd.lay_out, columns=padded_columns)
    return pads if config.layout_optimization else partial(pads, rule=lambda _: False)


def compile_part(
    compiler: BackendCompiler,
    number: int,
    number_of_step: int | None,
    kind: str,
    module: fx.GraphModule,
    inputs: Sequence[Any],
) -> Any:
    """Compile one of the ATen graphs of model `number`."""
    with compile_names.named_graph(kind), phases.graph(kind):
        if log_graphs.enabled:
            log_graphs("%s graph of model %d\n%s", kind, number, readable(module))
        phases.artefact("fx_graph", module)
        if number_of_step:
            step(number_of_step, "torchinductor compiling %sS graph %d", kind.upper(), number)
        if choices.step_enabled("graph", lambda: f"{kind} graph of {current_name() or 'a frame'}"):
            made = phases.wrapped("aot", compiler, kind)(module, inputs)
        else:
            made = forward_of(module)
        if number_of_step:
            step(number_of_step, "torchinductor done compiling %sS graph %d", kind.upper(), number)
        return made


def compile_backward(
    seen: Callable[..., Any],
    number: int,
    forward: str | None,
    knobs: dict[str, Any],
    title: compile_names.CompileName | None,
    module: fx.GraphModule,
    inputs: Sequence[Any],
) -> Any:
    """Compile the backward, at the first backward or ahead of it.  If a builtin is replaced, the graph runs uncompiled
    from then on."""
    follow_torch()
    if name := program_builtins.replaced():
        return _as_it_is(module, forward, name)
    with compile_names.named_compile(title), compiling(f"backward of {forward or 'a graph'}"), phase("backward"), \
            RESTING_COLLECTOR, \
         ALWAYS, Listening(), own_knobs(knobs), phases.model(number):  # fmt: skip
        try:
            made = seen("backward", module, inputs)
        except Exception as error:
            compile_names.add_name(error)
            raise
    return _as_it_is(module, forward, name) if (name := program_builtins.replaced()) else made


def _as_it_is(module: fx.GraphModule, forward: str | None, name: str) -> Any:
    log.warning(
        "the backward of %s is not compiled and runs operator by operator: the program has replaced %s",
        forward or "a graph",
        name,
    )
    STATISTICS["aten_fallbacks"] += 1
    return forward_of(module)


backends.register_backend(native, name="native")
backends.register_backend(aot_eager, name="aot_eager")
