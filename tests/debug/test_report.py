"""The report: events, the document, its page and its text form, the commands."""

from __future__ import annotations

import json
import linecache
import os
import re
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.__main__ import main
from pycompiler.debug import trace
from pycompiler.debug.page_data import embedded
from pycompiler.debug.program import UserProgram
from pycompiler.ir import phases
from tests import children
from tests.debug.structure import checked

SCRIPT = """
import sys
import torch
import pycompiler

@pycompiler.compile
def f(x, n):
    y = (x @ x).softmax(-1)
    print("woo", *sys.argv[1:])
    if y.sum() < n:
        y = -y
    return torch.fft.fft(y).real + y.mean(0)

for n in (3, 4):
    f(torch.ones(4, 4, requires_grad=True), n).sum().backward()
sys.exit(7)
"""


def run(*arguments: str, cwd: Path, input: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **environ}
    command = [children.python(), "-m", "pycompiler", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=environ, input=input, timeout=400)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def report(folder: Path) -> tuple[str, dict[str, Any], subprocess.CompletedProcess[str]]:
    """One process for all tests; it writes traces, too."""
    (folder / "script.py").write_text(SCRIPT)
    options = ("-o", "page.html", "--json", "data.json", "script.py", "an argument")
    done = run("report", *options, cwd=folder, TORCH_TRACE="traces")
    assert (folder / "page.html").exists(), done.stderr
    return (folder / "page.html").read_text(), json.loads((folder / "data.json").read_text()), done


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """For commands in this process: their changes to it are undone."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_program_runs_as_by_itself(report: Any) -> None:
    _, _, done = report
    assert done.returncode == 7
    assert done.stdout == "woo an argument\n" * 2


def test_the_document_has_everything(report: Any) -> None:
    _, data, _ = report
    frame = data["frames"][0]
    assert frame["function"] == "f"
    assert frame["break"]["kind"] == "builtin-call"
    assert [text.strip() for _, text in frame["source"]][3] == 'print("woo", *sys.argv[1:])'
    assert any(g["text"].startswith("L['x'] is Tensor[4, 4]") for g in frame["guards"])
    assert frame["entry"]["call"] > 0
    assert sum(frame["entry"]["each"].values()) > 0
    kinds = {g["kind"] for g in data["graphs"]}
    assert kinds >= {"forward", "backward"}
    graph = next(g for g in data["graphs"] if g["kind"] == "forward")
    assert graph["model"] in frame["models"]
    assert {s["kind"] for g in data["graphs"] for s in g["steps"]} == {"kernel", "aten"}  # the transform calls ATen
    assert graph["calls"]["calls"] == 2
    assert len(graph["calls"]["least"]) == len(graph["steps"]) == len(graph["memory"]["after"])
    assert all(ns > 0 for ns in graph["calls"]["least"])
    assert graph["memory"]["peak"] >= 4 * 4 * 4
    assert "pyc_prelude.h" in graph["code"]
    assert {"lowering", "scheduling", "codegen", "build"} <= set(graph["phases"])
    assert any(n["place"].endswith(":8 in f") for n in graph["nodes"]), graph["nodes"]


def test_advice_names_breaks_recompiles_and_what_is_left_to_aten(report: Any) -> None:
    _, data, done = report
    what = [row["what"] for row in data["advice"]]
    assert all(any(f"graph break [{kind}]" in w for w in what[:3]) for kind in ("builtin-call", "data-dependent-jump"))
    again = next(row for row in data["advice"] if "compiled again" in row["what"] or "recompile follows" in row["what"])
    assert "seen 4" in str(again)
    assert again["do"]
    assert any("view_as_real.default has no lowering" in w for w in what)
    assert "What to do next:" in done.stderr
    assert what[0] in done.stderr


def test_the_page_stands_alone(report: Any) -> None:
    page, data, _ = report
    found = checked(page)
    assert embedded(page) == data
    assert {"next", "program", "recompiles", "frames", "kernels", "time", "memory", "main"} <= set(found.ids)
    assert "prefers-color-scheme: dark" in page
    assert found.tags[found.tags.index("body") + 1] == "a"  # the skip link, first for the keyboard
    assert found.tags.count("th") > 0 and 'scope="col"' in page and "<caption>" in page
    assert "graph break" in " ".join(found.texts)


def test_without_costs(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import torch, pycompiler\npycompiler.compile(lambda x: x.sin() + 1)(torch.ones(2))\n1 / 0\n"
    )
    done = run("report", "--no-costs", "--json", "data.json", "script.py", cwd=tmp_path)
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    data = json.loads((tmp_path / "data.json").read_text())
    assert len(data["frames"]) == 1 and data["frames"][0]["entry"] is None
    assert data["frames"][0]["operators"] == 2  # a method, too
    assert data["starts"][0]["program"] == "script.py"
    checked((tmp_path / "pycompiler_report.html").read_text())


def test_what_is_run_is_found_as_python_would(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The program is found as Python finds it: a module of a package, its folder, standard input; a missing one is
    reported first."""
    body = "import sys, torch, pycompiler\npycompiler.compile(f, backend='eager')(torch.ones(2))\nsys.exit(len(sys.argv))\n"
    (here / "a_package").mkdir()
    (here / "a_package" / "parts.py").write_text("def f(x):\n    return x + 1\n")
    (here / "a_package" / "__main__.py").write_text("from a_package.parts import f\n" + body)
    (here / "a_package" / "other.py").write_text("from .parts import f\n" + body)
    given = "def f(x):\n    print('no')\n    return x + 1\n" + body
    command = ["report", "--no-costs", "--json", "data.json"]
    for arguments in (["-m", "a_package.other", "-o"], ["a_package", "-o"], ["-m", "a_package", "1"], ["-", "1"]):
        done = run(*command, *arguments, cwd=here, input=given)
        assert done.returncode == 2 and "1 operator" in done.stderr, done.stderr
    assert json.loads((here / "data.json").read_text())["frames"][0]["break"]["stack"][-1] == {
        "file": "<stdin>", "line": 2, "function": "f", "text": "print('no')"
    }  # fmt: skip
    (here / "data.json").unlink()
    for arguments, reason in (
        (["nope.py"], "no file nope.py"), (["-m", "nope"], "no module nope"), (["-m", "nope.nope"], "no module nope.nope"),
        (["."], "a folder without a __main__.py"), ([], "which program?"), (["-o", "no/page.html", "x.py"], "no file x.py"),
        (["-o", "no/page.html", "a_package"], "no/page.html cannot be written: No such file or directory"),
    ):  # fmt: skip
        assert main([*command, *arguments]) == 2
        assert reason in capsys.readouterr().err
    assert main(["trace", "nowhere"]) == 1 and "no such folder" in capsys.readouterr().err


def test_a_program_that_changes_its_folder_keeps_its_lines(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file has an absolute path, as in Python; its arguments are unchanged."""
    (here / "other").mkdir()
    (here / "moves.py").write_text("import os\nos.chdir('other')\ndef f():\n    raise ValueError('here')\nf()\n")
    (here / "names.py").write_text("import sys\nsys.exit(f'{__name__} {__file__} {sys.argv} {sys.path[0]}')")
    monkeypatch.chdir(here)
    with pytest.raises(SystemExit, match=re.escape(f"__main__ {here}/names.py ['names.py', '-x'] {here}")):
        UserProgram("names.py", ["-x"]).run()
    with pytest.raises(ValueError, match="here") as found:
        UserProgram("moves.py").run()
    linecache.clearcache()
    assert "    raise ValueError('here')\n" in "".join(traceback.format_exception(found.value))


def test_a_program_that_leaves_is_reported_with_its_children(here: Path) -> None:
    """Compiles of a fork are part of the page, also if the fork leaves by os._exit in the middle."""
    (here / "script.py").write_text(
        "import os, torch, pycompiler\n"
        "f = pycompiler.compile(lambda x: x + 1, backend='eager')\n"
        "if (child := os.fork()) == 0:\n"
        "    f(torch.ones(2))\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n"
        "f(torch.ones(2)), f(torch.ones(3))\n"
        "raise KeyboardInterrupt\n"
    )
    done = run(
        "report", "--no-costs", "--json", "data.json", "script.py", cwd=here
    )  # the tests' own threads do not fork
    assert done.returncode == 130
    assert done.stderr.startswith(
        f'Traceback (most recent call last):\n  File "{here}/script.py", line 8, in <module>'
    ), done.stderr
    frames = json.loads((here / "data.json").read_text())["frames"]
    assert [f["run"] for f in frames] == [1, 1, 2]
    (here / "script.py").write_text("pass\n")
    done = run("report", "script.py", cwd=here)
    assert done.returncode == 0 and "nothing was compiled" in done.stderr


CRASHES = """
import os, sys, signal, torch, pycompiler

@pycompiler.compile
def f(x):
    return x.sin() + 1

for n in range(5):
    f(torch.ones(3))
print("before")
os.kill(os.getpid(), getattr(signal, sys.argv[1]))
"""


@pytest.mark.parametrize(("signal", "number"), [("SIGSEGV", 11), ("SIGKILL", 9)])
def test_a_program_that_a_signal_ends(signal: str, number: int, tmp_path: Path) -> None:
    """The page has all events up to the signal; a line and the exit status report the signal."""
    (tmp_path / "crash.py").write_text(CRASHES)
    done = run("report", "--json", "data.json", "crash.py", signal, cwd=tmp_path)
    assert done.returncode == 128 + number
    assert done.stderr.startswith(f"report: the program was ended by signal {number} ({signal}: "), done.stderr
    assert f"1. the program was ended by signal {signal}" in done.stderr
    data = json.loads((tmp_path / "data.json").read_text())
    assert data["end"]["signal"] == signal and data["starts"][0]["program"] == f"crash.py {signal}"
    (frame,), (graph,) = data["frames"], data["graphs"]
    assert frame["function"] == "f" and frame["entry"]["call"] > 0
    assert graph["calls"]["calls"] == 4  # the last power of two
    checked((tmp_path / "pycompiler_report.html").read_text())


def test_a_crash_that_no_python_sees(tmp_path: Path) -> None:
    """A crash inside an ATen kernel, in a thread of the program."""
    (tmp_path / "crash.py").write_text(
        "import ctypes, threading, torch, pycompiler\n"
        "pycompiler.compile(lambda x: x.cos())(torch.ones(3))\n"
        "t = threading.Thread(target=lambda: ctypes.string_at(0)); t.start(); t.join()\n"
    )
    done = run("report", "--no-costs", "crash.py", cwd=tmp_path)
    assert done.returncode == 139 and "signal 11 (SIGSEGV" in done.stderr
    assert "cos" in (tmp_path / "pycompiler_report.html").read_text()


def test_what_a_program_does_at_its_end_is_done(tmp_path: Path) -> None:
    """Threads are joined, exit handlers run, and signals reach the program."""
    (tmp_path / "ends.py").write_text(
        "import atexit, os, signal, sys, threading, time, torch, pycompiler\n"
        "atexit.register(print, 'handler')\n"
        "def later():\n"
        "    time.sleep(0.2)\n"
        "    pycompiler.compile(lambda x: x.tan())(torch.ones(3))\n"
        "    print('thread')\n"
        "threading.Thread(target=later).start()\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('told'))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "sys.exit(-1)\n"
    )
    done = run("report", "--no-costs", "ends.py", cwd=tmp_path)
    assert done.returncode == 255
    assert sorted(done.stdout.split()) == ["handler", "thread", "told"] and done.stdout.endswith("handler\n")
    assert "tan" in (tmp_path / "pycompiler_report.html").read_text()


def test_the_page_while_the_program_runs(tmp_path: Path) -> None:
    """The program waits for the page that tells that it still runs."""
    (tmp_path / "waits.py").write_text(
        "import os, time, torch, pycompiler\n"
        "pycompiler.compile(lambda x: x.tan(), backend='eager')(torch.ones(3))\n"
        "end = time.monotonic() + 60\n"
        "def text():\n"
        "    return open('page.html').read() if os.path.exists('page.html') else ''\n"
        "while 'the program still runs' not in text() and time.monotonic() < end:\n"
        "    time.sleep(0.02)\n"
        "open('seen.html', 'w').write(text())\n"
    )
    done = run("report", "--no-costs", "--every", "0.1", "-o", "page.html", "waits.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    seen, last = (tmp_path / "seen.html").read_text(), (tmp_path / "page.html").read_text()
    checked(seen)
    assert embedded(seen)["running"] is True and "the program still runs" not in last
    assert {path.name for path in tmp_path.iterdir()} == {"waits.py", "page.html", "seen.html"}


# explain -------------------------------------------------------------------------------------------------------
def toy(a: Any, b: Any) -> Any:
    x = a / (torch.abs(a) + 1)
    print("woo")
    if b.sum() < 0:
        b = b * -1
    return x * b


def test_explain_has_a_page(tmp_path: Path) -> None:
    before = list(phases.observers)
    explained = pycompiler.explain(toy, backend="native")(torch.ones(10), torch.ones(10))
    assert phases.observers == before
    page = explained.html(tmp_path / "page.html")
    assert (tmp_path / "page.html").read_text() == page
    checked(page)
    assert explained.document.data["frames"][0]["break"]["kind"] == "builtin-call"
    assert [len(f["guards"]) for f in explained.document.frames] == list(map(len, explained.out_guards))
    assert all(frame["entry"] for frame in explained.document.frames)


def test_explain_names_causes_and_is_a_page_in_notebooks() -> None:
    explained = pycompiler.explain(toy)(torch.ones(10), torch.ones(10))
    text = str(explained)
    line = toy.__code__.co_firstlineno
    assert text.index("Causes:") < text.index("Break Reasons:")
    assert f"  1. line {line + 2}: graph break [builtin-call]" in text and "     -> Remove `print(" in text
    framed = explained._repr_html_()
    assert framed.startswith('<iframe title="Compile report" sandbox="allow-scripts"')
    assert "<script" not in framed and "&lt;script" in framed


def test_explain_taken_apart_as_torch_once_returned_it() -> None:
    explanation, out_guards, graphs, ops = pycompiler.explain(toy, torch.ones(10), torch.ones(10))
    assert explanation.startswith(
        "pycompiler produced 3 graphs, with 2 graph breaks and 5 ops.\n Break reasons:\n\n1. "
    )
    assert (len(graphs), len(ops), len(out_guards)) == (3, 3, 3)
    *_, reasons, verbose = pycompiler.explain(toy, torch.ones(10), torch.ones(10))
    assert [r.kind for r in reasons] == ["builtin-call", "data-dependent-jump"]
    assert f'File "{__file__}", line {toy.__code__.co_firstlineno + 2}, in toy\n    print("woo")' in verbose
    assert len(list(pycompiler.explain(toy, torch.ones(10), torch.ones(10)))) == 6


def test_graphs_of_sizes_that_change_have_bytes() -> None:
    """The bytes belong to the captured call: unknown bytes would show as 0."""

    def layers(x: Any) -> Any:
        return (x @ x).softmax(-1) @ x

    (graph,) = pycompiler.explain(layers, backend="native", dynamic=True)(torch.ones(8, 8)).document.graphs
    size = 8 * 8 * 4
    (kernel,) = [step for step in graph["steps"] if step["kind"] == "kernel"]
    assert graph["memory"]["inputs"] == size and min(kernel["reads"], kernel["writes"]) >= size
    assert min(graph["memory"]["after"]) == size and graph["memory"]["peak"] >= 2 * size


def test_lines_behind_a_break_are_their_functions_in_the_text() -> None:
    """`in resume_in_behind_at_7` names no function of the program."""

    def behind(x: Any) -> Any:
        print("woo")
        return torch.fft.fft(x).real

    text = str(pycompiler.explain(behind, backend="native")(torch.ones(4)).document)
    assert re.search(r"test_report\.py:\d+ in \S*behind$", text, re.M) and " in resume_in_" not in text


def test_functions_that_were_inlined_are_shown() -> None:
    def inner(x: Any) -> Any:
        return x.relu()

    document = pycompiler.explain(lambda x: inner(x) + 1)(torch.ones(2)).document
    assert any(function["function"].endswith("inner") for function in document.functions.values())


def overlapping(spans: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Spans of a thread that overlap without nesting; no viewer can show them."""
    found: list[tuple[str, str]] = []
    open_: dict[int, list[tuple[float, str]]] = {}
    for s in sorted(spans, key=lambda s: (s["ts"], -s["dur"])):
        stack, end = open_.setdefault(s["tid"], []), s["ts"] + s["dur"]
        while stack and stack[-1][0] <= s["ts"]:
            stack.pop()
        if stack and end > stack[-1][0]:
            found.append((s["name"], stack[-1][1]))
        stack.append((end, s["name"]))
    return found


# traces --------------------------------------------------------------------------------------------------------
def test_a_folder_of_traces(report: Any, folder: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    [events] = (folder / "traces").glob("*.jsonl")
    rows = [json.loads(line) for line in events.read_text().splitlines()]
    assert rows[0]["event"] == "start"
    assert {"phase", "frame", "graph", "recompile", "hint"} <= {row["event"] for row in rows}
    [chrome] = (folder / "traces").glob("*.trace.json")
    spans = json.loads(chrome.read_text())
    assert {"capture", "lowering", "build"} <= {s["name"] for s in spans if s["ph"] == "X"}
    assert all(s["dur"] >= 0 and s["ts"] > 1e15 for s in spans if s["ph"] == "X")
    assert any(s["name"].startswith("recompile of resume_in_f") for s in spans if s["ph"] == "i")
    assert {s["ph"] for s in spans} == {"X", "i"} and {s["s"] for s in spans if s["ph"] == "i"} == {"t"}
    assert all(type(s["pid"]) is type(s["tid"]) is int and isinstance(s["args"], dict) for s in spans)
    assert overlapping([s for s in spans if s["ph"] == "X"]) == []
    assert main(["trace", str(folder / "traces")]) == 0
    checked((folder / "traces" / "pycompiler_report.html").read_text())
    assert main(["trace", "."]) == 1
    assert "no traces (*.jsonl) of pycompiler" in capsys.readouterr().err


def test_traces_are_switched_by_a_knob(tmp_path: Path) -> None:
    before = list(phases.observers)
    with config.patch(trace_dir=str(tmp_path / "t")):
        pycompiler.compile(lambda x: x + 2, backend="eager")(torch.ones(2))
    assert phases.observers == before
    text = next((tmp_path / "t").glob("*.jsonl")).read_text()
    with config.patch(trace_dir=str(tmp_path / "t")):
        assert pycompiler.compile(lambda x: x + 3, backend="eager")(torch.ones(2)).tolist() == [4, 4]
    assert len(list((tmp_path / "t").glob("*.jsonl"))) == 2
    assert next(row for row in map(json.loads, text.splitlines()) if row["event"] == "frame")["operators"] == 1


def test_a_pipe_among_traces_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    for place in (tmp_path, tmp_path / "a.jsonl"):
        assert main(["trace", str(place)]) == 1
        assert "no traces (*.jsonl) of pycompiler" in capsys.readouterr().err
    monkeypatch.setattr(trace, "files", lambda place: [tmp_path / "a.jsonl"])  # a pipe since the folder was listed
    assert main(["trace", str(tmp_path)]) == 2
    assert "a.jsonl is not a plain file" in capsys.readouterr().err


def test_a_storm_is_told_in_lines_by_its_size(tmp_path: Path) -> None:
    """Each recompile records its latest entries only: otherwise a folder grows by the square of the calls."""
    many = 60
    compiled = pycompiler.compile(lambda x, text: x + len(text), backend="eager", recompile_limit=2 * many)
    with config.patch(trace_dir=str(tmp_path), accumulated_recompile_limit=2 * many):
        for k in range(many):
            compiled(torch.ones(2), f"text {k}")
    [events] = tmp_path.glob("*.jsonl")
    told = [row["reasons"] for row in map(json.loads, events.read_text().splitlines()) if row["event"] == "recompile"]
    assert len(told) == many - 1
    assert max(map(len, told)) == 17
    assert told[-1][-1] == "and 43 older entries" and "'text 58'" in told[-1][0]
    page = run("trace", str(tmp_path), cwd=tmp_path)
    assert page.returncode == 0, page.stderr


FORKS = """
import os, threading, torch, pycompiler
from pycompiler.debug import trace

compiled = pycompiler.compile(lambda x: x * 2, backend="eager")
with trace._current[0].lock:  # as if another thread wrote
    child = os.fork()
    if child == 0:
        compiled(torch.ones(3))
        os._exit(0)
_, status = os.waitpid(child, 0)
compiled(torch.ones(3))
os._exit(os.waitstatus_to_exitcode(status))
"""


def test_a_fork_has_a_trace_of_its_own(tmp_path: Path) -> None:
    environment = {**os.environ, "PYCOMPILER_TRACE": str(tmp_path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [children.python(), "-c", FORKS], env=environment, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, done.stderr
    files = [path.read_text().splitlines() for path in tmp_path.glob("*.jsonl")]
    assert len(files) == 2
    for lines in files:
        assert [json.loads(line)["event"] for line in lines].index("start") == 0
        assert sum(json.loads(line)["event"] == "start" for line in lines) == 1
    for path in tmp_path.glob("*.trace.json"):
        assert {row["ph"] for row in json.loads(path.read_text())} >= {"X"}


def test_a_report_that_fails_does_not_hurt_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    from pycompiler.debug import describe

    monkeypatch.setattr(describe, "frame", lambda record: 1 / 0)
    assert pycompiler.explain(lambda x: x + 5)(torch.ones(2)).result.tolist() == [6, 6]
