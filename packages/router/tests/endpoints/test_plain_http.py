"""Keys go over plain http to this machine alone, unless a host is allowed by its name."""

import asyncio

import httpx2
import pytest

from prefill_router.encoders.encoder_names import Address
from prefill_router.encoders.endpoint import EmbeddingsApi
from prefill_router.endpoints import Upstream, is_loopback, provider_keys
from prefill_router.errors import ConfigError
from prefill_router.targets import Pool, Provider, Target

KEY = "sk-hush-0123456789"


def environment(**more: str) -> dict[str, str]:
    return {"LAB_KEY": KEY, "PREFILL_ROUTER_EMBEDDINGS_KEY": KEY, **more}


def lab(url: str) -> Pool:
    provider = Provider(name="lab", base_url=url, api_key_env="LAB_KEY")
    return Pool((Target(name="a", provider="lab"),), providers=(provider,))


@pytest.mark.parametrize(
    "url",
    [
        "https://lab.example/v1",
        "http://127.0.0.1:8000/v1",
        "http://127.8.9.10/v1",
        "http://[::1]:8000/v1",
        "http://LOCALHOST:8000/v1",
    ],
)
def test_where_a_key_goes(url: str) -> None:
    assert list(provider_keys(lab(url), environment()).values()) == [KEY]


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://lab.example/v1", "lab.example"),
        ("HTTP://10.0.0.5:8000/v1", "10.0.0.5"),
        ("http://[fe80::1]/v1", "fe80::1"),
        ("http://127.0.0.1.evil.example/v1", "127.0.0.1.evil.example"),
        ("http://localhost.evil.example/v1", "localhost.evil.example"),
    ],
)
def test_where_it_does_not_unless_the_host_is_named(url: str, host: str) -> None:
    with pytest.raises(ConfigError, match=f"plain http to {host}, .*PLAIN_HTTP={host}") as error:
        provider_keys(lab(url), environment())
    assert KEY not in str(error.value)
    other = environment(PREFILL_ROUTER_PLAIN_HTTP="another.example")
    with pytest.raises(ConfigError, match="plain http"):
        provider_keys(lab(url), other)
    variables = environment(PREFILL_ROUTER_PLAIN_HTTP=f"another.example, {host}")
    assert list(provider_keys(lab(url), variables).values()) == [KEY]


def test_without_a_key_anything_goes() -> None:
    free = Pool((Target(name="a", base_url="http://lab.example/v1"),))
    assert list(provider_keys(free, environment()).values()) == ["none"]


def test_a_key_in_the_address_itself_goes_no_further() -> None:
    for part, place in ((f"?api_key={KEY}", "lab.example"), ("", f"lab.example:{KEY}")):
        target = {"name": "a", "base_url": f"http://{place}/v1{part}"}
        with pytest.raises(ConfigError, match=r"plain http|isn't quoted") as error:
            provider_keys(Pool((Target(**target),)), environment())
        assert KEY not in str(error.value)


def test_whoever_asks_is_held_to_it() -> None:
    with pytest.raises(
        ConfigError, match="the key of provider 'lab' would be sent over plain http"
    ):
        Upstream(lab("http://lab.example/v1"), environment=environment())
    place = Address.parse("m@http://lab.example/v1")
    with pytest.raises(ConfigError, match="the key of embeddings would be sent over plain http"):
        EmbeddingsApi(place, environment=environment())
    EmbeddingsApi(place, environment={})
    EmbeddingsApi(place, environment=environment(PREFILL_ROUTER_PLAIN_HTTP="lab.example"))


@pytest.mark.slow
def test_no_proxy_comes_between_a_key_and_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy would read the key. Requests to other hosts still go through it."""
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.invalid:1")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def way(url: str) -> str:
        variables = environment(PREFILL_ROUTER_PLAIN_HTTP="lab.example")
        async with Upstream(lab(url), environment=variables) as upstream:
            (caller,) = upstream._callers.values()
            client = caller._client
            return type(client._transport_for_url(httpx2.URL(url))._pool).__name__

    assert "Proxy" in asyncio.run(way("http://lab.example/v1"))
    assert "Proxy" not in asyncio.run(way("http://127.0.0.1:1/v1"))
    assert "Proxy" not in asyncio.run(way("http://[::1]:1/v1"))


def test_names_that_only_look_like_this_machine() -> None:
    assert is_loopback("::ffff:127.0.0.1")
    assert not any(map(is_loopback, ("", "0.0.0.0", "::", "localhost.example", "127.0.0.1.nip.io")))
