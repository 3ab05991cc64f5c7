"""The two served models: a text classifier of bytes and a classifier of small images.

In: the JSON of a request.  Out: an input, then a padded batch of inputs as tensors, then scores.
Example: `spec = SPECS["text"]; batch = spec.batch([spec.parse({"text": "hello"})], spec.bucket(1, 6))`.

The weights are random, by a fixed seed: the example is about serving.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

START, PADDING, VOCABULARY = 256, 257, 258  # tokens 0 to 255 are bytes
CLASSES, SIDE, CHANNELS = 4, 32, 3


class BadInput(ValueError):
    """A request that cannot be served; the message says what was seen, what was expected, and what to do."""


@dataclass(frozen=True)
class Bucket:
    """The sizes of a batch that is compiled beforehand; the length of images is 0."""

    batch: int
    length: int

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}" if self.length else str(self.batch)


# text -----------------------------------------------------------------------------------------------------------
class Layer(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)).  `mask` is True at the tokens that may be read."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            self.qkv(self.norm1(x))
            .view(batch, length, 3, self.heads, width // self.heads)
            .permute(2, 0, 3, 1, 4)
            .unbind()
        )
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class TextClassifier(nn.Module):
    """tokens `(batch, length)` int64, lengths `(batch,)` int64 → scores `(batch, CLASSES)`.

    Tokens at and after `lengths` are not read: padding does not change the scores.
    """

    def __init__(self, layers: int = 4, width: int = 256, heads: int = 4, longest: int = 128) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        mask = (places < lengths[:, None])[:, None, None, :]
        x = self.tokens(tokens) + self.positions(places)
        for layer in self.layers:
            x = layer(x, mask)
        return torch.softmax(self.head(self.norm(x[:, 0])), -1)


# images -----------------------------------------------------------------------------------------------------------
class Residual(nn.Module):
    """Two convolutions beside a shortcut; halves the sides."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (
            nn.Conv2d(before, after, 3, 2, 1, bias=False),
            nn.Conv2d(after, after, 3, 1, 1, bias=False),
        )
        self.norm1, self.norm2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.shortcut = nn.Conv2d(before, after, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
        return (y + self.shortcut(x)).relu()


class ImageClassifier(nn.Module):
    """images `(batch, CHANNELS, SIDE, SIDE)` float32 → scores `(batch, CLASSES)`."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(CHANNELS, width, 3, 1, 1)
        self.body = nn.Sequential(*(Residual(width << i, width << i + 1) for i in range(3)))
        self.head = nn.Linear(width << 3, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return torch.softmax(self.head(self.body(self.stem(images).relu()).mean((2, 3))), -1)


# from JSON to tensors ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Spec:
    """A served model: `parse` reads a request, `stack` pads inputs to a bucket.

    make: creates the module, for inputs of at most this length.
    lengths: the lengths of its buckets; `(0,)` if all inputs have one size.
    measure: the length of an input.
    inputs: names of the tensors, and their axes that differ from call to call (for ONNX).
    """

    name: str
    make: Callable[[int], nn.Module]
    field: str
    parse: Callable[[Any, int], Any]
    measure: Callable[[Any], int]
    stack: Callable[[Sequence[Any], Bucket], tuple[Tensor, ...]]
    inputs: dict[str, dict[int, str]]
    lengths: tuple[int, ...] = (0,)
    batches: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def buckets(self) -> list[Bucket]:
        return [Bucket(batch, length) for batch in self.batches for length in self.lengths]

    def model(self) -> nn.Module:
        """The module in eval mode; its weights are the same in each process."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            made = self.make(self.lengths[-1])
            for module in made.modules():
                if isinstance(module, nn.BatchNorm2d):  # as after a training
                    nn.init.normal_(module.running_mean, std=0.1)
                    nn.init.uniform_(module.running_var, 0.5, 2.0)
        return made.eval().requires_grad_(False)

    def read(self, document: object) -> Any:
        """The input of a request's JSON; raises BadInput."""
        if not isinstance(document, dict) or self.field not in document:
            seen = f"an object with {sorted(document)}" if isinstance(document, dict) else describe(document)
            raise BadInput(f"the body is {seen}; expected an object with {self.field!r}: send {EXAMPLES[self.name]}")
        return self.parse(document[self.field], self.lengths[-1])

    def bucket(self, batch: int, length: int) -> Bucket:
        """The smallest bucket that holds `batch` inputs of at most this length."""
        return Bucket(next(b for b in self.batches if b >= batch), next(n for n in self.lengths if n >= length))

    def example(self, bucket: Bucket) -> tuple[Tensor, ...]:
        """A batch of this size, for compiles and warm-up."""
        return self.stack([self.parse(SAMPLES[self.name], bucket.length or 1)], bucket)


def describe(value: object) -> str:
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} of type {type(value).__name__}"


def parse_text(value: object, longest: int) -> list[int]:
    """START, then the bytes of a text in UTF-8."""
    if not isinstance(value, str) or not value:
        raise BadInput(f"'text' is {describe(value)}; expected a string that is not empty: send {EXAMPLES['text']}")
    try:
        data = value.encode()
    except UnicodeEncodeError as e:
        raise BadInput(f"'text' has a lone surrogate at {e.start}; expected Unicode text: remove it") from None
    if len(data) >= longest:
        raise BadInput(
            f"'text' has {len(data)} bytes of UTF-8; expected at most {longest - 1}: "
            "shorten it, or build with a longer bucket (--lengths)"
        )
    return [START, *data]


def stack_text(inputs: Sequence[list[int]], bucket: Bucket) -> tuple[Tensor, ...]:
    tokens = torch.full((bucket.batch, bucket.length), PADDING)
    lengths = torch.ones(bucket.batch, dtype=torch.int64)  # a row of padding reads its first token
    for row, found in enumerate(inputs):
        tokens[row, : len(found)] = torch.tensor(found)
        lengths[row] = len(found)
    return tokens, lengths


def parse_image(value: object, longest: int) -> Tensor:
    wanted = f"{CHANNELS} lists of {SIDE} rows of {SIDE} numbers"
    try:
        image = torch.tensor(value, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as e:
        raise BadInput(
            f"'image' is {describe(value)} ({e}); expected {wanted}: send its values as nested lists"
        ) from None
    if image.shape != (CHANNELS, SIDE, SIDE):
        raise BadInput(f"'image' has the shape {tuple(image.shape)}; expected {wanted}: resize the image")
    if not image.isfinite().all():
        raise BadInput("'image' has values that are infinite or NaN; expected finite numbers: replace them")
    return image


def stack_images(inputs: Sequence[Tensor], bucket: Bucket) -> tuple[Tensor, ...]:
    images = torch.zeros(bucket.batch, CHANNELS, SIDE, SIDE)
    images[: len(inputs)] = torch.stack(list(inputs))
    return (images,)


SAMPLES: dict[str, Any] = {"text": "a", "image": torch.zeros(CHANNELS, SIDE, SIDE).tolist()}
EXAMPLES = {"text": '{"text": "good morning"}', "image": '{"image": [[[0.5, ...], ...], ...]}'}
SPECS = {
    spec.name: spec
    for spec in (
        Spec(
            "text", lambda longest: TextClassifier(longest=longest), "text", parse_text, len, stack_text,
            {"tokens": {0: "batch", 1: "length"}, "lengths": {0: "batch"}}, lengths=(16, 32, 64, 128),
        ),
        Spec("image", lambda _: ImageClassifier(), "image", parse_image, lambda _: 0, stack_images, {"images": {0: "batch"}}),
    )
}  # fmt: skip
