"""The six models of examples, tests and benches, built small, with random weights and fixed seeds.

In: a name of `NAMES`. Out: `Case(model, args, kwargs, loss)`: `loss(model(*args, **kwargs))` is a scalar tensor.
Example: `case = build("bert"); case.loss(case.model(*case.args, **case.kwargs)).backward()`.

`gpt` is defined here; `bert`, `gpt2`, `llama`, `vit` come from transformers and `resnet18` from torchvision (`pip
install pycompiler[models]`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models import gpt as gpt_model


@dataclass(frozen=True)
class Case:
    """A model with one batch of inputs. `batches(seed)` gives further batches of the same shapes.

    `tokens`: the number of tokens in a batch for throughput: bytes of text, or images.
    """

    name: str
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Callable[[Any], Tensor]
    batches: Callable[[int], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]] = field(repr=False)
    tokens: int = 1

    def run(self) -> Tensor:
        return self.loss(self.model(*self.args, **self.kwargs))


Maker = Callable[[bool, int], Case]


def _endless(make: Callable[[torch.Generator], tuple[tuple[Any, ...], dict[str, Any]]]) -> Callable[[int], Any]:
    def batches(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        generator = torch.Generator().manual_seed(seed)
        while True:
            yield make(generator)

    return batches


def _case(name: str, model: nn.Module, make: Any, loss: Callable[[Any], Tensor], tokens: int, seed: int) -> Case:
    batches = _endless(make)
    args, kwargs = next(batches(seed))
    return Case(name, model, args, kwargs, loss, batches, tokens)


def _text(make: Any, length: int, batch: int) -> Any:
    """Batches from the bytes of the standard library: `make(tokens, targets)` gives args and kwargs."""
    text = gpt_model.standard_library(1_000_000)
    window = torch.arange(length + 1)

    def draw(generator: torch.Generator) -> Any:
        starts = torch.randint(len(text) - length - 1, (batch, 1), generator=generator)
        rows = text[starts + window].long()
        return make(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())

    return draw


def _gpt(training: bool, seed: int) -> Case:
    config = gpt_model.Config()
    batch = 4
    draw = _text(lambda x, y: ((x, y), {}) if training else ((x,), {}), config.length, batch)
    loss = (lambda out: out) if training else (lambda out: out.float().square().mean())
    return _case("gpt", gpt_model.GPT(config), draw, loss, batch * config.length, seed)


def _bert(training: bool, seed: int) -> Case:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        vocab_size=256, hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512,
        max_position_embeddings=128, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip

    def make(x: Tensor, _: Tensor) -> Any:
        mask = torch.ones_like(x)
        mask[:, -8:] = 0
        return (), {"input_ids": x, "attention_mask": mask, "labels": x}

    return _case("bert", BertForMaskedLM(config), _text(make, 64, 4), lambda out: out.loss, 4 * 64, seed)


def _gpt2(training: bool, seed: int) -> Case:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=256, n_embd=128, n_layer=2, n_head=4, n_positions=128, use_cache=False,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    draw = _text(lambda x, y: ((), {"input_ids": x, "labels": x}), 64, 4)
    model = GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"  # transformers cannot infer it from the class name, and warns at each first call
    return _case("gpt2", model, draw, lambda out: out.loss, 4 * 64, seed)


def _llama(training: bool, seed: int) -> Case:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=256, hidden_size=128, intermediate_size=344, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, use_cache=False, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    draw = _text(lambda x, y: ((), {"input_ids": x, "labels": x}), 64, 4)
    return _case("llama", LlamaForCausalLM(config), draw, lambda out: out.loss, 4 * 64, seed)


def _vit(training: bool, seed: int) -> Case:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=32, patch_size=4, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=512, num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    config.problem_type = (
        "single_label_classification"  # otherwise the first call with labels sets it, a change that is guarded
    )

    def draw(generator: torch.Generator) -> Any:
        labels = torch.randint(10, (4,), generator=generator)
        pixels = torch.randn(4, 3, 32, 32, generator=generator) + labels.view(-1, 1, 1, 1) / 5
        return (), {"pixel_values": pixels, "labels": labels}

    return _case("vit", ViTForImageClassification(config), draw, lambda out: out.loss, 4, seed)


class _Classifier(nn.Module):
    """A network and its cross-entropy, so that the compiled region is the whole step's forward."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor | None = None) -> Tensor:
        logits = self.network(images)
        return logits if labels is None else F.cross_entropy(logits, labels)


def _resnet18(training: bool, seed: int) -> Case:
    from torchvision.models import resnet18

    def draw(generator: torch.Generator) -> Any:
        labels = torch.randint(10, (4,), generator=generator)
        images = torch.randn(4, 3, 64, 64, generator=generator) + labels.view(-1, 1, 1, 1) / 5
        return ((images, labels), {}) if training else ((images,), {})

    model = _Classifier(resnet18(num_classes=10))
    loss = (lambda out: out) if training else (lambda out: out.float().square().mean())
    return _case("resnet18", model, draw, loss, 4, seed)


MAKERS: dict[str, Maker] = {
    "gpt": _gpt, "bert": _bert, "gpt2": _gpt2, "llama": _llama, "vit": _vit, "resnet18": _resnet18,
}  # fmt: skip
NAMES = tuple(MAKERS)


def build(name: str, *, training: bool = True, device: str = "cpu", seed: int = 0) -> Case:
    """The case of `name`; in training mode its loss is the task's, otherwise the model is in eval mode.

    ValueError for an unknown name; ImportError if the optional package is missing.
    """
    if name not in MAKERS:
        raise ValueError(f"unknown model {name!r}; known: {', '.join(NAMES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        case = MAKERS[name](training, seed)
    case.model.train(training)
    if device == "cpu":
        return case
    move = lambda v: v.to(device) if isinstance(v, Tensor) else v  # noqa: E731
    source = case.batches

    def batches(of: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
        for args, kwargs in source(of):
            yield tuple(map(move, args)), {k: move(v) for k, v in kwargs.items()}

    args, kwargs = next(batches(seed))
    return Case(name, case.model.to(device), args, kwargs, case.loss, batches, case.tokens)
