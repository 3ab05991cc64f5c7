"""The effects of one call in a captured graph: a typed record in `node.meta["effects"]`.

In: a recorded call.  Out: facts that every stage asks before it drops, repeats, reorders or traces the call.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEffects:
    """The effects of a call.

    - `mutates`: it writes arguments, and their versions tell; None: unknown.
    - `wrote`: it may have written arguments, whatever their versions tell.
    - `acts`: it has effects beyond its writes and results.  `python`: it runs a function of the program, which may.
    - `switches`: it switches global state of torch.
    - `draws`: it draws random numbers, and has no other effect.
    - `refuses`: it may raise an error of data.  `warns`: the messages of its warnings.
    - `lasts`: it has an effect that an error behind it does not undo; None: unknown.
    """

    mutates: bool | None = None
    wrote: bool = False
    acts: bool = False
    python: bool = False
    switches: bool = False
    draws: bool = False
    refuses: bool = False
    lasts: bool | None = None
    warns: tuple[str, ...] = ()


_UNKNOWN = NodeEffects()


def effects_of(node: fx.Node) -> NodeEffects:
    """The record of a node; a node without a record is no call of the program."""
    return node.meta.get("effects", _UNKNOWN)  # type: ignore[no-any-return]
