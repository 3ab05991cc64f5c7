"""The example models train, and are the same each time."""

from __future__ import annotations

import pytest
import torch
from models import NAMES, build
from models.gpt import GPT, Config, generate, standard_library


@pytest.mark.parametrize("name", NAMES)
def test_loss_falls_and_repeats(name: str) -> None:
    pytest.importorskip("torchvision" if name == "resnet18" else "torch" if name == "gpt" else "transformers")
    case = build(name)
    first = case.run()
    assert torch.equal(first, build(name).run())
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):  # one batch again and again
        loss = case.run()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert build(name, training=False).model.training is False


def test_batches_repeat_by_seed() -> None:
    case = build("gpt")
    (a, _), (b, _), (c, _) = (next(case.batches(seed)) for seed in (1, 1, 2))
    assert torch.equal(a[0], b[0])
    assert not torch.equal(a[0], c[0])
    assert torch.equal(a[0][:, 1:], a[1][:, :-1])


def test_unknown_model() -> None:
    with pytest.raises(ValueError, match="unknown model 'gtp'; known: gpt, bert"):
        build("gtp")


def test_text_is_python() -> None:
    text = bytes(standard_library(200_000).tolist())
    assert b"\ndef " in text
    assert len(text) >= 200_000


def test_generate_continues_the_prompt() -> None:
    torch.manual_seed(0)
    model = GPT(Config(layers=1, heads=2, width=16, length=16)).eval()
    text = generate(model, b"def ", 5, 16, device=torch.device("cpu"))
    assert text.startswith(b"def ")
    assert len(text) == 9
