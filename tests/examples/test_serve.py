"""The example server: it answers as eager does, never compiles after its start, and explains what it refuses."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")
pytest.importorskip("httpx2")

from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import pycompiler
from examples.serve import app as serving
from examples.serve import backends, load
from examples.serve.app import Settings, create_app
from examples.serve.build import build, main
from examples.serve.models import SPECS, BadInput, Bucket, ImageClassifier, Spec, TextClassifier
from pycompiler.wrapping import compiled_of

TEXT = replace(SPECS["text"], make=lambda longest: TextClassifier(1, 32, 2, longest), lengths=(8, 16), batches=(1, 2))
IMAGE = replace(SPECS["image"], make=lambda _: ImageClassifier(4), batches=(1,))


@dataclass
class Running:
    """A server in this process, and its folder."""

    client: TestClient
    worker: serving.Worker
    folder: Path
    spec: Spec

    @property
    def compiled(self) -> Any:
        assert self.worker.runner is not None
        return self.worker.runner.compiled

    def post(self, document: object) -> tuple[int, dict[str, Any]]:
        answer = self.client.post("/predict", json=document)
        return answer.status_code, answer.json()

    def metrics(self) -> dict[str, float]:
        answer = self.client.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain")
        return {s.name + "".join(f"[{v}]" for v in s.labels.values()): s.value
                for family in text_string_to_metric_families(answer.text) for s in family.samples}  # fmt: skip


def wait(client: TestClient) -> None:
    end = time.monotonic() + 120
    while client.get("/ready").status_code != 200 and client.get("/health").status_code == 200:
        assert time.monotonic() < end
        time.sleep(0.002)


def running(spec: Spec, folder: Path, **settings: Any) -> Iterator[Running]:
    app = create_app(Settings(spec.name, folder, **settings), spec)
    with TestClient(app, raise_server_exceptions=False) as client:
        wait(client)
        yield Running(client, app.state.worker, folder, spec)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("text")
    build(TEXT, folder)
    yield from running(TEXT, folder)


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("image")
    build(IMAGE, folder)
    yield from running(IMAGE, folder)


def eager(spec: Spec, document: object) -> list[float]:
    """The scores of one input, unpadded."""
    value = spec.read(document)
    return spec.model()(*spec.stack([value], Bucket(1, spec.measure(value))))[0].tolist()


# start ----------------------------------------------------------------------------------------------------------------
def test_ready_only_after_the_load(text: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    class Held:
        """A backend whose load waits."""

        def __init__(self) -> None:
            self.go = threading.Event()

        def __call__(self, spec: Spec, folder: Path) -> backends.Runner:
            self.go.wait(60)
            return backends.load_eager(spec, folder)

    held = Held()
    monkeypatch.setitem(backends.BACKENDS, "eager", backends.Backend(held))
    app = create_app(Settings("text", text.folder, "eager"), TEXT)
    with TestClient(app) as client:
        assert client.get("/health").status_code == 200
        assert (client.get("/ready").status_code, client.get("/ready").json()) == (503, {"state": "loading"})
        refused = client.post("/predict", json={"text": "a"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert "not ready: loading; expected after /ready answers 200" in refused.json()["error"]
        assert "serve_ready 0.0" in client.get("/metrics").text
        held.go.set()
        wait(client)
        assert client.get("/ready").json() == {"state": "ready"}
        assert client.post("/predict", json={"text": "a"}).status_code == 200
        assert "pycompiler_hits" not in client.get("/metrics").text  # counters of this package only


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda folder: (folder / backends.ARTEFACT).unlink(), "has no model.pyca: run python -m examples.serve.build"),
        (lambda folder: (folder / backends.ARTEFACT).write_bytes(b"x"), "is not an artefact of pycompiler"),
    ],
    ids=["missing", "damaged"],
)
def test_a_failed_load_is_neither_healthy_nor_ready(text: Running, tmp_path: Path, damage: Any, says: str) -> None:
    for file in text.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage(tmp_path)
    for server in running(TEXT, tmp_path):
        for path, status in (("/health", 500), ("/ready", 503)):
            answer = server.client.get(path)
            assert answer.status_code == status and says in answer.json()["state"]
        assert server.post({"text": "a"})[0] == 503


def test_a_bucket_without_an_entry_is_not_ready(text: Running) -> None:
    for server in running(replace(TEXT, batches=(1, 4)), text.folder):
        answer = server.client.get("/ready")
        assert answer.status_code == 503
        assert "no entry fits bucket 4x8: build again" in answer.json()["state"]


def test_the_folder_of_another_place(tmp_path: Path) -> None:
    with pytest.raises(
        backends.NotServable, match=r"has no buckets.json; expected the folder of a build: run python -m"
    ):
        create_app(Settings("text", tmp_path))


# answers --------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("words", ["a", "seven b", "eight by", "fifteen bytes..", "grün é"])
def test_answers_are_eagers(text: Running, words: str) -> None:
    status, found = text.post({"text": words})
    assert status == 200
    assert found["scores"] == pytest.approx(eager(TEXT, {"text": words}), rel=1e-5)
    assert found["label"] == max(range(4), key=found["scores"].__getitem__)
    assert found["bucket"] == ("1x8" if len(words.encode()) < 8 else "1x16")


def test_images(image: Running) -> None:
    picture = torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(0)).tolist()
    status, found = image.post({"image": picture})
    assert (status, found["bucket"]) == (200, "1")
    assert found["scores"] == pytest.approx(eager(IMAGE, {"image": picture}), rel=1e-4)


def test_padding_does_not_change_scores(text: Running) -> None:
    """One input in every bucket, alone and beside another."""
    compiled, value, other = text.compiled, TEXT.read({"text": "hello"}), TEXT.read({"text": "ab"})
    with torch.inference_mode():
        rows = [compiled(*TEXT.stack(inputs, bucket))[0] for bucket in TEXT.buckets
                for inputs in ([value], [value, other]) if len(inputs) <= bucket.batch]  # fmt: skip
    assert len(rows) == 6
    for row in rows:
        torch.testing.assert_close(row, torch.tensor(eager(TEXT, {"text": "hello"})))


def test_waiting_inputs_become_one_batch(text: Running) -> None:
    """Inputs that wait together run together; each gets its own scores."""
    import asyncio

    worker = serving.Worker(Settings("text", text.folder), TEXT, runner=text.worker.runner)
    words = ["one", "a longer text"]

    async def both() -> list[tuple[list[float], Bucket]]:
        loop = asyncio.get_running_loop()
        waiting = [serving.Waiting(TEXT.read({"text": w}), loop, loop.create_future()) for w in words]
        for item in waiting:
            worker.queue.put(item)
        with torch.inference_mode():
            assert worker.serve_next() and worker.queue.empty()
        return [await item.done for item in waiting]

    for word, (scores, bucket) in zip(words, asyncio.run(both())):
        assert str(bucket) == "2x16"
        assert scores == pytest.approx(eager(TEXT, {"text": word}), rel=1e-5)
    worker.queue.put(None)
    assert not worker.serve_next()


def test_no_compile_after_the_start(text: Running) -> None:
    before, entries = text.metrics(), compiled_of(text.compiled).entries
    draw = random.Random(0)
    for _ in range(200):
        assert text.post({"text": "x" * draw.randint(1, 15)})[0] == 200
    after = text.metrics()
    change = {name: after[name] - before.get(name, 0) for name in after}
    assert change["pycompiler_hits_total"] == 200
    assert [change[f"pycompiler_{name}_total"] for name in ("misses", "compiles", "eager_calls")] == [0, 0, 0]
    assert set(compiled_of(text.compiled).entries) == set(entries) and len(entries) == 4
    assert change["serve_requests_total[200]"] == change["serve_request_seconds_count"] == 200
    assert change["serve_bucket_calls_total[1x8]"] + change["serve_bucket_calls_total[1x16]"] == 200


def test_a_call_that_fits_no_bucket_runs_eagerly_and_is_counted(text: Running) -> None:
    before = text.metrics()
    with torch.inference_mode():
        text.compiled(*TEXT.stack([TEXT.read({"text": "abc"})], Bucket(1, 7)))
    after = text.metrics()
    assert after["pycompiler_eager_calls_total"] == before["pycompiler_eager_calls_total"] + 1
    assert after["pycompiler_misses_total"] == before["pycompiler_misses_total"] + 1
    assert after["pycompiler_compiles_total"] == 0


def test_metrics_parse(text: Running) -> None:
    found = text.metrics()
    assert found["serve_ready"] == 1 and found["serve_queue_length"] == 0
    assert found["process_resident_memory_bytes"] > 0
    assert found["serve_request_seconds_bucket[+Inf]"] == found["serve_request_seconds_count"]
    assert pycompiler.counters(text.compiled)["hits"] == found["pycompiler_hits_total"]


# refusals -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("document", "says"),
    [
        ([], "the body is [] of type list; expected an object with 'text': send {"),
        ({"words": "a"}, "the body is an object with ['words']; expected an object with 'text'"),
        ({"text": 3}, "'text' is 3 of type int; expected a string that is not empty"),
        ({"text": ""}, "'text' is '' of type str; expected a string that is not empty"),
        ({"text": "x" * 16}, "'text' has 16 bytes of UTF-8; expected at most 15: shorten it, or build with a longer"),
        ({"text": "a\ud800"}, "lone surrogate at 1; expected Unicode text: remove it"),
    ],
    ids=["no object", "other field", "number", "empty", "too long", "surrogate"],
)
def test_bad_texts(text: Running, document: object, says: str) -> None:
    answer = text.client.post("/predict", content=json.dumps(document))
    assert answer.status_code == 400
    assert says in answer.json()["error"]


@pytest.mark.parametrize(
    ("picture", "says"),
    [
        ("x", "'image' is 'x' of type str"),
        ([[1.0]], "'image' has the shape (1, 1); expected 3 lists of 32 rows of 32 numbers: resize"),
        ([[1.0], [1.0, 2.0]], "expected 3 lists of 32 rows of 32 numbers: send its values as nested lists"),
        ([[[float("nan")] * 32] * 32] * 3, "infinite or NaN; expected finite numbers: replace them"),
    ],
    ids=["string", "shape", "ragged", "nan"],
)
def test_bad_images(picture: object, says: str) -> None:
    with pytest.raises(BadInput) as raised:
        IMAGE.read({"image": picture})
    assert says in str(raised.value)


def test_bodies_that_are_no_json(text: Running) -> None:
    for body, status, says in (
        (b"{", 400, "the body is not JSON (Expecting"),
        (b"\xff", 400, "check the client's encoding"),
        (b"[" * 100_000, 400, "the body is not JSON"),
        (b" " * (serving.LARGEST_BODY + 1), 413, "send a smaller input"),
    ):
        answer = text.client.post("/predict", content=body)
        assert (answer.status_code, says in answer.json()["error"]) == (status, True), answer.text
    assert text.client.get("/predict").status_code == 405


def test_a_full_queue_refuses(text: Running) -> None:
    app = create_app(Settings("text", text.folder, queue=1), TEXT)
    worker = app.state.worker
    worker.state = "ready"  # but its thread does not run
    worker.queue.put(None)
    answer = TestClient(app).post("/predict", json={"text": "a"})
    assert answer.status_code == 503
    assert "1 requests wait; expected fewer: ask again later, or start with a longer --queue" in answer.json()["error"]


def test_a_failed_batch_answers_500_and_the_next_one_200(text: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*batch: object) -> torch.Tensor:
        raise RuntimeError("out of order")

    with monkeypatch.context() as m:
        m.setattr(text.worker, "runner", backends.Runner(failing))
        assert text.post({"text": "a"}) == (
            500,
            {"error": "the model failed: RuntimeError: out of order; see the server's log"},
        )
    assert text.post({"text": "a"})[0] == 200


# build and load -------------------------------------------------------------------------------------------------------
def test_backends_that_are_not_installed_are_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(backends.BACKENDS, "onnxruntime", replace(backends.BACKENDS["onnxruntime"], needs=("no_such",)))
    build(TEXT, tmp_path, ["eager", "onnxruntime"])
    skipped = "skipped, no_such not installed: pip install onnxruntime onnx onnxscript"
    assert f"text, onnxruntime: {skipped}\n" in capsys.readouterr().out
    assert load.main(["--backend", "onnxruntime", "--folder", str(tmp_path)]) == 1
    assert f"onnxruntime: {skipped}\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["eager", "onnxruntime", "openvino"])
@pytest.mark.parametrize("spec", [TEXT, IMAGE], ids=["text", "image"])
def test_backends_agree(spec: Spec, name: str, tmp_path: Path) -> None:
    if missing := backends.BACKENDS[name].missing():
        pytest.skip(missing)
    build(spec, tmp_path, [name])
    run, model = backends.BACKENDS[name].load(spec, tmp_path).call, spec.model()
    for bucket in spec.buckets:
        torch.testing.assert_close(run(*spec.example(bucket)), model(*spec.example(bucket)), rtol=1e-4, atol=1e-6)


def test_load_of_a_running_server(
    text: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uvicorn = pytest.importorskip("uvicorn")
    monkeypatch.setitem(SPECS, "text", TEXT)
    app = create_app(Settings("text", text.folder), TEXT)
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not (server.started and app.state.worker.state == "ready"):
            assert thread.is_alive() and not app.state.worker.failed
            time.sleep(0.002)
        port = server.servers[0].sockets[0].getsockname()[1]
        options = ["--clients", "2", "--seconds", "0.2", "--json", str(tmp_path / "rows")]
        assert load.main(["--url", f"http://127.0.0.1:{port}", *options]) == 0
        assert load.counters("127.0.0.1", port)["compiles"] == 0
    finally:
        server.should_exit = True
        thread.join()
    [row] = json.loads((tmp_path / "rows").read_text())
    assert row["requests"] > 0 and row["p50"] <= row["p99"] <= row["p999"]
    assert (row["errors"], row["eager"], row["compiles"]) == (0, 0, 0) and 0 < row["hits"] <= row["requests"]
    assert capsys.readouterr().out.startswith("| backend | requests/s | p50 |")
    with pytest.raises(SystemExit):
        load.main(["--url", f"http://127.0.0.1:{port}"])
    assert "expected 200: start the server, or wait" in capsys.readouterr().err


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, says in (
        (
            ["--backend", "onyx"],
            "unknown name 'onyx'; expected one of ours, eager, torch_compile, onnxruntime, openvino, or all",
        ),
        (["--model", "text", "--lengths", "1"], "expected lengths above 1"),
    ):
        with pytest.raises(SystemExit):
            main(arguments)
        assert says in capsys.readouterr().err


def test_percentiles() -> None:
    values = [float(v) for v in range(1, 1001)]
    assert [load.percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert load.percentile([], 0.5) != load.percentile([], 0.5)


def test_requests_repeat_and_vary() -> None:
    requests = load.bodies(TEXT, 50)
    assert requests == load.bodies(TEXT, 50) and len(set(map(len, requests))) > 5
    for body in requests:
        TEXT.read(json.loads(body))
    assert IMAGE.measure(IMAGE.read(json.loads(load.bodies(IMAGE, 1)[0]))) == 0


def test_rows_as_a_table() -> None:
    row = load.Result("ours", 10.0, 1.0, 2.0, 3.0, 100, 0, ready=0.5, hits=7)
    assert load.table([row]).splitlines()[2] == "| ours | 10.00 | 1.00 | 2.00 | 3.00 | 100 | 0 | 0.50 |  | 7 |  |  |"
    assert len(load.HEADS) == len(load.asdict(row))
