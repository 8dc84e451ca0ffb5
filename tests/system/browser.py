# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium that opens one page and tells what happened: over its debugging pipe.

The protocol is Chromium's own (devtools), JSON with a zero byte behind every message; a pipe needs
no port and no driver program.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from select import select
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--hide-scrollbars",
    "--no-proxy-server",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)
TIMEOUT_S = 120.0
"""Only against hangs: a crowded machine may be slow."""

EVENTS = ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")


def find_browser() -> str | None:
    """Return the path of a Chromium, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Browser:
    """One page in one browser. `complaints` are errors and warnings of its console."""

    write_fd: int
    read_fd: int
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    _number: int = 0
    _session: str = ""
    _loaded: bool = False
    _buffer: bytes = b""
    _answers: dict[int, dict[str, Any]] = field(default_factory=dict)

    def attach(self) -> None:
        """Make a page, and watch what it says and loads."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **words: object) -> dict[str, Any]:
        """Ask, and return the answer."""
        self._number += 1
        message: dict[str, object] = {"id": self._number, "method": method, "params": words}
        if self._session:
            message["sessionId"] = self._session
        os.write(self.write_fd, json.dumps(message).encode() + b"\0")
        number = self._number
        self._until(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        assert "error" not in answer, f"{method}: {answer['error']}"
        return dict(answer["result"])

    def _until(self, done: Any, what: str) -> None:
        end = time.monotonic() + TIMEOUT_S
        while not done():
            ready, _, _ = select([self.read_fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"the browser did not answer {what} in {TIMEOUT_S:.0f} s"
            chunk = os.read(self.read_fd, 1 << 20)
            assert chunk, f"the browser ended while it was asked {what}"
            *messages, self._buffer = (self._buffer + chunk).split(b"\0")
            for message in messages:
                self._take(json.loads(message))

    def _take(self, message: dict[str, Any]) -> None:
        if "id" in message:
            self._answers[message["id"]] = message
            return
        method, told = message["method"], message["params"]
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self.requests.append(told["request"]["url"])
        elif method in EVENTS:
            entry = told.get("entry", {})
            if entry.get("level", told.get("type", "error")) in ("error", "warning", "assert"):
                self.complaints.append(json.dumps(told))

    def open(self, page: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Load a file in a window of that size."""
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.call("Page.navigate", url=page.resolve().as_uri())
        self._until(lambda: self._loaded, str(page))

    def value(self, script: str) -> Any:
        """Return what an expression gives."""
        told = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def box(self, selector: str) -> dict[str, float]:
        """Return where an element is in the window: left, top, right, bottom."""
        found = self.value(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "return e ? e.getBoundingClientRect().toJSON() : null })()"
        )
        assert found, f"no element {selector}"
        return dict(found)

    def picture(self, path: Path, *, whole: bool = False) -> Path:
        """Write what the window shows, or the whole page, as PNG."""
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(data["data"]))
        return path


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser with a profile of its own; it and its children are ended, whatever happens."""
    program = find_browser()
    assert program, "no Chromium"
    profile = tempfile.mkdtemp(prefix="nearmetal-browser-")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Chromium reads its pipe at 3 and writes at 4; ends that are beyond cannot be in the way.
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (theirs_in, theirs_out)]
    start = f'exec "$@" 3<&{ends[0]} 4>&{ends[1]}'
    with (Path(profile) / "stderr").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", start, "bash", program, *FLAGS, f"--user-data-dir={profile}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=ends,
            start_new_session=True,
            env={**os.environ, "HOME": profile, "TMPDIR": profile},
        )
    for end in (*ends, theirs_in, theirs_out):
        os.close(end)
    try:
        made = Browser(ours_out, ours_in)
        made.attach()
        yield made
    finally:
        os.close(ours_out)
        os.close(ours_in)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)
