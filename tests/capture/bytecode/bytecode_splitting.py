"""A splitter of running functions at one instruction, in pure Python: the native engine's work, written again as an oracle."""

import sys
import types

from pycompiler.capture.bytecode import (
    FrameLayout,
    assemble,
    continuation,
    decode,
    exits,
    live_locals,
    resume,
    resume_info,
    tail_call,
)
from pycompiler.capture.bytecode.analysis import reachable
from pycompiler.capture.bytecode.build import (
    call_function,
    enter_handler,
    jump,
    load_const,
    load_fast,
    load_lasti,
    nop,
    op,
    pop_top,
    push_null,
    return_value,
    store_fast,
    store_raw,
)
from pycompiler.capture.bytecode.code_structure import find, group, shielded, stack_kinds
from pycompiler.capture.bytecode.decode import slot_names
from pycompiler.capture.bytecode.instruction import ExceptionHandler, Instruction
from pycompiler.capture.bytecode.resume import cell_parameters
from pycompiler.capture.bytecode.tables import FOR_ITER_LANDING, LASTI_IS_INT, OPMAP


class TailCall:
    def __init__(self, fn, *args):
        self.fn, self.args = fn, args


def trampoline(result):
    while isinstance(result, TailCall):
        fn, args = result.fn, result.args
        del result
        result = fn(*args)
    return result


def split_points(code):
    """Offsets at which `code` may be cut: after the preamble, between groups, reachable, and not where FOR_ITER lands."""
    body = decode(code)
    start = next(n for n, i in enumerate(body) if i.opname == "RESUME") + 1
    alive = reachable(body, body[:1])
    landings = {j for n, i in enumerate(body) if i.opname == "END_FOR" for j in body[n : n + len(FOR_ITER_LANDING)]}
    starts = {group(body, i.offset).start for i in body[start:] if i in alive and i not in landings}
    return [body[n].offset for n in sorted(starts)]


class State:
    """The frame state at a cut: bound variables (cells as cell objects) and the stack."""

    def __init__(self, code, at):
        self.code, self.at = code, at
        body = decode(code)
        self.body, self.entry = body, body[find(body, at)]
        self.kinds = stack_kinds(body)[self.entry]
        self.values = {}

    def layout(self):
        live = live_locals(self.body, self.entry)
        names = tuple(name for name in slot_names(self.code) if name in live and name in self.values)
        stack = tuple("value" if f"__t{n}" in self.values else "null" for n in range(len(self.kinds)))
        return names, stack

    def items(self):
        """Stack items that are not NULL; an "exc" item is the exception handled at that level."""
        levels = [f"__t{n}" for n, kind in enumerate(self.kinds) if kind == "exc"]
        handled = dict(zip(levels, [*levels[1:], "__current"], strict=False))
        names = [f"__t{n}" for n in range(len(self.kinds))]
        return {name: self.values[handled.get(name, name)] for name in names if name in self.values}

    def arguments(self):
        names, _ = self.layout()
        return [self.values[name] for name in names] + list(self.items().values())


def dynamic_tail(code, at, callback):
    """Instructions that hand the bound state to ``callback(State)`` and return its result."""
    state = State(code, at)
    temps = [f"__t{n}" for n in range(len(state.kinds))]
    out = []
    for name, kind in reversed(list(zip(temps, state.kinds, strict=True))):
        out += [*pop_top(), *load_const(None)] if kind == "lasti" and not LASTI_IS_INT else []
        out += store_fast(name)
    levels = [name for name, kind in zip(temps, state.kinds, strict=True) if kind == "exc"]
    if levels:
        out += [*call_function(load_const(sys.exception)), *store_fast("__current")]
    for name in reversed(levels):
        out += [*load_fast(name), *op("POP_EXCEPT")]
    for name in [*slot_names(code), *temps, *(["__current"] if levels else [])]:
        out += _record_if_bound(name, state)
    out += [*call_function(load_const(callback), load_const(state)), *return_value()]
    return out


def _record_if_bound(name, state):
    done, unbound = nop(), pop_top()
    load = Instruction("LOAD_FAST_CHECK" if "LOAD_FAST_CHECK" in OPMAP else "LOAD_FAST", argval=name)
    load.handler = ExceptionHandler(unbound[0], 0, False)
    record = call_function(load_const(state.values.__setitem__), load_const(name), load_fast("__v"))
    return [load, *store_fast("__v"), *record, *pop_top(), *jump(done[0]), *unbound, *done]


def intercept(code, at, callback, from_head=False):
    """`code` with every arrival at `at` redirected to `callback`; with `from_head`, a resume function's own entry too."""
    body = decode(code)
    position = find(body, at)
    tail = dynamic_tail(code, at, callback)
    gate = jump(tail[0])[0]
    entry = body[position]
    gate.handler = entry.handler
    info = resume_info(code)
    for i in body:
        if i.target is entry and (info is None or from_head or i.offset in info.offsets):
            i.target = gate
        if i.handler is not None and i.handler.target is entry:
            i.handler = ExceptionHandler(gate, i.handler.depth, i.handler.lasti)
    keep = () if info is None else (info,)
    names = tuple(slot_names(code)[: code.co_nlocals])
    cells = cell_parameters(resume_info(code))
    instructions = shielded([*body[:position], gate, *body[position:], *tail])
    return assemble(instructions, code, varnames=names, keep=keep, cell_arguments=cells)


class Splitter:
    """Runs `fn` with cuts; `cuts` counts the cuts that were reached."""

    def __init__(self, fn, limit=1000):
        self.limit = limit
        self.bound = fn.__self__ if isinstance(fn, types.MethodType) else None
        self.fn = fn.__func__ if isinstance(fn, types.MethodType) else fn
        self.cuts = 0

    def function(self, code, closure=None):
        if closure is None or resume_info(code) is not None:  # a resume function takes its cells as arguments
            closure = tuple(types.CellType() for _ in code.co_freevars) or None
        made = types.FunctionType(code, self.fn.__globals__, self.fn.__name__, None, closure)
        return made

    def start(self, code, args, kwargs):
        made = types.FunctionType(
            code, self.fn.__globals__, self.fn.__name__, self.fn.__defaults__, self.fn.__closure__
        )
        made.__kwdefaults__ = self.fn.__kwdefaults__
        return made(*(() if self.bound is None else (self.bound,)), *args, **kwargs)

    def chain(self, at, args, kwargs):
        """Cut at every arrival at `at`; the resume function is cut again at each later arrival."""

        def cut(state):
            self.cuts += 1
            assert self.cuts < self.limit
            names, stack = state.layout()
            code = resume(state.code, state.at, locals=names, stack=stack)
            info = resume_info(code)
            assert info.original is self.fn.__code__
            assert info.at == at
            inner = info.offset_of(at)
            assert resume(code, inner, locals=names, stack=stack) is code
            return TailCall(self.function(intercept(code, inner, cut)), *state.arguments())

        return trampoline(self.start(intercept(self.fn.__code__, at, cut), args, kwargs))

    def cycle(self, at, args, kwargs):
        """At every arrival at `at`: a continuation runs the instruction, then a resume function follows, which is cut in turn."""

        def cut(state):
            self.cuts += 1
            assert self.cuts < self.limit
            tails = {
                key: dynamic_tail(state.code, way.offset, after) for key, way in exits(state.code, state.at).items()
            }
            code = continuation(state.code, self.head(state), state.at, tails)
            closure = self.fn.__closure__ if resume_info(state.code) is None else None
            return TailCall(self.function(code, closure), *(None for _ in FrameLayout.of(state.code).params))

        def after(state):
            names, stack = state.layout()
            code = resume(state.code, state.at, locals=names, stack=stack)
            offsets = {old: new for new, old in resume_info(code).offsets.items()}
            if at in offsets:
                code = intercept(code, offsets[at], cut, from_head=True)
            return TailCall(self.function(code), *state.arguments())

        return trampoline(self.start(intercept(self.fn.__code__, at, cut), args, kwargs))

    def once(self, at, args, kwargs, static):
        """Cut at the first arrival; run the instruction in a continuation; continue in a resume function.

        `static` maps exit keys to the layouts found by an earlier run, which then go through `tail_call`.
        """
        states = []
        result = self.start(intercept(self.fn.__code__, at, states.append), args, kwargs)
        if not states:
            return result, None
        self.cuts += 1
        (state,) = states
        learned = {}
        tails = {key: self.tail(key, way, static, learned) for key, way in exits(state.code, at).items()}
        code = continuation(state.code, self.head(state), at, tails)
        params = FrameLayout.of(state.code).params
        assert code.co_argcount == len(params)
        assert code.co_freevars == state.code.co_freevars
        made = self.function(code, self.fn.__closure__)
        return trampoline(made(*(None for _ in params))), learned

    def head(self, state):
        """Instructions that restore the state from constants; generated code restores the state from graph outputs."""
        names, stack = state.layout()
        out = [i for name in names for i in (*load_const(state.values[name]), *store_raw(name))]
        unbound = [name for name in FrameLayout.of(state.code).params if name not in state.values]
        out += [Instruction("DELETE_FAST", argval=name) for name in unbound]
        items = state.items()
        for n, kind in enumerate(state.kinds):
            if stack[n] == "null":
                out += push_null()
            elif kind == "exc":
                out += enter_handler(load_const(items[f"__t{n}"]))
            elif kind == "lasti":
                out += load_lasti(state.entry, n)
            else:
                out += load_const(items[f"__t{n}"])
        return out

    def tail(self, key, way, static, learned):
        if key in static:
            names, stack = static[key]
            code = resume(self.fn.__code__, way.offset, locals=names, stack=stack)
            return tail_call(TailCall, self.function(code), names, resume_info(code).stack)

        def after(state):
            learned[key] = names, stack = state.layout()
            code = resume(state.code, state.at, locals=names, stack=stack)
            return TailCall(self.function(code), *state.arguments())

        return lambda: dynamic_tail(self.fn.__code__, way.offset, after)
