"""Recurrent layers in training, compared with eager: their kernels save a workspace for the backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import pycompiler

LAYERS = {
    "lstm": lambda: nn.LSTM(3, 4, 2, batch_first=True),
    "bidirectional lstm": lambda: nn.LSTM(3, 4, bidirectional=True),
    "gru": lambda: nn.GRU(3, 4, bidirectional=True),
    "rnn": lambda: nn.RNN(3, 4),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", LAYERS)
def test_training(name: str, backend: str) -> None:
    torch.manual_seed(0)
    theirs = LAYERS[name]()
    ours = copy.deepcopy(theirs)
    compiled = pycompiler.compile(ours, backend=backend)
    for use_state in (True, False):
        inputs = [torch.randn(2, 5, 3, requires_grad=True)]
        inputs.append(inputs[0].detach().clone().requires_grad_())
        outputs = []
        for run, x in zip((theirs, compiled), inputs, strict=True):
            out, state = run(x)
            loss = out.sin().sum()
            if use_state:
                loss = loss + (state[0] if isinstance(state, tuple) else state).cos().sum()
            loss.backward()
            outputs.append(out)
        torch.testing.assert_close(outputs[1], outputs[0])
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    with torch.no_grad():
        torch.testing.assert_close(compiled(inputs[0])[0], theirs(inputs[0])[0])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_cell_is_compiled_though_its_results_share_the_gates(bias: bool, backend: str) -> None:
    theirs = nn.LSTMCell(4, 6, bias=bias)
    ours = copy.deepcopy(theirs)
    compiled = pycompiler.compile(ours, backend=backend, fullgraph=True)
    for rows in (2, 3, 5):
        found = []
        for run in (theirs, compiled):
            state = torch.zeros(rows, 6, requires_grad=True)
            x = torch.linspace(-1, 1, 4 * rows).view(rows, 4).requires_grad_()
            h, c = run(x, (state, state))
            between = torch.autograd.grad(h.sum(), c, retain_graph=True)
            (h.sin().sum() + c.cos().sum()).backward()
            found.append([h, c, between, x.grad, state.grad])
        torch.testing.assert_close(*found)
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad)
    assert pycompiler.counters(compiled)["compiles"] == 2
