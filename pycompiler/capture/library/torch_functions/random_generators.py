"""Random generators that the program creates (`torch.Generator().manual_seed(0)`), and seeds of torch's own generators.

Generated code creates and seeds them before the graph runs.  The graph draws from them as from existing generators
(`GraphBuilder.generator`).  A seed after a draw, or a generator of the current device, breaks the graph.  The same
rules hold for torch's own generators (`torch.manual_seed(0)`).  Seeding them twice has the same result as seeding
once, so the frame may still run again.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.library.standard.random_numbers import may_draw_before_graph
from pycompiler.capture.recording.input_symbols import DRAWN
from pycompiler.capture.semantics.signatures import constant_arguments
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.opaque import Opaque


class CreatedGenerator(Opaque):
    """A generator that generated code creates; `real` stands for it."""

    def getattr(self, cx: Capture, name: str) -> Value:
        return Const(self.real.device) if name == "device" else super().getattr(cx, name)


@constructor(torch.Generator)
def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *kwargs.values()]
    if len(given) > 1 or kwargs.keys() - {"device"}:
        raise Break("builtin-call", "torch.Generator(...)")
    device = cx.realize(given[0]).const() if given else "cpu"
    try:
        made = CreatedGenerator(torch.Generator(device))
    except (RuntimeError, TypeError) as error:
        raise Break("builtin-call", f"torch.Generator({device!r}): {error}") from None
    if device is None or made.real.device != torch.device(device):
        raise Break("builtin-call", f"torch.Generator({device!r}), which uses the current device")
    made.source = DRAWN.item(len(cx.effects.draws))
    cx.effects.draw(Builtin(torch.Generator), [Const(device)])
    return made


def _is_seed(number: Value) -> bool:
    return type(number) is Const and type(number.value) is int and -(2**63) <= number.value < 2**64


@builtin(torch.random.manual_seed)  # torch.compile, once imported, wraps this function
@constant_arguments("as the seed of a generator")
def seed_all(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *kwargs.values()]
    number = given[0] if len(given) == 1 else Const(None)
    if kwargs.keys() - {"seed"} or not _is_seed(number) or cx.fake_mode.seen.draws or not may_draw_before_graph(cx):
        raise Break("skipped-call", "torch.manual_seed")
    cx.effects.draw(Builtin(torch.random.manual_seed), [number])
    return cx.make(torch.default_generator)


@builtin(torch.Generator.manual_seed)
@constant_arguments("as the seed of a generator")
def seed(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 2 or kwargs or not isinstance(args[0], Opaque):
        raise Break("skipped-call", "torch.Generator.manual_seed")
    own, number = args
    first = not cx.graph.draws_from(own) if isinstance(own, CreatedGenerator) else may_draw_before_graph(cx)
    if not first or not _is_seed(number):
        raise Break("skipped-call", "torch.Generator.manual_seed")
    cx.effects.draw(Builtin(torch.Generator.manual_seed), [own, number])
    return own
