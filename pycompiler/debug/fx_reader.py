"""A module whose `forward` is straight-line code, as fx prints graphs, → its graph, call by call.

In: an `nn.Module` whose class is in a file.  Out: `fx.GraphModule` that holds the module's attributes.
Unlike a symbolic trace it runs nothing: calls without a tensor (`torch.ones(3)`, setting grad mode) are nodes too.
"""

from __future__ import annotations

import ast
import inspect
import operator
import textwrap
from typing import Any

import torch
from torch import fx

# Calls that create an argument, not a node.
LITERALS = (slice, torch.device, torch.Size, range, complex, float)

OPERATORS: dict[type[ast.AST], tuple[Any, Any]] = {  # → (operator, in-place operator)
    ast.Add: (operator.add, operator.iadd), ast.Sub: (operator.sub, operator.isub), ast.Mult: (operator.mul, operator.imul),
    ast.Div: (operator.truediv, operator.itruediv), ast.FloorDiv: (operator.floordiv, operator.ifloordiv),
    ast.Mod: (operator.mod, operator.imod), ast.Pow: (operator.pow, operator.ipow),
    ast.MatMult: (operator.matmul, operator.imatmul), ast.LShift: (operator.lshift, operator.ilshift),
    ast.RShift: (operator.rshift, operator.irshift), ast.BitAnd: (operator.and_, operator.iand),
    ast.BitOr: (operator.or_, operator.ior), ast.BitXor: (operator.xor, operator.ixor),
    ast.USub: (operator.neg, None), ast.UAdd: (operator.pos, None), ast.Invert: (operator.invert, None),
    ast.Lt: (operator.lt, None), ast.LtE: (operator.le, None), ast.Gt: (operator.gt, None), ast.GtE: (operator.ge, None),
    ast.Eq: (operator.eq, None), ast.NotEq: (operator.ne, None), ast.Is: (operator.is_, None), ast.IsNot: (operator.is_not, None),
}  # fmt: skip


class NotStraight(Exception):
    """The code is not in the form that fx prints."""


def load(module: torch.nn.Module) -> fx.GraphModule:
    """The graph of `module.forward`."""
    forward = type(module).forward
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(forward))).body
    if not isinstance(tree, ast.FunctionDef):
        raise NotStraight(f"{forward!r} is not a function")
    return _Loader(module, forward.__globals__).run(tree)


class _Loader:
    """`names`: local name -> node or constant."""

    def __init__(self, module: torch.nn.Module, namespace: dict[str, Any]) -> None:
        self.module, self.namespace = module, namespace
        self.graph = fx.Graph()
        self.names: dict[str, Any] = {}

    def run(self, tree: ast.FunctionDef) -> fx.GraphModule:
        own, *inputs = tree.args.args
        self.names = {a.arg: self.graph.placeholder(a.arg) for a in inputs}
        self.names[own.arg] = self.module
        for statement in tree.body:
            self.statement(statement)
        for path in {str(n.target) for n in self.graph.find_nodes(op="get_attr")}:
            folder, _, name = path.rpartition(".")
            owner = self.module.get_submodule(folder)
            body = getattr(owner, name)
            if isinstance(body, torch.nn.Module) and not isinstance(body, fx.GraphModule):
                setattr(owner, name, load(body))
        return fx.GraphModule(self.module, self.graph)

    def statement(self, s: ast.stmt) -> None:
        if isinstance(s, ast.Return):
            self.graph.output(self.value(s.value))
        elif isinstance(s, ast.AugAssign):
            self.call(OPERATORS[type(s.op)][1], (self.value(s.target), self.value(s.value)))
        elif isinstance(s, ast.Expr):
            self.value(s.value)
        elif isinstance(s, (ast.Assign, ast.AnnAssign)):
            self.assign(s)
        else:
            raise NotStraight(ast.unparse(s))

    def assign(self, s: ast.Assign | ast.AnnAssign) -> None:
        targets = s.targets if isinstance(s, ast.Assign) else [s.target]
        assert s.value is not None
        value = self.value(s.value)
        for target in targets:
            if isinstance(target, ast.Subscript):
                self.call(operator.setitem, (self.value(target.value), self.value(target.slice), value))
                continue
            if not isinstance(target, ast.Name):
                raise NotStraight(ast.unparse(s))
            if isinstance(s.value, ast.Constant) and s.value.value is None:
                self.names.pop(target.id, None)  # fx deletes variables that are not read again
                continue
            known = isinstance(s.value, ast.Name)
            if isinstance(value, fx.Node) and not known and value.name != target.id:
                value._rename(target.id)
            self.names[target.id] = value

    # expressions --------------------------------------------------------------------------------------------------
    def value(self, e: ast.AST | None) -> Any:
        if e is None:
            return None
        handler = getattr(self, f"_{type(e).__name__.lower()}", None)
        if handler is None:
            raise NotStraight(ast.unparse(e))
        return handler(e)

    def call(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> fx.Node:
        return self.graph.call_function(target, args, kwargs or {})

    def _constant(self, e: ast.Constant) -> Any:
        return e.value

    def _name(self, e: ast.Name) -> Any:
        if e.id in self.names:
            return self.names[e.id]
        if e.id in self.namespace:
            return self.namespace[e.id]
        builtins = self.namespace["__builtins__"]
        return builtins[e.id] if isinstance(builtins, dict) else getattr(builtins, e.id)

    def _tuple(self, e: ast.Tuple) -> Any:
        return tuple(map(self.value, e.elts))

    def _list(self, e: ast.List) -> Any:
        return list(map(self.value, e.elts))

    def _dict(self, e: ast.Dict) -> Any:
        return {self.value(k): self.value(v) for k, v in zip(e.keys, e.values, strict=True)}

    def _slice(self, e: ast.Slice) -> Any:
        return slice(self.value(e.lower), self.value(e.upper), self.value(e.step))

    def _attribute(self, e: ast.Attribute) -> Any:
        path, base = [e.attr], e.value
        while isinstance(base, ast.Attribute):
            path.append(base.attr)
            base = base.value
        if isinstance(base, ast.Name) and self.names.get(base.id) is self.module:
            return self.graph.get_attr(".".join(reversed(path)))
        owner = self.value(e.value)
        return self.call(getattr, (owner, e.attr)) if isinstance(owner, fx.Node) else getattr(owner, e.attr)

    def _subscript(self, e: ast.Subscript) -> Any:
        return self.operate(operator.getitem, self.value(e.value), self.value(e.slice))

    def _unaryop(self, e: ast.UnaryOp) -> Any:
        if isinstance(e.op, ast.Not):
            return self.operate(operator.not_, self.value(e.operand))
        return self.operate(OPERATORS[type(e.op)][0], self.value(e.operand))

    def _binop(self, e: ast.BinOp) -> Any:
        return self.operate(OPERATORS[type(e.op)][0], self.value(e.left), self.value(e.right))

    def _compare(self, e: ast.Compare) -> Any:
        (op,), (right,) = e.ops, e.comparators
        return self.operate(OPERATORS[type(op)][0], self.value(e.left), self.value(right))

    def operate(self, op: Any, *args: Any) -> Any:
        return self.call(op, args) if nodes_in(args) else op(*args)

    def _call(self, e: ast.Call) -> Any:
        args = tuple(map(self.value, e.args))
        kwargs = {str(k.arg): self.value(k.value) for k in e.keywords}
        if isinstance(e.func, ast.Attribute):
            owner = e.func.value
            if not (isinstance(owner, ast.Name) and self.names.get(owner.id) is self.module):
                base = self.value(owner)
                if isinstance(base, fx.Node):
                    return self.graph.call_method(e.func.attr, (base, *args), kwargs)
        target = self.value(e.func)
        if isinstance(target, fx.Node):  # a submodule
            name = str(target.target)
            self.graph.erase_node(target)
            return self.graph.call_module(name, args, kwargs)
        if target in LITERALS and not nodes_in((args, kwargs)):  # `float(n)` of a size is a node
            return target(*args, **kwargs)
        return self.call(target, args, kwargs)


def nodes_in(value: Any) -> list[fx.Node]:
    """Nodes in nested arguments."""
    found: list[fx.Node] = []
    fx.map_arg(value, found.append)
    return found
