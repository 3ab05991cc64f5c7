"""What torch's fake tensors import of `torch._dynamo.source` to name a real tensor that they meet.

In: a name.  Out: an object that has it; of whose class nothing is asked where sizes are numbers.  Where somebody has loaded the
peer, its own classes.
"""

from __future__ import annotations

import sys
from typing import Any

PEER = "torch._dynamo"


class _Source:
    def __init__(self, *args: Any) -> None:
        self.name = ".".join(map(str, args))

    def __str__(self) -> str:
        return self.name


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    source = sys.modules.get(f"{PEER}.source")
    return _Source if source is None else getattr(source, name)
