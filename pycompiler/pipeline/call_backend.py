"""A captured graph → what the family's backend makes of it, as something the engine calls."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx

from pycompiler import _native, config
from pycompiler.capture.frame import Captured, Example
from pycompiler.errors import BackendError, BadBackendResult, PyCompilerError
from pycompiler.graphs import STATISTICS
from pycompiler.ir import choices
from pycompiler.ir.fake import as_plain, fake_as, fake_of, new_fake_mode, with_history
from pycompiler.ir.graph_copies import copied
from pycompiler.ir.graph_text import sizes, tabular
from pycompiler.ir.guards import own_place
from pycompiler.ir.heard import ALWAYS, Listening, Quiet
from pycompiler.ir.late import Check
from pycompiler.ir.source import Scope, Source, read
from pycompiler.ir.subclasses import is_wrapper
from pycompiler.ir.symbolic_node import asked_in_vain
from pycompiler.ir.symbols import Specialise
from pycompiler.ir.texts import drop_text, drop_text_with, forward_of, readable
from pycompiler.ir.watch import phase, wrapped
from pycompiler.logs import artifact, stage, step
from pycompiler.pipeline import floats
from pycompiler.pipeline.guards import UsersError
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.own_backends import FULLGRAPH, left_eager
from pycompiler.pipeline.surroundings import own_knobs, users_backend
from pycompiler.pipeline.verified import Verified, examples_of
from pycompiler.progress import current_name

log_info = stage("dynamo").info
log_code = artifact("graph_code")
log_graph = artifact("graph")
log_sizes = artifact("graph_sizes")


def compile_graph(family: Family, gm: fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., Any]:
    """What the backend makes of the graph, as something the engine calls.

    A backend may change the graph that it is given: `gm` stays as captured where it is compared, or the backend is a user's."""
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
            answered(),
        ):
            if family.ours:
                quiet.enter_context(ALWAYS)
                quiet.enter_context(Listening())
            if is_left(family) and choices.taken("captured graph", lambda: described(gm)):
                backend = wrapped("dynamo", family.backend, family.backend_name)
                given = () if family.ours else floats.places(examples)
                if given:
                    made = with_floats(family, backend, gm, examples, given)
                else:
                    own = gm if family.ours and not verifies else copied(gm)
                    made = backend(own, examples, **family.backend_options)
            else:
                made = forward_of(gm)
    except Specialise as needed:
        if not any(c.symbols.is_late(needed.names) for n in gm.graph.nodes if isinstance(c := n.target, Check)):
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
            drop_text(type(gm))  # it was only traced
        else:
            drop_text_with(gm)
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
    if texts := frozenset(text for g in graphs for n in g.nodes for text in n.meta.get("warns", ())):
        made = made if isinstance(made, _native.Plan) else Quiet(made, texts)
    if not family.ours:
        return _native.BackendCall(made, family.backend_name, len(gm.graph.output_node().args[0]))  # type: ignore[arg-type]
    return made if isinstance(made, _native.Plan) else _native.BackendCall(made)


def with_floats(
    family: Family, backend: Callable[..., Any], gm: fx.GraphModule, examples: list[Any], given: tuple[int, ...]
) -> Callable[..., Any]:
    """What a backend that is not ours makes of a graph whose inputs at `given` are floats."""
    reading = floats.read_first(gm, given)
    try:
        made = backend(reading, floats.examples_for(examples), **family.backend_options)
    except Exception as e:  # of constants it is called again, and what it raises is the program's
        raise Specialise(floats.names(examples), f"the backend does not take it: {type(e).__name__}: {e}") from None
    finally:
        drop_text_with(reading)
    return floats.TakesTensors(made, given) if callable(made) else made


@contextlib.contextmanager
def answered() -> Iterator[None]:
    """Machinery of others that takes a number of ours for one of torch's gets a number."""
    try:
        yield
    except Exception as e:
        if (names := asked_in_vain(e)) is None:
            raise
        raise Specialise(sorted(names), f"the backend asks more of it: {e}") from None


def is_left(family: Family) -> bool:
    """Whether a bisector leaves the family's backend in its place."""
    if family.ours:
        return True  # `backends.lookup` has asked
    name = family.backend_name
    return "backend" not in choices.settings and choices.taken("backend", lambda: f"backend {name!r}", key=name)


def described(gm: fx.GraphModule) -> str:
    """A graph by what made it, and by the lines of its first and last operator."""
    places = [own_place(n.meta["user"]) for n in gm.graph.nodes if n.meta.get("user")]
    return f"captured graph of {current_name() or 'a frame'}: {' to '.join(dict.fromkeys(places[:1] + places[-1:]))}"


def verified(family: Family, gm: fx.GraphModule, made: Callable[..., Any]) -> Callable[..., Any]:
    """`made`, beside eager for some of its calls."""

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
    """Fakes for our own backends; for others the caller's tensors, read from `scope`; symbolic numbers for both."""
    examples = captured.examples
    fakes = [e.fake for e in examples]
    if ours and not any(isinstance(fake, torch.Tensor) and fake._version != 0 for fake in fakes):
        return fakes  # unless one was changed in place
    mode = new_fake_mode(symbolic=captured.sizes is not None and captured.sizes.symbols is not None) if ours else None

    def given(source: Source, example: Example) -> Any:
        if not isinstance(example.fake, torch.Tensor):
            return example.fake
        real = read(source, scope) if example.make is None else example.make(scope)
        if mode is not None and is_wrapper(type(example.fake)):
            return with_history(mode, fake_as(mode, example.fake), real)
        real = as_plain(real) if example.aliased else real
        made = real if mode is None else fake_of(mode, real, example.layout)
        # Generated code makes it a leaf; one that was written with what requires grad is none any more.
        starts = example.fake.requires_grad and not made.requires_grad and example.fake.is_leaf
        return made.detach().requires_grad_() if starts else made

    return [given(source, example) for source, example in zip(captured.recipe.inputs, examples, strict=True)]
