"""Files and folders that another user could have written."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from pycompiler.runtime.private_files import Unsafe, check_above, check_private, read_file

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path.resolve() / "above" / "folder"
    made.mkdir(parents=True, mode=0o700)
    return made


@pytest.mark.parametrize(
    ("mode", "who"), [(0o775, r"group \d+"), (0o777, "everybody"), (0o702, "everybody"), (0o720, r"group \d+")]
)
def test_a_folder_above_that_others_may_write(folder: Path, mode: int, who: str) -> None:
    folder.parent.chmod(mode)
    with pytest.raises(Unsafe, match=rf"above, above folder, may be written by {who} \(mode {mode:o}\); chmod go-w"):
        check_above(folder)


@pytest.mark.parametrize("mode", [0o755, 0o700, 0o1777, 0o1775])
def test_a_folder_above_whose_entries_others_cannot_move(folder: Path, mode: int) -> None:
    folder.parent.chmod(mode)
    check_above(folder)


@as_root
def test_a_folder_above_that_belongs_to_another_user(folder: Path) -> None:
    os.chown(folder.parent, 54321, -1)
    with pytest.raises(Unsafe, match="above folder, belongs to user 54321"):
        check_above(folder)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777])
def test_a_folder_that_others_may_write(folder: Path, mode: int) -> None:
    check_private(folder, folder=True)
    folder.chmod(mode)
    with pytest.raises(Unsafe, match="may be written by others"):
        check_private(folder, folder=True)


def test_kinds(folder: Path) -> None:
    (folder / "link").symlink_to(folder)
    with pytest.raises(Unsafe, match="not a plain folder"):
        check_private(folder / "link", folder=True)
    with pytest.raises(Unsafe, match="not a plain file"):
        check_private(folder, folder=False)


def test_a_file_is_read(folder: Path) -> None:
    (folder / "file").write_bytes(b"text")
    assert read_file(folder / "file") == b"text"


@pytest.mark.parametrize("trust", [False, True])
def test_a_pipe_is_not_waited_for(folder: Path, trust: bool) -> None:
    os.mkfifo(folder / "pipe")
    errors: list[BaseException] = []

    def read() -> None:
        try:
            read_file(folder / "pipe", trust=trust)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(300)
    assert not thread.is_alive()
    assert "is not a plain file" in str(errors[0])


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write(folder: Path, mode: int) -> None:
    (folder / "file").write_bytes(b"text")
    (folder / "file").chmod(mode)
    with pytest.raises(Unsafe, match="may be written by others"):
        read_file(folder / "file")
    assert read_file(folder / "file", trust=True) == b"text"


@as_root
def test_a_file_of_another_user(folder: Path) -> None:
    (folder / "file").write_bytes(b"text")
    os.chown(folder / "file", 54321, -1)
    with pytest.raises(Unsafe, match="belongs to user 54321"):
        read_file(folder / "file")
    assert read_file(folder / "file", trust=True) == b"text"
