"""`.github/workflows/tools.yml` watches existing files, and all that `.ci/tools` runs; each tool runs in a job."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (ROOT / ".ci" / "tools").read_text()
WORKFLOW = (ROOT / ".github" / "workflows" / "tools.yml").read_text()
WATCHED = re.findall(
    r"^      - (\S+)$", WORKFLOW.partition("    paths:\n")[2].partition("\n  schedule:")[0], re.MULTILINE
)


def is_watched(path: str) -> bool:
    return any(path == entry or f"{path}/".startswith(entry.removesuffix("**")) for entry in WATCHED)


def test_watched_paths_exist() -> None:
    assert len(WATCHED) > 10
    for entry in WATCHED:
        folder = ROOT / entry.removesuffix("/**")
        assert folder.is_file() if folder == ROOT / entry else any(folder.rglob("*.*")), entry


def test_what_the_tools_run_is_watched() -> None:
    named = {path.removesuffix("/") for path in re.findall(r"(?:tests|\.ci|pycompiler|guards-rs)/[\w./-]+", TOOLS)}
    run = {path for path in named if (ROOT / path).exists()} | {
        "Makefile",
        "Cargo.toml",
        "Cargo.lock",
        "pyproject.toml",
    }
    assert {"tests/native", "tests/kernels", "tests/autograd/test_input_mutation.py", ".ci/tsan.supp"} <= run
    assert [path for path in sorted(run) if not is_watched(path)] == []


def test_each_tool_has_a_job() -> None:
    tools = re.findall(r"\w+", TOOLS.partition(".ci/tools ")[2].partition(" [")[0])
    (matrix,) = re.findall(r"tool: \[(.*)\]", WORKFLOW)
    jobs = {*matrix.split(", "), *re.findall(r"^  (\w+):\n    runs-on", WORKFLOW, re.MULTILINE)} - {"engine"}
    assert sorted(tools) == sorted(jobs)


def test_the_fuzzers_of_exact_programs_run_at_night() -> None:
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    for mode in ("", "--twins ", "--rewritten "):
        assert f"-m tests.fuzz.exact {mode}--count" in nightly
