"""A stand-in for `torch._dynamo.source`, which torch's converter of real tensors to fake ones imports.

In: a name.  Out: an object with this name; with static sizes, its class does not matter.
Once torch.compile is loaded, its own classes are used.
"""

from __future__ import annotations

import sys
from typing import Any

PEER = "torch._dynamo"


class _PlainSource:
    def __init__(self, *args: Any) -> None:
        self.name = ".".join(map(str, args))

    def __str__(self) -> str:
        return self.name


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    source = sys.modules.get(f"{PEER}.source")
    return _PlainSource if source is None else getattr(source, name)
