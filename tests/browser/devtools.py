"""A very small client of Chromium's DevTools protocol over a pipe: no web socket, no dependency.

``--remote-debugging-pipe`` makes Chromium read NUL-terminated JSON commands from descriptor 3 and
write replies and events to descriptor 4.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-default-apps", "--hide-scrollbars",
    "--remote-debugging-pipe",
)  # fmt: skip


def find() -> str | None:
    """Return the browser's path, or None where there is none."""
    return next((path for path in map(shutil.which, NAMES) if path), None)


def decode(data: str) -> bytes:
    """Decode what the protocol sends for pictures and PDFs."""
    return base64.b64decode(data)


class Browser:
    """One headless Chromium with a fresh profile."""

    def __init__(self, executable: str, folder: Path) -> None:
        """Start ``executable``, with its profile and log in ``folder``."""
        self.events: list[dict[str, Any]] = []
        self._buffer = b""
        self._next = 0
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        log = os.open(folder / "chromium.log", os.O_CREAT | os.O_WRONLY)
        # Away from 3 and 4, so that making those does not overwrite one that is still to be copied.
        low = (theirs_read, theirs_write, log)
        high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 20) for fd in low]
        for fd in low:
            os.close(fd)
        self._pid = os.posix_spawn(
            executable,
            [executable, *FLAGS, f"--user-data-dir={folder}/profile", "about:blank"],
            {**os.environ, "HOME": str(folder)},
            file_actions=[
                (os.POSIX_SPAWN_DUP2, high[0], 3),
                (os.POSIX_SPAWN_DUP2, high[1], 4),
                (os.POSIX_SPAWN_DUP2, high[2], 1),
                (os.POSIX_SPAWN_DUP2, high[2], 2),
            ],
            setpgroup=0,
        )
        for fd in high:
            os.close(fd)
        self._read, self._write = ours_read, ours_write

    def close(self) -> None:
        """End the browser and everything it started."""
        with contextlib.suppress(OSError):
            os.close(self._write)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self._read)

    def _message(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium did not answer in time")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise ConnectionError("Chromium ended; see chromium.log in its folder")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        loaded: dict[str, Any] = json.loads(message)
        return loaded

    def call(
        self, method: str, session: str | None = None, seconds: float = 600, **params: Any
    ) -> dict[str, Any]:
        """Send one command and return its result; events that come in between are kept."""
        self._next += 1
        number = self._next
        command = {"id": number, "method": method, "params": params} | (
            {"sessionId": session} if session else {}
        )
        os.write(self._write, json.dumps(command).encode() + b"\0")
        deadline = time.monotonic() + seconds
        while True:
            message = self._message(deadline)
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            if "method" in message:
                self.events.append(message)

    def wait(self, method: str, session: str, seconds: float = 600) -> dict[str, Any]:
        """Return the next event of a kind."""
        deadline = time.monotonic() + seconds
        while True:
            for event in self.events:
                if event["method"] == method and event.get("sessionId") == session:
                    return event
            message = self._message(deadline)
            if "method" in message:
                self.events.append(message)


class Page:
    """One tab, with console, network and dialogs watched from before it loads."""

    def __init__(
        self,
        browser: Browser,
        *,
        width: int = 1280,
        dark: bool = False,
        scripts: bool = True,
        media: str = "screen",
    ) -> None:
        """Open an empty tab of this width, colour scheme and medium."""
        self.browser = browser
        self._scripts = scripts
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        self.target = target
        self.session: str = browser.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.resize(width)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media=media, features=[scheme])
        self.call("Emulation.setScriptExecutionDisabled", value=not scripts)

    def resize(self, width: int) -> None:
        """Make the tab so wide."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False
        )

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command to this tab."""
        return self.browser.call(method, self.session, **params)

    def open(self, path: Path, fragment: str = "") -> None:
        """Load a local file and wait until it is done."""
        self.call("Page.navigate", url=path.as_uri() + fragment)
        self.browser.wait("Page.loadEventFired", self.session)
        if self._scripts:
            self.run("new Promise(done => requestAnimationFrame(() => setTimeout(done, 30)))")
        self.call("Runtime.evaluate", expression="1")  # let late events come in

    def run(self, expression: str) -> Any:
        """Evaluate JavaScript in the page and return its value."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise AssertionError(result["exceptionDetails"])
        return result["result"].get("value")

    def seen(self, *methods: str) -> list[dict[str, Any]]:
        """Return the events of these kinds so far."""
        return [
            e["params"]
            for e in self.browser.events
            if e["method"] in methods and e.get("sessionId") == self.session
        ]

    def requests(self) -> list[str]:
        """Return every address the page asked for."""
        return [event["request"]["url"] for event in self.seen("Network.requestWillBeSent")]

    def complaints(self) -> list[dict[str, Any]]:
        """Return console messages, log entries (CSP, network), exceptions and dialogs."""
        return self.seen(
            "Runtime.consoleAPICalled",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Page.javascriptDialogOpening",
        )

    def picture(self, left: float, top: float, width: float, height: float) -> bytes:
        """Return a PNG of this part of the page, wherever it is scrolled to."""
        clip = {"x": left, "y": top, "width": width, "height": height, "scale": 1}
        return decode(
            self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        )

    def close(self) -> None:
        """Close the tab."""
        self.browser.call("Target.closeTarget", targetId=self.target)


@contextlib.contextmanager
def launch(executable: str) -> Iterator[Browser]:
    """Run a browser for the block."""
    with tempfile.TemporaryDirectory(prefix="tracelens-browser-", ignore_cleanup_errors=True) as folder:
        browser = Browser(executable, Path(folder))
        try:
            browser.call("Browser.getVersion")
            yield browser
        finally:
            browser.close()
