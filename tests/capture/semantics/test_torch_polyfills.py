"""torch functions that read data only to refuse it: captured, with eager's errors."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import pycompiler
from tests.harness.compare import assert_same_calls

WINDOW = torch.hann_window(16)

ISTFT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "no window": lambda s: torch.istft(s, 16, 4),
    "window and length": lambda s: torch.istft(s, 16, 4, window=WINDOW, length=20),
    "short window": lambda s: torch.istft(s, 16, win_length=12, window=WINDOW[:12], normalized=True),
    "method": lambda s: s.istft(16, 4, center=False),
    "one spectrum": lambda s: torch.istft(s[0], 16, 8),
    "odd": lambda s: torch.istft(s[:, :8], 15, 5),
    "both sides": lambda s: torch.istft(torch.cat([s, s[:, 1:8]], 1), 16, 4, window=WINDOW, onesided=False),
    "complex": lambda s: torch.istft(torch.cat([s, s[:, 1:8]], 1), 16, 4, onesided=False, return_complex=True),
}


@pytest.mark.parametrize("name", ISTFT)
def test_istft(name: str) -> None:
    torch.manual_seed(0)
    fn = ISTFT[name]
    compiled = pycompiler.compile(fn, fullgraph=True)
    for frames in (6, 7, 9):
        spectrum = torch.randn(2, 9, frames, dtype=torch.complex128 if name == "odd" else torch.complex64)
        sides = []
        for call in (fn, compiled):
            given = spectrum.clone().requires_grad_()
            made = call(given)
            made.abs().pow(2).sum().backward()
            sides.append((made, made.stride(), given.grad))
        torch.testing.assert_close(sides[1], sides[0])
    assert compiled.counters()["compiles"] == 2 and compiled.counters()["eager_calls"] == 0


def padded(s: torch.Tensor, n: int) -> Any:
    made = torch.istft(s * 2, 16, 4, window=WINDOW, length=n)
    return made * 2, s.istft(16, window=WINDOW, length=n)


def test_istft_of_a_short_signal_warns_where_eager_does() -> None:
    """The warning comes once per process, or at each call, and names the caller's line."""
    torch.manual_seed(0)
    compiled = pycompiler.compile(padded, fullgraph=True)
    for always in (False, True):
        torch.set_warn_always(always)
        try:
            padded(torch.randn(2, 9, 6, dtype=torch.complex64), 50)
            for n in (50, 50, 54):
                spectrum = torch.randn(2, 9, 6, dtype=torch.complex64)
                sides = []
                for call in (padded, compiled):
                    given = spectrum.clone().requires_grad_()
                    with warnings.catch_warnings(record=True) as seen:
                        warnings.simplefilter("always")
                        made = call(given, n)
                        sum(m.sum() for m in made).backward()
                    told = [(str(w.message), w.category, w.filename, w.lineno) for w in seen]
                    sides.append((made, given.grad, told))
                torch.testing.assert_close(sides[1][:2], sides[0][:2])
                assert sides[1][2] == sides[0][2] and len(sides[0][2]) == 2 * always
        finally:
            torch.set_warn_always(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.set_warn_always(True)
        try:
            with pytest.raises(UserWarning, match="shorter"):
                compiled(torch.randn(2, 9, 6, dtype=torch.complex64), 50)
        finally:
            torch.set_warn_always(False)
    assert compiled.counters()["compiles"] == 3  # with gradients, of any size, without


def weighted(x: torch.Tensor, f: torch.Tensor, a: torch.Tensor) -> Any:
    return (
        torch.cov(x, fweights=f), torch.cov(x, aweights=a), torch.cov(x[0], fweights=f, aweights=a, correction=0),
        x.cov(fweights=f, aweights=a),
    )  # fmt: skip


def test_cov_with_weights() -> None:
    torch.manual_seed(0)
    compiled = pycompiler.compile(weighted, fullgraph=True)
    for n in (5, 6, 8):
        x, f, a = torch.randn(3, n), torch.randint(1, 4, (n,)), torch.rand(n)
        sides = []
        for call in (weighted, compiled):
            given = x.clone().requires_grad_()
            made = call(given, f, a)
            sum(m.sum() for m in made).backward()
            sides.append((made, given.grad))
        torch.testing.assert_close(sides[1], sides[0])
    assert compiled.counters()["eager_calls"] == 0


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_what_they_refuse(backend: str) -> None:
    """One entry serves all data: the refusal depends on data."""

    def covariance(x: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        return torch.cov(x, fweights=f) + 1

    compiled = pycompiler.compile(covariance, backend=backend)
    x = torch.randn(3, 5)
    for weights in ([1, 1, 1, 1, 2], [1, 1, 1, 1, -1], [0, 0, 0, 0, 0], [1, 2, 0, 0, 0]):
        f = torch.tensor(weights)
        assert_same_calls(compiled, covariance, lambda f=f: (x, f), calls=1, tolerance=1e-5, absolute=1e-8)
    assert compiled.counters()["compiles"] == 1

    def spectrum(s: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.istft(s, 16, 4, window=w, center=False)

    compiled, s = pycompiler.compile(spectrum, backend=backend), torch.randn(9, 6, dtype=torch.cfloat)
    for window in (torch.ones(16), WINDOW, torch.zeros(16)):
        assert_same_calls(compiled, spectrum, lambda w=window: (s, w), calls=1, tolerance=1e-5, absolute=1e-8)
    assert compiled.counters()["compiles"] == 1


def test_longer_than_its_windows() -> None:
    def program(s: torch.Tensor) -> torch.Tensor:
        return torch.istft(s * 2, 16, 4, length=200)

    report = pycompiler.explain(program)(torch.randn(9, 6, dtype=torch.cfloat))
    assert report.graph_break_count == 0


def test_a_spectral_loss_trains_in_one_graph(caplog: pytest.LogCaptureFixture) -> None:
    """The gradient of `stft` folds windows, inside the graph of the step."""
    found = []
    for wrap in (lambda f: f, lambda f: pycompiler.compile(f, fullgraph=True)):
        torch.manual_seed(0)
        net = torch.nn.Conv1d(1, 1, 5, padding=2).double()
        optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
        window = torch.hann_window(16, dtype=torch.float64)

        @wrap
        def step(x: torch.Tensor, net: Any = net, optimizer: Any = optimizer, window: Any = window) -> torch.Tensor:
            optimizer.zero_grad()
            spectrum = torch.stft(net(x)[:, 0], 16, 4, window=window, return_complex=True)
            again = torch.istft(spectrum * spectrum.abs().sigmoid(), 16, 4, window=window, length=x.shape[-1])
            loss = spectrum.abs().pow(2).mean() + (again - x[:, 0]).abs().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        torch.manual_seed(1)
        found.append(
            [(step(torch.randn(2, 1, n, dtype=torch.float64)), net.weight.detach().clone()) for n in (48, 48, 52)]
        )
    torch.testing.assert_close(found[1], found[0])
    assert "runs eagerly" not in caplog.text


def test_weights_of_observations_that_eager_refuses_or_writes() -> None:
    """Bool weights are refused. For a single observation eager's `cov` writes the difference from the mean into its input."""

    def program(x: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        return torch.cov(x, fweights=weights)

    compiled = pycompiler.compile(program)
    for n, dtype in ((3, torch.int64), (3, torch.bool), (1, torch.int64), (4, torch.int64)):
        found = []
        for call in (program, compiled):
            torch.manual_seed(n)
            x = torch.randn(2, n)
            try:
                made: object = call(x, torch.full((n,), 2).to(dtype))
            except RuntimeError as error:
                made = str(error)
            found.append(str((made, x)))
        assert found[1] == found[0]
