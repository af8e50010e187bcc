"""``tracelens open``: one file, once, to one page."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.said import Listener
from tracelens.errors import InputError, UsageError
from tracelens.render.perfetto_serve import ORIGIN, TraceServer

CONTENT = b'{"traceEvents": []}' * 100_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TraceServer]:
    (tmp_path / "t.json").write_bytes(CONTENT)
    (tmp_path / "secret.json").write_bytes(b"secret")
    with TraceServer(tmp_path / "t.json", port=0) as server:
        yield server


def ask(
    server: TraceServer, path: str | None = None, *, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    address = urlsplit(server.address)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=600)
    try:
        connection.request(method, path or address.path, headers=headers)
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def test_the_page_gets_the_file_and_serving_ends(server: TraceServer) -> None:
    answer, body = ask(server, Origin=ORIGIN)
    assert (answer.status, body == CONTENT) == (200, True)
    assert answer.headers["Access-Control-Allow-Origin"] == "https://ui.perfetto.dev"
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.headers["Content-Encoding"] is None
    assert server.wait(5)


def test_the_link_opens_the_file_in_the_page(server: TraceServer) -> None:
    assert server.url == f"https://ui.perfetto.dev/#!/?url={server.address}"
    assert server.address.startswith("http://127.0.0.1:")
    assert server.address.endswith("/t.json")


@pytest.mark.parametrize(
    "path", ["/", "/t.json", "/secret.json", "/../secret.json", "/x/t.json", "/%2e%2e/t.json", "//t.json"]
)
def test_nothing_else_is_served(server: TraceServer, path: str) -> None:
    answer, body = ask(server, path, Origin=ORIGIN)
    assert (answer.status, body) == (404, b"")
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert not server.wait(0.1)


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "https://ui.perfetto.dev.evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example:9001"},
        {"Host": "localhost"},
    ],
)
def test_other_pages_and_other_names_are_refused(server: TraceServer, headers: dict[str, str]) -> None:
    answer, body = ask(server, **headers)
    assert (answer.status, body) == (403, b"")
    assert answer.headers["Access-Control-Allow-Origin"] is None
    assert not server.wait(0.1)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_can_only_be_read(server: TraceServer, method: str) -> None:
    assert ask(server, method=method)[0].status == 501


def test_a_look_ahead_does_not_end_it(server: TraceServer) -> None:
    answer, body = ask(server, method="HEAD", Origin=ORIGIN)
    assert (answer.status, body, answer.headers["Content-Length"]) == (200, b"", str(len(CONTENT)))
    assert not server.wait(0.1)


def test_a_connection_that_says_nothing_holds_nobody_up(server: TraceServer) -> None:
    address = urlsplit(server.address)
    with socket.create_connection((str(address.hostname), address.port or 0)):
        assert ask(server)[1] == CONTENT
    assert server.wait(5)


def test_a_fetch_that_broke_off_can_be_made_again(tmp_path: Path) -> None:
    with (tmp_path / "t.json").open("wb") as file:
        file.truncate(64 * 1024 * 1024)  # more than the buffers of a connection
    with TraceServer(tmp_path / "t.json", port=0) as server:
        address = urlsplit(server.address)
        with socket.create_connection((str(address.hostname), address.port or 0)) as one:
            one.sendall(f"GET {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
            one.recv(1000)
        assert not server.wait(0.3)
        assert len(ask(server)[1]) == 64 * 1024 * 1024
        assert server.wait(5)


def test_gzip_goes_out_as_it_is(tmp_path: Path) -> None:
    (tmp_path / 'a "b" <&?#é.json.gz').write_bytes(b"\x1f\x8b123")
    with TraceServer(tmp_path / 'a "b" <&?#é.json.gz', port=0) as server:
        assert server.address.endswith("/a__b_______.json.gz")
        answer, body = ask(server)
        assert (answer.headers["Content-Type"], body) == ("application/gzip", b"\x1f\x8b123")
        assert answer.headers["Content-Encoding"] is None


def test_a_taken_port_is_said_in_one_line(tmp_path: Path, said: Listener) -> None:
    (tmp_path / "t.json").write_bytes(CONTENT)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UsageError) as error:
            TraceServer(tmp_path / "t.json", port=port)
        said(str(error.value).replace(str(port), "PORT"))


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.json").touch()
    for path, said in (
        (tmp_path / "absent.json", "no such file"),
        (tmp_path, "is not a file"),
        (tmp_path / "empty.json", "is empty"),
        ("a\0b", "no such file"),
    ):
        with pytest.raises(InputError, match=said):
            TraceServer(path, port=0)
