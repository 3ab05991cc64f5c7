"""Knobs: table and attributes agree; reads, writes, aliases, environment, patch."""

from __future__ import annotations

import typing

import pytest

from pycompiler import config
from pycompiler.errors import ConfigError, UserError


@pytest.fixture(autouse=True)
def restore() -> typing.Iterator[None]:
    with config.patch(config.snapshot()):
        yield


def test_annotations_match_the_table() -> None:
    hints = {k: v for k, v in typing.get_type_hints(config).items() if not k.startswith("_")}
    declared = {n: frozenset(typing.get_args(t) or (t,)) for n, t in hints.items() if n in config.BY_NAME}
    table = {n: frozenset(row.types) for n, row in config.BY_NAME.items() if "." not in n}
    assert declared == table


def test_groups_are_knobs_with_a_dot() -> None:
    assert config.trace.enabled is False
    assert "enabled" in dir(config.trace)
    with config.patch({"trace.enabled": True}):
        assert config.trace.enabled is True
        config.trace.enabled = False
        assert config.get_knob("trace.enabled") is False
    for wrong in (lambda: config.trace.nothing, lambda: setattr(config.trace, "enabled", 1)):
        with pytest.raises(ConfigError):
            wrong()
    assert config.load_environment({"TORCH_COMPILE_DEBUG": "1"}) == {"trace.enabled": True}
    assert config.load_environment({"PYCOMPILER_TRACE_OUTPUT_CODE": "0"}) == {"trace.output_code": False}
    assert not list(config.unknown_variables({"PYCOMPILER_TRACE_ENABLED": "1", "PYCOMPILER_DEBUG_DIR": "/tmp"}))


@pytest.mark.parametrize("row", config.KNOBS, ids=lambda row: row.name)
def test_default_is_legal_and_documented(row: config.Knob) -> None:
    assert row.check(row.default) == row.default
    assert row.doc


def test_torchs_defaults() -> None:
    defaults = {row.name: row.default for row in config.KNOBS}
    assert defaults["recompile_limit"] == 8
    assert defaults["accumulated_recompile_limit"] == 256
    assert not defaults["suppress_errors"]
    assert not defaults["fallback_random"]


def test_alias_is_the_same_knob() -> None:
    config.cache_size_limit = 3
    assert config.recompile_limit == 3
    config.recompile_limit = 4
    assert config.cache_size_limit == 4


def test_unknown_name_lists_and_suggests() -> None:
    with pytest.raises(ConfigError, match=r"no knob 'verbos' \(did you mean 'verbose'\?\)\. Known: .*suppress_errors"):
        config.verbos = True
    with pytest.raises(AttributeError, match="did you mean 'threads'"):
        _ = config.thread
    with pytest.raises(UserError):
        config.patch(nope=1)


@pytest.mark.parametrize(
    ("name", "value"),
    [("verbose", 1), ("recompile_limit", True), ("recompile_limit", "8"), ("cache_dir", None), ("repro_level", 9)],
)
def test_wrong_type_or_value_names_what_is_taken(name: str, value: object) -> None:
    before = getattr(config, name)
    with pytest.raises(ConfigError, match=f"config.{name} takes"):
        setattr(config, name, value)
    assert getattr(config, name) == before


def test_int_is_taken_for_float() -> None:
    config.activation_memory_budget = 0
    assert isinstance(config.activation_memory_budget, float)


def test_patch_restores_also_after_an_error_and_nests() -> None:
    with pytest.raises(ZeroDivisionError), config.patch(verbose=True, cache_size_limit=2):
        assert (config.verbose, config.recompile_limit) == (True, 2)
        with config.patch("recompile_limit", 1):
            assert config.recompile_limit == 1
        assert config.recompile_limit == 2
        raise ZeroDivisionError
    assert (config.verbose, config.recompile_limit) == (False, 8)


def test_patch_decorates() -> None:
    @config.patch(threads=3)
    def f(n: int) -> int:
        assert config.threads == 3
        return f(n - 1) if n else config.threads

    assert f(2) == 3
    assert config.threads == 0


def test_environment_ours_before_older_and_aliases() -> None:
    load = config.load_environment
    assert load({"PYCOMPILER_CACHE_DIR": "", "PYCOMPILER_DEBUG_DIR_ROOT": "", "PYCOMPILER_VERBOSE": ""}) == {
        "verbose": False
    }
    assert load({"PYCOMPILER_DEBUG_DIR": "", "TORCH_COMPILE_DEBUG_DIR": "/d"}) == {"debug_dir_root": "/d"}
    assert load({"PYCOMPILER_RECOMPILE_LIMIT": "5"}) == {"recompile_limit": 5}
    assert load({"PYCOMPILER_CACHE_SIZE_LIMIT": "6"}) == {"recompile_limit": 6}
    assert load({"TORCHDYNAMO_VERBOSE": "1", "PYCOMPILER_VERBOSE": "off"}) == {"verbose": False}
    assert load({"TORCHDYNAMO_REPRO_AFTER": "dynamo", "TORCH_COMPILE_DEBUG": "1"}) == {
        "repro_after": "dynamo",
        "trace.enabled": True,
    }
    assert load({"PYCOMPILER_CXX": "none", "PYCOMPILER_ACTIVATION_MEMORY_BUDGET": "0.5"}) == {
        "cxx": None,
        "activation_memory_budget": 0.5,
    }


@pytest.mark.parametrize(("variable", "text"), [("PYCOMPILER_VERBOSE", "maybe"), ("PYCOMPILER_THREADS", "two")])
def test_environment_that_cannot_be_read(variable: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"{variable}='{text}'"):
        config.load_environment({variable: text})


def test_every_variable_belongs_to_one_knob() -> None:
    seen = [v for row in config.KNOBS for v in row.variables]
    assert len(seen) == len(set(seen))


def test_describe_has_a_line_a_knob() -> None:
    assert len(list(config.describe())) == len(config.KNOBS)
