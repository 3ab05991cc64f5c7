"""The server: an ASGI application around one worker thread that runs batches.

In: `Settings`.  Out: an application for uvicorn.  Example: `app = create_app(Settings("text", Path("build/serve/text")))`.

| route | answer |
| --- | --- |
| `POST /predict` | scores of one input, or an error with a text |
| `GET /health` | 200; 500 if the model could not be loaded: start the process again |
| `GET /ready` | 200 once every bucket has run; 503 before |
| `GET /metrics` | counters, latency and queue in Prometheus' text format |
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import queue
import threading
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import prometheus_client as prometheus
import torch
from prometheus_client.core import CounterMetricFamily
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import pycompiler
from examples.serve.backends import BACKENDS, NotServable, Runner, built
from examples.serve.models import BadInput, Bucket, Spec

log = logging.getLogger("examples.serve")
LARGEST_BODY = 1 << 20  # bytes
COUNTERS = {
    "hits": "calls that ran a compiled entry",
    "misses": "calls that fitted no entry",
    "compiles": "entries compiled since the start: recompiles",
    "eager_calls": "calls that ran eagerly",
}


@dataclass(frozen=True)
class Settings:
    """threads: of one call.  queue: requests that may wait; more are refused."""

    model: str
    folder: Path
    backend: str = "ours"
    threads: int = 1
    queue: int = 256


# metrics ------------------------------------------------------------------------------------------------------------
class Metrics:
    """Metrics of one application, in a registry of its own."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.registry = prometheus.CollectorRegistry()
        here = {"registry": self.registry}
        self.requests = prometheus.Counter("serve_requests", "answers by status", ["status"], **here)
        self.seconds = prometheus.Histogram(
            "serve_request_seconds", "from a request to its answer", **here,
            buckets=[base * 10.0**power for power in range(-4, 1) for base in (1, 2, 5)],
        )  # fmt: skip
        self.batches = prometheus.Histogram(
            "serve_batch_size", "inputs of a call of the model", **here, buckets=worker.spec.batches
        )
        self.buckets = prometheus.Counter("serve_bucket_calls", "calls of the model by bucket", ["bucket"], **here)
        prometheus.Gauge("serve_queue_length", "inputs that wait", **here).set_function(worker.queue.qsize)
        prometheus.Gauge("serve_ready", "1 once every bucket has run", **here).set_function(
            lambda: worker.state == "ready"
        )
        prometheus.ProcessCollector(registry=self.registry)
        self.registry.register(self)

    def collect(self) -> Iterator[CounterMetricFamily]:
        """The counters of the compiled callable; called by the registry."""
        compiled = self.worker.runner.compiled if self.worker.runner else None
        if compiled is not None:
            found = pycompiler.counters(compiled)
            for name, text in COUNTERS.items():
                yield CounterMetricFamily(f"pycompiler_{name}", text, value=found[name])


# the worker ---------------------------------------------------------------------------------------------------------
@dataclass
class Waiting:
    """An input in the queue; `done` receives its scores, and the bucket of its batch."""

    value: Any
    loop: asyncio.AbstractEventLoop
    done: asyncio.Future[tuple[list[float], Bucket]]

    def answer(self, result: tuple[list[float], Bucket] | BaseException) -> None:
        """Called by the worker's thread."""

        def set_() -> None:
            if self.done.done():  # the client has gone
                return
            if isinstance(result, BaseException):
                self.done.set_exception(result)
            else:
                self.done.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop has ended
            self.loop.call_soon_threadsafe(set_)


@dataclass
class Worker:
    """Loads the model in a thread, then runs batches there.

    A batch is the inputs that wait at its start, padded to the smallest bucket that holds them.  No input waits for
    others to come.
    """

    settings: Settings
    spec: Spec
    state: str = "loading"  # then "ready", or the reason why it is not
    runner: Runner | None = None
    failed: bool = False

    def __post_init__(self) -> None:
        self.queue: queue.Queue[Waiting | None] = queue.Queue(self.settings.queue)
        self.metrics = Metrics(self)
        self.thread = threading.Thread(target=self.run, name="worker", daemon=True)

    def run(self) -> None:
        torch.set_num_threads(self.settings.threads)
        try:
            # outside of inference mode, as in the build: guards see tensors that inference mode has made
            runner = BACKENDS[self.settings.backend].load(self.spec, self.settings.folder)
            with torch.inference_mode():
                self.warm_up(runner)
        except Exception as e:
            self.failed, self.state = True, f"{type(e).__name__}: {e}"
            log.exception("the model cannot be loaded")
            return
        self.runner, self.state = runner, "ready"
        with torch.inference_mode():
            while self.serve_next():
                pass

    def serve_next(self) -> bool:
        """Run a batch of the inputs that wait; False once the worker should end."""
        found = [self.queue.get()]
        with contextlib.suppress(queue.Empty):
            while found[-1] is not None and len(found) < self.spec.batches[-1]:
                found.append(self.queue.get_nowait())
        if batch := [waiting for waiting in found if waiting is not None]:
            self.serve(batch)
        return found[-1] is not None

    def warm_up(self, runner: Runner) -> None:
        """Run every bucket once: no request pays for a first call, and no bucket lacks its entry."""
        for bucket in self.spec.buckets:
            example = self.spec.example(bucket)
            if runner.compiled is not None and (why := pycompiler.explain_miss(runner.compiled, *example)):
                raise NotServable("\n".join([f"no entry fits bucket {bucket}: build again; the entries ask for", *why]))
            runner.call(*example)

    def serve(self, batch: list[Waiting]) -> None:
        assert self.runner is not None
        try:
            inputs = [waiting.value for waiting in batch]
            bucket = self.spec.bucket(len(inputs), max(map(self.spec.measure, inputs)))
            self.metrics.batches.observe(len(inputs))
            self.metrics.buckets.labels(str(bucket)).inc()
            scores = self.runner.call(*self.spec.stack(inputs, bucket)).tolist()
            for waiting, row in zip(batch, scores):
                waiting.answer((row, bucket))
        except Exception as e:
            log.exception("a batch failed")
            for waiting in batch:
                waiting.answer(e)

    def stop(self) -> None:
        """End the thread after the inputs that wait."""
        if self.thread.is_alive():
            self.queue.put(None)
            self.thread.join(60)


# the application ----------------------------------------------------------------------------------------------------
class Refused(Exception):
    """A request with a status other than 200."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass
class Service:
    """The routes."""

    worker: Worker

    async def predict(self, request: Request) -> Response:
        begin, metrics = time.perf_counter(), self.worker.metrics
        try:
            found, status = await self.answer(request), 200
        except BadInput as e:
            found, status = {"error": str(e)}, 400
        except Refused as e:
            found, status = {"error": str(e)}, e.status
        except Exception as e:
            found, status = {"error": f"the model failed: {type(e).__name__}: {e}; see the server's log"}, 500
        metrics.requests.labels(str(status)).inc()
        metrics.seconds.observe(time.perf_counter() - begin)
        return JSONResponse(found, status, {"Retry-After": "1"} if status == 503 else None)

    async def answer(self, request: Request) -> dict[str, Any]:
        worker = self.worker
        if worker.state != "ready":
            raise Refused(
                503, f"the server is not ready: {worker.state}; expected after /ready answers 200: ask again then"
            )
        value = worker.spec.read(await self.document(request))
        loop = asyncio.get_running_loop()
        waiting = Waiting(value, loop, loop.create_future())
        try:
            worker.queue.put_nowait(waiting)
        except queue.Full:
            raise Refused(
                503,
                f"{worker.queue.maxsize} requests wait; expected fewer: ask again later, or start with a longer --queue",
            ) from None
        scores, bucket = await waiting.done
        return {"label": max(range(len(scores)), key=scores.__getitem__), "scores": scores, "bucket": str(bucket)}

    async def document(self, request: Request) -> object:
        """The JSON of the body."""
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > LARGEST_BODY:
                raise Refused(
                    413, f"the body has over {LARGEST_BODY} bytes; expected at most as many: send a smaller input"
                )
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as e:
            raise BadInput(f"the body is not JSON ({e}); expected a JSON object: check the client's encoding") from None

    async def health(self, request: Request) -> Response:
        worker = self.worker
        return JSONResponse({"state": worker.state}, 500 if worker.failed else 200)

    async def ready(self, request: Request) -> Response:
        worker = self.worker
        return JSONResponse({"state": worker.state}, 200 if worker.state == "ready" else 503)

    async def metrics(self, request: Request) -> Response:
        text = prometheus.generate_latest(self.worker.metrics.registry)
        return Response(text, media_type=prometheus.CONTENT_TYPE_LATEST)


def create_app(settings: Settings, spec: Spec | None = None) -> Starlette:
    """The application; `app.state.worker` is its worker.  `spec` replaces the model's own, with the built buckets."""
    worker = Worker(settings, spec or built(settings.model, settings.folder))
    service = Service(worker)

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        worker.thread.start()
        yield
        await asyncio.to_thread(worker.stop)

    app = Starlette(
        routes=[
            Route("/predict", service.predict, methods=["POST"]),
            Route("/health", service.health),
            Route("/ready", service.ready),
            Route("/metrics", service.metrics),
        ],
        lifespan=lifespan,
    )
    app.state.worker = worker
    return app
