"""The run of a backward in stages (`autograd/stages.py`): each autograd node runs one stage and hands the rest to the next.

In: the stages, their compiled graphs, and the inputs of the backward.
Out: the gradients of the first group of inputs, and a token: a tensor without elements, which is the gradient of the next
stage's node.  The token holds the rest of the backward, so the rest is freed with it if autograd does not need that node.

Example: of three stages, the node of the first gives ``(grad of w3, token)``, the second ``(grad of w2, token)``, the third
``(grad of w1,)``.  Autograd accumulates gradients that it has before it runs the next node.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from pycompiler.autograd.joint import Joint
from pycompiler.autograd.saved_tensors import modified
from pycompiler.autograd.stages import Stage
from pycompiler.torch_compat import torch_compile

Gradients = tuple[Any, ...]
Boxed = Callable[[list[Any]], Sequence[Any]]


class LazyGraph(Protocol):
    """A graph that is compiled at its first use."""

    call: Boxed | None

    def compile(self) -> Boxed: ...


@dataclass(frozen=True)
class TokenFactory:
    """Creates tokens, on the device of the results: autograd chooses a node's thread and stream by the device."""

    dtype: torch.dtype
    device: torch.device

    def __call__(self) -> torch.Tensor:
        return torch.empty(0, dtype=self.dtype, device=self.device)

    def holding(self, rest: Callable[[], Gradients]) -> torch.Tensor:
        token = self()
        token._rest_of_backward = rest  # type: ignore[attr-defined]
        return token


def token_of(joint: Joint, result: int) -> TokenFactory:
    """Tokens for the node of fresh output `result`."""
    value = joint.fresh[result].meta["val"]
    return TokenFactory(value.dtype, value.device)


def rest_of_backward(token: torch.Tensor) -> Gradients:
    """The gradients of the next stage, called by its node."""
    rest: Callable[[], Gradients] = token.__dict__.pop("_rest_of_backward")
    return rest()


def handed_on(groups: Sequence[Sequence[Any]], token: TokenFactory) -> Gradients:
    """Gradients that are known already, one group for each stage: those of the first, and the token of the next."""
    first, *rest = groups
    return (*first, token.holding(functools.partial(handed_on, rest, token))) if rest else tuple(first)


class StagedBackward:
    """A backward of several stages; `call` takes the inputs of the whole backward and gives the first stage's gradients."""

    def __init__(self, stages: Sequence[Stage], graphs: Sequence[LazyGraph], token: TokenFactory) -> None:
        self.stages, self.graphs, self.token = stages, graphs, token
        self.checked = sorted({k for stage in stages for k in stage.checks})
        self.call: Boxed | None = None

    @torch_compile.skipped
    def compile(self) -> Boxed:
        """Compile all stages: if one fails, none has run."""
        for graph in self.graphs:
            graph.compile()
        self.call = self._begin
        return self.call

    @torch_compile.skipped
    def _begin(self, values: list[Any]) -> Gradients:
        versions = {k: values[k]._version for k in self.checked}
        return self._run(0, values, versions)

    def _run(self, s: int, values: list[Any], versions: dict[int, int]) -> Gradients:
        stage, graph = self.stages[s], self.graphs[s].call
        assert graph is not None  # `compile` came first
        for k in stage.checks:
            if values[k]._version != versions[k]:
                raise RuntimeError(
                    modified(f"{values[k].type()} {list(values[k].shape)}", values[k]._version, versions[k])
                )
        inputs = [values[k] for k in stage.takes]
        for k in stage.drops:
            values[k] = None
        if torch._C._is_any_autocast_enabled():
            with torch._C._DisableAutocast():
                values += graph(inputs)
        else:
            values += graph(inputs)
        given = tuple(None if k is None else values[k] for k in stage.gives)
        for k in stage.frees:
            values[k] = None
        if s + 1 == len(self.stages):
            return given
        return (*given, self.token.holding(functools.partial(self._run, s + 1, values, versions)))
