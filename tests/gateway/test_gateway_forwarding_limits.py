"""How long a target may take to begin: seconds, unless somebody says otherwise."""

import asyncio

import pytest

from prefill_router.gateway.forwarding.lines import Line
from prefill_router.gateway.settings.parts import Failures
from prefill_router.targets import Provider

WHERE = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("provider", "failures", "seconds"),
    [
        (Provider(name="a", base_url=WHERE), Failures(), 60.0),
        (Provider(name="a", base_url=WHERE, first_token_seconds=300.0), Failures(), 300.0),
        (Provider(name="a", base_url=WHERE, first_token_seconds=5.0), Failures(), 5.0),
        (Provider(name="a", base_url=WHERE), Failures(first_token_seconds=7.0), 7.0),
    ],
)
def test_first_event_of_a_stream_has_a_minute(
    provider: Provider, failures: Failures, seconds: float
) -> None:
    async def limit() -> float:
        line = Line(provider, "none", failures=failures)
        await line.close()
        return line.first_token_seconds

    assert asyncio.run(limit()) == seconds
