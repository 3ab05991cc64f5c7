"""A few of CPython's own tests, compiled; `python -m tests.fuzz.cpython --all` runs all of them."""

from __future__ import annotations

import importlib.util

import pytest

from fuzz.cpython import run

CHOSEN = [
    ("test_set", "TestSet.test_sy"), ("test_exceptions", "AttributeErrorTests.test_attributes"),
    ("test_exception_hierarchy", "ExplicitSubclassingTest.test_new"),
]  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("test.test_dict") is None, reason="this Python has no tests of its own")
@pytest.mark.parametrize(("module", "only"), CHOSEN)
def test_ends_as_uncompiled(module: str, only: str) -> None:
    count, different, _ = run(module, only)
    assert count
    assert different == []
