"""The assembler of entries: a recipe and its compiled graph → an entry of the engine, after a compile or a load from a
file.

In: `Made`.  Out: an entry.  The family stores its `Made`, which `artefacts.save` writes.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from pycompiler import _native
from pycompiler._native import Entry
from pycompiler.capture.bytecode.resume import has_active_handler
from pycompiler.capture.recipe.recipe import GRAPH, TAIL_CALL, Hole, Recipe, Resume, fill
from pycompiler.capture.recipe.runtime_helpers import plan_failed
from pycompiler.ir import compile_names
from pycompiler.pipeline.graph_errors import with_errors
from pycompiler.pipeline.interface import Family
from pycompiler.pipeline.records import EntryParts


def assemble(family: Family, function: types.FunctionType, made: EntryParts) -> Entry:
    """The entry of `function`."""
    entry = _entry(family, function, made.recipe, made.graph)
    family.made[entry] = made
    return entry


def _entry(family: Family, function: types.FunctionType, recipe: Recipe, graph: Callable[..., Any] | None) -> Entry:
    title = compile_names.title()
    run = None if graph is None else with_errors(recipe.errors, graph, ours=family.ours)
    original = recipe.template is None and recipe.code is None
    if original or (run is None and graph is not None):
        return _native.Entry(recipe.guards, function, "eager", title=title)
    if recipe.code is None:
        assert run is not None
        errors = recipe.errors
        again = errors.again(ours=family.ours)
        inside = has_active_handler(function.__code__)
        ask = functools.partial(plan_failed, again, family.ours, inside) if again or inside or family.ours else None
        return _native.Entry(recipe.guards, run, "plan", recipe.template, recipe.inputs, failed=ask, title=title)

    def held(hole: Hole) -> object:
        """The object that generated code holds in place of `hole`."""
        if isinstance(hole, Resume):
            return family.resume_function(hole.code, hole.namespace)
        return {GRAPH: run, TAIL_CALL: _native.tail_call}[hole]

    namespace = function.__globals__
    return family.function_entry(recipe.guards, fill(recipe.code, held), namespace, hook=recipe.hook, title=title)
