"""How long a target may take to begin: seconds, unless somebody says otherwise."""

import asyncio

import pytest

from prefill_router.targets import Provider
from prefill_router_gateway.proxy.deployments import ProviderEndpoint
from prefill_router_gateway.settings import FailureSettings

WHERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("provider", "failures", "seconds"),
    [
        (Provider(name="a", base_url=WHERE), FailureSettings(), 60.0),
        (Provider(name="a", base_url=WHERE, first_token_seconds=300.0), FailureSettings(), 300.0),
        (Provider(name="a", base_url=WHERE, first_token_seconds=5.0), FailureSettings(), 5.0),
        (Provider(name="a", base_url=WHERE), FailureSettings(first_token_seconds=7.0), 7.0),
    ],
)
def test_first_event_of_a_stream_has_a_minute(
    provider: Provider, failures: FailureSettings, seconds: float
) -> None:
    async def limit() -> float:
        line = ProviderEndpoint(provider, "none", failures=failures)
        await line.close()
        return line.first_token_seconds

    assert asyncio.run(limit()) == seconds
