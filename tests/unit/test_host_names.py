"""Which hosts a server answers to."""

import pytest
from pydantic import ValidationError

from app.settings import Settings
from app.settings.hosts import accepts_host, host_of, is_loopback


@pytest.mark.parametrize(
    ("authority", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8765", "localhost"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[0:0:0:0:0:0:0:1]:65535", "::1"),
        ("turnkeep_app-1.internal:80", "turnkeep_app-1.internal"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
    ],
)
def test_a_name_or_an_address_is_read_with_and_without_a_port(authority: str, host: str) -> None:
    assert host_of(authority) == host


@pytest.mark.parametrize(
    "authority",
    [
        "", " ", ":80", "[::1].evil", "[::1].evil:80", "evil@127.0.0.1", "127.0.0.1@evil", "user:pw@localhost", "[::1",
        "::1", "[::1]x", "[]", "[127.0.0.1]", "[::1%lo]", "[:::::]", "localhost:", "localhost:80:80", "localhost:8o",
        "localhost/", "localhost?x", "localhost#x", "localhost\\evil", "localhost, evil", "localhost evil", "-a", "a-",
        "a..b", ".a", "localhost.", "http://localhost", "loc\u00e4lhost", "localhost\t", "localhost\n", "%6cocalhost",
        "localhost:123456", "\u0662", "127.0.0.1\0",
    ],
)  # fmt: skip
def test_anything_else_is_no_host(authority: str) -> None:
    assert host_of(authority) is None
    assert not accepts_host([authority], allowed=None, bound_to="127.0.0.1")
    assert not accepts_host([authority], allowed=("evil",), bound_to="0.0.0.0")  # noqa: S104 - nothing listens


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_the_machine_itself_is_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host", [None, "", "localhost.example.com", "127.0.0.1.example.com", "10.0.0.1", "::2", "127.1"]
)
def test_nothing_else_is_loopback(host: str | None) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    ("allowed", "bound_to", "given", "accepted"),
    [
        (None, "127.0.0.1", "localhost:8765", True),
        (None, "localhost", "[::1]:8765", True),
        (None, "::1", "memory.example.com", False),
        (None, "0.0.0.0", "memory.example.com", True),  # noqa: S104 - nothing listens
        (None, "192.0.2.1", "192.0.2.1", True),
        ("memory.example.com", "127.0.0.1", "Memory.Example.com:443", True),
        ("memory.example.com", "127.0.0.1", "localhost", True),
        ("memory.example.com", "0.0.0.0", "other.example.com", False),  # noqa: S104 - nothing listens
        ("memory.example.com,2001:DB8::1", "::", "[2001:db8::1]:80", True),
        ("*", "127.0.0.1", "any.example.com", True),
    ],
)
def test_the_settings_say_which_hosts_are_accepted(
    allowed: str | None, bound_to: str, given: str, *, accepted: bool
) -> None:
    hosts = Settings(allowed_hosts=allowed).browsers.allowed_hosts  # type: ignore[arg-type]
    assert accepts_host([given], allowed=hosts, bound_to=bound_to) is accepted


def test_without_one_host_nothing_is_accepted_that_is_checked() -> None:
    for given in ([], ["localhost", "localhost"]):
        assert not accepts_host(given, allowed=None, bound_to="127.0.0.1")
        assert accepts_host(given, allowed=None, bound_to="192.0.2.1")


def test_the_list_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TURNKEEP_ALLOWED_HOSTS", " Memory.Example.com, [::1], 2001:db8::1 ,192.0.2.1,")
    assert Settings().browsers.allowed_hosts == ("memory.example.com", "::1", "2001:db8::1", "192.0.2.1")


@pytest.mark.parametrize(
    "entry", ["https://a.example.com", "a.example.com:80", "[::1]:80", "a/b", "*.example.com", "a b"]
)
def test_an_entry_that_is_no_host_stops_the_start(entry: str) -> None:
    with pytest.raises(ValidationError, match="a host is a name or an address"):
        Settings(allowed_hosts=f"localhost,{entry}")  # type: ignore[arg-type]
