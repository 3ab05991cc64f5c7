"""`python -m pycompiler doctor`: the machine's support for the compiler, with advice.

In: nothing.  Out: `Finding`s, one per check, printed one below the other.  A check that fails itself is a finding.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from pycompiler import _native, api, config
from pycompiler.runtime import build, disk_cache, disk_entries, toolchain

PYTHONS, TORCHES = ((3, 11), (3, 14)), ((2, 11), (2, 15))
GOOD, NOTE, BAD = "ok", "note", "BAD"


@dataclass(frozen=True)
class Finding:
    """`state`: GOOD, NOTE (works, but slower or unnecessary) or BAD.  `advice`: a suggestion for the user, or ""."""

    name: str
    state: str
    text: str
    advice: str = ""

    def __str__(self) -> str:
        lines = [f"{self.state:<5}{self.name}: {self.text}"]
        return "\n".join([*lines, f"     -> {self.advice}"] if self.advice else lines)


def versions() -> Finding:
    python = sys.version_info[:2]
    ours = tuple(int(part) for part in torch.__version__.split(".")[:2])
    text = f"pycompiler {_native.__version__}, Python {sys.version.split()[0]}, torch {torch.__version__}"
    for seen, (low, high), what in ((python, PYTHONS, "Python"), (ours, TORCHES, "torch")):
        if not low <= seen <= high:
            known = f"{low[0]}.{low[1]} to {high[0]}.{high[1]}"
            return Finding("versions", NOTE, text, f"tested with {what} {known} only")
    return Finding("versions", GOOD, text)


def compiler() -> Finding:
    try:
        found = toolchain.find_toolchain()
    except toolchain.NoCompiler as error:
        return Finding("C++ compiler", BAD, str(error), "without one every graph runs through ATen, as eager does")
    start = time.perf_counter()
    try:
        _built(found, toolchain.OPENMP[-1])
    except build.BuildFailed as error:
        return Finding("C++ compiler", BAD, f"{' '.join(found.command)}: {error}", "set CXX to a compiler that works")
    return Finding(
        "C++ compiler", GOOD, f"{' '.join(found.command)}, {time.perf_counter() - start:.2f} s for a small kernel"
    )


KERNEL = """#include "pyc_prelude.h"
extern "C" __attribute__((visibility("default"))) int64_t probe(void** p, const int64_t* s, int32_t t) {
    int64_t sum = 0;
    #pragma omp parallel for reduction(+ : sum) num_threads(t)
    for (int64_t i = 0; i < 64; ++i) sum += i;
    return sum;
}
"""


def _built(found: toolchain.Toolchain, openmp: tuple[str, ...]) -> None:
    """Build a probe library; raises BuildFailed."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "probe.cpp"), Path(folder, "probe.so")
        source.write_text(KERNEL)
        command = [
            *found.command,
            *toolchain.FLAGS,
            f"-I{toolchain.prelude_dir()}",
            "-o",
            str(library),
            str(source),
            *openmp,
        ]
        code, said = build.run_compiler(command, Path(folder), found)
        if code:
            raise build.BuildFailed(f"exited with {code}: {said[:2000]}")
        build.check_loads(library, ("probe",), found)


def openmp() -> Finding:
    try:
        found = toolchain.find_toolchain()
    except toolchain.NoCompiler:
        return Finding("OpenMP", NOTE, "not checked: there is no C++ compiler")
    threads = f"{torch.get_num_threads()} of {os.cpu_count()} cores"
    for k, flags in enumerate(toolchain.OPENMP):
        try:
            _built(found, flags)
        except build.BuildFailed:
            continue
        if k < len(toolchain.OPENMP) - 1:
            return Finding("OpenMP", GOOD, f"kernels run on {threads} ({flags[0]})")
    return Finding("OpenMP", NOTE, "kernels run on one thread", "install libgomp (gcc) or libomp (clang)")


def triton() -> Finding:
    there = importlib.util.find_spec("triton") is not None
    if not torch.cuda.is_available():
        return Finding("GPU", NOTE, f"torch sees no GPU; Triton is {'' if there else 'not '}installed, and not needed")
    names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
    if not there:
        return Finding("GPU", BAD, f"{names}, without Triton: graphs on it run through ATen", "pip install triton")
    import triton as found

    return Finding("GPU", GOOD, f"{names}, Triton {found.__version__}")


def cache() -> Finding:
    if not config.disk_cache:
        return Finding("cache", NOTE, "config.disk_cache is off: kernels are built again by each process")
    try:
        root = disk_cache.checked_root()
    except OSError as error:
        return Finding("cache", BAD, f"not used: {error}", "set PYCOMPILER_CACHE_DIR to a private folder")
    found, free = disk_entries.entries(root), shutil.disk_usage(root).free
    text = f"{root}: {len(found)} entries, {sum(e.bytes for e in found) / 1e6:.1f} MB; {free / 1e9:.1f} GB free"
    if not os.access(root, os.W_OK):
        return Finding("cache", BAD, f"{text}; the folder is not writable", "chmod u+w, or set PYCOMPILER_CACHE_DIR")
    return Finding(
        "cache",
        BAD if free < build.DISK_NEEDED else GOOD,
        text,
        "" if free >= build.DISK_NEEDED else "free space on the disk",
    )


def tensors() -> Finding:
    probe = _native.tensor_probe()
    routes = ", ".join(f"{what} by {how}" for what, how in sorted(_native.torch_routes().items()))
    text = f"guards read tensors by {probe['level']}; {routes}"
    if probe["level"] != "offsets":
        return Finding(
            "tensors",
            NOTE,
            text,
            f"torch {torch.__version__} has other memory layouts than tested versions: calls are slower, not wrong",
        )
    return Finding("tensors", GOOD, text)


def fast_path() -> Finding:
    supported, sign = _native.set_fast_guards(True), _native.force_dict_sign(None)
    if supported:
        how = {"events": "one comparison for all dicts", "versions": "one word a dict"}.get(sign, sign)
        return Finding("fast path of guards", GOOD, f"on, by {sign} of dicts ({how})")
    return Finding(
        "fast path of guards",
        NOTE,
        f"off: Python {sys.version.split()[0]} does not report changes of dicts (other libraries use all of its eight "
        "watchers, or it is 3.13.0, which stores attributes where they cannot be watched)",
        "guards of large models take longer; use CPython 3.11, 3.12, 3.14 or a later 3.13",
    )


def knobs() -> Finding:
    changed = [
        f"{row.name}={config.get_knob(row.name)!r}" for row in config.KNOBS if config.get_knob(row.name) != row.default
    ]
    if config.disable:
        return Finding("knobs", BAD, ", ".join(changed), "config.disable runs every compiled callable eagerly")
    unknown = list(config.unknown_variables(os.environ))
    if unknown:
        return Finding("knobs", NOTE, "; ".join(unknown), "see pycompiler.config.describe()")
    return Finding("knobs", GOOD, ", ".join(changed) or "all have their defaults")


def compiles() -> Finding:
    """Compile a training step and compare it with eager."""

    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w).relu().softmax(-1).square().sum()

    x, w = torch.randn(8, 8), torch.randn(8, 8, requires_grad=True)
    start = time.perf_counter()
    compiled = api.compile(program, fullgraph=True, backend="native")
    seen = torch.autograd.grad(compiled(x, w), w)[0]
    seconds = time.perf_counter() - start
    want = torch.autograd.grad(program(x, w), w)[0]
    if not torch.allclose(seen, want, rtol=1e-4, atol=1e-6):
        return Finding(
            "a training step", BAD, "its gradient differs from eager's", "please report this with the lines above"
        )
    return Finding("a training step", GOOD, f"compiled forward and backward in {seconds:.2f} s, with eager's gradients")


CHECKS: tuple[Callable[[], Finding], ...] = (
    versions, compiler, openmp, triton, cache, tensors, fast_path, knobs, compiles,
)  # fmt: skip


def findings() -> Iterator[Finding]:
    for check in CHECKS:
        try:
            yield check()
        except Exception as error:
            name = check.__name__.replace("_", " ")
            yield Finding(name, BAD, f"the check failed: {type(error).__name__}: {error}", "please report this")


def main() -> int:
    """Print the findings; exit status 1 if one is BAD."""
    bad = 0
    for finding in findings():
        print(finding, flush=True)
        bad += finding.state == BAD
    return int(bad > 0)
