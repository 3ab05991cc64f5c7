"""The scripts that read benchmark runs: ratio table, marks of a page, comparison of two runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"


def run_file(path: Path, seconds: dict[str, dict[str, float]], limits: dict[str, float] | None = None) -> Path:
    """A file as pytest-benchmark writes it, of 100 calls a round."""
    benches = [
        {
            "group": group,
            "extra_info": {"impl": impl, "calls": 100, "limits": limits or {}},
            "stats": {"median": 100 * time, "min": 90 * time, "mean": 110 * time},
        }
        for group, by in seconds.items()
        for impl, time in by.items()
    ]
    info = {"machine": "x86_64", "python_version": "3.11.7", "cpu": {}}
    path.write_text(
        json.dumps({"benchmarks": benches, "machine_info": info, "datetime": "2026-01-02T03", "commit_info": {}})
    )
    return path


def script(name: str, *args: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCH / name), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_ratio_table_and_limits(tmp_path: Path) -> None:
    seconds = {"call: x": {"eager": 2e-6, "torch.compile": 8e-6, "pycompiler": 4e-7}}
    run = run_file(tmp_path / "run.json", seconds, {"torch.compile": 0.1, "eager": 0.1})
    out = script("ratios.py", run)
    assert out.returncode == 1
    assert out.stderr == "above its limit: call: x: ours / eager is 0.20, and may be at most 0.1\n"
    assert script("ratios.py", run, "--report-only").returncode == 0
    assert "| call: x | 2 µs | 8 µs | 400 ns | 0.050 ✓ (≤ 0.1) | 0.20 ✗ (≤ 0.1) |" in out.stdout


def test_limits_that_hold_or_were_not_measured(tmp_path: Path) -> None:
    run = run_file(tmp_path / "run.json", {"call: x": {"eager": 2e-6, "pycompiler": 4e-7}}, {"eager": 0.3})
    assert script("ratios.py", run).returncode == 0
    run = run_file(tmp_path / "run.json", {"call: x": {"eager": 2e-6, "pycompiler": 4e-7}}, {"torch.compile": 0.1})
    out = script("ratios.py", run)
    assert out.returncode == 1
    assert "ours / torch.compile was not measured" in out.stderr


def test_model_means(tmp_path: Path) -> None:
    seconds = {f"model: {n}, inference": {"torch.compile": 1.0, "pycompiler": t} for n, t in (("a", 0.5), ("b", 2.0))}
    out = script("ratios.py", run_file(tmp_path / "run.json", seconds))
    assert "| **models, inference: geometric mean** | | | | 1.00 | – |" in out.stdout


def test_readme_gets_the_table_between_its_marks(tmp_path: Path) -> None:
    run = run_file(tmp_path / "run.json", {"g": {"torch.compile": 2.0, "pycompiler": 1.0}})
    page = tmp_path / "measured.md"
    page.write_text("head\n<!-- measured: begin -->\nold\n<!-- measured: end -->\ntail\n")
    assert script("ratios.py", run, "--page", page).returncode == 0
    text = page.read_text()
    assert "| g | – | 2 s | 1 s | 0.50 | – |" in text
    assert "old" not in text
    assert text.startswith("head\n")
    assert text.endswith("tail\n")
    page.write_text("no marks")
    assert script("ratios.py", run, "--page", page).returncode == 1


@pytest.mark.parametrize(("threshold", "code"), [(("--fail-above", 1.3), 1), (("--fail-above", 2.5), 0), ((), 0)])
def test_compare_by_ratio(tmp_path: Path, threshold: tuple[object, ...], code: int) -> None:
    old = run_file(tmp_path / "old.json", {"g": {"torch.compile": 1.0, "pycompiler": 0.5}, "gone": {"pycompiler": 1.0}})
    new = run_file(tmp_path / "new.json", {"g": {"torch.compile": 4.0, "pycompiler": 4.0}})  # a slower machine
    out = script("compare.py", old, new, *threshold)
    assert out.returncode == code, out.stderr
    assert "| g | torch.compile | 0.500 | 1.000 | 2.00 |" in out.stdout
    assert "| gone | only in the old run" in out.stdout


def test_guard_costs_says_that_valgrind_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    out = script("guard_costs.py")
    assert out.returncode == 0, out.stderr
    assert out.stdout == "guard_costs.py counts nothing: valgrind is not installed (apt-get install valgrind)\n"
