"""Every public name of `torch.compiler` and `torch._dynamo` exists here, or its absence has a reason; signatures
agree."""

from __future__ import annotations

import inspect
from types import ModuleType

import pytest
import torch
import torch._dynamo

import pycompiler
from pycompiler.absent_names import ABSENT

MODULES: list[ModuleType] = [torch.compiler, torch._dynamo]
NEWEST = torch.__version__ >= "2.15"  # the torch version whose signatures are matched
DIFFERENT = {
    "torch.compiler.compile": "torch's takes anything and passes it on",
    "torch.compiler.nested_compile_region": "no options of regions",
    "torch.compiler.reset": "ours takes one compiled callable, too",
    "torch._dynamo.disable": "no `wrapping`",
    "torch._dynamo.explain": "ours takes the backend that the graphs get",
    "torch._dynamo.mark_dynamic": "no hints and no specialisations",
    "torch._dynamo.maybe_mark_dynamic": "no bounds",
    "torch._dynamo.optimize": "torch's takes anything",
    "torch._dynamo.reset": "ours takes one compiled callable, too",
    "torch._dynamo.substitute_in_graph": "no embedded types",
}
"""Names whose signatures differ, and the difference."""


def names() -> list[tuple[ModuleType, str]]:
    return [(module, name) for module in MODULES for name in module.__all__]


@pytest.mark.parametrize(("module", "name"), names(), ids=lambda v: v if isinstance(v, str) else v.__name__)
def test_a_public_name_is_ours_or_has_a_reason(module: ModuleType, name: str) -> None:
    if name in ABSENT:
        with pytest.raises(AttributeError, match="has no attribute") as raised:
            getattr(pycompiler, name)
        assert str(raised.value).endswith(ABSENT[name])
        return
    ours, theirs = getattr(pycompiler, name), getattr(module, name)
    assert name in pycompiler.__all__
    if not callable(theirs) or not NEWEST:
        return
    same = _parameters(ours) == _parameters(theirs)
    assert same != (f"{module.__name__}.{name}" in DIFFERENT), (
        f"{inspect.signature(ours)} and {inspect.signature(theirs)}"
    )


def _parameters(fn: object) -> list[tuple[str, object]]:
    return [(p.name, p.default) for p in inspect.signature(fn).parameters.values()]  # type: ignore[arg-type]


def test_no_reason_for_what_nobody_has() -> None:
    known = {name for module in MODULES for name in module.__all__}
    if NEWEST:
        assert ABSENT.keys() <= known
        assert {name.rpartition(".")[2] for name in DIFFERENT} <= known
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        _ = pycompiler.nothing


def test_all_names_exist() -> None:
    assert all(hasattr(pycompiler, name) for name in pycompiler.__all__)


@pytest.mark.parametrize("name", sorted(n for n in pycompiler.__all__ if n.endswith("_unsafe")))
def test_guard_filters_are_torchs(name: str) -> None:
    theirs = getattr(torch.compiler, name, None)
    if theirs is None:
        pytest.skip("not in this torch")
    seen: list[list[bool]] = []

    def both(entries: list[object]) -> list[bool]:
        ours = getattr(pycompiler, name)(entries)
        seen.append([ours == theirs(entries), *ours])
        return [True] * len(entries)

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU())
    compiled = pycompiler.compile(lambda x, y: model(x) * y * SCALE, backend="eager", options={"guard_filter_fn": both})
    compiled(torch.ones(2, 2), torch.ones(2, 2))
    ((agrees, *kept),) = seen
    assert agrees and (not any(kept) if name.startswith("skip_all") else any(kept) and not all(kept))


SCALE = 3


def test_old_forms() -> None:
    with pytest.deprecated_call():
        decorate = pycompiler.optimize("eager", nopython=True)
    assert torch.equal(decorate(lambda x: x + 1)(torch.ones(2)), torch.full((2,), 2.0))
    seen = pycompiler.compile(
        lambda x: (x + 1, pycompiler.is_dynamo_compiling(), pycompiler.is_exporting(), pycompiler.is_compiling()),
        backend="eager",
    )
    assert seen(torch.ones(1))[1:] == (True, False, True)
    assert not pycompiler.is_dynamo_compiling() and not pycompiler.is_exporting()


@pytest.mark.parametrize("name", ["pre_dispatch_eager", "eager_noexcept", "aot_eager_decomp_partition"])
def test_torchs_names_of_debugging_backends(name: str) -> None:
    assert torch.equal(pycompiler.compile(torch.sin, backend=name)(torch.ones(2)), torch.ones(2).sin())
    assert name not in pycompiler.list_backends() and pycompiler.lookup_backend(name)
