"""Triton kernels of a plan -> binaries for its GPUs, each cached on disk like a built library.

In: `Plan.module`, the text of a Python module (`codegen.triton`), and the launches of the plan.  Out: `Plan.binaries`.
The cache is read without an import of Triton, which takes a second.

A kernel's key contains neither its name nor comments, so equal kernels of all graphs share an entry: a transformer of 12
equal layers has 359 kernels, 18 of them different.  The function in a binary is named after the operators of the graph
that first needed it.

A binary assumes that addresses are multiples of 16 bytes, as tensors' are; `unaligned` builds one without that
assumption. `start` launches a kernel through Triton itself: for the oracle and, under Triton's interpreter, without a
GPU.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from pycompiler.ir import compile_names
from pycompiler.ir.plan import Binary, Launch, Plan
from pycompiler.logs import artifact
from pycompiler.runtime import disk_cache, triton_compile
from pycompiler.runtime.triton_compile import OPTIONS, Job, LaunchData, load, mended, triton_version, unpacked_sums
from pycompiler.runtime.triton_worker import triton_variables
from pycompiler.runtime.triton_workers import END_S, WORKERS, Batch
from pycompiler.torch_compat import interrupts

log_cache = artifact("cache")
POLL_S = 0.1  # a background compile looks this often whether the process ends

__all__ = ["OPTIONS", "binary_of", "build", "compiled", "load", "mended", "start", "unaligned", "unpacked_sums"]


def capability_of(device: torch.device) -> int:
    """The compute capability of a GPU: 90 for an H100."""
    major, minor = torch.cuda.get_device_capability(device)
    return 10 * major + minor


def build(plan: Plan, capability: Callable[[torch.device], int] = capability_of) -> None:
    """Fill `plan.binaries`."""
    launches = {s.kernel: s for s in plan.steps if isinstance(s, Launch)}
    if not launches:
        return
    texts = texts_of(plan.module)
    jobs = {name: job_of(texts[name], step, capability(step.device)) for name, step in launches.items()}
    for name, (_, job) in jobs.items():
        log_cache("%s: kernel %s is %s", plan.name, name, job.kernel)
    found = binaries_of(dict(jobs.values()))
    plan.binaries = {name: found[key] for name, (key, _) in jobs.items()}


def texts_of(module: str) -> dict[str, str]:
    """The text of a module for each of its kernels: the module's head, and the kernel."""
    head, *kernels = re.split(r"^(?=@triton\.jit)", module, flags=re.MULTILINE)
    return {name: head + text for text in kernels for name in re.findall(r"^def (\w+)\(", text, re.MULTILINE)}


def job_of(text: str, step: Launch, capability: int) -> tuple[str, Job]:
    """(key in the cache, job) of a kernel, whose module is `text`."""
    plain = _COMMENTS.sub("", text).replace(f"def {step.kernel}(", "def kernel(").rstrip()
    said = f"{step.types} {step.constants} {step.checks} {capability}"
    key = disk_cache.digest(
        "triton kernel", triton_compile.MENDS, triton_version(), str(OPTIONS), plain, said, *settings_of(os.environ)
    )
    name = f"{operators_in(text)}_{key[:8]}"
    return key, _job(plain.replace("def kernel(", f"def {name}("), replace(step, kernel=name), capability)


def settings_of(environment: Mapping[str, str]) -> list[str]:
    """The environment variables by which Triton and the assembler may make another binary."""
    found = triton_variables(environment).items()
    return sorted(
        f"{name}={value}" for name, value in found if not name.endswith(("_DIR", "_HOME", "_MANAGER", "_INTERPRET"))
    )


_COMMENTS = re.compile(r"^ +#.*\n", re.MULTILINE)
LONGEST_NAME = 48


def operators_in(text: str) -> str:
    """The operators of a kernel as an identifier, from the comment with the names of its nodes."""
    nodes = re.search(r"^ +# (.*)$", text, re.MULTILINE)
    names = [re.sub(r"_\d+$", "", node).strip("_") for node in (nodes[1].split() if nodes else ())]
    return re.sub(r"\W", "_", "_".join(dict.fromkeys(["pyc", *names])))[:LONGEST_NAME]


def binaries_of(jobs: Mapping[str, Job]) -> dict[str, Binary]:
    """The binaries of jobs, by the jobs' keys.  Jobs that the cache does not have are compiled, side by side if they are many."""
    root = disk_cache.open_root()
    entries = {key: entry for key in jobs if (entry := disk_cache.find(root, key)) is not None}
    missing = {key: job for key, job in jobs.items() if key not in entries}
    count = 0 if not missing or triton_compile.is_customised() else WORKERS.useful(len(missing))
    if count:
        entries |= _side_by_side(missing, count)
    else:
        for key, job in missing.items():
            interrupts.check()
            entries[key] = _entry(key, job, made_here)
    found = {}
    for key in jobs:
        (found[key],) = unpacked((entries[key] / disk_cache.LIBRARY).read_bytes()).values()
    return found


def made_here(job: Job) -> LaunchData:
    """A job, compiled in this process."""
    return triton_compile.launch_data(triton_compile.compiled(job))


def _side_by_side(jobs: Mapping[str, Job], count: int) -> dict[str, Path]:
    """The entries of jobs that `count` workers compile."""
    batch, title, version = Batch(), compile_names.current(), triton_version()

    def made(job: Job) -> LaunchData:
        return WORKERS.compile(job, batch, version) or made_here(job)

    def entry(key: str, job: Job) -> Path:
        interrupts.stop_with(lambda: batch.is_cancelled)
        interrupts.check()
        with compile_names.named_compile(title):
            return _entry(key, job, made)

    entries: dict[str, Path] = {}
    errors: list[BaseException] = []
    waiting = deque(jobs.items())

    def work() -> None:
        while waiting and not errors and not batch.is_cancelled:
            with contextlib.suppress(IndexError):  # another thread took the last one
                key, job = waiting.popleft()
                try:
                    entries[key] = entry(key, job)
                except BaseException as error:
                    errors.append(error)

    # Daemons, since the program's end waits for no kernel.  A thread that cannot start leaves its jobs to this one.
    threads = [threading.Thread(target=work, name="pycompiler triton", daemon=True) for _ in range(count)]
    try:
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            for thread in threads:
                thread.start()
        for thread in threads:
            while thread.is_alive():
                thread.join(POLL_S)
                interrupts.check()
        if waiting and not errors:
            work()
        if errors:
            raise errors[0]
    except BaseException:
        WORKERS.cancel(batch)
        for thread in threads:
            if thread.is_alive():
                thread.join(END_S)  # the worker is killed; one that has not started yet is not waited for
        raise
    return entries


def _entry(key: str, job: Job, make: Callable[[Job], LaunchData]) -> Path:
    """The folder of a kernel in the cache, made if it is missing."""

    def fill(folder: Path) -> None:
        made = Binary(*make(job))
        (folder / disk_cache.LIBRARY).write_bytes(packed({made.entry: made}))
        (folder / disk_cache.SOURCE).write_text(job.text)

    try:
        return disk_cache.fetch(disk_cache.open_root(), key, fill)[0]
    except OSError as error:
        return disk_cache.fetch(disk_cache.fall_back(error), key, fill)[0]


def unaligned(plan: Plan, kernel: str) -> Binary:
    """The kernel's binary for addresses of any alignment."""
    step = next(s for s in plan.steps if isinstance(s, Launch) and s.kernel == kernel)
    return binary_of(compiled(plan.module, step, capability_of(step.device), aligned=False))


def compiled(text: str, step: Launch, capability: int, aligned: bool = True) -> Any:
    """Triton's compilation result for a kernel and a GPU, which need not be present."""
    return triton_compile.compiled(_job(text, step, capability, aligned))


def _job(text: str, step: Launch, capability: int, aligned: bool = True) -> Job:
    return Job(text, step.kernel, step.types, step.constants, step.checks, capability, aligned)


def binary_of(made: Any) -> Binary:
    """The launch data of a compiled kernel."""
    return Binary(*triton_compile.launch_data(made))


def packed(binaries: Mapping[str, Binary]) -> bytes:
    """A line of JSON, then the binaries one after the other."""
    table = [(n, b.entry, b.parameters, b.threads, b.shared, len(b.image)) for n, b in binaries.items()]
    return json.dumps(table).encode() + b"\n" + b"".join(b.image for b in binaries.values())


def unpacked(data: bytes) -> dict[str, Binary]:
    table, _, images = data.partition(b"\n")
    binaries, at = {}, 0
    for name, entry, parameters, threads, shared, size in json.loads(table):
        binaries[name] = Binary(images[at : at + size], entry, tuple(parameters), threads, shared)
        at += size
    return binaries


def start(text: str, step: Launch, grid: Sequence[int], arguments: Sequence[Any]) -> None:
    """Launch a kernel through Triton, which compiles it at the first call."""
    device, options = step.device, {**OPTIONS, **step.constants}
    if device.type == "cpu":  # Triton's interpreter accepts no options
        options = {k: v for k, v in step.constants.items() if k not in OPTIONS}
    with contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device):
        getattr(load(text), step.kernel)[tuple(grid)](*arguments, **options)
