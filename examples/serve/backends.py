"""The compilers behind the server: this package, and four others that run the same model.

In: a `Spec`, and the folder that `build` fills.  Out: a `Runner`, a function from a padded batch to scores.
Example: `run = BACKENDS["ours"].load(spec, folder)`.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import pycompiler
from examples.serve.models import SPECS, Spec

ARTEFACT, WEIGHTS, BUCKETS, ONNX, OPENVINO = "model.pyca", "weights.pt", "buckets.json", "model.onnx", "model.xml"


class NotServable(RuntimeError):
    """The folder or this machine lacks a part; the message says what to do."""


@dataclass(frozen=True)
class Runner:
    """`call(*tensors)` gives the scores; `compiled` is the callable of this package that runs, or None."""

    call: Callable[..., Tensor]
    compiled: Any = None


@dataclass(frozen=True)
class Backend:
    """`build(spec, model, folder)` writes what `load(spec, folder)` reads; `needs` are the modules of both.

    extra: the packages that `pip install` needs.
    """

    load: Callable[[Spec, Path], Runner]
    build: Callable[[Spec, nn.Module, Path], str] = lambda spec, model, folder: "nothing to build"
    needs: tuple[str, ...] = ()
    extra: str = ""

    def missing(self) -> str:
        """The reason why the backend cannot run here, or ""."""
        gone = [name for name in self.needs if importlib.util.find_spec(name) is None]
        return f"{', '.join(gone)} not installed: pip install {self.extra}" if gone else ""


# the folder -------------------------------------------------------------------------------------------------------
def built(name: str, folder: Path) -> Spec:
    """The spec with the buckets that were built."""
    try:
        buckets = json.loads((folder / BUCKETS).read_text())
    except FileNotFoundError:
        raise NotServable(
            f"{folder} has no {BUCKETS}; expected the folder of a build: run python -m examples.serve.build"
        ) from None
    return replace(SPECS[name], lengths=tuple(buckets["lengths"]), batches=tuple(buckets["batches"]))


def trained(spec: Spec, folder: Path) -> nn.Module:
    """The model with the weights of the folder."""
    model = spec.model()
    model.load_state_dict(torch.load(folder / WEIGHTS, weights_only=True))
    return model


def file_of(folder: Path, name: str, backend: str) -> Path:
    if not (folder / name).is_file():
        raise NotServable(f"{folder} has no {name}: run python -m examples.serve.build --backend {backend}")
    return folder / name


# this package -------------------------------------------------------------------------------------------------------
def build_ours(spec: Spec, model: nn.Module, folder: Path) -> str:
    """An entry for each bucket, in one file."""
    compiled = pycompiler.compile(model, fullgraph=True, dynamic=False, recompile_limit=len(spec.buckets))
    with torch.inference_mode():
        for bucket in spec.buckets:
            compiled(*spec.example(bucket))
    saved = pycompiler.save(compiled, folder / ARTEFACT)
    if saved.left_out:
        raise NotServable("\n".join(["entries cannot be saved:", *saved.left_out]))
    return f"{saved.entries} entries, {saved.size / 1e6:.1f} MB"


def load_ours(spec: Spec, folder: Path) -> Runner:
    """The file's entries.  The policy "run" freezes them: a call that fits no entry runs eagerly, and is counted."""
    compiled = pycompiler.load(file_of(folder, ARTEFACT, "ours"), trained(spec, folder))
    pycompiler.set_policy(compiled, "run")
    return Runner(compiled, compiled)


# others -------------------------------------------------------------------------------------------------------------
def load_eager(spec: Spec, folder: Path) -> Runner:
    return Runner(trained(spec, folder))


def load_torch_compile(spec: Spec, folder: Path) -> Runner:
    """torch.compile has no file that serves all buckets: the warm-up compiles them at each start."""
    torch._dynamo.config.recompile_limit = max(len(spec.buckets), torch._dynamo.config.recompile_limit)
    return Runner(torch.compile(trained(spec, folder), fullgraph=True, dynamic=False))


def build_onnx(spec: Spec, model: nn.Module, folder: Path) -> str:
    sizes = {axis: torch.export.Dim(axis, max=top) for axis, top in
             (("batch", spec.batches[-1]), ("length", spec.lengths[-1])) if top > 1}  # fmt: skip
    shapes = {name: {axis: sizes[size] for axis, size in axes.items() if size in sizes}
              for name, axes in spec.inputs.items()}  # fmt: skip
    torch.onnx.export(
        model, spec.example(spec.buckets[-1]), folder / ONNX, input_names=list(spec.inputs), output_names=["scores"],
        dynamic_shapes=shapes, dynamo=True, external_data=False, verbose=False,
    )  # fmt: skip
    return f"{(folder / ONNX).stat().st_size / 1e6:.1f} MB"


def load_onnxruntime(spec: Spec, folder: Path) -> Runner:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    path = file_of(folder, ONNX, "onnxruntime")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return Runner(
        lambda *batch: torch.from_numpy(
            session.run(None, {name: t.numpy() for name, t in zip(spec.inputs, batch, strict=True)})[0]
        )
    )


def build_openvino(spec: Spec, model: nn.Module, folder: Path) -> str:
    import openvino

    example = spec.example(spec.buckets[-1])
    shapes = [tuple(-1 if axis in axes else size for axis, size in enumerate(t.shape))
              for t, axes in zip(example, spec.inputs.values(), strict=True)]  # fmt: skip
    made = openvino.convert_model(model, example_input=example, input=shapes)
    openvino.save_model(made, folder / OPENVINO, compress_to_fp16=False)
    return f"{(folder / OPENVINO).with_suffix('.bin').stat().st_size / 1e6:.1f} MB"


def load_openvino(spec: Spec, folder: Path) -> Runner:
    import openvino

    hints = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": torch.get_num_threads(),
             "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    made = openvino.compile_model(file_of(folder, OPENVINO, "openvino"), "CPU", hints)
    request = made.create_infer_request()
    return Runner(lambda *batch: torch.from_numpy(request.infer([t.numpy() for t in batch])[0].copy()))


BACKENDS = {
    "ours": Backend(load_ours, build_ours),
    "eager": Backend(load_eager),
    "torch_compile": Backend(load_torch_compile),
    "onnxruntime": Backend(
        load_onnxruntime, build_onnx, ("onnxruntime", "onnx", "onnxscript"), "onnxruntime onnx onnxscript"
    ),
    "openvino": Backend(load_openvino, build_openvino, ("openvino",), "openvino"),
}
