"""The call of the family's backend: a captured graph → a callable for the engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import _native, config
from pycompiler.capture.interpreter.frame import Captured, Example
from pycompiler.errors import BackendError, BadBackendResult, PyCompilerError
from pycompiler.graphs import STATISTICS
from pycompiler.ir import choices
from pycompiler.ir.generated_source import drop_source, drop_source_when_freed, forward_of, readable
from pycompiler.ir.graph_copies import copied
from pycompiler.ir.graph_text import sizes, tabular
from pycompiler.ir.guards import own_place
from pycompiler.ir.node_effects import effects_of
from pycompiler.ir.phases import phase, wrapped
from pycompiler.ir.source import Scope, Source, read
from pycompiler.logs import artifact, stage, step
from pycompiler.pipeline import float_inputs
from pycompiler.pipeline.compile_environment import own_knobs, users_backend
from pycompiler.pipeline.guards import UsersError
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.own_backends import FULLGRAPH, left_eager
from pycompiler.pipeline.verification import Verified, examples_of
from pycompiler.progress import current_name
from pycompiler.symbolic.symbolic_node import symbols_of_missing_attribute
from pycompiler.symbolic.symbols import Specialise
from pycompiler.symbolic.unbacked_symbols import UnbackedCheck
from pycompiler.torch_compat.fake_mode import as_plain, fake_as, fake_of, new_fake_mode, with_history
from pycompiler.torch_compat.tensor_subclasses import is_tensor_subclass
from pycompiler.torch_compat.warning_listener import ALWAYS, Listening, SilencedGraph

log_info = stage("dynamo").info
log_code = artifact("graph_code")
log_graph = artifact("graph")
log_sizes = artifact("graph_sizes")


def compile_graph(family: Family, gm: fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
    """The callable that the backend makes of the graph, wrapped for the engine.

    A backend may change its graph.  So it gets a copy of `gm` if `gm` is compared later, or if the backend is a
    user's.
    """
    STATISTICS["graphs"] += 1
    verifies = bool(family.verify or config.verify_correctness)
    gm.meta[FULLGRAPH] = family.fullgraph
    for log, text in ((log_code, readable), (log_graph, tabular), (log_sizes, sizes)):
        if log.enabled:
            log("%s", text(gm))
    step(2, "calling compiler function %s", family.backend_name)
    try:
        with (
            phase("backend"),
            own_knobs(family.knobs),
            contextlib.nullcontext() if family.ours else users_backend(),
            contextlib.ExitStack() as quiet,
            as_specialise(),
        ):
            if family.ours:
                quiet.enter_context(ALWAYS)
                quiet.enter_context(Listening())
            if keeps_backend(family) and choices.step_enabled("captured graph", lambda: described(gm)):
                backend = wrapped("dynamo", family.backend, family.backend_name)
                given = () if family.ours else float_inputs.places(examples)
                if given:
                    made = with_floats(family, backend, gm, examples, given)
                else:
                    own = gm if family.ours and not verifies else copied(gm)
                    made = backend(own, examples, **family.backend_options)
            else:
                made = forward_of(gm)
    except Specialise as needed:
        if not any(c.symbols.is_late(needed.names) for n in gm.graph.nodes if isinstance(c := n.target, UnbackedCheck)):
            raise
        if family.fullgraph:
            left_eager(gm, str(needed))
        log_info("a graph runs eagerly: %s", needed)
        made = forward_of(gm)
    except Exception as e:
        if not family.ours:
            note = f"raised by backend {family.backend_name!r}, which was called to compile a graph"
            if note not in getattr(e, "__notes__", ()):
                e.add_note(note)
            raise UsersError(e) from None
        if isinstance(e, PyCompilerError):
            raise
        raise BackendError(f"backend {family.backend_name!r} raised {type(e).__name__}: {e}") from e
    finally:
        if family.ours:
            drop_source(type(gm))  # it was only traced
        else:
            drop_source_when_freed(gm)
    made = forward_of(gm) if made is None and family.ours else made
    step(2, "done compiler function %s", family.backend_name)
    if not callable(made):
        raise BadBackendResult(
            f"backend {family.backend_name!r} returned {made!r}; expected a callable that takes the graph's inputs "
            f"and returns its outputs (gm.forward is one)"
        )
    if verifies:
        made = verified(family, gm, made)
    graphs = [m.graph for m in gm.modules() if isinstance(m, fx.GraphModule)]
    if texts := frozenset(text for g in graphs for n in g.nodes for text in effects_of(n).warns):
        made = made if isinstance(made, _native.Plan) else SilencedGraph(made, texts)
    if not family.ours:
        return _native.BackendCall(made, family.backend_name, len(gm.graph.output_node().args[0]))  # type: ignore[arg-type]
    return made if isinstance(made, _native.Plan) else _native.BackendCall(made)


def with_floats(
    family: Family, backend: Callable[..., Any], gm: fx.GraphModule, examples: list[Any], given: tuple[int, ...]
) -> Callable[..., Any]:
    """The callable that a user's backend makes of a graph whose inputs at `given` are floats."""
    reading = float_inputs.read_first(gm, given)
    try:
        made = backend(reading, float_inputs.examples_for(examples), **family.backend_options)
    except Exception as e:  # the backend is called again with constants; its error then reaches the program
        raise Specialise(
            float_inputs.names(examples), f"the backend fails for a float input: {type(e).__name__}: {e}"
        ) from None
    finally:
        drop_source_when_freed(reading)
    return float_inputs.TakesTensors(made, given) if callable(made) else made


@contextlib.contextmanager
def as_specialise() -> Iterator[None]:
    """Turn an error of foreign code that takes a symbolic number of this package for torch's into `Specialise`."""
    try:
        yield
    except Exception as e:
        if (names := symbols_of_missing_attribute(e)) is None:
            raise
        raise Specialise(
            sorted(names), f"the backend uses an attribute that pycompiler's symbolic numbers lack: {e}"
        ) from None


def keeps_backend(family: Family) -> bool:
    """Whether a bisector leaves the family's backend in place."""
    if family.ours:
        return True  # `backends.lookup` has checked
    name = family.backend_name
    return "backend" not in choices.settings and choices.step_enabled("backend", lambda: f"backend {name!r}", key=name)


def described(gm: fx.GraphModule) -> str:
    """A description of a graph: its function, and the lines of its first and last operator."""
    places = [own_place(n.meta["user"]) for n in gm.graph.nodes if n.meta.get("user")]
    return f"captured graph of {current_name() or 'a frame'}: {' to '.join(dict.fromkeys(places[:1] + places[-1:]))}"


def verified(family: Family, gm: fx.GraphModule, made: Callable[..., Any]) -> Callable[..., Any]:
    """`made`, compared with eager for some of its calls."""

    def rebuild(part: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        with own_knobs(family.knobs):
            made: Callable[..., Any] = family.backend(
                copied(part), examples_of(inputs, family.ours), **family.backend_options
            )
            return made

    share = 1.0 if choices.settings.get("verify") == "each" else family.verify
    raises = config.verify_correctness
    backend = "" if family.ours else family.backend_name
    return Verified(gm, made, rebuild, current_name() or "a graph", share=share, raises=raises, backend=backend)


def example_inputs(captured: Captured, ours: bool, scope: Scope) -> list[Any]:
    """Fakes for this package's backends; the caller's tensors, read from `scope`, for users' backends; symbolic numbers
    for both."""
    examples = captured.examples
    fakes = [e.fake for e in examples]
    if ours and not any(isinstance(fake, torch.Tensor) and fake._version != 0 for fake in fakes):
        return fakes  # valid unless a fake was changed in place
    mode = new_fake_mode(symbolic=captured.sizes is not None and captured.sizes.symbols is not None) if ours else None

    def given(source: Source, example: Example) -> Any:
        if not isinstance(example.fake, torch.Tensor):
            return example.fake
        real = read(source, scope) if example.make is None else example.make(scope)
        if mode is not None and is_tensor_subclass(type(example.fake)):
            return with_history(mode, fake_as(mode, example.fake), real)
        real = as_plain(real) if example.aliased else real
        made = real if mode is None else fake_of(mode, real, example.layout)
        # Generated code makes it a leaf, but a write of a tensor that requires grad has removed that.
        starts = example.fake.requires_grad and not made.requires_grad and example.fake.is_leaf
        return made.detach().requires_grad_() if starts else made

    return [given(source, example) for source, example in zip(captured.recipe.inputs, examples, strict=True)]
