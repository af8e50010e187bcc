"""One file for ui.perfetto.dev, from 127.0.0.1 and only until it was fetched.

The page takes ``#!/?url=``; its Content-Security-Policy lets it fetch from 127.0.0.1 on port 9001 alone,
the port of Perfetto's own ``trace_processor --httpd`` (perfetto: tools/open_trace_in_ui and
docs/visualization/deep-linking-to-perfetto-ui.md). Other pages, and other users of the machine, are kept
out by the CORS header, the Host header and a path that cannot be guessed.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, cast

from tracelens.errors import InputError, UsageError
from tracelens.files import cannot_read

PORT = 9001
ORIGIN = "https://ui.perfetto.dev"
_HOST = "127.0.0.1"
_STALLED_S = 60


class TraceServer:
    """Serves one file; a context manager. ``port`` other than 9001 is for tests: Perfetto asks no other.

    Raises:
        InputError: there is no such file, or it is empty or unreadable.
        UsageError: the port is taken.
    """

    def __init__(self, path: str | Path, *, port: int = PORT):
        _check(path)
        try:
            self._server = _Server((_HOST, port), Path(path))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise UsageError(f"cannot serve on {_HOST}:{port}: {error.strerror or error}") from None
            raise UsageError(
                f"port {port} is taken, and ui.perfetto.dev fetches from no other: stop what uses it "
                "(another `tracelens open`, or trace_processor --httpd) and try again"
            ) from None
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def address(self) -> str:
        """Where the file is."""
        return f"http://{_HOST}:{self._server.server_port}{self._server.path}"

    @property
    def url(self) -> str:
        """The link that opens it. Nothing in it needs to be quoted."""
        return f"{ORIGIN}/#!/?url={self.address}"

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the whole file was fetched once; False when the time ran out first."""
        return self._server.fetched.wait(timeout_s)

    def __enter__(self) -> TraceServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def _check(path: str | Path) -> None:
    try:
        if os.path.exists(path) and not os.path.isfile(path):
            raise InputError(f"{path} is not a file: give one trace file (.json or .json.gz)")
        with open(path, "rb") as file:
            head = file.read(64)
        if not head:
            raise InputError(f"{path} is empty: nothing to open")
        if head.lstrip().startswith(b"<"):
            raise InputError(f"{path} is a page and no trace: open it in a browser")
    except (OSError, ValueError) as error:
        raise InputError(cannot_read(path, error)) from None


class _Server(ThreadingHTTPServer):
    # Browsers open connections ahead and send nothing on them: one thread each, none waited for.
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = os.name == "posix"  # on Windows it would let two servers share the port

    def __init__(self, address: tuple[str, int], file: Path):
        super().__init__(address, _Handler)
        self.file = file
        self.path = f"/{secrets.token_urlsafe(12)}/{_plain(file.name)}"
        self.fetched = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closed a connection is no news."""


class _Handler(BaseHTTPRequestHandler):
    server_version = "tracelens"
    sys_version = ""
    timeout = _STALLED_S

    @property
    def _serving(self) -> _Server:
        return cast(_Server, self.server)

    def do_GET(self) -> None:
        if self._refused():
            return
        with self._serving.file.open("rb") as file:
            self._headers(os.fstat(file.fileno()).st_size)
            shutil.copyfileobj(file, self.wfile, 1024 * 1024)
        self.wfile.flush()
        self._serving.fetched.set()

    def do_HEAD(self) -> None:
        if not self._refused():
            self._headers(self._serving.file.stat().st_size)

    def _refused(self) -> bool:
        host, origin = self.headers.get("Host"), self.headers.get("Origin")
        if host != f"{_HOST}:{self._serving.server_port}" or origin not in (None, ORIGIN):
            self._end(403)  # a name that resolves to 127.0.0.1, or a page of somebody else
        elif not secrets.compare_digest(self.path.encode(), self._serving.path.encode()):
            self._end(404)
        else:
            return False
        return True

    def _end(self, status: int) -> None:
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def _headers(self, size: int) -> None:
        packed = self._serving.path.endswith(".gz")
        self.send_response(200)
        self.send_header("Access-Control-Allow-Origin", ORIGIN)
        # no Content-Encoding: the page unpacks gzip itself
        self.send_header("Content-Type", "application/gzip" if packed else "application/json")
        self.send_header("Content-Length", str(size))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Library code is silent."""


def _plain(name: str) -> str:
    """A file name that needs no quoting inside a link inside a link; the page shows it as its title.

    >>> _plain('rank 0 "<b>&#x.json.gz')
    'rank_0___b___x.json.gz'
    """
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)
