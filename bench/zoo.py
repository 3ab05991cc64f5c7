"""Models of other libraries, tiny and with random weights, beside eager: `python bench/zoo.py [NAME …] [--json FILE]`.

Results of each: graphs and breaks of a call, outputs and gradients of training steps in float64 compared with
eager's, and the number of compiles after each of four batch sizes and lengths. In a few models (`SINGLE`) float32
dominates the error of both results. Their difference may be twice the change in eager's results when all weights
change by half an ulp of float32. Needs transformers and timm.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from torch import Tensor, nn

import pycompiler

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 97}
GROUPED = {**SIZES, "num_key_value_heads": 2}
HEADS = {**GROUPED, "head_dim": 8}
OLDER = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 97}
PLAIN = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 97}
SIDE = 32
VISION = {k: v for k, v in SIZES.items() if k != "vocab_size"} | {"image_size": SIDE, "patch_size": 8}


def tokens(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_ids": torch.randint(3, 90, (batch, length))}


def masked(batch: int, length: int) -> dict[str, Tensor]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[0, length - 2 :] = 0
    return {**tokens(batch, length), "attention_mask": mask}


def pairs(batch: int, length: int) -> dict[str, Tensor]:
    return {**tokens(batch, length), "decoder_input_ids": torch.randint(3, 90, (batch, 7))}


def pixels(batch: int, length: int) -> dict[str, Tensor]:
    return {"pixel_values": torch.randn(batch, 3, SIDE, SIDE)}


def sound(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, 400 + 40 * length)}


def spectrum(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_features": torch.randn(batch, 16, 40), "decoder_input_ids": torch.randint(3, 90, (batch, length))}


def sounds(batch: int, length: int) -> dict[str, Tensor]:
    return {"input_values": torch.randn(batch, 40, 16)}


def captions(batch: int, length: int) -> dict[str, Tensor]:
    return {**tokens(batch, length), **pixels(batch, length)}


@dataclass(frozen=True)
class Row:
    """A model: its class (of transformers), the overrides of its configuration, its inputs."""

    model: str
    config: str
    overrides: dict[str, Any]
    inputs: Callable[[int, int], dict[str, Tensor]] = tokens


BART = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
        "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 97}  # fmt: skip
SPOKEN = {**SIZES, "conv_dim": (16, 16), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2,
          "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "feat_extract_norm": "layer",
          "mask_time_prob": 0.0, "layerdrop": 0.0}  # fmt: skip
MOE = {"num_experts": 4, "num_local_experts": 4, "num_experts_per_tok": 2}
BEGINS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

TRANSFORMERS: dict[str, Row] = {
    "bert": Row("BertModel", "BertConfig", SIZES, masked),
    "roberta": Row("RobertaModel", "RobertaConfig", SIZES, masked),
    "albert": Row("AlbertModel", "AlbertConfig", {**SIZES, "embedding_size": 16}, masked),
    "distilbert": Row("DistilBertModel", "DistilBertConfig", {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48}, masked),
    "electra": Row("ElectraModel", "ElectraConfig", {**SIZES, "embedding_size": 16}, masked),
    "deberta_v2": Row("DebertaV2Model", "DebertaV2Config",
        {**SIZES, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]}, masked),
    "modernbert": Row("ModernBertModel", "ModernBertConfig", {**SIZES, "pad_token_id": 0}, masked),
    "mpnet": Row("MPNetModel", "MPNetConfig", SIZES, masked),
    "xlm_roberta": Row("XLMRobertaModel", "XLMRobertaConfig", SIZES, masked),
    "gpt2": Row("GPT2LMHeadModel", "GPT2Config", OLDER, masked),
    "gpt_neo": Row("GPTNeoForCausalLM", "GPTNeoConfig",
        {"hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 4, "attention_types": [[["global", "local"], 1]]}),
    "gpt_neox": Row("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES),
    "gptj": Row("GPTJForCausalLM", "GPTJConfig", {**OLDER, "rotary_dim": 4}),
    "opt": Row("OPTForCausalLM", "OPTConfig", {**PLAIN, "num_attention_heads": 4, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "bloom": Row("BloomForCausalLM", "BloomConfig", {**OLDER, "hidden_size": 32}),
    "falcon": Row("FalconForCausalLM", "FalconConfig", SIZES),
    "llama": Row("LlamaForCausalLM", "LlamaConfig", GROUPED, masked),
    "mistral": Row("MistralForCausalLM", "MistralConfig", {**HEADS, "sliding_window": 8}),
    "qwen2": Row("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen3": Row("Qwen3ForCausalLM", "Qwen3Config", HEADS),
    "gemma": Row("GemmaForCausalLM", "GemmaConfig", HEADS),
    "gemma2": Row("Gemma2ForCausalLM", "Gemma2Config", {**HEADS, "sliding_window": 8}),
    "phi": Row("PhiForCausalLM", "PhiConfig", SIZES),
    "phi3": Row("Phi3ForCausalLM", "Phi3Config", {**GROUPED, "pad_token_id": 0}),
    "stablelm": Row("StableLmForCausalLM", "StableLmConfig", GROUPED),
    "olmo": Row("OlmoForCausalLM", "OlmoConfig", GROUPED),
    "cohere": Row("CohereForCausalLM", "CohereConfig", GROUPED),
    "granite": Row("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "starcoder2": Row("Starcoder2ForCausalLM", "Starcoder2Config", GROUPED),
    "mixtral": Row("MixtralForCausalLM", "MixtralConfig", {**HEADS, **MOE}),
    "qwen2_moe": Row("Qwen2MoeForCausalLM", "Qwen2MoeConfig",
        {**GROUPED, **MOE, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16}),
    "mamba": Row("MambaForCausalLM", "MambaConfig", {**PLAIN, "state_size": 4}),
    "mamba2": Row("Mamba2ForCausalLM", "Mamba2Config",
        {**PLAIN, "state_size": 4, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 8}),
    "t5": Row("T5ForConditionalGeneration", "T5Config",
        {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}, pairs),
    "bart": Row("BartModel", "BartConfig", BART, pairs),
    "pegasus": Row("PegasusModel", "PegasusConfig", BART, pairs),
    "vit": Row("ViTModel", "ViTConfig", VISION, pixels),
    "deit": Row("DeiTModel", "DeiTConfig", VISION, pixels),
    "beit": Row("BeitModel", "BeitConfig", VISION, pixels),
    "dinov2": Row("Dinov2Model", "Dinov2Config", VISION, pixels),
    "swin": Row("SwinModel", "SwinConfig",
        {"image_size": SIDE, "patch_size": 2, "embed_dim": 16, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}, pixels),
    "convnext": Row("ConvNextModel", "ConvNextConfig", {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}, pixels),
    "resnet": Row("ResNetModel", "ResNetConfig",
        {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}, pixels),
    "segformer": Row("SegformerModel", "SegformerConfig",
        {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 3, 4]}, pixels),
    "clip": Row("CLIPModel", "CLIPConfig",
        {"text_config": {**SIZES, "eos_token_id": 2}, "vision_config": VISION, "projection_dim": 16}, captions),
    "wav2vec2": Row("Wav2Vec2Model", "Wav2Vec2Config", SPOKEN, sound),
    "hubert": Row("HubertModel", "HubertConfig", SPOKEN, sound),
    "whisper": Row("WhisperModel", "WhisperConfig",
        {**BART, **BEGINS, "num_mel_bins": 16, "max_source_positions": 20, "max_target_positions": 64}, spectrum),
    "deepseek_v3": Row("DeepseekV3ForCausalLM", "DeepseekV3Config",
        {**SIZES, "num_key_value_heads": 4, "head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2,
         "topk_group": 1, "moe_intermediate_size": 16, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8,
         "qk_nope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1}),
    "gpt_oss": Row("GptOssForCausalLM", "GptOssConfig", {**HEADS, **MOE, "sliding_window": 8}),
    "olmoe": Row("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, **MOE}),
    "granitemoe": Row("GraniteMoeForCausalLM", "GraniteMoeConfig", {**GROUPED, **MOE}),
    "siglip": Row("SiglipModel", "SiglipConfig",
        {"text_config": {**SIZES, "projection_size": 32}, "vision_config": VISION}, captions),
    "wavlm": Row("WavLMModel", "WavLMConfig", SPOKEN, sound),
    "sew": Row("SEWModel", "SEWConfig", {**SPOKEN, "squeeze_factor": 2}, sound),
    "ast": Row("ASTModel", "ASTConfig",
        {**{k: v for k, v in SIZES.items() if k != "vocab_size"}, "patch_size": 8, "max_length": 40, "num_mel_bins": 16},
        sounds),
    "dpr": Row("DPRContextEncoder", "DPRConfig", SIZES, masked),
    "fnet": Row("FNetModel", "FNetConfig", SIZES),
    "roformer": Row("RoFormerModel", "RoFormerConfig", {**SIZES, "embedding_size": 16}, masked),
    "big_bird": Row("BigBirdModel", "BigBirdConfig", {**SIZES, "attention_type": "original_full"}, masked),
}  # fmt: skip

TIMM = (
    "resnet18", "resnext26ts", "seresnet18", "densenet121", "mobilenetv2_035", "mobilenetv3_small_050",
    "efficientnet_lite0", "regnetx_002", "vgg11", "convnext_atto", "vit_tiny_patch16_224", "deit_tiny_patch16_224",
    "mixer_s32_224", "resmlp_12_224", "poolformer_s12", "levit_128s", "ghostnet_100", "hrnet_w18_small", "dla34",
    "res2net50_26w_4s", "repvgg_a0", "xcit_nano_12_p16_224", "edgenext_xx_small", "mobilevit_xxs", "crossvit_tiny_240",
    "coat_lite_tiny", "tf_efficientnet_b0", "rexnet_100",
)  # fmt: skip


CALLS = ((2, 12), (3, 16), (4, 9), (5, 21))  # batch and length
SINGLE = ("qwen3", "t5", "olmoe")  # gradients that nearly cancel, of norms in float32
CLOSE = {torch.float64: 1e-6, torch.float32: 1e-4}  # some norms and rotary embeddings compute in float32


def build(name: str) -> tuple[nn.Module, Callable[[int, int], dict[str, Tensor]]]:
    torch.manual_seed(0)
    if name in TRANSFORMERS:
        import transformers

        row = TRANSFORMERS[name]
        config = getattr(transformers, row.config)(**row.overrides)
        model = getattr(transformers, row.model)(config)
        return model, row.inputs
    import timm

    model = timm.create_model(name, num_classes=5)
    side = model.default_cfg["input_size"][-1] if model.default_cfg.get("fixed_input_size") else 64
    return model, lambda batch, length: {"x": torch.randn(batch, 3, side, side)}


def leaves(value: Any) -> Iterator[Tensor]:
    """The floating-point tensors of an output, in order."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif hasattr(value, "__dict__"):
        yield from leaves(vars(value))


def step(model: Any, own: nn.Module, inputs: dict[str, Tensor]) -> list[Tensor]:
    """Outputs and gradients of one training step."""
    own.zero_grad()
    torch.manual_seed(1)
    out = list(leaves(model(**inputs) if "x" not in inputs else model(inputs["x"])))
    loss = sum((t.double() ** 2).mean() for t in out if t.requires_grad)
    loss.backward()  # type: ignore[union-attr]
    return [t.detach() for t in out] + [p.grad.clone() for p in own.parameters() if p.grad is not None]


def widened(inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()}


def far(got: list[Tensor], want: list[Tensor]) -> float:
    """The greatest difference, relative to the greatest number of its tensor."""
    if len(got) != len(want):
        return float("inf")
    if any(g.shape != w.shape or (g.isnan() != w.isnan()).any() for g, w in zip(got, want, strict=True)):
        return float("inf")
    pairs = [(g.nan_to_num(), w.nan_to_num()) for g, w in zip(got, want, strict=True) if w.numel()]
    return max((float((g - w).abs().max() / w.abs().max().clamp(min=1e-3)) for g, w in pairs), default=0.0)


def shaken(model: nn.Module, given: dict[str, Tensor]) -> float:
    """The change of eager's results when the weights change by half an ulp of float32."""
    want, state = step(model, model, given), {k: v.clone() for k, v in model.state_dict().items()}
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(1 + 2.0**-24 * torch.randn_like(p).sign())
    got = step(model, model, given)
    model.load_state_dict(state)
    return far(got, want)


def measure(name: str) -> dict[str, Any]:
    start = time.perf_counter()
    model, inputs = build(name)
    model.train()
    for module in model.modules():  # compiled code draws other numbers than eager
        for name_of, value in list(vars(module).items()):
            if isinstance(value, float) and ("drop" in name_of or (name_of == "p" and "Drop" in type(module).__name__)):
                setattr(module, name_of, 0.0)
    for p in model.parameters():
        if p.dim() > 1 and not p.any():  # a head of zeros lets no gradient through
            nn.init.normal_(p, std=0.02)
    state = {k: v.clone() for k, v in model.state_dict().items()}
    model.double()
    try:
        step(model, model, widened(inputs(2, 12), torch.float64))
    except RuntimeError:  # grouped products do not support float64
        model.float()
    dtype = next(model.parameters()).dtype
    compiled = pycompiler.compile(model)
    found: dict[str, Any] = {"name": name, "dtype": str(dtype)[6:]}
    counts, worst = [], 0.0
    for batch, length in CALLS:
        torch.manual_seed(batch)
        given = widened(inputs(batch, length), dtype)
        results = []
        for called in (model, compiled):
            model.load_state_dict(state)  # batch norm updates its statistics
            results.append(step(called, model, given))
        worst = max(worst, far(results[1], results[0]))
        counts.append(pycompiler.counters(compiled)["compiles"])
    model.load_state_dict(state)
    found["compiles"], found["far"] = counts, worst
    shakes = [shaken(model, widened(inputs(*call), dtype)) for call in CALLS] if name in SINGLE else []
    found["close"] = max(CLOSE[dtype], 2 * max(shakes, default=0.0))
    found["seconds"] = round(time.perf_counter() - start)
    model.load_state_dict(state)
    torch.manual_seed(2)
    given = widened(inputs(2, 12), dtype)
    pycompiler.reset()
    told = pycompiler.explain(model)(**given) if "x" not in given else pycompiler.explain(model)(given["x"])
    found["graphs"], found["breaks"] = told.graph_count, told.graph_break_count
    found["why"] = [str(getattr(r, "reason", r))[:200] for r in told.break_reasons][:3]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    bad = 0
    for name in options.names or [*TRANSFORMERS, *TIMM]:
        try:
            found = measure(name)
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            found = {"name": name, "error": f"{type(e).__name__}: {str(e)[:300]}", "at": traceback.format_exc()[-1500:]}
        pycompiler.reset()
        ok = (
            "error" not in found
            and found["graphs"] == 1
            and found["far"] <= found["close"]
            and found["compiles"][-1] <= 2
        )
        bad += not ok
        print("ok " if ok else "BAD", {k: v for k, v in found.items() if k != "at"}, flush=True)
        if options.json:
            with open(options.json, "a") as file:
                file.write(json.dumps(found) + "\n")
    return bad > 0


if __name__ == "__main__":
    sys.exit(main())
