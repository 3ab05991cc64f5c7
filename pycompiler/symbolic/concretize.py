"""Arguments with hints in place of symbols, for code that must see sizes but decides nothing about them.

In: the arguments of a call, with symbolic fake tensors and SymInts.  Out: the same structure with numbers.
Fake tensors that shared a storage still share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from pycompiler.symbolic.symbols import Symbols, expr_of, hint_of, symbols_of


def symbols_in(t: torch.Tensor) -> Symbols | None:
    """The `Symbols` of the first symbolic size or stride of a tensor, or None."""
    if not t._has_symbolic_sizes_strides:
        return None
    return next(filter(None, map(symbols_of, (*t.shape, *t.stride()))), None)


class Concretizer:
    """Conversion of one call's arguments and results; the same fake tensor always gives the same twin.

    `mode`: twins are tensors of this mode, including twins of fake tensors without symbols.
    `sizes`: values of the symbols, if not their hints.
    """

    def __init__(self, mode: Any = None, sizes: Mapping[str, int] | None = None) -> None:
        self._mode, self._sizes = mode, sizes
        self._twins: dict[int, torch.Tensor] = {}
        self._storages: dict[int, Any] = {}

    def twin(self, t: torch.Tensor) -> torch.Tensor:
        """A fake tensor of the same kind with concrete sizes; the tensor itself if it has no symbols."""
        if not isinstance(t, FakeTensor) or not (self._mode or t._has_symbolic_sizes_strides):
            return t
        known = self._twins.get(id(t))
        if known is None:
            with torch._C._AutoDispatchBelowADInplaceOrView(), torch._C._DisableTorchDispatch():
                meta = torch.empty(0, dtype=t.dtype, device="meta")
                layout = [self._number(n) for n in t.shape], [self._number(n) for n in t.stride()]
                meta.set_(self._storage(t), self._number(t.storage_offset()), *layout)
                known = FakeTensor(self._mode or t.fake_mode, meta, t.device)
                torch._C._set_conj(known, t.is_conj())
                torch._C._set_neg(known, t.is_neg())
            self._twins[id(t)] = known = known.requires_grad_() if t.requires_grad else known
        return known

    def _storage(self, t: torch.Tensor) -> Any:
        own = t.untyped_storage()
        known = self._storages.get(own._cdata)
        if known is None:
            known = torch.empty(self._number(own.nbytes()), dtype=torch.uint8, device="meta").untyped_storage()
            self._storages[own._cdata] = known
        return known

    def of(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return self.twin(value)
        if isinstance(value, (list, tuple)):  # fx has list classes of its own
            return (list if isinstance(value, list) else tuple)(map(self.of, value))
        if isinstance(value, dict):
            return {k: self.of(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(self.of(value.start), self.of(value.stop), self.of(value.step))
        return self._number(value)

    def _number(self, value: Any) -> Any:
        if self._sizes is not None and isinstance(value, torch.SymInt):
            return expr_of(value).eval(self._sizes)
        return hint_of(value)
