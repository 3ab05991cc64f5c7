"""Real models end to end through the public API: one graph, eager's values and gradients, no second compile."""

from __future__ import annotations

import importlib.util
import itertools

import pytest
import torch
from models import NAMES, Case, build

import pycompiler
from pycompiler.api import compiled_of

NEEDS = {"gpt": "torch", "resnet18": "torchvision"}


def made(name: str, *, training: bool) -> Case:
    package = NEEDS.get(name, "transformers")
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    return build(name, training=training)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("training", [True, False], ids=["training", "inference"])
def test_one_graph_no_break(name: str, training: bool) -> None:
    case = made(name, training=training)
    report = pycompiler.explain(case.model)(*case.args, **case.kwargs)
    assert (report.graph_count, report.graph_break_count) == (1, 0), str(report)


@pytest.mark.parametrize("name", NAMES)
def test_inference_equals_eager(name: str) -> None:
    case = made(name, training=False)
    compiled = pycompiler.compile(case.model)
    with torch.no_grad():
        expected = case.model(*case.args, **case.kwargs)
        seen = compiled(*case.args, **case.kwargs)
        compiles = compiled_of(compiled).counters()["compiles"]
        again = compiled(*case.args, **case.kwargs)
    assert type(seen) is type(expected)
    outputs = expected.to_tuple() if hasattr(expected, "to_tuple") else (expected,)
    for result in (seen, again):
        values = result.to_tuple() if hasattr(result, "to_tuple") else (result,)
        torch.testing.assert_close(values, outputs, rtol=1e-4, atol=1e-5)
    assert compiles >= 1
    assert compiled_of(compiled).counters()["compiles"] == compiles


def in_double(value: object) -> object:
    return value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value


def assert_as_good(have: torch.Tensor, want: torch.Tensor, exact: torch.Tensor, what: str) -> None:
    """`have` is as close to float64 as eager's `want` is, up to rounding.

    If eager's own error is large (a ReLU whose input rounds to the other side of zero), a comparison with eager
    would compare with its error.
    """
    errors = [(v.double() - exact).abs().max().item() for v in (have, want)]
    allowed = max(1e-5 + 1e-5 * exact.abs().max().item(), 2 * errors[1])
    assert errors[0] <= allowed, f"{what}: error {errors[0]:.3g}, eager's {errors[1]:.3g}, allowed {allowed:.3g}"


@pytest.mark.parametrize("name", NAMES)
def test_training_equals_eager(name: str) -> None:
    """Loss, every gradient and every buffer after each of two steps."""
    plain, case, double = (made(name, training=True) for _ in range(3))
    double.model.double()
    compiled = pycompiler.compile(case.model)
    for args, kwargs in itertools.islice(plain.batches(3), 2):
        losses = []
        wide = [in_double(a) for a in args], {k: in_double(v) for k, v in kwargs.items()}
        inputs = ((compiled, (args, kwargs)), (plain.model, (args, kwargs)), (double.model, wide))
        for model, (positional, keywords) in inputs:
            model.zero_grad()
            losses.append(case.loss(model(*positional, **keywords)))
            losses[-1].backward()
        assert_as_good(*losses, "loss")
        models = (case.model, plain.model, double.model)
        for (key, p), q, r in zip(models[0].named_parameters(), *(m.parameters() for m in models[1:]), strict=True):
            assert_as_good(p.grad, q.grad, r.grad, f"gradient of {key}")
        for (key, p), q, r in zip(models[0].named_buffers(), *(m.buffers() for m in models[1:]), strict=True):
            assert_as_good(p, q, r.double(), key)
    assert compiled_of(compiled).counters()["compiles"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_training_without_codegen(name: str) -> None:
    """aot_eager runs the same ATen kernels as eager: a difference here is autograd's, not the code generator's."""
    plain, case = made(name, training=True), made(name, training=True)
    compiled = pycompiler.compile(case.model, backend="aot_eager", fullgraph=True)
    for _ in range(2):
        expected, loss = plain.run(), case.loss(compiled(*case.args, **case.kwargs))
        for model, value in ((plain.model, expected), (case.model, loss)):
            model.zero_grad()
            value.backward()
        torch.testing.assert_close(loss, expected, rtol=1e-4, atol=1e-5)
        for (key, p), q in zip(case.model.named_parameters(), plain.model.parameters(), strict=True):
            torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-4, msg=lambda m, k=key: f"{k}: {m}")
    assert compiled_of(compiled).counters()["compiles"] == 1


@pytest.mark.parametrize("name", ["Llama", "GPT2"])
def test_sizes_are_symbols_with_checkpoints(name: str) -> None:
    """With `gradient_checkpointing_enable()`, two compiles serve all lengths."""
    transformers = pytest.importorskip("transformers")
    few = (
        {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2}
        if name == "Llama"
        else {"n_embd": 16, "n_layer": 2, "n_head": 2, "attn_pdrop": 0, "resid_pdrop": 0, "embd_pdrop": 0}
    )  # fmt: skip
    config = getattr(transformers, f"{name}Config")(
        vocab_size=50, use_cache=False, bos_token_id=1, eos_token_id=2, **few
    )
    model = getattr(transformers, "LlamaForCausalLM" if name == "Llama" else "GPT2LMHeadModel")(config).train()
    model.gradient_checkpointing_enable()
    compiled = pycompiler.compile(model, backend="aot_eager", fullgraph=True)
    for n in (7, 9, 12, 17, 24, 31):
        tokens = torch.arange(2 * n).reshape(2, n) % 50
        gradients = []
        for one in (compiled, model):
            model.zero_grad()
            one(input_ids=tokens, labels=tokens).loss.backward()
            gradients.append([p.grad.clone() for p in model.parameters()])
        torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-5)
    assert compiled_of(compiled).counters()["compiles"] == 2
