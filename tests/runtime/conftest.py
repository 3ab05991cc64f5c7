"""The fake driver of a GPU, as fixtures."""

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pycompiler import _native

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "codegen"))
sys.path.insert(0, str(Path(__file__).resolve().parent))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("driver") / "libfake.so"
    source = Path(__file__).with_name("fake_driver.c")
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", path, source], check=True)
    return path


@pytest.fixture
def driver(library: Path) -> Iterator[Any]:
    _native.use_gpu_driver(str(library))
    fake = ctypes.CDLL(str(library))
    fake.fake_notes.restype = ctypes.c_char_p
    fake.fake_stream.argtypes = [ctypes.c_int, ctypes.c_void_p]
    for device in (0, 1):
        fake.fake_stream(device, None)
    fake.fake_forget()
    yield fake
    assert fake.fake_depth() == 0, "a context was left behind"
    assert fake.fake_mode() == 0, "a mode of recording was left behind"
    _native.use_gpu_driver(None)
