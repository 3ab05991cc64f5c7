"""Logs: settings, levels, artefacts, Step lines."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from pycompiler import logs
from pycompiler.errors import UserError


@pytest.fixture(autouse=True)
def restore() -> Iterator[None]:
    logs.reset_logs()
    yield
    logs.reset_logs()


def test_levels_of_a_setting() -> None:
    logs.set_logs("+dynamo,aot,-inductor")
    assert logs.stage("dynamo").getEffectiveLevel() == logging.DEBUG
    assert logs.stage("aot").getEffectiveLevel() == logging.INFO
    assert logs.stage("inductor").getEffectiveLevel() == logging.ERROR
    assert logs.stage("runtime").getEffectiveLevel() == logging.WARNING


def test_all_is_weaker_than_a_named_stage() -> None:
    logs.set_logs("-dynamo,+all")
    assert logs.stage("capture").getEffectiveLevel() == logging.ERROR
    assert logs.stage("autograd").getEffectiveLevel() == logging.DEBUG


def test_artifact_is_off_until_named(capsys: pytest.CaptureFixture[str]) -> None:
    log = logs.artifact("guards")
    log("hidden")
    logs.set_logs("guards")
    assert log.enabled
    log("shown %d", 7)
    assert capsys.readouterr().err.endswith("pycompiler.capture.__guards] shown 7\n")
    logs.set_logs("guards,-guards")
    assert not log.enabled


def test_keywords() -> None:
    logs.set_logs(dynamo=logging.DEBUG, graph_breaks=True)
    assert logs.stage("dynamo").level == logging.DEBUG
    assert logs.artifact("graph_breaks").enabled


def test_unknown_name_suggests() -> None:
    with pytest.raises(UserError, match=r"unknown log 'guard'; did you mean 'guards'\?"):
        logs.set_logs("guard")
    with pytest.raises(UserError, match="graph_breaks"):
        logs.artifact("nothing like it")


def test_environment_merges_and_leaves_torchs_names_alone() -> None:
    setting = logs.settings({"PYCOMPILER_LOGS": "-guards,fusion", "TORCH_LOGS": "+dynamo,guards,ddp_graphs"})
    assert set(setting.split(",")) == {"+dynamo", "-guards", "fusion"}


def test_step_lines_are_info(capsys: pytest.CaptureFixture[str]) -> None:
    logs.step(1, "capture starts for %s", "f")
    assert capsys.readouterr().err == ""
    logs.set_logs("dynamo")
    logs.step(1, "capture starts for %s", "f")
    assert "Step 1: capture starts for f" in capsys.readouterr().err
