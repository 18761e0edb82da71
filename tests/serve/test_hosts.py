"""By which names a server answers."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from tests.serve.live import Live, live, tool_session

from paceline.errors import UsageError
from paceline.serve.access import is_loopback, known_hosts, stranger

LOCAL = [
    "localhost",
    "localhost:8000",
    "LOCALHOST:8000",
    "localhost.:80",
    "app.localhost:8000",
    "127.0.0.1",
    "127.0.0.1:8000",
    "127.1.2.3:1",
    "[::1]",
    "[::1]:8000",
    "[::ffff:127.0.0.1]:8000",
    "[0:0:0:0:0:0:0:1]:8000",
    "",
]
OTHERS = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "evillocalhost",
    "127.0.0.1.evil.example:8000",
    "192.168.0.7:8000",
    "0.0.0.0:8000",
    "[fe80::1]:8000",
    "[::1].evil.example",
    "localhost@evil.example",
    "localhost:evil",
    "localhost:80:90",
]


@pytest.mark.parametrize("host", LOCAL)
def test_loopback_is_known(host: str) -> None:
    assert stranger([host], frozenset()) is None


@pytest.mark.parametrize("host", OTHERS)
def test_others_are_not(host: str) -> None:
    assert stranger([host], frozenset()) is not None
    assert stranger(["localhost", host], frozenset()) is not None


def test_names_are_added() -> None:
    hosts = known_hosts("127.0.0.1", "Box", ["Box.Example.", "[2001:db8::1]"])
    assert hosts is not None
    for known in ("box:8000", "BOX", "box.example:1", "box.example.", "[2001:db8::1]:8000"):
        assert stranger([known], hosts) is None
    assert stranger(["box.example.com"], hosts) == "box.example.com"


def test_where_names_are_checked() -> None:
    assert known_hosts("127.0.0.1", "127.0.0.1", []) is not None
    assert known_hosts("::1", "::1", []) is not None
    assert known_hosts("0.0.0.0", "0.0.0.0", []) is None  # noqa: S104
    assert known_hosts("0.0.0.0", "0.0.0.0", ["box"]) is not None  # noqa: S104
    assert known_hosts("127.0.0.1", "127.0.0.1", ["*"]) is None
    assert known_hosts("10.0.0.7", "10.0.0.7", ["box"]) == {"10.0.0.7", "box"}
    assert stranger(["10.0.0.7:80"], frozenset({"10.0.0.7", "box"})) is None
    assert not is_loopback("10.0.0.7")


@pytest.mark.parametrize("wrong", ["http://box", "box:8000", "[::1]:80", "", " "])
def test_an_allowed_host_is_a_name_alone(wrong: str) -> None:
    with pytest.raises(UsageError, match="without scheme or port"):
        known_hosts("127.0.0.1", "127.0.0.1", [wrong])


@pytest.fixture(scope="module")
def served() -> Iterator[Live]:
    with live(tool_session(), hosts=frozenset({"box"})) as found:
        yield found


@pytest.mark.parametrize("path", ["/v1/models", "/version", "/metrics", "/", "/nothing"])
def test_strangers_get_one_clear_error(served: Live, path: str) -> None:
    refused = served.http.get(path, headers={"Host": "evil.example:8000"})
    assert refused.status_code == 403
    error = refused.json()["error"]
    assert (error["type"], error["code"]) == ("permission_error", "host_not_allowed")
    assert "--allowed-host evil.example" in error["message"]
    assert refused.headers["x-request-id"]
    assert served.http.get(path, headers={"Host": "BOX:1"}).status_code != 403


@pytest.mark.parametrize("path", ["/health", "/ready"])
def test_probes_ask_by_address(served: Live, path: str) -> None:
    assert served.http.get(path, headers={"Host": "10.0.0.7:8000"}).status_code == 200


def raw(served: Live, *lines: str) -> bytes:
    port = int(served.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall("\r\n".join([*lines, "Connection: close", "", ""]).encode())
        found = b""
        while part := connection.recv(1000):
            found += part
    return found.split(b"\r\n")[0]


def test_what_browsers_never_send(served: Live) -> None:
    assert b" 200 " in raw(served, "GET /version HTTP/1.0")
    assert b" 403 " in raw(served, "GET /version HTTP/1.0", "Host: evil.example")
    twice = raw(served, "GET /version HTTP/1.1", "Host: localhost", "Host: evil.example")
    assert b" 403 " in twice or b" 400 " in twice
    # A whole address as the target does not stand in for the header.
    absolute = raw(served, "GET http://localhost/version HTTP/1.1", "Host: evil.example")
    assert b" 403 " in absolute
