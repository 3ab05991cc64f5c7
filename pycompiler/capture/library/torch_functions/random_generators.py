"""Generators of random numbers that the program makes (`torch.Generator().manual_seed(0)`).

Generated code makes and seeds them before the graph runs, which draws from them as from existing ones (`GraphBuilder.generator`).
One that is seeded after something was drawn from it, or that may be a device's, breaks the graph.  So it is with torch's own
generators (`torch.manual_seed(0)`); to seed these twice is to seed them once, so the frame may still run again.
"""

from __future__ import annotations

import torch

from pycompiler.capture.breaks import Break
from pycompiler.capture.builtins.drawn import may_come_first
from pycompiler.capture.calls import Args, Kwargs, builtin, constructor
from pycompiler.capture.sizes import DRAWN
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.constant import Const
from pycompiler.capture.values.functions import Builtin
from pycompiler.capture.values.opaque import Opaque


class Made(Opaque):
    """One that generated code makes; `real` stands for it."""

    def getattr(self, cx: Capture, name: str) -> Value:
        return Const(self.real.device) if name == "device" else super().getattr(cx, name)


@constructor(torch.Generator)
def make(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *kwargs.values()]
    if len(given) > 1 or kwargs.keys() - {"device"}:
        raise Break("builtin-call", "torch.Generator(...)")
    device = cx.realize(given[0]).const() if given else "cpu"
    try:
        made = Made(torch.Generator(device))
    except (RuntimeError, TypeError) as error:
        raise Break("builtin-call", f"torch.Generator({device!r}): {error}") from None
    if device is None or made.real.device != torch.device(device):
        raise Break("builtin-call", f"torch.Generator({device!r}), of the device that is current then")
    made.source = DRAWN.item(len(cx.effects.draws))
    cx.effects.draw(Builtin(torch.Generator), [Const(device)])
    return made


def _is_seed(number: Value) -> bool:
    return type(number) is Const and type(number.value) is int and -(2**63) <= number.value < 2**64


@builtin(torch.random.manual_seed)  # which torch.compile, once it is imported, puts a wrapper around
def seed_all(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    given = [*args, *kwargs.values()]
    number = cx.realize(given[0]).settle("as the seed of a generator") if len(given) == 1 else Const(None)
    if kwargs.keys() - {"seed"} or not _is_seed(number) or cx.fake_mode.draws or not may_come_first(cx):
        raise Break("skipped-call", "torch.manual_seed")
    cx.effects.draw(Builtin(torch.random.manual_seed), [number])
    return cx.make(torch.default_generator)


@builtin(torch.Generator.manual_seed)
def seed(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    if len(args) != 2 or kwargs or not isinstance(args[0], Opaque):
        raise Break("skipped-call", "torch.Generator.manual_seed")
    own, number = args[0], cx.realize(args[1]).settle("as the seed of a generator")
    first = not cx.graph.draws_from(own) if isinstance(own, Made) else may_come_first(cx)
    if not first or not _is_seed(number):
        raise Break("skipped-call", "torch.Generator.manual_seed")
    cx.effects.draw(Builtin(torch.Generator.manual_seed), [own, number])
    return own
