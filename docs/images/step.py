"""A program with one graph break, for the picture of the report page."""

import torch

import pycompiler

model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8))


@pycompiler.compile
def step(x, labels):
    logits = model(x)
    print("half way")
    return torch.nn.functional.cross_entropy(logits, labels)


for _ in range(3):
    step(torch.randn(32, 64), torch.randint(8, (32,))).backward()
