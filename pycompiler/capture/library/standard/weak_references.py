"""Handler of `weakref.ref(obj)`; a callback breaks the graph."""

from __future__ import annotations

import weakref

from pycompiler.capture.breaks import Break
from pycompiler.capture.interpreter.calls import Args, Kwargs, constructor
from pycompiler.capture.semantics.lru_cache_calls import describe_call
from pycompiler.capture.values.base import Capture, Value
from pycompiler.capture.values.functions import Function
from pycompiler.capture.values.objects import Object
from pycompiler.capture.values.tensor import Tensor
from pycompiler.capture.values.weak_references import MadeReference


@constructor(weakref.ref)
def ref(cx: Capture, args: Args, kwargs: Kwargs) -> Value:
    referent, *others = args
    known = isinstance(referent, (Tensor, Function)) or (isinstance(referent, Object) and referent.storage is None)
    if kwargs or not known or not all(map(cx.is_none, others)) or not referent.python_type().__weakrefoffset__:
        raise Break("builtin-call", describe_call(weakref.ref, args))
    if isinstance(referent, Tensor) and referent.node.graph is not cx.effects.graph:
        raise Break("inner-graph", "a weak reference to a tensor of a passed function")
    return MadeReference(referent, cx.step())
