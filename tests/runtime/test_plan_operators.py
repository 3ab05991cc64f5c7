"""ATen calls of a slice of torch's own operator samples, each through a one-step plan: same as eager.

Arguments of an operator are encoded by hand for torch's C ABI, where a mistake gives a wrong value or a crash. The
samples use each kind of argument many times.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from pycompiler import _native
from pycompiler.ir.plan import Aten, Plan, SlotRef
from pycompiler.runtime.plan_python import flat
from tests.harness.compare import assert_same

# torch's samples need packages that some torch versions do not install
op_db = pytest.importorskip("torch.testing._internal.common_methods_invocations").op_db

SLICES = 2
PER_OPERATOR = 2
UNDEFINED = ("empty", "resize", "_ctc_loss")  # part of the result is uninitialised memory


def copied(t: torch.Tensor) -> torch.Tensor:
    """The same values with the same strides in storage of its own."""
    return torch.empty(0, dtype=t.dtype).set_(t.untyped_storage().clone(), t.storage_offset(), t.size(), t.stride())


class ThroughPlans(TorchDispatchMode):
    """Runs each operator, and the same operator again as a plan on copies of its arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()
        self.routes: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, str(func)
        tensors = list({id(t): t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}.values())
        plain = all(type(t) is torch.Tensor and t.layout is torch.strided for t in tensors)
        plain = plain and not any(t.is_neg() or t.is_conj() for t in tensors)  # `copied` drops these bits
        returns = [str(r.real_type) for r in func._schema.returns]
        self.seen[name] += 1
        if self.seen[name] > PER_OPERATOR or not plain or any("Tensor" not in r for r in returns):
            return func(*args, **kwargs)
        copies, state = [copied(t) for t in tensors], torch.get_rng_state()
        result = func(*args, **kwargs)
        outputs = list(flat(result)) if returns else []
        slots = {id(t): SlotRef(i) for i, t in enumerate(tensors)}
        args, kwargs = tree_map(lambda v: slots.get(id(v), v) if isinstance(v, torch.Tensor) else v, (args, kwargs))
        n, last = len(tensors), len(tensors) + len(outputs)
        plan = _native.Plan(
            Plan(n, last, [Aten(func, args, kwargs, tuple(range(n, last)))], [*range(n, last)], name=name)
        )
        after = torch.get_rng_state()
        torch.set_rng_state(state)
        got = plan(*copies)
        torch.set_rng_state(after)
        self.routes[plan.routes[0]] += 1
        for g, w in zip((*got, *copies), (*outputs, *tensors), strict=True):
            if w is not None and any(u in name for u in UNDEFINED):
                g, w = g.to("meta"), w.to("meta")
            assert_same(g, w, exact=True, history=False, what=name)
        return result


@pytest.mark.parametrize("part", range(SLICES))
def test_operators_of_the_samples(part: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    mode = ThroughPlans()
    for op in [o for o in op_db[part :: SLICES * 11] if not o.name.startswith("jiterator")]:
        dtypes = [d for d in (torch.float32, torch.int64) if d in op.supported_dtypes("cpu")]
        for sample in [s for d in dtypes for s in list(islice(op.sample_inputs("cpu", d), 3))]:
            with mode:
                op(sample.input, *sample.args, **sample.kwargs)
    assert len(mode.seen) > 30
    assert mode.routes["dispatcher"] > 50
    assert mode.routes["shim"] > 2
