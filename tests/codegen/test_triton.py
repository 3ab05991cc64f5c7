"""Triton kernels without a GPU: values under Triton's interpreter, and registers of the binaries for an H100/H200.

Triton decides at its import whether it interprets, so each table of `triton_cases.py` runs in a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from kernel_harness import lowered

from pycompiler.codegen.triton import generate
from pycompiler.ir.plan import Launch
from pycompiler.ir.target import H200
from pycompiler.runtime import triton_build
from pycompiler.scheduling import schedule

triton = pytest.importorskip("triton")
OLD_INTERPRETER = triton.__version__ < "3.7" and numpy.lib.NumpyVersion(numpy.__version__) >= "2.5.0"
"""Quirk of Triton: its interpreter takes a loop bound from an array of one element, which NumPy 2.5 refuses."""
HERE = Path(__file__).parent
ROOT = HERE.parents[1]


def run(mode: str, tmp_path: Path, **extra: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(HERE), str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "TRITON_CACHE_DIR": str(tmp_path), **extra}
    command = [sys.executable, str(HERE / "triton_cases.py"), mode]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)


@pytest.mark.parametrize(
    ("mode", "interpret", "cases"), [("check", "1", 55), ("sizes", "1", 14), ("sizes", "0", 14), ("compile", "0", 53)]
)
def test_cases(mode: str, interpret: str, cases: int, tmp_path: Path) -> None:
    if OLD_INTERPRETER and (mode, interpret) == ("sizes", "1"):
        pytest.skip("the interpreter of Triton 3.6 knows no NumPy 2.5")
    done = run(mode, tmp_path, TRITON_INTERPRET=interpret)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert done.stdout.count("ok ") == cases, done.stdout


def test_a_launch_on_a_device_lets_integers_wrap(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    module = SimpleNamespace(k={(1, 1, 1): lambda *_, **options: asked.append(options)})
    monkeypatch.setattr(torch.cuda, "device", contextlib.nullcontext)
    monkeypatch.setattr(triton_build, "load", lambda text: module)
    for device in ("cuda:0", "cpu"):
        step = Launch("k", torch.device(device), (1, 1, 1), (), (), {"XBLOCK": 1})
        triton_build.start("", step, (1, 1, 1), [])
    assert asked == [{"XBLOCK": 1, **triton_build.OPTIONS}, {"XBLOCK": 1}]
    assert triton_build.OPTIONS["sanitize_overflow"] is False


def test_the_bits_of_a_float_are_one() -> None:
    """A float known at the call is passed as the bits of its double."""
    from pycompiler.codegen.triton.ops import Unsupported, pointwise

    assert pointwise("bitcast", ["a"], [torch.int64], torch.float64) == "(a).to(tl.float64, bitcast=True)"
    with pytest.raises(Unsupported):
        pointwise("bitcast", ["a"], [torch.int16], torch.bfloat16)


def test_a_selected_negative_zero_is_selected_as_bits() -> None:
    """Bug of NVIDIA's assembler: of 1.0 and -0.0 it selects 1.0 and +0.0."""
    text = "selp.f32 \t%r1, 0f3F800000, 0f80000000, %p4;\nselp.f32 %r2, %r3, 0f80000000, %p1;\nselp.f32 %r4, 0fBF800000, %r1, %p3;"
    assert triton_build.mended(text) == (
        "selp.b32 \t%r1, 1065353216, -2147483648, %p4;\nselp.b32 %r2, %r3, -2147483648, %p1;\n"
        "selp.f32 %r4, 0fBF800000, %r1, %p3;"
    )


def test_a_kernel_that_a_pass_refuses_has_other_warps(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def compiled(unit: Any, target: Any, options: dict[str, Any]) -> str:
        asked.append(options["num_warps"])
        if options["num_warps"] > 2:
            raise RuntimeError("PassManager::run failed")
        return "made"

    monkeypatch.setattr(triton, "compile", compiled)
    text = "import triton\nimport triton.language as tl\n\n\n@triton.jit\ndef k(p0):\n    tl.store(p0, 1)\n"
    step = Launch("k", torch.device("cuda:0"), (1, 1, 1), (), ("*fp32",), {"num_warps": 4}, checks=False, work=1)
    assert triton_build.compiled(text, step, 90) == "made" and asked == [4, 8, 2]
    asked.clear()
    with pytest.raises(RuntimeError, match="PassManager"):
        triton_build.compiled(text, dataclasses.replace(step, constants={"num_warps": 16}), 90)
    assert asked == [16, 32, 8]


def test_sums_of_pairs_are_two_sums() -> None:
    """Bug of NVIDIA's assembler: it loses a constant if only one half is read; `triton_cases.py compile` checks all
    kernels."""
    text = "\tmov.b32 \t%r55, 7;\n\tadd.s16x2 \t%r56, %r52, %r55;\n\tadd.s16 \t%rs1, %rs2, %rs3;\n"
    changed = triton_build.unpacked_sums(text)
    assert "s16x2" not in changed and "mov.b32 %r56, {a0, a1};" in changed
    assert triton_build.unpacked_sums(changed) == changed


@pytest.mark.parametrize("length", [20000, 20001])
def test_only_the_last_chunk_of_a_row_of_odd_length_has_a_mask(length: int) -> None:
    """Triton loads single elements under a mask that ends within a vector."""
    program = lowered(lambda x: torch.softmax(x, -1), [torch.randn(2, length)])
    _, *chunks = generate(schedule(program, H200)).split("for chunk in ")
    unmasked = [chunk.startswith("range(0, 16384,") and "rmask" not in chunk.split("for ")[0] for chunk in chunks]
    assert any(unmasked) == (length % 16 != 0)
    assert unmasked == ([True, False] if length % 16 else [False]) * (len(chunks) // (2 if length % 16 else 1))
