"""One program of the training fuzzer, eager and compiled: gradients, errors, hooks and the final state must agree.

In: the source of a program, a backend. Out: None, or the difference. A program is `program(compiled, see)`:
`compiled` compiles its functions, and `see`, a `Seen`, records its actions. It runs compiled twice, on the same
compiled functions.
"""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import pycompiler
from fuzz import forks

NAME = "<training program>"
TOLERANCE, NEAR, NOISE = 1e-9, 1e-6, 1e-12

# Parts of error messages that compiled code words differently: the node of a view, versions of memory.
WORDS = (
    (re.compile(r"[Oo]utput \d+ of \w+"), "output N of X"),
    (re.compile(r"grad_fn=<\w+>"), "grad_fn"),
    (re.compile(r"(modified by an inplace operation): .*", re.DOTALL), r"\1"),
)
# Errors after which the rest of a program is not compared, by reason: class and whole message. Each such program is
# counted.
FREED = "RuntimeError", r"Trying to backward through the graph a second time \(or directly access saved tensors .*"
WRITTEN = (
    "RuntimeError",
    r"one of the variables needed for gradient computation has been modified by an inplace operation: .*",
)
# Errors of eager where compiled code may continue or raise another error.
EAGER_ALONE = {
    # `detach_` of a result that is a view in eager, and a tensor with a history in compiled code
    "eager alone detaches no view": ("RuntimeError", r"Can't detach views in-place\. Use detach\(\) instead\. .*"),
    # `detach_` of a tensor: eager's node saves the tensor itself, our node an alias of it
    "eager alone kept what is detached": (
        "RuntimeError",
        r"Trying to use a saved tensor that has been detached in-place, i\.e\. with \.detach_\(\)\..*",
    ),
}
# The same only for a derivative of derivatives: it frees eager's nodes on its path; in compiled code it frees the
# replay's.
FREED_ALONE = {"eager alone freed a node": FREED}
# Errors of both in the middle of a backward: some leaves have their gradients by then, depending on the nodes.
HALF_DONE = {"both end in a backward, freed": FREED, "both end in a backward, written": WRITTEN}
# A view in eager alone (of memory that has no other user): a write that autograd does not record starts its history
# and hooks anew; docs/known_differences.md.
BEHIND = "is a view, and written"
# Documented errors of our own: a second derivative that cannot equal eager's, and a rerun after a write, which eager
# reads or refuses.
OURS_ALONE = {
    "a second derivative of ours is refused": ("DoubleBackwardError", r"double backward through the compiled graph .*"),
    "a backward of ours is not run again": (
        "RuntimeError",
        r"in compiled code, state that a checkpointed function, .*",
    ),
}
UNSTEADY = "eager moves as well"
# The largest share of a run's programs that each reason may end.
LIMITS = {
    **dict.fromkeys(EAGER_ALONE, 0.03), "eager alone freed a node": 0.2, **dict.fromkeys(HALF_DONE, 0.15), **dict.fromkeys(OURS_ALONE, 0.05),
    BEHIND: 0.02, UNSTEADY: 0.005,
}  # fmt: skip
# Gradients as results have the strides of formulas, which differ from eager's (an expanded gradient, or a sum of two
# layouts).
GRADIENTS = re.compile(r"autograd\.|\bfunc\.|register_hook")


class Seen(list[tuple[str, Any]]):
    """A list of the actions and observations of a program, in order; `with see:` records an error and continues.
    `noise` moves the leaves."""

    def __init__(self, layouts: bool = True, noise: float = 0.0) -> None:
        self.layouts, self.noise = layouts, noise
        self.given: list[torch.Tensor] = []

    def __enter__(self) -> Seen:
        return self

    def __exit__(self, cls: Any, error: BaseException | None, tb: Any) -> bool:
        if isinstance(error, Exception):
            self.append(("error", (type(error).__name__, str(error))))
            error.__traceback__ = None
        return isinstance(error, Exception)

    def leaf(self, *shape: int) -> torch.Tensor:
        made = torch.randn(shape)
        state = torch.get_rng_state()
        made += self.noise * torch.randn(shape)
        torch.set_rng_state(state)
        return made

    def note(self, what: str, value: Any, layouts: bool = False) -> None:
        self.append((what, shown(value, layouts and self.layouts)))

    def hook(self, t: torch.Tensor) -> None:
        t.register_hook(lambda grad: self.note("hook", grad))  # type: ignore[no-untyped-call]

    def behind(self, t: torch.Tensor) -> torch.Tensor:
        """Return a tensor that the program will write without autograd's knowledge."""
        self.append((BEHIND, t._is_view()))
        return t

    def called(self, results: Sequence[Any], inputs: Sequence[Any]) -> None:
        self.note("results", results, layouts=True)
        self.note("identities", [[one is other for other in (*results, *inputs)] for one in results])

    def grad(self, ends: Any, starts: Any, create_graph: bool = False, batched: bool = False) -> Sequence[Any]:
        """The gradients of tensors with a history; with `create_graph`, the first incoming gradients require gradients, too."""
        ends, starts = with_gradients(ends), with_gradients(starts)
        self.note("asked", (len(ends), len(starts)))
        if not ends or not starts:
            return ()
        given = [torch.stack([like(t), like(t)]) if batched else like(t) for t in ends]
        if create_graph and not batched and not self.given:
            self.given = [g.requires_grad_() for g in given]
        options: dict[str, Any] = {"create_graph": create_graph, "is_grads_batched": batched}
        grads: Sequence[Any] = torch.autograd.grad(ends, starts, given, retain_graph=True, allow_unused=True, **options)
        self.note("gradients", grads)
        return grads

    def backward(self, ends: Any, leaves: Sequence[torch.Tensor], retain_graph: bool = False) -> None:
        if ends := with_gradients(ends):
            torch.autograd.backward(ends, [like(t) for t in ends], retain_graph=retain_graph)
            self.note("backward", [t.grad for t in leaves])

    def penalty(self, ends: Any, leaves: Sequence[torch.Tensor]) -> None:
        """A gradient penalty: the backward goes through norms of gradients."""
        ends, starts = [t.sum() for t in with_gradients(ends)], with_gradients(leaves)
        if ends and starts:
            grads = with_gradients(torch.autograd.grad(ends, starts, create_graph=True, allow_unused=True))
            if grads:
                sum(((g.norm() - 1) ** 2 for g in grads), torch.zeros(())).backward()
            self.note("penalty", [t.grad for t in leaves])

    def end(self, leaves: Sequence[Any], inputs: Sequence[Any], results: Sequence[Any]) -> None:
        self.note("afterwards", (inputs, results), layouts=True)
        self.note("leaves", [t.grad for t in leaves])
        self.note("next random number", torch.rand(()))


def with_gradients(values: Any) -> list[torch.Tensor]:
    return [t for t in values if isinstance(t, torch.Tensor) and t.requires_grad]


def like(t: torch.Tensor) -> torch.Tensor:
    return torch.randn(t.shape, dtype=t.dtype)


def shown(value: Any, layouts: bool) -> Any:
    if isinstance(value, torch.Tensor):
        facts = (str(value.dtype), tuple(value.shape), value.stride() if layouts else None, value.requires_grad)
        return (*facts, value.detach().clone())
    return [shown(v, layouts) for v in value] if isinstance(value, (list, tuple)) else value


def near(a: torch.Tensor, b: torch.Tensor) -> bool:
    if torch.allclose(a, b, TOLERANCE, TOLERANCE, equal_nan=True):
        return True
    size = a[torch.isfinite(a)].abs().max().item() if torch.isfinite(a).any() else 1.0
    return torch.allclose(a, b, NEAR, NEAR * max(1.0, size) / 10, equal_nan=True)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        return near(a, b)
    return type(a) is type(b) and bool(a == b)


def worded(entry: tuple[str, Any]) -> tuple[str, Any]:
    if entry[0] == "error":
        text = entry[1][1]
        for pattern, words in WORDS:
            text = pattern.sub(words, text)
        return entry[0], (entry[1][0], text)
    return entry


def reason_of(entry: tuple[str, Any], reasons: dict[str, tuple[str, str]]) -> str | None:
    """The reason whose error a run has recorded."""
    if entry[0] != "error":
        return None
    name, text = entry[1]
    fits = (why for why, (cls, words) in reasons.items() if cls == name and re.fullmatch(words, text, re.DOTALL))
    return next(fits, None)


def first_difference(wanted: Seen, found: Seen, replayed: bool, ended_by: set[str]) -> tuple[int, str] | None:
    """The first place where two runs differ, and the difference. replayed: the program computes derivatives of
    derivatives.

    A comparison that ends early adds its reason to `ended_by`."""
    of_eager = {**EAGER_ALONE, **FREED_ALONE} if replayed else EAGER_ALONE
    ended: tuple[str, Any] = ("the end", None)
    for place in range(max(len(wanted), len(found))):
        one = wanted[place] if place < len(wanted) else ended
        other = found[place] if place < len(found) else ended
        behind = BEHIND if one == (BEHIND, True) and other == (BEHIND, False) else None
        if (reason := reason_of(one, of_eager) or reason_of(other, OURS_ALONE) or behind) is not None:
            ended_by.add(reason)
            return None
        if not same(worded(one), worded(other)):
            what = one[0] if one[0] == other[0] else f"{one[0]} and {other[0]}"
            return place, f"{what}: eager {one[1]}\n  compiled {other[1]}"
        if (reason := reason_of(one, HALF_DONE)) is not None:
            ended_by.add(reason)
            return None
    return None


@contextlib.contextmanager
def doubles() -> Iterator[None]:
    """Use doubles by default, no warnings, and raise errors of the compiler; at the end restore all settings and the
    random state."""
    before, state, raises = torch.get_default_dtype(), torch.get_rng_state(), pycompiler.config.raise_internal_errors
    pycompiler.config.raise_internal_errors = True
    torch.set_default_dtype(torch.float64)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        pycompiler.config.raise_internal_errors = raises
        torch.set_default_dtype(before)
        torch.set_rng_state(state)


def too_many(ended_by: Counter[str], programs: int) -> list[str]:
    """A line for each reason that has ended more programs than its limit allows."""
    return forks.too_many(ended_by, programs, LIMITS)


def difference(text: str, backend: str = "aot_eager", ended_by: set[str] | None = None) -> str | None:
    """The difference between the compiled program and eager, or None; `ended_by` collects the reasons of an incomplete
    comparison."""
    ended_by = set() if ended_by is None else ended_by
    linecache.cache[NAME] = (len(text), None, text.splitlines(True), NAME)
    namespace: dict[str, Any] = {"__name__": "fuzzed"}
    layouts = GRADIENTS.search(text.partition("def program")[0]) is None
    replayed = "create_graph" in text or "see.penalty" in text
    made: dict[str, Any] = {}

    def compiled(fn: Callable[..., Any]) -> Any:
        if fn.__name__ not in made:
            made[fn.__name__] = pycompiler.compile(fn, backend=backend)
        return made[fn.__name__]

    def run(compiles: Callable[..., Any], noise: float = 0.0) -> Seen:
        namespace["program"](compiles, seen := Seen(layouts, noise))
        return seen

    with doubles():
        try:
            exec(compile(text, NAME, "exec"), namespace)
            wanted = run(lambda fn: fn)
            for call in ("first", "second"):
                found = first_difference(wanted, run(compiled), replayed, ended_by)
                if found is not None:
                    moved = first_difference(wanted, run(lambda fn: fn, NOISE), replayed, set())
                    if moved is None or moved[0] > found[0]:
                        return f"{call} call, {found[1]}"
                    ended_by.add(UNSTEADY)
                    return None
        finally:
            linecache.cache.pop(NAME, None)
    return None


def main(file: str) -> None:
    """The main function of a program that runs as a script."""
    print(difference(Path(file).read_text(), *sys.argv[1:2]) or "the same")
