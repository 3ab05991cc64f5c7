"""Latency of one request: models of batch 1 beside what people serve with.

In: names of models (default: all).  Out: a table, milliseconds (medians of interleaved rounds) for eager, torch.compile,
this package (plain and with `freezing`), ONNX Runtime and OpenVINO, and the ratio of this package to the best other.
A peer that is not installed is left out, with a line.
With several threads, measure each peer in a process of its own (`--peers`): threads of one spin while another runs.

    python bench/serving.py --threads 1 resnet18 mobilenet_v3_small
    pip install onnx onnxscript onnxruntime openvino        # the two other peers
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import pycompiler

Run = Callable[[], Any]
WARM = 5


def vision(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import torchvision

    return torchvision.models.get_model(name), (torch.randn(1, 3, 224, 224),)


class Logits(nn.Module):
    """A language model as a function from tokens to its first result."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.model(tokens, return_dict=False)[0]


def language(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    import transformers as t

    made: Any
    match name:
        case "bert":
            made = t.BertModel(t.BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4,
                                            intermediate_size=1024))  # fmt: skip
        case "gpt2":
            made = t.GPT2LMHeadModel(t.GPT2Config(n_layer=4, n_embd=256, n_head=4, use_cache=False))
        case _:
            made = t.LlamaForCausalLM(t.LlamaConfig(num_hidden_layers=4, hidden_size=512, intermediate_size=1408,
                                                    num_attention_heads=8, vocab_size=8000, use_cache=False))  # fmt: skip
    return Logits(made), (torch.randint(0, 8000, (1, 64 if name == "llama" else 128)),)


def perceptron(batch: int, width: int) -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    layers = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(batch, width),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    **{name: lambda name=name: vision(name) for name in ("resnet18", "mobilenet_v3_small", "squeezenet1_1", "densenet121",
                                                        "shufflenet_v2_x1_0", "efficientnet_b0", "convnext_tiny")},
    **{name: lambda name=name: language(name) for name in ("bert", "gpt2", "llama")},
    "mlp 64x512": lambda: perceptron(64, 512),
    "mlp 1x64": lambda: perceptron(1, 64),
}  # fmt: skip


def eager(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    return lambda: model(*inputs)


def torch_compile(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    compiled = torch.compile(model)
    return lambda: compiled(*inputs)


def ours(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    compiled = pycompiler.compile(model, fullgraph=True)
    return lambda: compiled(*inputs)


def ours_frozen(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    compiled = pycompiler.compile(model, fullgraph=True, options={"freezing": True})
    return lambda: compiled(*inputs)


def exported(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> bytes:
    program: Any = torch.onnx.export(model, inputs, dynamo=True, verbose=False)
    data: bytes = program.model_proto.SerializeToString()
    return data


def onnx_runtime(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
    session = onnxruntime.InferenceSession(exported(model, inputs), options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return lambda: session.run(None, {n: t.numpy() for n, t in zip(names, inputs, strict=True)})


def openvino(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> Run:
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    core = ov.Core()
    request = core.compile_model(core.read_model(exported(model, inputs)), "CPU", settings).create_infer_request()
    return lambda: request.infer([t.numpy() for t in inputs])


PEERS: dict[str, Callable[[nn.Module, tuple[torch.Tensor, ...]], Run]] = {
    "eager": eager, "torch.compile": torch_compile, "onnxruntime": onnx_runtime, "openvino": openvino,
    "ours": ours, "ours frozen": ours_frozen,
}  # fmt: skip


def measure(name: str, rounds: int, peers: list[str]) -> dict[str, float]:
    """Milliseconds of one call by peer."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    model.eval()
    runs: dict[str, Run] = {}
    for peer in peers:
        try:
            runs[peer] = PEERS[peer](model, inputs)
            for _ in range(WARM):
                runs[peer]()
        except Exception as error:
            print(f"{name}: {peer} left out: {type(error).__name__}: {str(error).splitlines()[0][:90]}")
            runs.pop(peer, None)
    seconds: dict[str, list[float]] = {peer: [] for peer in runs}
    for _ in range(rounds):
        for peer, run in runs.items():
            start = time.perf_counter()
            run()
            seconds[peer].append(time.perf_counter() - start)
    return {peer: 1000 * statistics.median(each) for peer, each in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--peers", nargs="*", default=list(PEERS), choices=list(PEERS))
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    with torch.no_grad():
        for name in chosen.models:
            found = measure(name, chosen.rounds, chosen.peers)
            others = [ms for peer, ms in found.items() if not peer.startswith("ours")]
            row = "  ".join(f"{peer} {ms:.3f}" for peer, ms in found.items())
            ratio = "  ".join(f"{peer}/best {found[peer] / min(others):.2f}" for peer in ("ours", "ours frozen")
                              if peer in found and others)  # fmt: skip
            print(f"{name}: {row}  |  {ratio}", flush=True)


if __name__ == "__main__":
    main()
