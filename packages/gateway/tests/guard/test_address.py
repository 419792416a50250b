"""Where the gateway may listen, and which names it answers to."""

import pytest

from packages.gateway.tests.guard.guarded_server import build_key
from prefill_router.errors import ConfigError
from prefill_router_gateway.guard import HostNames, check_listen
from prefill_router_gateway.guard.client_keys import ClientKeys
from prefill_router_gateway.settings import ListenSettings


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost", "::ffff:127.0.0.1"])
def test_loopback_needs_no_keys(host: str) -> None:
    check_listen(ListenSettings(host=host), None)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.2", "gateway.example", ""])
def test_other_addresses_need_keys(host: str) -> None:
    with pytest.raises(ConfigError, match="no keys; make one with"):
        check_listen(ListenSettings(host=host), None)
    check_listen(ListenSettings(host=host), ClientKeys([build_key("alice", "pr-alice")]))


@pytest.mark.parametrize("name", ["*", "*.example", "https://a.example", "", "a b"])
def test_names_of_hosts_are_plain(name: str) -> None:
    with pytest.raises(ConfigError, match=r"listen\.hosts"):
        check_listen(ListenSettings(hosts=(name,)), None)


@pytest.mark.parametrize(
    ("listen", "good", "bad"),
    [
        (
            ListenSettings(host="192.168.1.2"),
            ["192.168.1.2:80", "localhost"],
            ["192.168.1.3", "a.example"],
        ),
        (
            ListenSettings(host="0.0.0.0"),
            ["10.0.0.1", "[fe80::1]:8080"],
            ["a.example", "10.0.0.1.a.example"],
        ),
        (ListenSettings(host="::"), ["10.0.0.1", "[::1]"], ["a.example"]),
        (
            ListenSettings(hosts=("Gate.Example",)),
            ["gate.example", "GATE.example.:443"],
            ["x.gate.example"],
        ),
        (ListenSettings(), ["127.0.0.1:0"], ["127.0.0.1:x", "[::1]x", "0.0.0.0", "127.0.0.2"]),
    ],
)
def test_names_that_are_answered_to(
    listen: ListenSettings, good: list[str], bad: list[str]
) -> None:
    hosts = HostNames(listen)
    for _ in range(2):  # the second time from memory
        assert [hosts.answer_to(name.encode()) for name in good] == [True] * len(good)
        assert [hosts.answer_to(name.encode()) for name in bad] == [False] * len(bad)
