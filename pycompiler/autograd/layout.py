"""The layout of intermediate results in memory, chosen for a whole graph, forward and backward together.

In: a `Joint` before its partition.  Out: the same joint graph, in which chosen convolutions read and return images that
are channels last, chosen products have wider rows, and the nodes between them keep that layout.

Example: for ``relu(conv(x))`` of contiguous tensors, the graph becomes

    x_last = clone(x, memory_format=channels_last)
    weight_last = clone(weight, memory_format=channels_last)
    y_last = relu(convolution(x_last, weight_last, ...))
    return clone(y_last, memory_format=contiguous_format)

cuDNN's fast kernels for half precision and TF32 read channels last.  Given contiguous images, each convolution converts
its operands and its result.

A product whose rows have an unaligned length, as GPT-2's logits of 50,257 columns, becomes

    wide = mm(x, constant_pad_nd(weight, ...))
    logits = slice(wide, -1, 0, 50257)

so loops read aligned rows, in the backward too; cuBLAS has no fast kernel for the product as it was.

Rules:

- Strides that the program sees stay eager's: outputs, gradients and new values of inputs.
- A node changes its layout only if its operator is pointwise or has the fact `any_layout`: its result has the same
  elements for every layout of its operands.  All other nodes read operands with the strides of the trace.  Examples:
  views that need the memory order (a `view` that would fail, `as_strided`), random operators, other libraries' operators.
- Conversions are `clone` nodes, so ATen can run the graph as it is.  `meta["val"]` of each node has the strides that
  ATen's operator returns for its operands.  Lowering turns conversions into loops, which fuse with their neighbours.
- Nodes of gradients read an output as the caller has it, not its copy that is channels last.  Reason: the caller may
  write an output before the backward, and eager's backward then raises.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from pycompiler.autograd.joint import Joint, drop_dead
from pycompiler.autograd.recorder import same_places
from pycompiler.autograd.views import is_view_op, view_parent
from pycompiler.operators.operator_facts import TORCHS, facts_of
from pycompiler.operators.symbolic_shape_rules import channels_last, is_one, packed, same
from pycompiler.symbolic.symbols import Specialise

aten = torch.ops.aten

CONVOLUTIONS: Mapping[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
"""Operator -> the number of images among its arguments; the weight follows them."""

ZEROS = aten.constant_pad_nd.default

_HALF = (torch.bfloat16, torch.float16)
AMPERE = (8, 0)  # the first compute capability with TF32

Rule = Callable[[fx.Node], bool]
Columns = Callable[[fx.Node], int | None]


def prefers_channels_last(node: fx.Node) -> bool:
    """Whether cuDNN's kernels for channels last are the fast ones for this convolution, or gradient of one.

    So it is for convolutions of images in half precision, and in float32 if cuDNN may use TF32
    (``torch.backends.cudnn.allow_tf32``, the default) on a GPU that has it.  Convolutions in groups are not chosen.
    """
    x = _operands(node)[-2]
    if x.device.type != "cuda" or torch.version.hip is not None or not torch.backends.cudnn.enabled:
        return False
    fast = x.dtype in _HALF or (x.dtype is torch.float32 and _uses_tf32(x.device))
    return fast and is_of_images(node) and _groups(node) == 1


def is_of_images(node: fx.Node) -> bool:
    """Whether a convolution, or gradient of one, has images (batch, channels, rows, columns) with elements, all of one
    dtype."""
    found = _operands(node)
    whole = all(t.dim() == 4 and not any(type(n) is int and n == 0 for n in t.shape) for t in found)
    return whole and len({t.dtype for t in found}) == 1


def _operands(node: fx.Node) -> list[torch.Tensor]:
    """The images, then the weight."""
    count = CONVOLUTIONS[node.target]
    return [a.meta["val"] for a in node.args[: count + 1]]  # type: ignore[union-attr]


def _groups(node: fx.Node) -> Any:
    return node.args[8 if node.target is aten.convolution.default else 9]


def _uses_tf32(device: torch.device) -> bool:
    """Whether cuDNN may use TF32.  torch has an older and a newer setting, and refuses to read the older one if the newer
    one was set."""
    if torch.cuda.is_available() and torch.cuda.get_device_capability(device) < AMPERE:
        return False
    try:
        return torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return torch.backends.cudnn.conv.fp32_precision == "tf32"  # type: ignore[attr-defined, no-any-return]


def is_product(node: fx.Node) -> bool:
    """Whether a node multiplies matrices, its last two arguments: mm, bmm, and those with a bias before them."""
    op = node.target
    return isinstance(op, OpOverload) and op._overloadname == "default" and facts_of(op).product


def lay_out(joint: Joint, rule: Rule = prefers_channels_last, columns: Columns = lambda _: None) -> None:
    """Rewrite `joint` in place; see the module docstring.

    - rule: whether a convolution, or gradient of one, is chosen
    - columns: the number of columns to which the result of a product is padded, or None
    """
    nodes = joint.graph.nodes
    chosen = {n for n in nodes if n.target in CONVOLUTIONS and rule(n)}
    padded = {n: wide for n in nodes if is_product(n) and (wide := columns(n)) is not None}
    if chosen or padded:
        with torch.no_grad(), torch._C._DisableAutocast():
            _Pass(joint, chosen, padded).run()


class _Pass:
    """State of one rewrite.

    - traced: each node with other strides than in the trace, and its value in the trace
    - copies: conversions, by node, layout and place (see `_place`)
    - padded: products, and the columns of their wider results; each node becomes the view of its own columns
    - visible: the nodes that own the memory of the caller's outputs
    """

    def __init__(self, joint: Joint, chosen: set[fx.Node], padded: Mapping[fx.Node, int]) -> None:
        self.joint, self.graph, self.chosen, self.padded = joint, joint.graph, chosen, padded
        self.traced: dict[fx.Node, Any] = {}
        self.copies: dict[tuple[Any, ...], fx.Node] = {}
        self.visible = {self.root(n) for n in joint.fresh}

    def run(self) -> None:
        for node in [*self.graph.nodes]:
            if node.op == "call_function":
                self.visit(node)
        self.give_outputs()
        drop_dead(self.graph)

    def give_outputs(self) -> None:
        """Let the graph return values with the strides of the trace."""
        joint, end = self.joint, self.graph.output_node()
        with self.graph.inserting_before(end):
            joint.fresh = [self.as_traced(n, {}) for n in joint.fresh]
            joint.stores = [(i, self.as_traced(n, {})) for i, n in joint.stores]
            joint.grads = [None if n is None else self.gradient(n) for n in joint.grads]
        end.args = ((*joint.fresh, *(n for _, n in joint.stores), *joint.grads),)

    def gradient(self, node: fx.Node) -> fx.Node:
        """A gradient with the strides of the trace: a view if these differ in dimensions of one element only, as for a
        weight of one window."""
        old, value = self.traced.get(node), node.meta["val"]
        if old is None or self.is_view(node) or not (_is_static(old) and same_places(old, value)):
            return self.as_traced(node, node.meta)
        view = self.graph.call_function(aten.as_strided.default, (node, list(old.shape), list(old.stride())))
        view.meta = {**_meta(node, node.meta), "val": old}
        return view

    # -- nodes ------------------------------------------------------------------------------------------------------
    def visit(self, node: fx.Node) -> None:
        with self.graph.inserting_before(node):
            if "gradient" in node.meta:
                for a in node.all_input_nodes:
                    if self.root(a) in self.visible:
                        node.replace_input_with(
                            a, self.as_traced(a, {})
                        )  # the node that the graph returns, or a view of it
            given = node.args
            step = self.pad if node in self.padded else self.convolve if node.target in CONVOLUTIONS else self.carry
            if not step(node):
                node.args = given
                for a in self.changed(node):
                    node.replace_input_with(a, self.as_traced(a, node.meta))

    def changed(self, node: fx.Node) -> list[fx.Node]:
        return [a for a in node.all_input_nodes if a in self.traced]

    def pad(self, node: fx.Node) -> bool:
        """Turn a product into the first columns of a wider one, whose right operand, and bias, has zeros behind its columns."""
        old, wide = node.meta["val"], self.padded[node]
        for a in self.changed(node):
            node.replace_input_with(a, self.as_traced(a, node.meta))
        *bias, left, right = node.args
        more = wide - old.shape[-1]
        operands = [b if b.meta["val"].shape[-1:] in ((), (1,)) else self.call(node, ZEROS, b, [0, more]) for b in bias]  # type: ignore[union-attr]
        y: Any = right.meta["val"]  # type: ignore[union-attr]
        if y.stride(-1) == 1:
            right = self.call(node, ZEROS, right, [0, more])
        else:  # the order in memory stays
            swapped = [*range(y.dim() - 2), y.dim() - 1, y.dim() - 2]
            rows = self.call(node, ZEROS, self.call(node, aten.permute.default, right, swapped), [0, 0, 0, more])
            right = self.call(node, aten.permute.default, rows, swapped)
        product = self.call(node, node.target, *operands, left, right, **node.kwargs)
        node.target, node.args, node.kwargs = aten.slice.Tensor, (product, -1, 0, old.shape[-1]), {}
        self.traced[node], node.meta["val"] = old, self.value(node)
        return True

    def call(self, place: fx.Node, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        """A new node with the meta of `place`."""
        made = self.graph.call_function(target, args, kwargs)
        made.meta = dict(place.meta)
        made.meta["val"] = self.value(made)
        return made

    def is_view(self, node: fx.Node) -> bool:
        """Whether the node is a view in the program."""
        return node not in self.padded and _is_view(node)

    def root(self, node: fx.Node) -> fx.Node:
        """The node that owns the memory in the program."""
        while node not in self.padded and (parent := view_parent(node)) is not None:
            node = parent[0]
        return node

    def convolve(self, node: fx.Node) -> bool:
        """Whether the node now returns images that are channels last.

        A convolution of depth keeps that layout if its image has it.
        """
        *images, weight = node.args[: CONVOLUTIONS[node.target] + 1]
        of_depth = _groups(node) != 1 and is_one(weight.meta["val"].shape[1]) and is_of_images(node)  # type: ignore[union-attr]
        if node not in self.chosen and not (of_depth and self.changed(node)):
            return False
        if not self.changed(node) and all(map(_is_point, images)):
            return True  # both layouts are one
        for image in images:
            if not _is_point(image):
                node.replace_input_with(image, self.last(image, node))  # type: ignore[arg-type]
        if not _is_last_in_memory(weight.meta["val"]):  # type: ignore[union-attr]
            node.replace_input_with(weight, self.last(weight, node))  # type: ignore[arg-type]
        return self.change(node)

    def carry(self, node: fx.Node) -> bool:
        """Whether the node computes the same elements from operands that are channels last."""
        if not self.changed(node):
            return True
        if not _any_layout(node.target):
            return False
        if _any_layout(node.target) not in ("view", "fold"):
            shapes = [a.meta["val"].shape for a in self.changed(node) if _is_last(a.meta["val"])]
            for a in node.all_input_nodes:
                value: Any = a.meta.get("val")
                is_image = isinstance(value, torch.Tensor) and value.dim() == 4
                if is_image and any(_alike(value.shape, s, node.target is aten.cat.default) for s in shapes):
                    node.replace_input_with(a, self.last(a, node))
        return self.change(node)

    def change(self, node: fx.Node) -> bool:
        """Give the node the value that its operator returns for its operands; False if no conversion could restore the
        value of the trace, or if the operator refuses its operands."""
        old = node.meta["val"]
        try:
            new = self.value(node)
        except (RuntimeError, Specialise):  # a view that this layout does not have, or that needs a size as a number
            return False
        if _same_strides(old, new):
            return True
        if _any_layout(node.target) != "view" and not all(map(_is_restorable, _tensors(old))):
            return False
        self.traced[node], node.meta["val"] = old, new
        return True

    def value(self, node: fx.Node) -> Any:
        args, kwargs = _with_values(node.args), _with_values(node.kwargs)
        if node.target is operator.getitem:
            return args[0][args[1]]
        with _mode_of(node):
            out = node.target(*args, **kwargs)  # type: ignore[operator]
        if node.target in CONVOLUTIONS and not torch.cuda.is_available():
            out = _without_gpu(node, out)
        return tuple(out) if isinstance(out, tuple) else out

    # -- conversions ------------------------------------------------------------------------------------------------
    def last(self, a: fx.Node, reader: fx.Node) -> fx.Node:
        """`a` channels last, for `reader`."""
        if _is_last(a.meta["val"]):
            return a
        return self.copy(a, torch.channels_last, reader.meta)

    def as_traced(self, a: fx.Node, place: Mapping[str, Any]) -> fx.Node:
        """`a` with the strides of the trace, for a reader with the meta `place`."""
        if a not in self.traced and (not self.is_view(a) or self.root(a) not in self.traced):
            return a
        old = self.traced.get(a, a.meta["val"])
        if self.is_view(a):
            key = (a, "traced", *_place(place))
            if key not in self.copies:
                copy = self.graph.node_copy(a, lambda n: self.as_traced(n, place))
                copy.meta = {**_meta(a, place), "val": old}
                self.copies[key] = copy
            return self.copies[key]
        made = self.copy(a, torch.channels_last if _is_last(old) else torch.contiguous_format, place)
        made.meta["val"] = old
        return made

    def copy(self, a: fx.Node, layout: torch.memory_format, place: Mapping[str, Any]) -> fx.Node:
        key = (a, layout, *_place(place))
        if key not in self.copies:
            copy = self.graph.call_function(aten.clone.default, (a,), {"memory_format": layout})
            copy.meta = _meta(a, place)
            copy.meta["val"] = self.value(copy)
            self.copies[key] = copy
        return self.copies[key]


def _place(meta: Mapping[str, Any]) -> tuple[Any, ...]:
    """The checkpoint of a node, and whether it belongs to a gradient: the partition recomputes nodes by these facts."""
    return meta.get("again"), "gradient" in meta


def _meta(a: fx.Node, place: Mapping[str, Any]) -> dict[str, Any]:
    """The meta of a conversion of `a`: the program's line is that of `a`, or of the reader for an input."""
    found = {k: place[k] for k in ("again", "gradient") if k in place}
    lines = a.meta if "user" in a.meta else place
    return found | {k: lines[k] for k in ("stack_trace", "user") if k in lines}


@cache
def _any_layout(target: Any) -> str:
    """The fact `any_layout` of an operator; "point" for pointwise ones, "" if the layout of the operands matters."""
    if target is operator.getitem:
        return "view"
    if not isinstance(target, OpOverload) or target.namespace not in TORCHS or target._schema.is_mutable:
        return ""
    facts = facts_of(target)
    return facts.any_layout or ("point" if torch.Tag.pointwise in target.tags and not facts.draws else "")


def _is_view(node: fx.Node) -> bool:
    made_by = node.args[0].target if node.target is operator.getitem else node.target  # type: ignore[union-attr]
    return is_view_op(made_by)


def _mode_of(node: fx.Node) -> Any:
    """The fake mode of a node's operands."""
    return next(t.fake_mode for a in node.all_input_nodes for t in _tensors(a.meta["val"]))  # type: ignore[attr-defined]


def _tensors(value: Any) -> list[torch.Tensor]:
    return [t for t in (value if isinstance(value, (tuple, list)) else (value,)) if isinstance(t, torch.Tensor)]


def _with_values(value: Any) -> Any:
    """Arguments with nodes replaced by their values."""
    if isinstance(value, fx.Node):
        return value.meta["val"]
    if isinstance(value, (tuple, list)):
        return [_with_values(v) for v in value] if isinstance(value, list) else tuple(map(_with_values, value))
    if isinstance(value, Mapping):
        return {k: _with_values(v) for k, v in value.items()}
    return value


def _without_gpu(node: fx.Node, out: Any) -> Any:
    """The results of a convolution on a GPU that this machine does not have: as cuDNN returns them.

    torch asks the GPU whether it uses cuDNN.
    """
    given = _operands(node)
    if given[0].device.type != "cuda" or not any(map(_is_last, given)):
        return out
    results = out if isinstance(out, tuple) else (out,)
    with _mode_of(node):
        made = tuple(
            t.contiguous(memory_format=torch.channels_last) if t is not None and t.dim() == 4 else t for t in results
        )
    return made if isinstance(out, tuple) else made[0]


# -- layouts ----------------------------------------------------------------------------------------------------------


def _is_last(t: torch.Tensor) -> bool:
    """Whether the strides are those of a fresh tensor that is channels last, also in dimensions of one element."""
    return t.dim() == 4 and all(map(same, t.stride(), channels_last(t.shape)[1]))


def _is_static(t: torch.Tensor) -> bool:
    return all(type(n) is int for n in (*t.shape, *t.stride()))


def _is_packed(t: torch.Tensor) -> bool:
    """Whether the strides are those of a fresh contiguous tensor."""
    return all(map(same, t.stride(), packed(t.shape)[1]))


def _is_restorable(t: torch.Tensor) -> bool:
    return _is_last(t) or _is_packed(t)


def _is_last_in_memory(t: torch.Tensor) -> bool:
    """Whether the elements lie as channels last; strides of dimensions of one element do not matter."""
    there = zip(t.shape, t.stride(), channels_last(t.shape)[1], strict=True)
    return all(is_one(n) or same(s, last) for n, s, last in there)


def _is_point(node: Any) -> bool:
    """Whether images have one row and one column: both layouts have the same places."""
    value = node.meta["val"]
    return is_one(value.shape[2]) and is_one(value.shape[3]) and _is_last_in_memory(value)


def _alike(shape: Any, other: Any, joined: bool) -> bool:
    """Whether two operands have one shape; `joined`: they may differ in channels."""
    return all(same(n, m) or (joined and d == 1) for d, (n, m) in enumerate(zip(shape, other, strict=True)))


def _same_strides(old: Any, new: Any) -> bool:
    return all(
        len(a.stride()) == len(b.stride()) and all(map(same, a.stride(), b.stride()))
        for a, b in zip(_tensors(old), _tensors(new), strict=True)
    )
