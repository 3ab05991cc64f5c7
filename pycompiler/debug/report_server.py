"""The report of running programs, served to the browsers of this machine.

In: a folder of traces that grows (`trace.py`).  Out: `http://127.0.0.1:<port>/`, until the server is closed:

    /             a page that holds the report in a frame, and loads it again when events were added
    /report.html  the report, made at a request if the folder has changed
    /report.json  its document
    /version      JSON: `version`, another text after each change; `state`, a sentence about the program; `title`

Only this machine can connect.  A request must name it in its Host header, so that a page of another site cannot read
the report through a name that it lets resolve to 127.0.0.1 (DNS rebinding).  The frame has no origin of its own: a fault
in the report cannot reach the outer page.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from pycompiler.debug import html_parts
from pycompiler.debug.child_program import Ended
from pycompiler.debug.document import Document
from pycompiler.debug.events import event_of
from pycompiler.debug.page import page
from pycompiler.debug.trace import files, read
from pycompiler.errors import ArgumentError

HOST = "127.0.0.1"
LOCAL = (HOST, "localhost")  # names of this machine in a Host header
HTML, JSON, TEXT = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"
# The policy of the report, beside the one in its page: also a reader who opens it alone gets it without an origin.
FRAMED = "sandbox allow-scripts; frame-ancestors 'self'"


def digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


@dataclass
class TraceReport:
    """The report of a folder of traces; it is made again only when the folder has changed.

    Attributes:
        place: The folder.
        name: The name of the program or the folder, for titles.
        runs: Whether this process runs the program.  Otherwise nothing is known about its end.
        ended: The end of the program.
    """

    place: Path
    name: str
    runs: bool = False
    ended: Ended | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)
    known: str = ""  # the version of `document` and `made`
    document: Document | None = None
    made: dict[str, bytes] = field(default_factory=dict)  # by path

    def version(self) -> str:
        stats = []
        for path in files(self.place):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                stats.append((path.name, path.stat().st_size, path.stat().st_mtime_ns))
        return hashlib.sha256(repr((stats, self.ended)).encode()).hexdigest()[:16]

    def state(self) -> str:
        """A sentence about the program."""
        if self.ended is not None:
            told = str(self.ended) or f"the program has ended with exit status {self.ended.code}"
            return f"T{told[1:]}."
        if self.runs:
            return "The program runs."
        count = len(files(self.place))
        return (
            f"{self.place}: traces of {count} process{'es' * (count != 1)}."
            if count
            else f"No traces in {self.place} yet."
        )

    def status(self) -> bytes:
        title = f"Compile report: {self.name}"
        return json.dumps({"version": self.version(), "state": self.state(), "title": title}).encode()

    def of(self, path: str, make: Callable[[Document], str]) -> bytes:
        """`make` of the document; ArgumentError for a trace that cannot be read."""
        with self.lock:
            version = self.version()
            if version != self.known or self.document is None:
                events = list(read(self.place))
                if self.ended is not None:
                    events.append(self.ended.event())
                elif self.runs or not events:
                    events.append(event_of("running"))
                self.known, self.document, self.made = version, Document.of(events), {}
            if path not in self.made:
                self.made[path] = make(self.document).encode()
            return self.made[path]

    def html(self) -> bytes:
        return self.of("html", lambda document: framed(page(document)))

    def json(self) -> bytes:
        return self.of("json", lambda document: json.dumps(document.data))

    def outer(self) -> bytes:
        template = html_parts.environment().get_template("server.html")
        style, script = (html_parts.text_of(f"server.{kind}") for kind in ("css", "js"))
        title = f"Compile report: {self.name}"
        return template.render(title=title, state=self.state(), style=style, script=script).encode()


def framed(text: str) -> str:
    """The page with a second script, which tells the outer page the reader's place."""
    script = html_parts.text_of("server_frame.js")
    before, body, after = text.rpartition("</body>")
    allowed = digest(script).replace("'", "&#39;")
    return before.replace("script-src ", f"script-src {allowed} ", 1) + f"<script>{script}</script>" + body + after


def outer_policy() -> str:
    style, script = (digest(html_parts.text_of(f"server.{kind}")) for kind in ("css", "js"))
    return (
        f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


class ReportHandler(BaseHTTPRequestHandler):
    """Answers one request, in a thread of its own."""

    server: ReportServer
    server_version, sys_version = "pycompiler", ""
    timeout = 30.0  # seconds that a connection may be silent

    def do_GET(self) -> None:
        report = self.server.report
        routes: dict[str, tuple[Callable[[], bytes], str, str]] = {
            "/": (report.outer, HTML, outer_policy()),
            "/report.html": (report.html, HTML, FRAMED),
            "/report.json": (report.json, JSON, ""),
            "/version": (report.status, JSON, ""),
        }
        if not self.is_local():
            return self.answer(421, f"this server only answers for http://{HOST}:{self.server.server_port}/".encode())
        try:
            path = urlsplit(self.path).path
        except ValueError:
            return self.answer(400, b"no path")
        if path not in routes:
            return self.answer(404, f"no such page; known: {', '.join(routes)}".encode())
        make, kind, policy = routes[path]
        try:
            content = make()
        except Exception as error:
            return self.answer(500, f"no report: {type(error).__name__}: {error}".encode(errors="replace"))
        return self.answer(200, content, kind, policy)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        self.answer(405, b"the report is read by GET or HEAD")

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def is_local(self) -> bool:
        port = self.server.server_port
        allowed = {f"{name}:{port}" for name in LOCAL} | (set(LOCAL) if port == 80 else set())
        return self.headers.get_all("Host") is not None and set(self.headers.get_all("Host", [])) <= allowed

    def answer(self, status: int, content: bytes, kind: str = TEXT, policy: str = "") -> None:
        self.send_response(status)
        if status == 405:
            self.send_header("Allow", "GET, HEAD")
        for name, value in {
            "Content-Type": kind, "Content-Length": str(len(content)), "Cache-Control": "no-store",
            "Content-Security-Policy": policy or "default-src 'none'; sandbox", "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin", "Referrer-Policy": "no-referrer",
        }.items():  # fmt: skip
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the program's output is on the terminal."""


class ReportServer(ThreadingHTTPServer):
    """Listens once it exists, and answers from `start` to `close`.  ArgumentError for a port that cannot be opened."""

    def __init__(self, report: TraceReport, port: int) -> None:
        self.report = report
        self.thread: threading.Thread | None = None
        try:
            super().__init__((HOST, port), ReportHandler)
        except OSError as error:
            raise ArgumentError(
                f"port {port} of {HOST} cannot be opened: {error.strerror or error}; choose another one, or write --serve "
                "without a number for a free port"
            ) from None

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's would ask the network for the name of this machine
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: a reader may leave in the middle of an answer."""

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def start(self) -> None:
        self.thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        if self.thread is not None:
            self.shutdown()
            self.thread.join()
        self.server_close()


def wait_for_interrupt(line: str) -> None:
    """Print a line on stderr; return at Ctrl-C, or at SIGTERM."""
    try:
        with contextlib.suppress(ValueError):  # threads other than the main thread have no signals
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.default_int_handler)
        print(line, file=sys.stderr, flush=True)
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
