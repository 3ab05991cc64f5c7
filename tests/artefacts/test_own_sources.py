"""The digest of this package's sources, which an artefact records: by the wheel's RECORD, or by reading the files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import pycompiler
from pycompiler import _native
from pycompiler.artefacts import file


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a small package, as an installer leaves it."""
    root = tmp_path / "pycompiler"
    (root / "inner").mkdir(parents=True)
    for name, text in (("__init__.py", "a = 1"), ("inner/other.py", "b = 2"), ("inner/kernel.h", "// c")):
        (root / name).write_text(text)
    monkeypatch.setattr(pycompiler, "__file__", str(root / "__init__.py"))
    monkeypatch.setattr(file, "own_sources", file.own_sources.__wrapped__)
    return tmp_path


def write_record(folder: Path, leave_out: str = "") -> Path:
    names = ["pycompiler/__init__.py", "pycompiler/inner/other.py", "pycompiler/inner/kernel.h"]
    rows = [f"{n},sha256={file._digest(folder / n)},{(folder / n).stat().st_size}" for n in names if n != leave_out]
    record = folder / f"torch_pycompiler-{pycompiler.__version__}.dist-info" / "RECORD"
    record.parent.mkdir(exist_ok=True)
    record.write_text("\n".join([*rows, f"{record.parent.name}/RECORD,,"]))
    return record


def test_a_wheel_and_a_checkout_have_the_same_digest(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkout = file.own_sources()
    write_record(installed)
    monkeypatch.setattr(file, "_digest", lambda path: pytest.fail(f"{path} was read"))
    assert file.own_sources() == checkout


def test_a_source_changed_after_the_installation_is_read(installed: Path) -> None:
    record = write_record(installed)
    before = file.own_sources()
    source = installed / "pycompiler/inner/other.py"
    source.write_text("b = 3")  # of the same size
    later = record.stat().st_mtime_ns + 1_000_000
    os.utime(source, ns=(later, later))
    assert file.own_sources() != before


def test_a_source_of_another_size_is_read(installed: Path) -> None:
    """Its time may be older: a copy keeps it."""
    write_record(installed)
    before = file.own_sources()
    source = installed / "pycompiler/inner/other.py"
    source.write_text("b = 30")
    os.utime(source, ns=(1, 1))
    assert file.own_sources() != before


def test_the_engine_belongs_to_the_sources(installed: Path) -> None:
    before = file.own_sources()
    (installed / "pycompiler" / os.path.basename(_native.__file__)).write_bytes(b"another engine")
    assert file.own_sources() != before


def test_a_source_that_the_record_lacks_is_read(installed: Path) -> None:
    write_record(installed, leave_out="pycompiler/inner/other.py")
    before = file.own_sources()
    (installed / "pycompiler/inner/other.py").write_text("b = 3")
    assert file.own_sources() != before


def test_other_versions_have_other_records(installed: Path) -> None:
    record = write_record(installed)
    record.parent.rename(installed / "torch_pycompiler-0.0.1.dist-info")
    assert file.recorded(installed, {"pycompiler/__init__.py": os.stat(__file__)}) is None
