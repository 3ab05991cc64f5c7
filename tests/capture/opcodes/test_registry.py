"""Opcode coverage: each opcode of each supported Python has a handler, or an entry with the reason for its absence.

`opcodes_3.1x.txt` hold `dis.opmap` of the released interpreters, without instrumented forms and pseudo-instructions.
"""

from __future__ import annotations

import dis
import sys
from pathlib import Path

import pytest

import pycompiler  # noqa: F401  fills the tables
from pycompiler.capture.opcodes.registry import HANDLERS, UNHANDLED

VERSIONS = ("3.11", "3.12", "3.13", "3.14")


def listed(version: str) -> set[str]:
    return set((Path(__file__).parent / f"opcodes_{version}.txt").read_text().split())


@pytest.mark.parametrize("version", VERSIONS)
def test_each_opcode_is_in_one_table(version: str) -> None:
    names = listed(version)
    assert names - HANDLERS.keys() - UNHANDLED.keys() == set(), "neither handled nor listed"
    assert names & HANDLERS.keys() & UNHANDLED.keys() == set(), "both handled and listed"


def test_the_running_python_is_listed() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    running = {n for n, code in dis.opmap.items() if code < 256 and not n.startswith("INSTRUMENTED_")}
    assert running == listed(version)


def test_no_handler_is_for_an_unknown_opcode() -> None:
    known = set().union(*map(listed, VERSIONS))
    assert HANDLERS.keys() <= known
    assert UNHANDLED.keys() <= known


def test_each_listed_opcode_has_a_reason() -> None:
    assert all(UNHANDLED.values())
