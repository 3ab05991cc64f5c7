"""Proof that a test which compiles reached compiled code: a plugin of the suite (`conftest.py` loads it).

A comparison with eager also holds if nothing is compiled. So an end-to-end test that calls `pycompiler.compile`
must show one of three events: a frame was captured, a call hit an entry (of a loaded file), or the compiler refused
with an error. A test of another subject is marked, for all its cases or for those with these ids; it fails if a
frame is captured after all:

    @pytest.mark.captures_nothing("the looks of a compiled function, which is not called")
    @pytest.mark.captures_nothing("generator functions run eagerly", "generator", "coroutine")

Options: `--stub-compile` replaces `compile` by a function that returns its argument, here and in processes that
tests start; the suite must fail with it. `--no-proof` requires no proof; it shows which tests fail without it.
`--proof-report FILE` adds a line of JSON for each test to a file: `python -m tests.proof FILE...` makes the table.
"""

from __future__ import annotations

import json
import os
import sys
import weakref
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import pycompiler
from pycompiler import api, pipeline
from pycompiler.artefacts import load
from pycompiler.capture.breaks import EagerOnce
from pycompiler.pipeline import compiler
from pycompiler.pipeline.compiler import FrameCompiler
from pycompiler.pipeline.family import Family

HERE = Path(__file__).resolve().parent
END_TO_END = frozenset(
    "artefacts autograd backends bad_input capture ci debug ir operators pipeline public_api symbolic torch_compat whole_programs".split()
)  # folders beside this file whose tests need a proof
STUB = Path(__file__).resolve().parent / "stub"  # its sitecustomize installs the stub in processes that tests start


@dataclass
class Evidence:
    """The engine's actions during one test."""

    asked: int = 0  # calls of `compile`; each creates a family
    frames: int = 0  # frames captured
    graphs: int = 0  # captured frames whose graph has operators
    refusals: int = 0  # compiles that raised
    hits: int = 0
    before: weakref.WeakKeyDictionary[Family, int] = field(default_factory=weakref.WeakKeyDictionary)
    loaded: list[Any] = field(default_factory=list)  # callables from files, held until their hits are counted

    def begin(self) -> None:
        for family in pipeline.families():
            self.before[family] = hits(family)

    def take(self, family: Family) -> None:
        """Adds the hits of a family whose counters end now."""
        self.hits += max(0, hits(family) - self.before.get(family, 0))
        self.before[family] = 0

    def end(self) -> None:
        for family in pipeline.families():
            self.take(family)
        self.loaded.clear()


def hits(family: Family) -> int:
    return sum(member.counters()["hits"] for member in family.members)


now: Evidence | None = None  # the evidence of the running test


def watch() -> None:
    """From this call on, the engine's actions are recorded in `now`."""
    begun, reset, record, load_ = Family.__post_init__, Family.reset, compiler.record, load.load
    compile_ = FrameCompiler.compile_or_explain

    def post_init(self: Family) -> None:
        begun(self)
        if now is not None:
            now.asked += 1

    def reset_and_count(self: Family) -> None:
        if now is not None:
            now.take(self)
        reset(self)

    def record_and_count(family: Any, code: Any, captured: Any, seconds: float) -> None:
        if now is not None:
            now.frames += 1
            now.graphs += captured.graph is not None and captured.op_count > 0
        record(family, code, captured, seconds)

    def load_and_hold(*args: Any, **settings: Any) -> Any:
        made = load_(*args, **settings)
        if now is not None:
            now.loaded.append(made)
        return made

    def compile_and_count(self: FrameCompiler, *args: Any) -> Any:
        try:
            return compile_(self, *args)
        except EagerOnce:  # the call runs eagerly
            raise
        except BaseException:
            if now is not None:
                now.refusals += 1
            raise

    Family.__post_init__, Family.reset, compiler.record = post_init, reset_and_count, record_and_count  # type: ignore[method-assign]
    FrameCompiler.compile_or_explain = compile_and_count  # type: ignore[method-assign]
    load.load = load_and_hold


def stub_compile(model: Any = None, **settings: Any) -> Any:
    """A `compile` that compiles nothing."""
    if model is None:
        return lambda fn: stub_compile(fn, **settings)
    if now is not None:
        now.asked += 1
    return model


# pytest's hooks -----------------------------------------------------------------------------------------------
def addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("proof of captures")
    group.addoption("--stub-compile", action="store_true", help="compile() returns its argument: the suite must fail")
    group.addoption("--no-proof", action="store_true", help="ask no test for a proof that it captured something")
    group.addoption("--proof-report", metavar="FILE", help="add a line of JSON for each test")


def configure(config: pytest.Config) -> None:
    if config.getoption("--stub-compile"):
        pycompiler.compile = api.compile = stub_compile
        os.environ["PYTHONPATH"] = os.pathsep.join([str(STUB), *filter(None, [os.environ.get("PYTHONPATH")])])
    else:
        watch()


def call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Wraps the call of a test: the test fails if it compiles without evidence."""
    global now
    evidence = now = Evidence()
    evidence.begin()
    try:
        result = yield
    finally:
        now = None
        evidence.end()
        item.stash[EVIDENCE] = evidence
    if not item.config.getoption("--no-proof") and (missing := missing_proof(item, evidence)):
        pytest.fail(missing, pytrace=False)
    return result


EVIDENCE = pytest.StashKey[Evidence]()
COUNTS = ("asked", "frames", "graphs", "refusals", "hits")


def missing_proof(item: pytest.Item, evidence: Evidence) -> str | None:
    """The evidence that a passed test lacks, or None."""
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    if not evidence.asked or folder not in END_TO_END:
        return None
    shown = evidence.frames + evidence.hits + evidence.refusals
    nothing = reason_of(item)
    if nothing is None and not shown:
        return (
            "compile() was called, no frame was captured, no call hit, and no compile raised: the test passes without a "
            "compiler.  Mark it captures_nothing(reason) if the test has another subject"
        )
    if nothing is not None and shown and not item.config.getoption("--stub-compile"):
        return f"marked captures_nothing ({nothing}), and {evidence.frames} frames were captured: the mark is wrong"
    return None


def reason_of(item: pytest.Item) -> str | None:
    """The reason why this case of a test captures nothing."""
    marker = item.get_closest_marker("captures_nothing")
    if marker is None:
        return None
    reason, *cases = marker.args
    case = item.callspec.id if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ""
    return str(reason) if not cases or case in cases else None


def report(item: pytest.Item, outcome: pytest.TestReport) -> None:
    path = item.config.getoption("--proof-report")
    evidence = item.stash.get(EVIDENCE, None)
    if path is None or outcome.when != "call" or evidence is None:
        return
    counts = {name: getattr(evidence, name) for name in COUNTS}
    line = json.dumps({"test": item.nodeid, "outcome": outcome.outcome, "reason": reason_of(item), **counts})
    with open(path, "a") as file:
        file.write(line + "\n")


# the table ----------------------------------------------------------------------------------------------------
def table(reports: Sequence[Path]) -> Iterator[str]:
    """By file: the number of tests that call `compile`, and how many of them pass in each report."""
    passed = [rows(path) for path in reports]
    files = sorted({name.partition("::")[0] for found in passed for name in found})
    yield f"| file | tests | {' | '.join(path.stem for path in reports)} |"
    yield f"| --- | --- | {' | '.join('---' for _ in reports)} |"
    total = [0] * (1 + len(reports))
    for file in files:
        mine = [[ok for name, ok in found.items() if name.partition("::")[0] == file] for found in passed]
        counts = [max(map(len, mine)), *map(sum, mine)]
        total = [a + b for a, b in zip(total, counts, strict=True)]
        yield f"| {file} | {' | '.join(map(str, counts))} |"
    yield f"| **all** | {' | '.join(map(str, total))} |"


def rows(path: Path) -> dict[str, bool]:
    """Rows of a report: whether each test that calls `compile` passed."""
    found = map(json.loads, path.read_text().splitlines())
    return {row["test"]: row["outcome"] == "passed" for row in found if row["asked"]}


if __name__ == "__main__":
    print("\n".join(table([Path(name) for name in sys.argv[1:]])))
