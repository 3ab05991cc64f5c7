"""Load the server with closed-loop clients: each sends its next request when it has the answer to its last one.

    python -m examples.serve.load --model text --backend ours,eager --clients 4 --seconds 10
    python -m examples.serve.load --model text --url http://127.0.0.1:8000

Without `--url` a server is started for each backend, one after the other, on the same model and the same requests.
A backend that is not installed is skipped with a line.  Each server imports torch and pycompiler, whatever it runs: both are
in the start and the memory of all rows.  Columns:

| column | meaning |
| --- | --- |
| requests/s | answers with status 200 in a second |
| p50, p99, p99.9 | milliseconds from request to answer, as clients see them |
| ready | seconds from the start of the process to `/ready` |
| peak | the most memory the process had resident, MB |
| hits, eager, compiles | of `pycompiler.counters`, during the load |
| errors | answers with another status |
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from examples.serve.backends import BACKENDS, NotServable, built
from examples.serve.build import FOLDER, names
from examples.serve.models import CHANNELS, SIDE, SPECS, Spec

START_LIMIT = 600.0  # seconds to wait for /ready


@dataclass
class Result:
    """One row; times in milliseconds, except for `ready` in seconds and `peak` in MB.  None: not known."""

    backend: str
    throughput: float
    p50: float
    p99: float
    p999: float
    requests: int
    errors: int
    ready: float | None = None
    peak: float | None = None
    hits: int | None = None
    eager: int | None = None
    compiles: int | None = None


HEADS = (
    "backend",
    "requests/s",
    "p50",
    "p99",
    "p99.9",
    "requests",
    "errors",
    "ready",
    "peak",
    "hits",
    "eager",
    "compiles",
)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN without values."""
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else math.nan


def bodies(spec: Spec, count: int, seed: int = 0) -> list[bytes]:
    """Requests of varied lengths, the same for each backend."""
    draw = random.Random(seed)
    if spec.lengths == (0,):
        images = [[[[round(draw.gauss(0, 1), 3) for _ in range(SIDE)] for _ in range(SIDE)] for _ in range(CHANNELS)]
                  for _ in range(min(count, 32))]  # fmt: skip
        return [json.dumps({"image": image}).encode() for image in images]
    texts = ("".join(draw.choices("abcdefgh ", k=draw.randint(1, spec.lengths[-1] - 1))) for _ in range(count))
    return [json.dumps({"text": text}).encode() for text in texts]


# clients ------------------------------------------------------------------------------------------------------------
@dataclass
class Client:
    """A connection, and the latencies of its requests in seconds."""

    host: str
    port: int
    bodies: Sequence[bytes]
    latencies: list[float] = field(default_factory=list)
    errors: int = 0

    def run(self, start: int, until: float) -> None:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        place = start
        while (begin := time.perf_counter()) < until:
            body = self.bodies[place % len(self.bodies)]
            place += 1
            try:
                connection.request("POST", "/predict", body, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                answer.read()
                good = answer.status == 200
            except (OSError, http.client.HTTPException):
                connection.close()  # the next request opens it again
                good = False
            if good:
                self.latencies.append(time.perf_counter() - begin)
            else:
                self.errors += 1
        connection.close()


def drive(
    host: str, port: int, requests: Sequence[bytes], clients: int, seconds: float
) -> tuple[list[float], int, float]:
    """(latencies in seconds, sorted; errors; seconds taken)."""
    begin = time.perf_counter()
    found = [Client(host, port, requests) for _ in range(clients)]
    threads = [
        threading.Thread(target=client.run, args=(i * len(requests) // clients, begin + seconds))
        for i, client in enumerate(found)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = time.perf_counter() - begin
    return sorted(s for client in found for s in client.latencies), sum(client.errors for client in found), taken


# servers ------------------------------------------------------------------------------------------------------------
def get(host: str, port: int, path: str) -> tuple[int, str]:
    """(status, text); (0, reason) if nothing answers."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, http.client.HTTPException) as e:
        return 0, str(e)
    finally:
        connection.close()


def counters(host: str, port: int) -> dict[str, int]:
    """The counters of pycompiler at /metrics; empty for other backends."""
    _, text = get(host, port, "/metrics")
    return {name: int(float(value)) for name, value in re.findall(r"^pycompiler_(\w+)_total (\S+)$", text, re.M)}


def peak_memory(pid: int) -> float | None:
    """MB; the kernel's high-water mark."""
    found = re.search(r"^VmHWM:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(), re.M)
    return int(found[1]) / 1024 if found else None


@contextmanager
def server(options: Sequence[str]) -> Iterator[tuple[int, int, float]]:
    """A server's (process, port, seconds to ready)."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    begin = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "examples.serve", "--port", str(port), *options])
    try:
        while (found := get("127.0.0.1", port, "/ready"))[0] != 200:
            if process.poll() is not None:
                raise NotServable(f"the server ended with status {process.returncode}: its messages are above")
            if time.perf_counter() - begin > START_LIMIT or (found := get("127.0.0.1", port, "/health"))[0] == 500:
                raise NotServable(f"the server does not become ready: {found[1]}")
            time.sleep(0.005)
        yield process.pid, port, time.perf_counter() - begin
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def measure(backend: str, host: str, port: int, spec: Spec, clients: int, seconds: float) -> Result:
    requests = bodies(spec, 512)
    before = counters(host, port)
    latencies, errors, taken = drive(host, port, requests, clients, seconds)
    change = {name: value - before[name] for name, value in counters(host, port).items()}
    p50, p99, p999 = (1e3 * percentile(latencies, share) for share in (0.5, 0.99, 0.999))
    return Result(
        backend, len(latencies) / taken, p50, p99, p999, len(latencies), errors,
        hits=change.get("hits"), eager=change.get("eager_calls"), compiles=change.get("compiles"),
    )  # fmt: skip


def table(rows: Sequence[Result]) -> str:
    """The rows as a Markdown table."""

    def shown(value: object) -> str:
        return "" if value is None else f"{value:.2f}" if isinstance(value, float) else str(value)

    lines = [HEADS, ("---",) * len(HEADS), *(tuple(map(shown, asdict(row).values())) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m examples.serve.load", description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=SPECS, default="text")
    parser.add_argument("--backend", default="ours", help=f"{', '.join(BACKENDS)}, several with commas, or all")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"the folder of the build ({FOLDER})")
    parser.add_argument("--url", help="a server that runs already, such as http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--threads", type=int, default=1, help="threads of a call in servers that are started (1)")
    parser.add_argument("--json", type=Path, help="a file that also gets the rows")
    asked = parser.parse_args(arguments)
    rows: list[Result] = []
    if asked.url:
        place = urlsplit(asked.url)
        host, port = place.hostname or "127.0.0.1", place.port or 80
        if (found := get(host, port, "/ready"))[0] != 200:
            parser.error(f"{asked.url}/ready answers {found[0]} ({found[1]}); expected 200: start the server, or wait")
        rows.append(measure(asked.url, host, port, SPECS[asked.model], asked.clients, asked.seconds))
    for name in [] if asked.url else names(asked.backend, BACKENDS, parser):
        if missing := BACKENDS[name].missing():
            print(f"{name}: skipped, {missing}", file=sys.stderr)
            continue
        try:
            spec = built(asked.model, asked.folder / asked.model)
            options = [
                "--model",
                asked.model,
                "--backend",
                name,
                "--folder",
                str(asked.folder),
                "--threads",
                str(asked.threads),
            ]
            with server(options) as (pid, port, ready):
                row = measure(name, "127.0.0.1", port, spec, asked.clients, asked.seconds)
                row.ready, row.peak = ready, peak_memory(pid)
        except NotServable as e:
            print(f"{name}: not measured, {e}", file=sys.stderr)
            continue
        rows.append(row)
    print(table(rows))
    if asked.json:
        asked.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    return 0 if rows and not any(row.errors for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
