"""torch.distributions as programs use them: one graph, with eager's values, gradients and random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributions as D
from torch import Tensor

import pycompiler

USES: dict[str, Callable[[Tensor], Tensor]] = {
    "categorical, log_prob": lambda x: D.Categorical(logits=x).log_prob(torch.zeros(4, dtype=torch.long)),
    "categorical of probabilities, sample": lambda x: x.sum() + D.Categorical(probs=x.softmax(-1)).sample(),
    "categorical, entropy": lambda x: D.Categorical(logits=x).entropy(),
    "normal, rsample": lambda x: D.Normal(x, x.exp()).rsample(),
    "normal, log_prob": lambda x: D.Normal(x, x.exp()).log_prob(x),
    "bernoulli": lambda x: D.Bernoulli(logits=x).log_prob(torch.ones_like(x)),
    "divergence": lambda x: D.kl_divergence(D.Normal(x, x.exp()), D.Normal(0.0, 1.0)),
    "independent": lambda x: D.Independent(D.Normal(x, 1.0), 1).log_prob(x),
    "gamma": lambda x: D.Gamma(x.exp(), x.exp()).log_prob(x.exp()),
    "beta": lambda x: D.Beta(x.exp(), x.exp()).entropy(),
    "dirichlet": lambda x: D.Dirichlet(x.exp()).log_prob(x.softmax(-1)),
    "transformed": lambda x: D.TransformedDistribution(D.Normal(x, 1.0), [D.TanhTransform()]).rsample(),
    "mixture": lambda x: D.MixtureSameFamily(D.Categorical(logits=x), D.Normal(x, 1.0)).log_prob(torch.zeros(4)),
    "one hot": lambda x: x * D.OneHotCategorical(logits=x).sample(),
    "relaxed one hot": lambda x: D.RelaxedOneHotCategorical(torch.tensor(1.0), logits=x).rsample(),
    "poisson": lambda x: x + D.Poisson(x.exp()).sample(),
    "geometric, mean": lambda x: D.Geometric(logits=x).mean,
}


@pytest.mark.parametrize("name", USES)
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_distribution_is_one_graph(name: str, backend: str) -> None:
    fn = USES[name]
    compiled = pycompiler.compile(fn, fullgraph=True, backend=backend)
    found = []
    for run in (fn, compiled, compiled):
        torch.manual_seed(0)
        x = torch.linspace(-1, 1, 12).reshape(4, 3).requires_grad_()
        out = run(x)
        out.sum().backward()  # type: ignore[no-untyped-call]
        found.append((out.detach(), x.grad, torch.get_rng_state()))
    for given in found[1:]:
        torch.testing.assert_close(given, found[0])
    assert pycompiler.counters(compiled)["compiles"] == 1


def test_a_distribution_made_outside() -> None:
    given = D.Categorical(logits=torch.zeros(4, 3))
    compiled = pycompiler.compile(lambda d, x: d.log_prob(x) + d.probs.sum(), fullgraph=True, backend="eager")
    x = torch.tensor([0, 1, 2, 0])
    torch.testing.assert_close(compiled(given, x), given.log_prob(x) + given.probs.sum())


def test_properties_made_inside() -> None:
    """A lazy property of a class returns a property object; capture reads its class, and it does not leave the frame."""

    class Own(property):
        pass

    def asked(x: Tensor) -> Tensor:
        made = Own(len), property(), type(D.Categorical.logits)
        return (
            x
            + isinstance(made[0], property)
            + (type(made[0]) is Own)
            + isinstance(made[1], Own)
            + made[2].__name__.count("_")
        )

    x = torch.zeros(2)
    torch.testing.assert_close(pycompiler.compile(asked, backend="eager")(x), asked(x))

    def given(x: Tensor) -> Any:
        return x + 1, D.Categorical.logits, Own(len)

    out, lazy, own = pycompiler.compile(given, backend="eager")(x)
    assert out.tolist() == [1.0, 1.0] and isinstance(lazy, property) and type(own) is Own and own.fget is len

    def wrong(x: Tensor) -> Tensor:
        try:
            Own(len, nonsense=1)  # type: ignore[call-arg]
        except TypeError:
            return x + 1
        return x

    torch.testing.assert_close(pycompiler.compile(wrong, backend="eager")(x), x + 1)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_divergence_of_normals_of_several_variables(backend: str) -> None:
    def program(a: Tensor, b: Tensor) -> Tensor:
        p = D.MultivariateNormal(a, scale_tril=torch.diag_embed(b.exp()))
        q = D.MultivariateNormal(b, scale_tril=torch.diag_embed(a.exp()))
        return D.kl_divergence(p, q)

    compiled = pycompiler.compile(program, fullgraph=True, backend=backend)
    for size in (3, 4, 6, 3):
        found = []
        for run in (program, compiled):
            a, b = (torch.linspace(-1, by, size).requires_grad_() for by in (1, 2))
            out = run(a, b)
            out.sum().backward()
            found.append((out.detach(), a.grad, b.grad))
        torch.testing.assert_close(found[1], found[0])
    assert pycompiler.counters(compiled)["compiles"] == 2


def test_sizes_that_are_broadcast() -> None:
    def program(a: Tensor, b: Tensor) -> Any:
        try:
            size = torch._C._infer_size(a.shape, b.shape)
        except RuntimeError as error:
            return str(error), a + 1
        return type(size).__name__, torch.zeros(size) + a + b

    compiled = pycompiler.compile(program, fullgraph=True, backend="eager", dynamic=False)
    cases = [((2, 3), (3,)), ((5, 1, 3), (2, 1)), ((), (2,)), ((2,), (3,)), ((0, 1), (4,)), ((2, 4), (3, 4))]
    for given in cases:
        a, b = map(torch.ones, given)
        found, expected = compiled(a, b), program(a, b)
        assert found[0] == expected[0]
        torch.testing.assert_close(found[1], expected[1])
    assert pycompiler.counters(compiled)["compiles"] == len(cases)
