"""A headless Chromium, driven over a pipe with its DevTools protocol: only the standard library, and no network.

In: `with Browser() as browser: page = browser.open(path)`. Out: the page for users who see, hear or type (`Page`).
`find()` is None if no browser is installed (Debian's package `chromium`).
"""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

NAMES = ("chromium", "chromium-browser", "chromium-headless-shell", "google-chrome")
FLAGS = (
    "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio", "--hide-scrollbars",
)  # fmt: skip
LONGEST = 120.0  # the longest wait for an answer, in seconds
# The protocol uses file descriptors 3 and 4 of the browser's process.
AS_3_AND_4 = """
import fcntl, os, sys
there = [fcntl.fcntl(int(n), fcntl.F_DUPFD, 10) for n in sys.argv[1:3]]
for number, file in enumerate(there, 3):
    os.dup2(file, number)
    os.close(file)
os.execvp(sys.argv[3], sys.argv[3:])
"""
KEYS = {"Tab": (9, ""), "Enter": (13, "\r"), "Space": (32, " ")}


def find() -> str | None:
    return next(filter(None, map(shutil.which, (os.environ.get("BROWSER_FOR_TESTS", ""), *NAMES))), None)


class Browser:
    def __init__(self) -> None:
        self.ids = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        self.rest = b""

    def __enter__(self) -> Browser:
        self.home = tempfile.mkdtemp(prefix="browser")
        asked, self.ask = os.pipe()
        self.answers, answered = os.pipe()
        program = find()
        assert program is not None
        launch = [sys.executable, "-S", "-c", AS_3_AND_4, str(asked), str(answered)]
        command = [*launch, program, *FLAGS, f"--user-data-dir={self.home}", "about:blank"]
        self.process = subprocess.Popen(
            command, pass_fds=(asked, answered), stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        os.close(asked)
        os.close(answered)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, where: TracebackType | None) -> None:
        try:
            self.call("Browser.close")
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        os.close(self.ask)
        os.close(self.answers)
        shutil.rmtree(self.home, ignore_errors=True)

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """The browser's answer; events that arrive before it are stored."""
        number = next(self.ids)
        asked: dict[str, Any] = {"id": number, "method": method, "params": parameters}
        os.write(self.ask, json.dumps(asked | ({"sessionId": session} if session else {})).encode() + b"\0")
        end = time.monotonic() + LONGEST
        while True:
            message = self.read(end, method)
            if message.get("id") == number:
                assert "error" not in message, message
                found: dict[str, Any] = message["result"]
                return found
            self.events.append(message)

    def read(self, end: float, what: str) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready = select.select([self.answers], [], [], max(0.0, end - time.monotonic()))[0]
            more = os.read(self.answers, 1 << 20) if ready else b""
            assert more, f"the browser does not answer {what}"
            self.rest += more
        text, _, self.rest = self.rest.partition(b"\0")
        found: dict[str, Any] = json.loads(text)
        return found

    def open(self, path: Path) -> Page:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        return Page(self, session, path)


class Page:
    """`seconds`: from the start of its load to the end of its first layout."""

    def __init__(self, browser: Browser, session: str, path: Path) -> None:
        self.browser, self.session = browser, session
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility", "DOM"):
            self.call(f"{domain}.enable")
        self.resize(1280, 900)
        start = time.monotonic()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(e["method"] == "Page.loadEventFired" for e in self.own()):
            self.browser.events.append(self.browser.read(start + LONGEST, "a load"))
        self.height = self.run("document.documentElement.scrollHeight")
        self.seconds = time.monotonic() - start

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def own(self) -> list[dict[str, Any]]:
        return [e for e in self.browser.events if e.get("sessionId") == self.session]

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def scheme(self, name: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": name}])

    @property
    def requests(self) -> list[str]:
        """Addresses requested, including the page's own."""
        return [e["params"]["request"]["url"] for e in self.own() if e["method"] == "Network.requestWillBeSent"]

    @property
    def complaints(self) -> list[str]:
        """The browser's messages about the page in its log."""
        return [str(e["params"]) for e in self.own() if e["method"] in ("Log.entryAdded", "Runtime.exceptionThrown")]

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, name: str) -> None:
        code, text = KEYS[name]
        key = " " if name == "Space" else name
        told = {"key": key, "code": name, "windowsVirtualKeyCode": code}
        self.call("Input.dispatchKeyEvent", type="keyDown" if text else "rawKeyDown", text=text, **told)
        self.call("Input.dispatchKeyEvent", type="keyUp", **told)

    def heard(self) -> list[tuple[str, str, dict[str, Any]]]:
        """The accessibility tree: role, name and properties of each node in it."""
        nodes = self.call("Accessibility.getFullAXTree")["nodes"]
        return [
            (node["role"]["value"], node.get("name", {}).get("value", ""),
             {p["name"]: p["value"].get("value") for p in node.get("properties", ())})
            for node in nodes if not node["ignored"]
        ]  # fmt: skip

    def picture(self, path: Path, *, whole: bool = False) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
