"""Handlers for loads and stores of locals, globals, cells and attributes."""

from __future__ import annotations

import builtins
import importlib
import types
from typing import TYPE_CHECKING, Any

from pycompiler.capture.breaks import Break
from pycompiler.capture.bytecode.decode import LOCAL_SUFFIX
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.opcodes.registry import opcode
from pycompiler.capture.semantics import operators, symbolic_formatting
from pycompiler.capture.values.base import NULL, Cell, LazyObject, Value
from pycompiler.capture.values.classes import Class, Super
from pycompiler.capture.values.constant import LITERAL_IDS, Const
from pycompiler.capture.values.containers.instance_dicts import DELETED
from pycompiler.capture.values.functions import Function, Method
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.symbolic_numbers import is_open_text
from pycompiler.ir.source import const_source

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame


IMPORT = builtins.__import__


@opcode("NOP", "NOT_TAKEN", "RESUME", "MAKE_CELL", "COPY_FREE_VARS")
def nop(frame: Frame, ins: Instruction) -> None:
    if ins.opname == "MAKE_CELL":
        name = ins.argval
        # A cell of an inlined comprehension (3.12) is created later and may take the slot of a cell of the frame.
        first = next(position for position, i in enumerate(frame.instructions) if i.opname == "RESUME")
        own = frame.root and frame.ip <= first
        frame.locals[name] = frame.cx.made_cell(Cell(frame.locals.get(name), frame_name=name if own else None))


@opcode("LOAD_CONST")
def load_const(frame: Frame, ins: Instruction) -> None:
    known = frame.cx.constants
    value = known.get(id(ins.argval))
    if value is None:
        value = known[id(ins.argval)] = frame.cx.make(ins.argval)
    frame.push(value)


def get_local(frame: Frame, name: str) -> Value:
    value = frame.locals.get(name)
    if value is None:
        value = frame.free.get(name)
    if value is None:
        frame.cx.throw(
            UnboundLocalError, f"cannot access local variable {name!r} where it is not associated with a value"
        )
    realised: Value = frame.cx.realize(value)
    if realised is not value:
        frame.locals[name] = realised
    return realised


@opcode("LOAD_FAST", "LOAD_FAST_CHECK", "LOAD_CLOSURE")
def load_fast(frame: Frame, ins: Instruction) -> None:
    value = frame.locals.get(ins.argval)
    if isinstance(value, LazyObject) and id(type(value.real)) in LITERAL_IDS:  # the value may only be passed on
        frame.push(value)
        return
    try:
        frame.push(get_local(frame, ins.argval))
    except Break:  # the use of the value breaks the graph, not its load
        frame.push(frame.locals[ins.argval])


@opcode("LOAD_FAST_AND_CLEAR")
def load_fast_and_clear(frame: Frame, ins: Instruction) -> None:
    value = frame.locals.pop(ins.argval, None)
    frame.push(NULL if value is None else value)


@opcode("STORE_FAST")
def store_fast(frame: Frame, ins: Instruction) -> None:
    if frame.root and ins.argval in frame.locals:
        frame.cx.drop(frame, frame.locals[ins.argval])
    value = frame.stack.pop()
    if value is NULL:
        frame.locals.pop(ins.argval, None)
    elif ins.argval in frame.free:  # a resume function puts the cells of free variables into their slots
        assert isinstance(value, Cell)
        frame.free[ins.argval] = value
    else:
        frame.locals[ins.argval] = value


@opcode("DELETE_FAST")
def delete_fast(frame: Frame, ins: Instruction) -> None:
    if ins.argval not in frame.locals:
        get_local(frame, ins.argval)  # raises
    if frame.root:
        frame.cx.drop(frame, frame.locals[ins.argval])
    del frame.locals[ins.argval]


def filled(frame: Frame, name: str) -> Any:
    """The cell of a variable, which must have contents."""
    cell = frame.cell(name)
    if cell.contents is None:
        plain = name.removesuffix(LOCAL_SUFFIX)
        where = "where it is not associated with a value"
        if name in frame.free:
            text = f"cannot access free variable {plain!r} {where} in enclosing scope"
            frame.cx.throw(NameError, text, name=Const(plain))
        frame.cx.throw(UnboundLocalError, f"cannot access local variable {plain!r} {where}")
    cell.contents = frame.cx.realize(cell.contents)  # guards that the cell has contents
    frame.cx.effects.looks.at("cell", cell, None, cell.contents, cell.source)
    return cell


@opcode("LOAD_DEREF")
def load_deref(frame: Frame, ins: Instruction) -> None:
    frame.push(filled(frame, ins.argval).contents)


@opcode("STORE_DEREF")
def store_deref(frame: Frame, ins: Instruction) -> None:
    frame.cx.effects.set_cell(frame.cell(ins.argval), frame.pop())


@opcode("DELETE_DEREF")
def delete_deref(frame: Frame, ins: Instruction) -> None:
    frame.cx.effects.set_cell(filled(frame, ins.argval), None)


def get_global(frame: Frame, name: str) -> Value:
    frame.cx.of_operators.look_at_name(frame.globals, name)
    found = _global(frame, name)
    frame.cx.effects.looks.at("global", frame.globals, name, found, frame.cx.dict_source(frame.globals))
    return found


def _global(frame: Frame, name: str) -> Value:
    cx, namespace = frame.cx, frame.globals
    changed: Value | None = cx.effects.get_global(namespace, name)
    if changed is not None and changed is not DELETED:
        return changed
    source = cx.dict_source(namespace)
    if name in namespace and changed is None:
        found: Value = cx.wrap(namespace[name], source.dict_item(name))
        return found
    if changed is None:
        cx.guard("dict_absent", source, name)
    # a function created in each call gets the builtins of that moment
    if isinstance(frame.function, Function) and frame.function.real is None:
        kind = "id_is" if "__builtins__" in namespace else "dict_absent"
        made = source.dict_item("__builtins__") if kind == "id_is" else source
        cx.guard(kind, made, namespace.get("__builtins__", "__builtins__"))
    scope = inlining_rules.builtins_of(namespace)
    if name not in scope:
        cx.throw(NameError, f"name {name!r} is not defined", name=Const(name))
    builtin: Value = cx.wrap(scope[name], const_source(scope).dict_item(name))
    return builtin


@opcode("LOAD_GLOBAL")
def load_global(frame: Frame, ins: Instruction) -> None:
    value = get_global(frame, ins.argval)
    if ins.flag:
        push_callable(frame, value, NULL)
    else:
        frame.push(value)


@opcode("STORE_GLOBAL")
def store_global(frame: Frame, ins: Instruction) -> None:
    frame.cx.effects.set_global(frame.globals, ins.argval, frame.pop())


@opcode("DELETE_GLOBAL")
def delete_global(frame: Frame, ins: Instruction) -> None:
    cx, namespace, name = frame.cx, frame.globals, ins.argval
    changed = cx.effects.get_global(namespace, name)
    if changed is None:
        there = name in namespace
        cx.guard("dict_contains" if there else "dict_absent", cx.dict_source(namespace), name)
    if changed is DELETED or changed is None and not there:
        cx.throw(NameError, f"name {name!r} is not defined", name=Const(name))
    cx.effects.set_global(namespace, name, DELETED)


def push_callable(frame: Frame, fn: Value, receiver: Value) -> None:
    """Push the two stack slots before a call's arguments, in this Python's order."""
    from sys import version_info

    if version_info >= (3, 13):
        frame.push(fn)
        frame.push(receiver)
    elif receiver is NULL:
        frame.push(NULL)
        frame.push(fn)
    else:
        frame.push(fn)
        frame.push(receiver)


def push_method(frame: Frame, value: Value) -> None:
    if isinstance(value, Method):
        push_callable(frame, value.function, value.receiver)
    else:
        push_callable(frame, value, NULL)


@opcode("LOAD_ATTR")
def load_attr(frame: Frame, ins: Instruction) -> None:
    if ins.flag:
        load_method(frame, ins)
    else:
        frame.push(operators.attribute(frame.cx, frame.pop(), ins.argval))


@opcode("LOAD_METHOD")
def load_method(frame: Frame, ins: Instruction) -> None:
    method = symbolic_formatting.method_of(frame.stack[-1], ins.argval)
    owner = frame.stack.pop()
    push_method(frame, method or operators.attribute(frame.cx, frame.cx.realize(owner), ins.argval))


@opcode("LOAD_SUPER_ATTR")
def load_super_attr(frame: Frame, ins: Instruction) -> None:
    receiver, cls, maker = frame.pop(), frame.pop(), frame.cx.realize(frame.pop())
    if not isinstance(maker, Class) or maker.cls is not super:  # another object of that name
        found = frame.cx.call(maker, [cls, receiver] if ins.flag & 2 else [], {})
    elif isinstance(cls, Class):
        found = Super(cls.cls, receiver)
    else:
        raise Break("unsupported-operation", f"super({cls.describe()}, ...)")
    value = operators.attribute(frame.cx, found, ins.argval)
    if ins.flag & 1:
        push_method(frame, value)
    else:
        frame.push(value)


@opcode("STORE_ATTR")
def store_attr(frame: Frame, ins: Instruction) -> None:
    owner, value = frame.pop(), frame.stack.pop()
    if isinstance(owner, Object) and is_open_text(value) and owner.takes(ins.argval):
        value.guard_class(frame.cx)
    else:
        value = frame.cx.realize(value)
    owner.setattr(frame.cx, ins.argval, value)


@opcode("DELETE_ATTR")
def delete_attr(frame: Frame, ins: Instruction) -> None:
    frame.pop().delattr(frame.cx, ins.argval)


IMPORTED_BY_TORCH = ("sympy", "torch.fx.experimental.symbolic_shapes")  # by functions, when they are called


@opcode("IMPORT_NAME")
def import_name(frame: Frame, ins: Instruction) -> None:
    import sys

    cx = frame.cx
    fromlist, level = frame.pop().const(), frame.pop().const()
    name = ins.argval
    package = frame.globals.get("__package__") or frame.globals.get("__name__", "").rpartition(".")[0]
    full = name if level == 0 else importlib_resolve(name, package, level)
    if full in IMPORTED_BY_TORCH and str(frame.globals.get("__name__")).partition(".")[0] == "torch":
        importlib.import_module(full)
    if full not in sys.modules:
        raise Break("import", f"import of {full}, which is not loaded yet")
    module = sys.modules[full] if fromlist else sys.modules[full.partition(".")[0]]
    if not isinstance(module, types.ModuleType):
        raise Break("import", f"import of {full}: its entry in sys.modules is a {type(module).__qualname__}")
    missing = [n for n in fromlist or () if n != "*" and n not in module.__dict__]
    if missing and ("__getattr__" in module.__dict__ or any(not hasattr(module, n) for n in missing)):
        raise Break("import", f"from {full} import {', '.join(fromlist)}")
    if builtins.__import__ is not IMPORT:
        raise Break("import", f"import of {full} by a user-defined __import__")
    cx.wrap(IMPORT, const_source(builtins.__dict__).dict_item("__import__"))
    frame.push(cx.wrap(module, const_source(sys.modules).dict_item(full if fromlist else full.partition(".")[0])))


def importlib_resolve(name: str, package: str, level: int) -> str:
    base = package.rsplit(".", level - 1)[0] if level > 1 else package
    return f"{base}.{name}" if name else base


@opcode("IMPORT_FROM")
def import_from(frame: Frame, ins: Instruction) -> None:
    module = frame.stack[-1] = frame.cx.realize(frame.stack[-1])
    found = frame.cx.catching(AttributeError, lambda: module.getattr(frame.cx, ins.argval))
    if found is None:
        raise Break("import", f"from {module.describe()} import {ins.argval}")
    frame.push(found)


@opcode("LOAD_ASSERTION_ERROR")
def load_assertion_error(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.cx.make(AssertionError))
