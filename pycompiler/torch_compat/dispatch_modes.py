"""The base class of our dispatch modes.  torch wraps calls of all other modes in `torch._dynamo.disable`, which imports
dynamo."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OwnMode(TorchDispatchMode):
    """A dispatch mode that torch.compile never sees."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would wrap each call of the mode
