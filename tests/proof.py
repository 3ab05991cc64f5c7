"""Proof that a test which compiles reached compiled code: a plugin of the suite (`conftest.py` loads it).

A comparison with eager also holds if nothing is compiled. So an end-to-end test that calls `pycompiler.compile`
must show one of three events: a frame was captured, a call hit an entry (of a loaded file), or the compiler refused
with an error. A function that the shared helper calls (`harness.compare.assert_same_calls`) must be captured, and one
of its calls must hit an entry; the helper's argument `hits` says why none does. A test of another subject is marked,
for all its cases or for those with these ids; it fails if a frame is captured after all:

    @pytest.mark.captures_nothing("the looks of a compiled function, which is not called")
    @pytest.mark.captures_nothing("generator functions run eagerly", "generator", "coroutine")

Options: `--stub-compile` replaces `compile` by a function that returns its argument, here and in processes that
tests start; the suite must fail with it. `--proof-report FILE` adds a line of JSON for each test to a file:
`python -m tests.proof FILE...` makes a table of these files.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import weakref
from collections.abc import Callable, Generator, Iterator, Sequence
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
class Compared:
    """The calls of one function through the shared helper."""

    fn: Callable[..., Any]
    why: str | None  # the reason why no call hits, or why nothing is captured
    frames: int = 0
    hits: int = 0

    def missing(self) -> str | None:
        if self.why is not None:
            return f"a call of {self.fn} hit an entry, in spite of `hits={self.why!r}`" if self.hits else None
        if not self.frames and not self.hits:
            return f"no frame of {self.fn} was captured: pass `hits=reason` if none can be"
        return None if self.hits else f"no call of {self.fn} hit an entry: pass `hits=reason` if none can"


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
    compared: dict[int, Compared] = field(default_factory=dict)  # by the id of the function, which is held
    missing: str | None = None  # why the proof failed the test

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


@contextlib.contextmanager
def comparing(fn: Callable[..., Any], why: str | None) -> Iterator[None]:
    """The body calls `fn`. When the test ends, `fn` must have been captured, and a call must have hit, or `why` says why not."""
    evidence = now
    if evidence is None:  # no test runs
        yield
        return
    frames, taken = evidence.frames, evidence.hits
    before = weakref.WeakKeyDictionary({family: hits(family) for family in pipeline.families()})
    yield
    seen = evidence.compared.setdefault(id(fn), Compared(fn, why))
    seen.frames += evidence.frames - frames
    seen.hits += evidence.hits - taken  # of families that were reset
    seen.hits += sum(max(0, hits(family) - before.get(family, 0)) for family in pipeline.families())


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
    evidence.missing = missing_proof(item, evidence)
    evidence.compared.clear()  # the stash lives as long as the session
    if evidence.missing is not None:
        pytest.fail(evidence.missing, pytrace=False)
    return result


EVIDENCE = pytest.StashKey[Evidence]()
COUNTS = ("asked", "frames", "graphs", "refusals", "hits")


def missing_proof(item: pytest.Item, evidence: Evidence) -> str | None:
    """The evidence that a passed test lacks, or None."""
    nothing = reason_of(item)
    for compared in evidence.compared.values() if nothing is None else ():
        if missing := compared.missing():
            return missing
    folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
    if not evidence.asked or folder not in END_TO_END:
        return None
    shown = evidence.frames + evidence.hits + evidence.refusals
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
    row = {"test": item.nodeid, "outcome": outcome.outcome, "proof alone": evidence.missing is not None}
    with open(path, "a") as file:
        file.write(json.dumps(row | {"reason": reason_of(item), **counts}) + "\n")


# the table ----------------------------------------------------------------------------------------------------
def table(reports: Sequence[Path]) -> Iterator[str]:
    """By folder: the tests that call `compile`, those that fail, and those that fail by their own assertions; then the
    tests that pass and give no reason."""
    found = (row for path in reports for row in map(json.loads, path.read_text().splitlines()))
    rows = list({row["test"]: row for row in found if row["asked"]}.values())
    folders = sorted({folder_of(row) for row in rows})
    yield "| folder | tests | fail | fail without the proof | share |"
    yield "| --- | --- | --- | --- | --- |"
    for name, mine in [(f, [r for r in rows if folder_of(r) == f]) for f in folders] + [("**all**", rows)]:
        failed = [row for row in mine if row["outcome"] == "failed"]
        alone = sum(row["proof alone"] for row in failed)
        yield f"| {name} | {len(mine)} | {len(failed)} | {len(failed) - alone} | {len(failed) / len(mine):.1%} |"
    yield from (row["test"] for row in rows if row["outcome"] == "passed" and row["reason"] is None)


def folder_of(row: dict[str, Any]) -> str:
    return str(row["test"]).split("/")[1]


if __name__ == "__main__":
    print("\n".join(table([Path(name) for name in sys.argv[1:]])))
