"""The main job: compile, train and serve a model, then show it beside eager and torch.compile.

In: a model's name (default: a byte-level GPT that learns the Python standard library's sources).
Out: progress and falling loss, a few generated lines, and a table: graphs, breaks, first call, dispatch, step, tokens
per second, difference of the loss curves.  Each implementation trains the same model on the same batches.

Example: `python examples/train.py --model bert --steps 100 --impl eager,pycompiler`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from models import NAMES, Case, build
from models.gpt import generate

WARMUP = 5  # steps excluded from the step time: compiles, allocator, caches
PROMPT = b"def "
Wrap = Callable[[torch.nn.Module], Callable[..., Any]]


@dataclass(frozen=True)
class Implementation:
    """One way to run a model. `explain` gives (graphs, breaks); `empty` compiles with a backend that does no work."""

    name: str
    compile: Wrap
    explain: Callable[[torch.nn.Module, Case], tuple[int, int]] | None = None
    empty: Wrap | None = None
    reset: Callable[[], None] = lambda: None


@dataclass
class Result:
    """The measurements of one implementation; in seconds unless stated otherwise."""

    name: str
    graphs: int | None = None
    breaks: int | None = None
    first_call: float = 0.0
    dispatch: float | None = None
    steps: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    serve: float = 0.0
    text: bytes = b""

    @property
    def step(self) -> float:
        return statistics.median(self.steps[WARMUP:] or self.steps)


def no_work(gm: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
    """A backend whose graph returns precomputed outputs at once: dispatch is all that a call costs."""
    outputs = tuple(o.detach() if isinstance(o, torch.Tensor) else o for o in gm(*inputs))
    return lambda *_: outputs


def eager() -> Implementation:
    return Implementation("eager", lambda model: model)


def torch_compile() -> Implementation:
    import torch._dynamo

    def explain(model: torch.nn.Module, case: Case) -> tuple[int, int]:
        report = torch._dynamo.explain(model)(*case.args, **case.kwargs)
        return report.graph_count, report.graph_break_count

    return Implementation(
        "torch.compile",
        torch.compile,
        explain,
        lambda model: torch.compile(model, backend=no_work),
        torch._dynamo.reset,
    )


def ours() -> Implementation:
    import pycompiler

    def explain(model: torch.nn.Module, case: Case) -> tuple[int, int]:
        report = pycompiler.explain(model)(*case.args, **case.kwargs)
        return report.graph_count, report.graph_break_count

    return Implementation(
        "pycompiler",
        pycompiler.compile,
        explain,
        lambda model: pycompiler.compile(model, backend=no_work),
        pycompiler.reset,
    )


IMPLEMENTATIONS: dict[str, Callable[[], Implementation]] = {
    "eager": eager,
    "torch.compile": torch_compile,
    "pycompiler": ours,
}


class Show:
    """Progress output: a bar on a terminal, an occasional line elsewhere."""

    def __init__(self, console: Console, impl: str, steps: int) -> None:
        self.console, self.impl, self.steps = console, impl, steps
        self.progress = Progress(
            TextColumn("{task.description:<14}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.task = self.progress.add_task(impl, total=steps, note="compiling")

    def step(self, done: int, loss: float, seconds: float) -> None:
        note = f"loss {loss:.3f}  {seconds * 1e3:.0f} ms/step"
        self.progress.update(self.task, completed=done, note=note)
        if not self.console.is_terminal and (done in (1, self.steps) or done % max(1, self.steps // 5) == 0):
            self.console.print(f"{self.impl:<14} step {done:>4}/{self.steps}  {note}")


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def train(impl: Implementation, args: argparse.Namespace, console: Console, result: Result) -> torch.nn.Module:
    """Trains a fresh model for `args.steps` steps; fills first call, step times and losses."""
    case = build(args.model, device=args.device)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=args.lr)
    compiled = impl.compile(case.model)
    batches = case.batches(1)
    show = Show(console, impl.name, args.steps)
    with show.progress:
        for number in range(args.steps):
            inputs, kwargs = next(batches)
            synchronise(args.device)
            start = time.perf_counter()
            loss = case.loss(compiled(*inputs, **kwargs))
            loss.backward()
            value = loss.item()
            if number == 0:
                result.first_call = time.perf_counter() - start
            optimizer.step()
            optimizer.zero_grad()
            synchronise(args.device)
            result.steps.append(time.perf_counter() - start)
            result.losses.append(value)
            show.step(number + 1, value, statistics.median(result.steps[-50:]))
    return case.model


def serve(impl: Implementation, model: torch.nn.Module, args: argparse.Namespace, result: Result) -> None:
    """Generates text with the trained GPT, or calls another model on a batch; fills seconds per item and the text."""
    model.eval()
    compiled = impl.compile(model)
    if args.model == "gpt":
        length = model.config.length  # type: ignore[union-attr]
        device = torch.device(args.device)
        generate(compiled, PROMPT, 1, length, device=device)
        start = time.perf_counter()
        result.text = generate(compiled, PROMPT, args.generate, length, device=device)
        result.serve = (time.perf_counter() - start) / args.generate
        return
    case = build(args.model, training=False, device=args.device)
    with torch.no_grad():
        times = []
        for _ in range(20):
            start = time.perf_counter()
            compiled(*case.args, **case.kwargs)
            synchronise(args.device)
            times.append(time.perf_counter() - start)
    result.serve = statistics.median(times[WARMUP:])


def dispatch(impl: Implementation, args: argparse.Namespace) -> float | None:
    """Seconds that a call costs before and after its kernels: the model compiled with a backend that does no work."""
    if impl.empty is None:
        return None
    case = build(args.model, training=False, device=args.device)
    compiled = impl.empty(case.model)
    with torch.no_grad():
        for _ in range(10):
            compiled(*case.args, **case.kwargs)
        rounds = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(100):
                compiled(*case.args, **case.kwargs)
            rounds.append((time.perf_counter() - start) / 100)
    return min(rounds)


def measure(name: str, args: argparse.Namespace, console: Console) -> Result:
    impl = IMPLEMENTATIONS[name]()
    result = Result(name)
    model = train(impl, args, console, result)
    serve(impl, model, args, result)
    impl.reset()
    result.dispatch = dispatch(impl, args)
    impl.reset()
    if impl.explain is not None:
        result.graphs, result.breaks = impl.explain(build(args.model, device=args.device).model, build(args.model))
        impl.reset()
    return result


def table(results: list[Result], args: argparse.Namespace, tokens: int) -> Table:
    """One column an implementation."""
    gpt = args.model == "gpt"
    first = results[0]
    unit = "tokens" if args.model not in ("vit", "resnet18") else "images"

    def curve(r: Result) -> str:
        if r is first:
            return "–"
        return f"{max(abs(a - b) for a, b in zip(r.losses, first.losses, strict=True)):.2g}"

    def count(value: int | None) -> str:
        return "–" if value is None else str(value)

    rows: list[tuple[str, Callable[[Result], str]]] = [
        ("graphs", lambda r: count(r.graphs)),
        ("graph breaks", lambda r: count(r.breaks)),
        ("first call (forward + backward), s", lambda r: f"{r.first_call:.2f}"),
        ("dispatch of a call, µs", lambda r: "–" if r.dispatch is None else f"{r.dispatch * 1e6:.1f}"),
        ("training step, ms", lambda r: f"{r.step * 1e3:.1f}"),
        (f"{unit} a second, training", lambda r: f"{tokens / r.step:,.0f}"),
        ("bytes a second, generating" if gpt else "inference call, ms",
         lambda r: f"{1 / r.serve:,.0f}" if gpt else f"{r.serve * 1e3:.2f}"),
        ("loss, first → last", lambda r: f"{r.losses[0]:.3f} → {r.losses[-1]:.3f}"),
        (f"largest difference of loss from {first.name}", curve),
    ]  # fmt: skip
    threads = f"{torch.get_num_threads()} threads" if args.device == "cpu" else args.device
    out = Table(title=f"{args.model}, {args.steps} steps, {threads}, torch {torch.__version__}")
    out.add_column("")
    for result in results:
        out.add_column(result.name, justify="right")
    for label, cell in rows:
        out.add_row(label, *map(cell, results))
    return out


def parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, default="gpt")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--impl", default="eager,torch.compile,pycompiler", help="in order; the first is the reference")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--generate", type=int, default=240, help="bytes that the trained GPT writes")
    parser.add_argument("--warm-cache", action="store_true", help="keep the caches on disk: first calls are warm")
    args = parser.parse_args(argv)
    args.impl = [name.strip() for name in args.impl.split(",") if name.strip()]
    unknown = set(args.impl) - IMPLEMENTATIONS.keys()
    if unknown or not args.impl or args.steps < 1:
        parser.error(f"--impl takes {', '.join(IMPLEMENTATIONS)}; --steps at least 1")
    return args


def main(argv: list[str]) -> int:
    args = parse(argv)
    console = Console()
    with tempfile.TemporaryDirectory(prefix="pycompiler-demo-") as fresh:
        if not args.warm_cache:  # every first call is cold
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.join(fresh, "inductor")
            os.environ["PYCOMPILER_CACHE_DIR"] = os.path.join(fresh, "pycompiler")
        results = [measure(name, args, console) for name in args.impl]
    if results[-1].text:
        console.rule(f"written by the model that {results[-1].name} trained and serves")
        console.print(results[-1].text.decode("utf-8", "replace"), markup=False, highlight=False)
        console.rule()
    console.print(table(results, args, build(args.model).tokens))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
