"""Worker processes that compile Triton kernels.  No GPU is needed: binaries are made for an H100/H200."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from pycompiler import config, graphs
from pycompiler.ir.plan import Plan
from pycompiler.runtime import disk_cache, triton_build, triton_compile, triton_worker, triton_workers
from pycompiler.runtime.triton_workers import Batch, Workers

pytest.importorskip("triton")
ROOT = Path(__file__).parents[2]
KERNELS = (torch.sin, torch.cos, torch.exp, torch.tanh, torch.relu, torch.sigmoid)


def plan() -> Plan:
    """A plan with a kernel for each of KERNELS, between products of matrices."""

    def f(x: torch.Tensor) -> torch.Tensor:
        for op in KERNELS:
            x = op(x @ x)
        return x

    with FakeTensorMode():
        gm = make_fx(f)(torch.empty(64, 64, device="cuda"))
    return graphs.planned(gm, "layers")[1]


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Empty caches, ours and Triton's."""
    empty(tmp_path, monkeypatch, "first")


def empty(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(config, "cache_dir", str(folder / name / "ours"))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(folder / name / "triton"))


@pytest.fixture
def workers(cold: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workers]:
    found = Workers()
    found.is_registered = True
    monkeypatch.setattr(triton_build, "WORKERS", found)
    monkeypatch.setattr(config, "compile_threads", 2)
    yield found
    found.stop()


def build(of: Plan) -> Plan:
    triton_build.build(of, lambda device: 90)
    return of


def source(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers run `text`; it may use the functions of `triton_worker`."""
    head = f"import os, sys, time\nsys.path.insert(0, {str(Path(triton_worker.__file__).parent)!r})\n"
    path.write_text(head + "from triton_worker import receive, send\nOUT = int(sys.argv[1])\n" + textwrap.dedent(text))
    monkeypatch.setattr(triton_worker, "__file__", str(path))


READY = f"print('a greeting of the start', flush=True)\nreceive(0)\nsend(OUT, {triton_compile.triton_version()!r})\n"


def test_workers_make_the_same_binaries(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = build(plan()).binaries
    assert workers.started == 2 and len(made) == len(KERNELS)
    for worker in workers.idle:
        assert "libtorch" not in Path(f"/proc/{worker.process.pid}/maps").read_text()
    empty(tmp_path, monkeypatch, "second")
    with config.patch(compile_threads=1):
        assert build(plan()).binaries == made
    assert workers.started == 2 and not workers.busy


def test_nothing_starts_where_nothing_is_compiled(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    with config.patch(compile_threads=1):
        build(plan())
    build(plan())
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert triton_compile.is_customised()
    assert workers.started == 0


def test_few_kernels_are_compiled_in_the_process_unless_workers_run(workers: Workers) -> None:
    assert [workers.useful(n) for n in (0, 1, 5, 6, 600)] == [0, 0, 0, 2, 2]
    build(plan())
    assert [workers.useful(n) for n in (0, 1, 2)] == [0, 1, 2]
    with config.patch(compile_threads=1):
        assert workers.useful(600) == 0
    with config.patch(compile_threads=0):
        assert triton_workers.limit() == min(32, len(os.sched_getaffinity(0)))


def test_a_worker_that_was_killed_is_replaced(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(plan())
    for worker in workers.idle:
        worker.process.kill()
    empty(tmp_path, monkeypatch, "second")
    assert len(build(plan()).binaries) == len(KERNELS)
    assert workers.started == 4


def test_a_job_whose_worker_ends_is_started_once_more(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = tmp_path / "seen"
    source(
        tmp_path / "worker.py",
        READY + f"receive(0)\nif not os.path.exists({str(seen)!r}):\n    open({str(seen)!r}, 'w')\n    os._exit(3)\n"
        "send(OUT, (b'image', 'entry', (), 32, 0))\nreceive(0)\n",
        monkeypatch,
    )
    (job,) = (triton_build.job_of(text, s, 90)[1] for text, s in first_kernel())
    version = triton_compile.triton_version()
    assert workers.compile(job, Batch(), version) == (b"image", "entry", (), 32, 0)
    assert workers.started == 2


def test_workers_that_end_without_a_job_are_replaced(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end after a time without jobs, and the next job may come just then."""
    seen = tmp_path / "seen"
    source(
        tmp_path / "worker.py",
        READY + f"open({str(seen)!r}, 'a').write('.')\nif len(open({str(seen)!r}).read()) < 4:\n    sys.exit(0)\n"
        "receive(0)\nsend(OUT, (b'image', 'entry', (), 32, 0))\nreceive(0)\n",
        monkeypatch,
    )
    (job,) = (triton_build.job_of(text, s, 90)[1] for text, s in first_kernel())
    assert workers.compile(job, Batch(), triton_compile.triton_version()) == (b"image", "entry", (), 32, 0)
    assert workers.started == 4


def first_kernel() -> list[tuple[str, Any]]:
    of = plan()
    step = next(s for s in of.steps if type(s).__name__ == "Launch")
    return [(triton_build.texts_of(of.module)[step.kernel], step)]


def test_workers_that_end_with_each_job_are_an_error(
    workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "worker.py", READY + "receive(0)\nos.abort()\n", monkeypatch)
    with pytest.raises(RuntimeError, match=r"2 processes ended \(status -6\)(.|\n)*def pyc_"):
        build(plan())
    assert not workers.busy and not list(Path(config.cache_dir).glob("*"))


@pytest.mark.parametrize("text", ["os._exit(1)\n", "receive(0)\nsend(OUT, '0.0')\ntime.sleep(60)\n"])
def test_without_workers_the_process_compiles(
    text: str, workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source(tmp_path / "worker.py", text, monkeypatch)
    assert len(build(plan()).binaries) == len(KERNELS)
    assert workers.started == 0 and workers.is_broken


def test_a_frozen_program_is_not_started_again(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert len(build(plan()).binaries) == len(KERNELS)
    assert workers.started == 0


def test_a_refused_kernel_raises_tritons_error(workers: Workers) -> None:
    def refused(compile_threads: int) -> Exception:
        of = plan()
        of.module = of.module.replace("tl.exp", "tl.no_such_function").replace("pyc_exp(", "tl.no_such_function(")
        with config.patch(compile_threads=compile_threads), pytest.raises(Exception) as raised:
            build(of)
        return raised.value

    ours, before = refused(2), refused(1)
    assert workers.started == 2 and not workers.busy
    assert type(ours) is type(before) and "no_such_function" in str(ours)
    assert "def pyc_exp" in str(ours) or "tl.no_such_function(" in str(ours)


def test_an_interrupt_ends_the_wait(workers: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source(tmp_path / "worker.py", READY + "receive(0)\ntime.sleep(600)\n", monkeypatch)

    def interrupt() -> None:
        while len(workers.busy) < 2:
            time.sleep(0.01)
        processes.extend(worker.process for worker in workers.busy)
        os.kill(os.getpid(), signal.SIGINT)

    processes: list[subprocess.Popen[bytes]] = []
    begin = time.monotonic()
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        build(plan())
    thread.join()
    assert time.monotonic() - begin < 60 and len(processes) == 2
    assert all(p.wait(10) == -signal.SIGKILL for p in processes)
    while (workers.busy or list(disk_cache.open_root().glob("*"))) and time.monotonic() - begin < 90:
        time.sleep(0.05)  # the threads that waited for the workers end by themselves
    assert not workers.busy and not workers.idle
    assert not list(disk_cache.open_root().glob("*"))  # neither work folders nor locks


def test_a_forked_process_has_workers_of_its_own(workers: Workers) -> None:
    build(plan())
    child = os.fork()
    if child == 0:
        status = 1
        try:
            workers.after_fork()
            status = 0 if not workers.idle and workers.started == 0 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    (key, job), *_ = (triton_build.job_of(text, s, 80) for text, s in first_kernel())
    assert workers.compile(job, Batch(), triton_compile.triton_version()) is not None and workers.started == 2


PROGRAM = """
import os, sys, time
print("main", flush=True)
sys.path[:0] = [{root!r}, {here!r}]
from test_triton_workers import build, config, plan, triton_build
config.compile_threads = 2
build(plan())
print(*(w.process.pid for w in triton_build.WORKERS.idle), flush=True)
{end}
"""


def ends(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        if not any(is_running(pid) for pid in pids):
            return True
        time.sleep(0.05)
    return False


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "end",
    ["", "os.kill(os.getpid(), 9)", "os.fork() or time.sleep(30)\nos.kill(os.getpid(), 9)"],
    ids=["end", "kill", "kill with a child"],
)
@pytest.mark.usefixtures("cold")
def test_workers_end_with_the_program_which_does_not_run_again(end: str, tmp_path: Path) -> None:
    program = tmp_path / "program.py"  # without `if __name__ == "__main__"`
    program.write_text(PROGRAM.format(root=str(ROOT), here=str(ROOT / "tests" / "runtime"), end=end))
    environment = {**os.environ, "PYCOMPILER_CACHE_DIR": config.cache_dir}
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment
    ) as running:
        assert running.stdout is not None
        lines = [running.stdout.readline().strip() for _ in range(2)]
        running.wait(60)
        assert lines[0] == "main" and len(pids := [int(p) for p in lines[1].split()]) == 2
        assert ends(pids)
        if "fork" not in end:
            assert running.stdout.read() == ""


LATE = """
import sys, threading, time
sys.path[:0] = [{root!r}, {here!r}]
from pycompiler import config
config.compile_threads = 2
import test_triton_workers as t
of = t.plan()
def late():
    time.sleep(0.5)  # the program's own code has ended
    print(len(t.build(of).binaries), flush=True)
threading.Thread(target=late).start()
"""


@pytest.mark.usefixtures("cold")
def test_a_thread_compiles_after_the_end_of_the_main_thread(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(LATE.format(root=str(ROOT), here=str(ROOT / "tests" / "runtime")))
    environment = {**os.environ, "PYCOMPILER_CACHE_DIR": config.cache_dir}
    done = subprocess.run(
        [sys.executable, str(program)], stdout=subprocess.PIPE, text=True, env=environment, timeout=100, check=True
    )
    assert done.stdout.strip() == str(len(KERNELS))


def test_settings_of_the_assembler_are_part_of_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    ((text, step),) = first_kernel()
    plain = triton_build.job_of(text, step, 90)[0]
    monkeypatch.setenv("TRITON_CACHE_DIR", "elsewhere")
    assert triton_build.job_of(text, step, 90)[0] == plain
    monkeypatch.setenv("DISABLE_PTXAS_OPT", "1")
    assert triton_build.job_of(text, step, 90)[0] != plain
