"""Steps that the host limits: time of the host and by the clock, with and without CUDA graphs, beside torch.compile.

    python bench/gpu_steps.py [--json out.json] [--only linear] [--repeat 30]

Cases, forward without gradients and forward + backward: 50 x (Linear, ReLU); in bfloat16 BERT-base, GPT-2 and a Llama of
4 layers of 2048 (8 x 512 tokens, need `transformers`), ResNet-50 and ViT-B/16 (32 x 224 x 224, need `torchvision`).
Prints medians in milliseconds: `host` until the call returns, `wall` until the GPU is done; `kernels`, the sum of the
times of one step's kernels; and the peak of allocated memory in MiB.  Dropout is off.
The loss of GPT-2 and Llama is their own, a part of the compiled model; those of the others are means of squares outside.
"""

from __future__ import annotations

import argparse
import functools
import gc
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import pycompiler

KINDS: dict[str, Callable[[nn.Module], Any]] = {
    "eager": lambda m: m,
    "torch.compile": torch.compile,
    "torch.compile, graphs": lambda m: torch.compile(m, mode="reduce-overhead"),
    "pycompiler": pycompiler.compile,
    "pycompiler, graphs": lambda m: pycompiler.compile(m, mode="reduce-overhead"),
}
Step = Callable[[], Any]


def linear(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(50) for layer in (nn.Linear(64, 64), nn.ReLU()))).cuda()
    x = torch.randn(32, 64, device="cuda")

    def forward(call: Any) -> Any:
        with torch.no_grad():
            return call(x)

    return model, lambda call: lambda: trained(model, call(x).sum()) if backward else forward(call)


def of_model(model: nn.Module, inputs: Tensor, result: Callable[[Any], Tensor], backward: bool) -> Any:
    """A model, and the step of a callable that computes it."""
    model = model.cuda().to(torch.bfloat16)

    def forward(call: Any) -> Any:
        with torch.no_grad():
            return call(inputs)

    if not backward:
        return model.eval(), lambda call: lambda: forward(call)
    return model, lambda call: lambda: trained(model, result(call(inputs)).float().square().mean())


def of_language_model(model: nn.Module, ids: Tensor, backward: bool) -> Any:
    """A model whose own loss is trained."""
    model, step_of = of_model(model, ids, lambda out: out.logits, backward)
    return model, (lambda call: lambda: trained(model, call(ids, labels=ids).loss)) if backward else step_of


def bert(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0), add_pooling_layer=False)
    ids = torch.randint(0, 30000, (8, 512), device="cuda")
    return of_model(model, ids, lambda out: out.last_hidden_state, backward)


def gpt2(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    settings = GPT2Config(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False)
    ids = torch.randint(0, 50000, (8, 512), device="cuda")
    return of_language_model(GPT2LMHeadModel(settings), ids, backward)


def llama(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 4, "num_attention_heads": 16}
    ids = torch.randint(0, 32000, (8, 512), device="cuda")
    return of_language_model(LlamaForCausalLM(LlamaConfig(**sizes, use_cache=False)), ids, backward)


def vit(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    from torchvision.models import vit_b_16 as make

    torch.manual_seed(0)
    images = torch.randn(32, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return of_model(make(), images, lambda out: out, backward)


def resnet50(backward: bool) -> tuple[nn.Module, Callable[[Any], Step]]:
    from torchvision.models import resnet50 as make

    torch.manual_seed(0)
    images = torch.randn(32, 3, 224, 224, device="cuda", dtype=torch.bfloat16)
    return of_model(make(), images, lambda out: out, backward)


def trained(model: nn.Module, loss: Tensor) -> None:
    loss.backward()
    model.zero_grad(set_to_none=True)


def cases() -> dict[str, Callable[[], tuple[nn.Module, Callable[[Any], Step]]]]:
    makers = {"linear": linear, "bert": bert, "gpt2": gpt2, "llama": llama, "resnet50": resnet50, "vit": vit}
    kinds = {"forward": False, "training": True}
    return {f"{name}, {kind}": functools.partial(make, backward) for name, make in makers.items()
            for kind, backward in kinds.items()}  # fmt: skip


def medians(step: Step, repeat: int) -> dict[str, float]:
    for _ in range(6):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    host, wall = [], []
    for _ in range(repeat):
        start = time.perf_counter()
        step()
        host.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        wall.append(time.perf_counter() - start)
    middle = {name: sorted(times)[len(times) // 2] * 1e3 for name, times in (("host", host), ("wall", wall))}
    return {**middle, "peak": torch.cuda.max_memory_allocated() / 2**20, "kernels": kernel_time(step)}


def kernel_time(step: Step) -> float:
    """Milliseconds that the kernels of one step take, together."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as recorded:
        step()
        torch.cuda.synchronize()
    return sum(event.self_device_time_total for event in recorded.key_averages()) / 1e3


def rows(only: str, kinds: str, repeat: int) -> Iterator[dict[str, Any]]:
    for case, make in cases().items():
        for kind, compiled in KINDS.items():
            if only not in case or kinds not in kind:
                continue
            try:
                model, step_of = make()
            except ImportError as error:
                print(f"{case} left out: {error}")
                break
            begun = time.perf_counter()
            step = step_of(compiled(model))
            step()
            torch.cuda.synchronize()
            yield {"case": case, "kind": kind, "first": time.perf_counter() - begun, **medians(step, repeat)}
            del model, step_of, step
            pycompiler.reset()
            torch.compiler.reset()
            gc.collect()
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the figures to this file")
    parser.add_argument("--only", default="", help="part of the names of the cases to run")
    parser.add_argument("--kinds", default="", help="part of the names of the implementations to run")
    parser.add_argument("--repeat", type=int, default=30, help="timed steps")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("bench/gpu_steps.py needs a CUDA device; none was found")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    found = []
    for row in rows(options.only, options.kinds, options.repeat):
        found.append(row)
        times = "  ".join(f"{name} {row[name]:8.3f} ms" for name in ("host", "wall", "kernels"))
        print(
            f"{row['case']:18} {row['kind']:22} {times}  peak {row['peak']:6.0f} MiB  first {row['first']:5.1f} s",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as f:
            json.dump({"device": torch.cuda.get_device_name(), "rows": found}, f, indent=1)


if __name__ == "__main__":
    main()
