"""The supported versions of torch and CPython."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PROGRAM = """
import logging, sys
import torch
torch.__version__ = {version!r}
lines = []
handler = logging.Handler()
handler.emit = lambda record: lines.append(record.getMessage())
logging.getLogger("pycompiler.runtime").addHandler(handler)
import pycompiler
from pycompiler import _native
f = pycompiler.compile(lambda x, w: (x.sin() @ w, x.view(-1)))
x, w = torch.randn(4, 4), torch.randn(4, 4, requires_grad=True)
for _ in range(2):
    out, view = f(x, w)
    torch.testing.assert_close(out, x.sin() @ w)
    assert view.data_ptr() == x.data_ptr()
    out.sum().backward()
assert pycompiler.counters(f)["compiles"] == 1, pycompiler.counters(f)
probe, routes = _native.tensor_probe(), _native.torch_routes()
print(probe["level"], probe["state"], routes["pins"], routes["wrap"], routes["versions"])
print(*lines, sep="\\n")
"""


def run(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT)


def told(version: str) -> list[str]:
    done = run(PROGRAM.format(version=version))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_known_torch_is_read_by_offsets() -> None:
    level, *lines = told("2.15.1+cpu")
    assert level == "offsets True counted THPVariable_Wrap symbol"
    assert not any(line for line in lines)


@pytest.mark.parametrize("version", ["2.16.0.dev20270101+cu140", "3.0.0"])
def test_an_unknown_torch_is_read_the_slow_way(version: str) -> None:
    """For an unknown torch no C++ function is called, since its signature is unknown; one log line reports it."""
    level, *lines = told(version)
    assert level == "slow False viewed call python"
    (line,) = [line for line in lines if line]
    assert line == (
        f"torch {version} is not a version that pycompiler knows (2.11 to 2.15): tensors are read by their attributes, "
        "so calls are slower, not wrong"
    )


def test_free_threaded_builds_are_refused() -> None:
    done = run("import sys; sys.abiflags = 't'; import pycompiler")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: pycompiler needs a build of CPython with the GIL")
