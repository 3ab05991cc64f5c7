"""The served report: its addresses, what may read it, its updates, the commands."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import torch

import pycompiler
from pycompiler import config
from pycompiler.__main__ import main
from pycompiler.debug import report, report_server
from pycompiler.debug.child_program import Ended
from pycompiler.debug.page_data import embedded
from pycompiler.debug.report_server import ReportServer, TraceReport
from tests import children
from tests.debug import browser

LONGEST = 300.0  # seconds of a wait for another process


def program(x: Any) -> Any:
    y = x.sin()
    print("a break")
    return y.cos()


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    with config.patch(trace_dir=str(tmp_path / "traces")):
        pycompiler.compile(program, backend="eager")(torch.ones(3))
    return tmp_path / "traces"


def add_compile(traces: Path) -> None:
    with config.patch(trace_dir=str(traces)):
        pycompiler.compile(lambda x: x.tan(), backend="eager")(torch.ones(3))


@pytest.fixture
def server(traces: Path) -> Iterator[ReportServer]:
    made = ReportServer(TraceReport(traces, "<b>train.py", runs=True), 0)
    made.start()
    yield made
    made.close()


def ask(port: int, path: str, method: str = "GET", **headers: str) -> tuple[int, Any, str]:
    """Status, headers, body."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LONGEST)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            if value:
                connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def version(server: ReportServer) -> dict[str, str]:
    return json.loads(ask(server.server_port, "/version")[2])


def wait_for(found: Callable[[], Any], what: str) -> Any:
    end = time.monotonic() + LONGEST
    while (value := found()) is None:
        assert time.monotonic() < end, f"no {what}"
        time.sleep(0.02)
    return value


# answers -------------------------------------------------------------------------------------------------------------
def test_the_outer_page_frames_the_report(server: ReportServer) -> None:
    status, headers, text = ask(server.server_port, "/")
    assert status == 200 and "<title>Compile report: &lt;b&gt;train.py</title>" in text
    assert '<iframe id="report" title="Compile report" sandbox="allow-scripts">' in text
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert server.server_address[0] == "127.0.0.1" and server.url == f"http://127.0.0.1:{server.server_port}/"


def test_the_report_and_its_data(server: ReportServer) -> None:
    status, headers, text = ask(server.server_port, "/report.html?any")
    assert status == 200 and headers["Content-Security-Policy"].startswith("sandbox allow-scripts;")
    assert report_server.digest(report_server.html_parts.text_of("server_frame.js")).strip("'") in text
    status, _, data = ask(server.server_port, "/report.json")
    assert status == 200 and embedded(text) == json.loads(data)
    assert json.loads(data)["running"] is True and len(json.loads(data)["frames"]) == 2


@pytest.mark.parametrize("path", ["/", "/report.html", "/report.json", "/version"])
def test_head_has_the_headers_of_get(path: str, server: ReportServer) -> None:
    status, headers, body = ask(server.server_port, path, "HEAD")
    assert (status, body) == (200, "")
    assert headers["Content-Length"] == str(len(ask(server.server_port, path)[2].encode()))
    assert headers["Cache-Control"] == "no-store" and headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Access-Control-Allow-Origin"] is None


@pytest.mark.parametrize(
    ("path", "method", "status", "text"),
    [
        ("/", "POST", 405, "GET or HEAD"), ("/report.json", "OPTIONS", 405, "GET or HEAD"), ("/", "DELETE", 405, "GET or HEAD"),
        ("/../etc/passwd", "GET", 404, "known: /, "), ("/report.html/x", "GET", 404, "known: /, "),
    ],
)  # fmt: skip
def test_other_requests_are_refused(path: str, method: str, status: int, text: str, server: ReportServer) -> None:
    found, headers, body = ask(server.server_port, path, method)
    assert found == status and text in body
    assert headers["Allow"] == ("GET, HEAD" if status == 405 else None)


def test_an_address_that_is_none(server: ReportServer) -> None:
    assert ask(server.server_port, "http://[", Host=f"127.0.0.1:{server.server_port}")[0::2] == (400, "no path")


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:{port}", "127.0.0.1:1", "", "localhost.evil.example:{port}"]
)
def test_a_page_of_another_name_cannot_read_it(host: str, server: ReportServer) -> None:
    """A site can let its name resolve to 127.0.0.1; the browser then sends that name."""
    status, _, body = ask(server.server_port, "/report.json", Host=host.format(port=server.server_port))
    assert status == 421 and "frames" not in body
    assert ask(server.server_port, "/version", Host=f"localhost:{server.server_port}")[0] == 200


# updates -------------------------------------------------------------------------------------------------------------
def test_a_page_is_made_at_a_request_and_once(
    server: ReportServer, traces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    page = report_server.page
    monkeypatch.setattr(report_server, "page", lambda document: made.append(len(document.frames)) or page(document))
    before = version(server)
    assert before == version(server) and before["state"] == "The program runs." and made == []
    for _ in range(2):
        ask(server.server_port, "/report.html")
        ask(server.server_port, "/report.json")
    assert made == [2]
    add_compile(traces)
    assert version(server)["version"] != before["version"]
    for _ in range(2):
        ask(server.server_port, "/report.html")
    assert made == [2, 3]


def test_half_a_line_at_the_end_is_left_out_until_it_is_whole(server: ReportServer, traces: Path) -> None:
    def frames() -> int:
        return len(json.loads(ask(server.server_port, "/report.json")[2])["frames"])

    [file] = traces.glob("*.jsonl")
    line = next(line for line in file.read_text().splitlines() if json.loads(line)["event"] == "frame")
    for part in (line[:50], line[50:-1]):
        with file.open("a") as out:
            out.write(part)
        assert frames() == 2
    with file.open("a") as out:
        out.write(line[-1] + "\n")
    assert frames() == 2 + 1


def test_a_trace_that_cannot_be_read_is_an_error_of_the_page(server: ReportServer, traces: Path) -> None:
    (traces / "wrong.jsonl").write_text('{"event": "phase", "at": 1.0, "thread": 1, "name": 5}\n')
    status, headers, body = ask(server.server_port, "/report.html")
    assert status == 500 and headers["Content-Type"].startswith("text/plain")
    assert "wrong.jsonl, line 1, is not an event of pycompiler: phase.name is an integer" in body
    (traces / "wrong.jsonl").unlink()
    assert ask(server.server_port, "/report.html")[0] == 200


@pytest.mark.parametrize(
    ("ended", "state", "advice"),
    [
        (Ended(0), "The program has ended with exit status 0.", ""), (Ended(3), "The program has ended with exit status 3.", ""),
        (Ended(signal=signal.SIGKILL), "The program was ended by signal 9 (SIGKILL: Killed).", "ended by signal SIGKILL (Killed)"),
    ],
)  # fmt: skip
def test_the_end_of_the_program_is_told(ended: Ended, state: str, advice: str, server: ReportServer) -> None:
    before = version(server)
    assert "the program still runs" in ask(server.server_port, "/report.html")[2]
    server.report.ended = ended
    after = version(server)
    assert after["version"] != before["version"] and after["state"] == state
    page = ask(server.server_port, "/report.html")[2]
    assert "the program still runs" not in page and advice in page


# the browser -----------------------------------------------------------------------------------------------------------
@pytest.mark.skipif(browser.find() is None, reason="no browser is installed (Debian's package chromium)")
def test_the_reader_keeps_the_place(server: ReportServer, traces: Path, tmp_path: Path) -> None:
    """The report is loaded again by itself until the reader has scrolled; then a button does it, at the same place."""
    (tmp_path / "empty.html").write_text("<title>empty</title>")
    with browser.Browser() as chromium:
        opened = chromium.open(tmp_path / "empty.html")
        opened.resize(600, 300)
        opened.call("Page.navigate", url=server.url)

        def wait(condition: str) -> None:
            wait_for(lambda: opened.run(f"typeof loading == 'boolean' && !loading && ({condition})") or None, condition)

        def current() -> str:
            return json.dumps(version(server)["version"])

        wait(f"shown === {current()}")
        assert opened.run("document.title") == "Compile report: <b>train.py"
        add_compile(traces)
        wait(f"shown === {current()} && show.hidden")

        def scrolled() -> bool | None:
            """Turns the wheel again if the frame was not laid out yet."""
            opened.call("Input.dispatchMouseEvent", type="mouseWheel", x=300, y=200, deltaX=0, deltaY=100)
            time.sleep(0.5)
            return opened.run("place.moved && place.id !== ''") or None

        wait_for(scrolled, "scrolling")
        seen = opened.run("shown")
        add_compile(traces)
        wait(f"latest === {current()} && !show.hidden")
        assert opened.run("shown") == seen
        at = opened.run("[place.id, Math.round(place.offset)]")
        opened.run("place.moved = false; show.click(); place.moved = true")
        wait(f"shown === {current()} && show.hidden")
        assert opened.run("[place.id, Math.round(place.offset)]") == at
        assert opened.complaints == []
        assert {address.partition("?")[0] for address in opened.requests[1:]} <= {
            server.url, f"{server.url}version", f"{server.url}report.html"
        }  # fmt: skip


# the commands ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("given", "made"),
    [
        ("--serve script.py --serve x", "--serve=0 script.py --serve x"), ("--serve 80 script.py", "--serve 80 script.py"),
        ("script.py --serve x", "script.py --serve x"), ("-m module --serve x", "-m module --serve x"), ("--serve", "--serve=0"),
        ("-o page.html --serve script.py", "-o page.html --serve=0 script.py"), ("- --serve x", "- --serve x"),
        ("--no-costs --serve -m module", "--no-costs --serve=0 -m module"), ("--serve -1 x", "--serve -1 x"),
        ("-o --serve script.py", "-o --serve script.py"), ("--serve=5 script.py --serve x", "--serve=5 script.py --serve x"),
    ],
)  # fmt: skip
def test_the_port_may_be_left_out(given: str, made: str) -> None:
    assert report.with_port(given.split()) == made.split()


@pytest.mark.parametrize("command", [["report", "script.py"], ["trace", "."]])
def test_unusable_ports(
    command: list[str], server: ReportServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    """The program is not run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "script.py").write_text("open('ran', 'w')")
    name, argument = command
    assert main([name, "--serve", str(server.server_port), argument]) == 2
    said = capsys.readouterr().err
    assert said.startswith(
        f"{name}: port {server.server_port} of 127.0.0.1 cannot be opened: Address already in use; choose"
    )
    for port in ("70000", "-1"):
        with pytest.raises(SystemExit):
            main([name, "--serve", port, argument])
        assert f"'{port}' is no port: expected a number from 0 to 65535" in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


PROGRAM = """
import os, signal, sys, time, torch, pycompiler

with open("writes", "w") as file:
    print(os.getppid(), file=file)
os.rename("writes", "served by")
pycompiler.compile(lambda x: x.tan(), backend="eager")(torch.ones(3))
end = time.monotonic() + 300
while not os.path.exists("go") and time.monotonic() < end:
    time.sleep(0.02)
pycompiler.compile(lambda x: x.tan(), backend="eager")(torch.ones(3))
if sys.argv[1:]:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(7)
"""


def address(stream: IO[str]) -> int:
    """The port in the next line of a command that says one."""
    while line := stream.readline():
        if "http://127.0.0.1:" in line:
            return int(line.partition("http://127.0.0.1:")[2].partition("/")[0])
    raise AssertionError("no address")


@pytest.mark.parametrize(("arguments", "status"), [([], 7), (["killed"], 128 + signal.SIGKILL)])
def test_a_program_that_is_served(arguments: list[str], status: int, tmp_path: Path) -> None:
    """While it runs, after its end or crash, until Ctrl-C; the exit status is the program's."""
    (tmp_path / "waits.py").write_text(PROGRAM)
    command = [children.python(), "-m", "pycompiler", "report", "--no-costs", "--serve", "waits.py", *arguments]
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (
        subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True) as process,
        contextlib.ExitStack() as leaving,
    ):
        leaving.callback(process.kill)
        assert process.stderr is not None
        port = address(process.stderr)

        def frames(count: int) -> str | None:
            data = ask(port, "/report.json")[2]
            return data if len(json.loads(data)["frames"]) == count else None

        assert json.loads(wait_for(lambda: frames(1), "frame"))["running"] is True
        assert json.loads(ask(port, "/version")[2])["state"] == "The program runs."
        (tmp_path / "go").touch()
        wait_for(lambda: None if "runs" in ask(port, "/version")[2] else True, "end")
        told = "was ended by signal 9 (SIGKILL: Killed)" if arguments else "has ended with exit status 7"
        assert json.loads(ask(port, "/version")[2])["state"] == f"The program {told}."
        last = json.loads(frames(2) or "")
        assert last["end"]["status"] == status
        assert address(process.stderr) == port  # it says that it waits
        written = (tmp_path / "pycompiler_report.html").read_text()
        assert {**embedded(written), "end": 0} == {**last, "end": 0}
        os.kill(int((tmp_path / "served by").read_text()), signal.SIGINT)
        assert process.wait(LONGEST) == status, process.stderr.read()


def test_a_folder_that_is_served(tmp_path: Path) -> None:
    """The folder does not exist before the first compile; no file is written without --out."""
    (tmp_path / "serve.py").write_text(
        "import os, sys\nfrom pycompiler.__main__ import main\n"
        "print(os.getpid(), flush=True)\nsys.exit(main(['trace', '--serve', 'traces']))\n"
    )
    command = [children.python(), "serve.py"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process, contextlib.ExitStack() as leaving:
        leaving.callback(process.kill)
        pid, port = int(process.stdout.readline()), address(process.stderr)
        assert json.loads(ask(port, "/version")[2])["state"] == "No traces in traces yet."
        assert "the program still runs" in ask(port, "/report.html")[2]
        add_compile(tmp_path / "traces")
        assert json.loads(ask(port, "/version")[2])["state"] == "traces: traces of 1 process."
        assert len(json.loads(ask(port, "/report.json")[2])["frames"]) == 1
        os.kill(pid, signal.SIGTERM)
        assert process.wait(LONGEST) == 0
    assert not list(tmp_path.rglob("*.html"))
