"""Handlers for variables by name: in a class body, and in code given to `eval` or `exec`.

Such code has no slots.  Its variables are in a namespace (`Frame.names`), which the statement that runs the code
reads afterwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter import inlining_rules
from pycompiler.capture.opcodes.registry import opcode
from pycompiler.capture.opcodes.variables import filled, get_global
from pycompiler.capture.values.base import Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.containers.dicts import Dict
from pycompiler.ir.source import const_source

if TYPE_CHECKING:
    from pycompiler.capture.bytecode.instruction import Instruction
    from pycompiler.capture.interpreter.evaluation import Frame


@opcode("LOAD_BUILD_CLASS")
def load_build_class(frame: Frame, ins: Instruction) -> None:
    scope = inlining_rules.builtins_of(frame.globals)
    frame.push(frame.cx.wrap(scope["__build_class__"], const_source(scope).dict_item("__build_class__")))


@opcode("SETUP_ANNOTATIONS")
def setup_annotations(frame: Frame, ins: Instruction) -> None:
    if frame.names.lookup(frame.cx, Const("__annotations__")) is None:
        frame.names.setitem(frame.cx, Const("__annotations__"), Dict({}))


def _by_name(frame: Frame, namespace: Value, name: str) -> Value | None:
    if not isinstance(namespace, Dict):
        raise Break("unsupported-operation", f"a class namespace that is not a dict: {namespace.describe()}")
    return namespace.lookup(frame.cx, Const(name))


def _global(frame: Frame, name: str) -> Value:
    """The value of a name that the namespace lacks.  The code's globals may be a dict of the program
    (`exec(text, names)`)."""
    if frame.scope is None:
        return get_global(frame, name)
    found = frame.scope.lookup(frame.cx, Const(name))
    builtins = inlining_rules.builtins_of(frame.globals)
    if found is None and name not in builtins:
        frame.cx.throw(NameError, f"name {name!r} is not defined", name=Const(name))
    return found or frame.cx.wrap(builtins[name], const_source(builtins).dict_item(name))


@opcode("LOAD_NAME")
def load_name(frame: Frame, ins: Instruction) -> None:
    found = _by_name(frame, frame.names, ins.argval)
    frame.push(_global(frame, ins.argval) if found is None else found)


@opcode("STORE_NAME")
def store_name(frame: Frame, ins: Instruction) -> None:
    frame.names.setitem(frame.cx, Const(ins.argval), frame.pop())


@opcode("DELETE_NAME")
def delete_name(frame: Frame, ins: Instruction) -> None:
    if _by_name(frame, frame.names, ins.argval) is None:
        frame.cx.throw(NameError, f"name {ins.argval!r} is not defined", name=Const(ins.argval))
    frame.names.delitem(frame.cx, Const(ins.argval))


@opcode("LOAD_LOCALS")
def load_locals(frame: Frame, ins: Instruction) -> None:
    frame.push(frame.names)


@opcode("LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
def load_class_deref(frame: Frame, ins: Instruction) -> None:
    namespace = frame.names if ins.opname == "LOAD_CLASSDEREF" else frame.pop()
    found = _by_name(frame, namespace, ins.argval)
    frame.push(filled(frame, ins.argval).contents if found is None else found)


@opcode("LOAD_FROM_DICT_OR_GLOBALS")
def load_from_dict_or_globals(frame: Frame, ins: Instruction) -> None:
    found = _by_name(frame, frame.pop(), ins.argval)
    frame.push(_global(frame, ins.argval) if found is None else found)
