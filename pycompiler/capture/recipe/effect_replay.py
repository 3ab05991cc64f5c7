"""Replay of side effects on existing objects: a row of `REPLAYS` for each kind of write.

In: the head of the generated code, and the journal of effects.  Out: instructions of the replay, and of the checks
before it: whether dropped objects end quietly, whether caches accept results, and who receives warnings.
"""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable, Iterable
from typing import Any

from pycompiler.capture.assumptions import recompute_checks, recompute_reads
from pycompiler.capture.breaks import Break, SkipFrame
from pycompiler.capture.bytecode import build
from pycompiler.capture.bytecode.build import Code
from pycompiler.capture.effects import log_records
from pycompiler.capture.effects.side_effects import Write, state_of
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.recipe import runtime_helpers
from pycompiler.capture.recipe.codegen import Head, flat, is_computed, source_of
from pycompiler.capture.recipe.object_builders import grown_traceback
from pycompiler.capture.recording import nodes
from pycompiler.capture.values.attributes import is_behind_python_descriptor
from pycompiler.capture.values.base import LazyObject, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Count, Dict
from pycompiler.capture.values.containers.instance_dicts import DELETED
from pycompiler.capture.values.containers.iterators import Iter
from pycompiler.capture.values.containers.keys import Key, UserKey
from pycompiler.capture.values.containers.list_ends import Contents
from pycompiler.capture.values.containers.sequences import Deque, List
from pycompiler.capture.values.containers.sets import Set
from pycompiler.capture.values.opaque import HANDLE
from pycompiler.capture.values.symbolic_numbers import Symbolic, hint_value
from pycompiler.capture.warnings import replay
from pycompiler.ir.source import Source, local
from pycompiler.logs import artifact

log_effects = artifact("side_effects")


def replay_effects(head: Head) -> Code:
    """Instructions that repeat all recorded writes to existing objects, in order.  A write that changes nothing has none."""
    effects = head.cx.effects
    if log_effects.enabled and effects.journal:
        log_effects("side effects that follow the graph:\n%s", effects.describe())
    codes = [REPLAYS[write.kind](head, write) for write in effects.journal]
    codes += _watch(head)
    return flat([[*code, *build.pop_top()] for code in codes if code])


def check_drops(head: Head) -> Code:
    """The first check: objects that the frame's writes drop must end quietly, like those seen at capture."""
    head.ask_iterators()
    drops = head.cx.effects.drops.values()
    if not drops:
        return []
    owners = [DROPPED.get(kind, _followed)(head, target) for kind, _, target in drops]
    places = tuple(("value" if kind in ("key", "tally") else kind, name) for kind, name, _ in drops)
    return [*head.call(runtime_helpers.only_quiet, build.load_const(places), *owners), *build.pop_top()]


def _followed(head: Head, target: Value) -> Code:
    return head.follow(source_of(target))


def _at_key(head: Head, target: tuple[Dict, Symbolic | LazyObject]) -> Code:
    """The value of a dict at a str, or at a number computed from the values at the frame's start."""
    container, key = target
    return head.call(runtime_helpers.at_key, head.follow(source_of(container)), _key_at_begin(head, key))


def _counted_at(head: Head, target: tuple[Dict, Symbolic | LazyObject, bool]) -> Code:
    container, key, zero = target
    place = head.follow(source_of(container)), _key_at_begin(head, key)
    return head.call(runtime_helpers.counted_at, *place, build.load_const(zero))


def _key_at_begin(head: Head, key: Symbolic | LazyObject) -> Code:
    if isinstance(key, LazyObject):
        load = head.follow(source_of(key))
    elif is_computed(key):
        number = key.sym.node.value
        names = tuple(sorted(number.symbols))
        loads = [head.follow(head.cx.sizes.source_of(n)) for n in names]
        load = head.call(runtime_helpers.compute, build.load_const(number), build.load_const(names), *loads)
    else:
        load = build.load_const(key.const("as a key"))
    return load


DROPPED: dict[str, Callable[[Head, Any], Code]] = {
    "global": lambda head, namespace: build.load_const(namespace),
    "key": _at_key,
    "tally": _counted_at,
}
"""Kind of drop -> instructions that load the owner, or the dropped object."""


def check_caches(head: Head) -> Code:
    """A check before that: the caches accept the results that the frame computed."""
    asked = head.cx.effects.tables.items()
    return flat([[*head.call(k.only_open, build.load_const(n)), *build.pop_top()] for k, n in asked])


def check_warnings(head: Head) -> Code:
    """A check before that: warnings of the frame are only printed, and change nothing that the frame has read."""
    said = head.cx.effects.warnings
    if not said:
        return []
    categories, spaces = tuple(dict.fromkeys(w.category for w in said)), {id(w.namespace): w.namespace for w in said}
    namespaces = [*flat([build.load_const(s) for s in spaces.values()]), *build.build_tuple(len(spaces))]
    calls = [w.by for w in said if w.by is not None]
    asked = [*flat([build.load_const(c) for c in calls]), *build.build_tuple(len(calls))]
    looked_at = [v.source for v in head.cx.by_id.values() if isinstance(v, (List, Dict, Iter)) and v.source is not None]
    followed = map(head.follow, dict.fromkeys(looked_at))
    ask = replay.check_torch_only if len(calls) == len(said) else replay.check_only_printed
    return [*head.call(ask, build.load_const(categories), namespaces, asked, *followed), *build.pop_top()]


def check_loggers(head: Head) -> Code:
    """A check before that: no code of the program receives a log record of the frame."""
    asked: dict[tuple[Source | None, int], Code] = {}
    for write in head.cx.effects.journal:
        fn = getattr(write.target, "real", None)
        if write.kind == "call" and isinstance(fn, types.FunctionType) and inlining_rules.is_deferred(fn):
            called = log_records.call_of(fn, write.value)
            assert called is not None  # else the call would not be deferred
            logger, level = called
            source = None if logger is None else source_of(logger)
            asked[source, level] = build.load_const(None) if source is None else head.follow(source)
    given = [part for (_, level), load in asked.items() for part in (load, build.load_const(level))]
    return [*head.call(log_records.check_loggers, *given), *build.pop_top()] if asked else []


def _watch(head: Head) -> list[Code]:
    """Attach watches to outputs, on the objects that a backward reads again (a checkpoint).

    By now all outputs of the graph are known.
    """
    bodies = [b for b in head.cx.effects.looks.bodies if b.runs_again]
    reached = nodes.dependents_of(head.cx.graph.graph, [b.call for b in bodies if b.call is not None])
    leading: dict[tuple[str, ...], list[recompute_reads.BodyReads]] = {}  # results -> bodies that lead to them
    for k, body in enumerate(bodies):
        results = tuple(head.output(t) for t in head.outputs if reached.get(t.node, 0) >> k & 1)
        if results:
            leading.setdefault(results, []).append(body)
    inputs = head.cx.graph.inputs
    written = [t.source for t in (inputs[i] for i in head.cx.graph.mutated_inputs()) if t.source is not None]
    stored = [s for w in head.cx.effects.journal for s in _stored(w)]
    codes = []
    for results, group in leading.items():
        found = recompute_reads.recompute_check(group, head.cx.guards.values(), head.cx.sizes, written, stored)
        if found is not None:
            given = [*flat([build.load_fast(name) for name in results]), *build.build_tuple(len(results))]
            roots = [head.follow(local(name)) for name in found.names]
            namespace = build.load_const(head.cx.root_globals)
            outliving = {id(v): v for body in group for v in body.made if id(v) in head.temps}.values()
            made = [*flat([head.load(v) for v in outliving]), *build.build_tuple(len(outliving))]
            codes.append(head.call(recompute_checks.watch, build.load_const(found), namespace, given, made, *roots))
    return codes


def _stored(write: Write) -> list[Source]:
    """The sources where this write of an existing object or container is visible afterwards."""
    source = getattr(write.target, "source", None) if write.kind in ("attribute", "contents") else None
    if source is None:
        return []
    if write.kind == "contents":
        return [source]
    assert write.name is not None
    return [write.target.namespace_source().dict_item(write.name)]


def _replay_attribute(head: Head, write: Write) -> Code:
    target, name = head.load(write.target), build.load_const(write.name)
    held = is_behind_python_descriptor(write.target.cls, write.name or "")
    if write.value is DELETED:
        remove = [build.load_const(write.target.stores.__delattr__)]
        return (
            head.call(runtime_helpers.drop_held, target, name)
            if held
            else head.call(runtime_helpers.delete_attribute, *remove, target, name)
        )
    if held:
        return head.call(
            runtime_helpers.hold_attributes, target, build.load_const((write.name,)), head.load_item(write.value)
        )
    return head.call(write.target.stores.__setattr__, target, name, head.load_item(write.value))


def _replay_class(head: Head, write: Write) -> Code:
    if head.cx.effects.looks.watches:
        raise Break(
            "mutation-unsupported", "an attribute of a class, where a backward reads objects again", write.before
        )
    return head.call(
        type.__setattr__, build.load_const(write.target.cls), build.load_const(write.name), head.load_item(write.value)
    )


def _replay_grad(head: Head, write: Write) -> Code:
    return head.call(runtime_helpers.set_grad, head.load(write.target), head.load_item(write.value))


def _replay_flag(head: Head, write: Write) -> Code:
    as_it_was = next(iter(head.cx.graph.turned[write.target]))
    others = [w for w in head.cx.effects.journal if w.kind == "flag" and w.target is write.target]
    flag = write.value.const()
    if flag is as_it_was and len(others) == 1:
        return []
    return head.call(runtime_helpers.set_flag, head.load(write.target), build.load_const(flag))


def _replay_global(head: Head, write: Write) -> Code:
    place = build.load_const(write.target), build.load_const(write.name)
    if write.value is DELETED:
        return head.call(runtime_helpers.delete_global, *place)
    return head.call(runtime_helpers.set_global, *place, head.load_item(write.value))


def _replay_cell(head: Head, write: Write) -> Code:
    contents = [] if write.value is None else [head.load_item(write.value)]
    return head.call(runtime_helpers.set_cell, head.load_source(source_of(write.target)), *contents)


def _replay_traceback(head: Head, write: Write) -> Code:
    return grown_traceback(head, head.load(write.target), write.target)


def _replay_call(head: Head, write: Write) -> Code:
    if write.name == HANDLE and head.handles:
        return []
    return build.call_function(head.load(write.target), *[head.load_item(a) for a in write.value])


def _replay_warning(head: Head, write: Write) -> Code:
    said = write.target
    if said.by is not None:
        place = map(build.load_const, (said.by, said.filename, said.lineno, said.namespace))
        return head.call(replay.TorchWarning.tell, *place)
    given = (said.message, said.category, said.filename, said.lineno, said.namespace)
    return head.call(replay.warn, *map(build.load_const, given))


def _replay_keep(head: Head, write: Write) -> Code:
    result, *args = write.value
    loads = [build.load_const(write.name), *([] if result is None else [head.load_item(result)]), *head.load_all(args)]
    return head.call(write.target.hit if result is None else write.target.put, *loads)


def _replay_hit(head: Head, write: Write) -> Code:
    return head.call(type(write.target).hit, build.load_const(write.target))


def _replay_advance(head: Head, write: Write) -> Code:
    return head.call(runtime_helpers.advance, head.load(write.target), build.load_const(write.value))


def _replay_contents(head: Head, write: Write) -> Code:
    container = write.target
    target, after = head.load_source(source_of(container)), state_of(container) if write.after is None else write.after
    if isinstance(container, List) and write.before.emptied != after.emptied:
        fill = runtime_helpers.fill_deque if isinstance(container, Deque) else runtime_helpers.fill_list
        return head.call(fill, target, *[head.load_item(v) for v in after.items])
    if isinstance(container, List) and not after.is_whole:
        return _changed_ends(head, container, target, write.before, after)
    if isinstance(container, Deque):
        fill = runtime_helpers.fill_deque if container.moves else runtime_helpers.store_deque
        return head.call(fill, target, *[head.load_item(v) for v in after.items])
    if isinstance(container, List):
        return _changed_list(head, target, write.before.items, after.items)
    if isinstance(container, Dict):
        return _replay_dict(head, target, write.before, after)
    if isinstance(container, Set):
        log = container.log[write.before : after]
        steps = [head.call(how, target, *([] if v is None else [head.load_item(v)])) for how, v in log]
        return flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])
    raise SkipFrame(f"a change of {container.describe()} cannot be replayed")


def _replay_dict(head: Head, target: Code, before: Any, after: Any) -> Code:
    (old, stored, (emptied, flushed), _), (new, stores, by_now, whole) = before, after
    goes_on = by_now == (emptied, flushed)
    last = stores[len(stored) :] if goes_on else stores
    if emptied != by_now[0]:
        pairs = [c for k, v in new.items() for c in (head.load_item(k.value), head.load_item(v))]
        return head.call(runtime_helpers.fill_emptied, target, *pairs, *_loaded(head, last))
    # Keys of stores that became entries and were removed.
    gone = [k for k, _ in stored if not (goes_on or _is_among(head, k, new))]
    changed = _changed_dict(head, target, old, new, gone, known=whole)
    steps = [changed] if changed else []
    for counted, group in itertools.groupby(last, lambda store: isinstance(store[1], Count)):
        how = (
            (runtime_helpers.count_up, target)
            if counted
            else (runtime_helpers.change_dict, target, build.load_const(0))
        )
        steps.append(head.call(*how, *_loaded(head, group)))
    return flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])


def _is_among(head: Head, known: Value, keys: Iterable[Key]) -> bool:
    """Whether the str or number is one of the keys."""
    key = Key(head.cx, Const(hint_value(known))).key
    return any(not isinstance(k.key, UserKey) and bool(k.key == key) for k in keys)


def _loaded(head: Head, stores: Iterable[tuple[Value, Value]]) -> list[Code]:
    return [c for k, v in stores for c in (head.load_item(k), head.load_item(v))]


def _changed_list(head: Head, target: Code, before: list[Value], after: list[Value]) -> Code:
    """Replace only the part between the common ends: an element that a finalizer appends meanwhile stays."""
    begin = _common_prefix(before, after)
    if before and not after:
        return head.call(list.clear, target)
    if begin == len(before) == len(after):
        return []
    if begin == len(before):
        return head.call(runtime_helpers.extend_list, target, *[head.load_item(v) for v in after[begin:]])
    rest = _common_prefix(before[begin:][::-1], after[begin:][::-1])
    place = build.load_const(begin), build.load_const(len(before) - rest)
    return head.call(
        runtime_helpers.replace_part, target, *place, *[head.load_item(v) for v in after[begin : len(after) - rest]]
    )


def _changed_ends(head: Head, container: List, target: Code, before: Contents, after: Contents) -> Code:
    """The same for a list of any length: each end is replaced separately.

    The end comes first, since a change of the begin may move its elements.
    """
    if isinstance(container, Deque) and container.limit is not None and container.moves:
        (left, first), (right, last) = before.at_begin(after), before.at_end(after)
        kept = _common_prefix(right, last)
        counts = (build.load_const(n) for n in (len(left), len(right) - kept, len(first)))
        return head.call(runtime_helpers.replace_ends, target, *counts, *map(head.load_item, [*first, *last[kept:]]))
    steps = []
    for old, new, at_end in ((*before.at_end(after), True), (*before.at_begin(after), False)):
        begin = _common_prefix(old, new)
        rest = _common_prefix(old[begin:][::-1], new[begin:][::-1])
        if begin == len(old) == len(new):
            continue
        start, stop = (begin - len(old), -rest or None) if at_end else (begin, len(old) - rest)
        items = [head.load_item(v) for v in new[begin : len(new) - rest]]
        place = build.load_const(start), build.load_const(stop)
        if start == 0 and at_end and not isinstance(container, Deque):
            steps.append(head.call(runtime_helpers.extend_list, target, *items))
        else:
            replace = runtime_helpers.replace_in_deque if isinstance(container, Deque) else runtime_helpers.replace_part
            steps.append(head.call(replace, target, *place, *items))
    return flat([[*build.pop_top(), *step] if i else step for i, step in enumerate(steps)])


def _common_prefix(a: list[Value], b: list[Value]) -> int:
    """The length of the common prefix of two lists."""
    return next((i for i, (v, w) in enumerate(zip(a, b, strict=False)) if not _is_same(v, w)), min(len(a), len(b)))


def _is_same(a: Value, b: Value) -> bool:
    """Whether both are the same value, or have the same source."""
    return a is b or (a.source is not None and a.source == b.source)


def _changed_dict(
    head: Head, target: Code, before: dict[Key, Value], after: dict[Key, Value], gone: Iterable[Value], *, known: bool
) -> Code:
    """Remove keys, and the keys `gone`, then store values.  Keys in another order are removed first.

    `known`: the dict has no other keys.  Otherwise a key stays in place unless it was removed and added again.
    """
    first, new = {id(k) for k in before}, list(after)
    stay = {k for k in new if id(k) in first}  # a key that comes again may be another, equal object: 2.0 for 2
    if known:
        old = [k for k in before if k in stay]
        kept = next((i for i, (k, j) in enumerate(zip(old, new, strict=False)) if k is not j), len(old))
        stay = set(new[:kept])
    out = [head.load_item(v) for v in (*(k.value for k in before if k not in stay), *gone)]
    pairs = [
        c
        for k in new
        if k not in stay or not _is_same(before[k], after[k])
        for c in (head.load_item(k.value), head.load_item(after[k]))
    ]
    return (
        []
        if not out and not pairs
        else head.call(runtime_helpers.change_dict, target, build.load_const(len(out)), *out, *pairs)
    )


REPLAYS: dict[str, Callable[[Head, Write], Code]] = {
    "attribute": _replay_attribute, "grad": _replay_grad, "flag": _replay_flag, "class": _replay_class,
    "global": _replay_global, "cell": _replay_cell, "traceback": _replay_traceback,
    "call": _replay_call, "contents": _replay_contents, "advance": _replay_advance, "draw": lambda head, write: [],
    "warning": _replay_warning, "keep": _replay_keep, "hit": _replay_hit,
}  # fmt: skip
