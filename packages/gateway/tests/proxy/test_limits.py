"""The time until an answer begins: by default a minute, or ten for a model that thinks."""

import asyncio

import pytest

from prefill_router.targets import Provider
from prefill_router_gateway.proxy.deployments import ProviderEndpoint
from prefill_router_gateway.proxy.response_stream import TimeLimits
from prefill_router_gateway.settings import FailureSettings

BASE_URL = "http://127.0.0.1:9/v1"


@pytest.mark.parametrize(
    ("pool", "settings", "plain", "thinking"),
    [
        ({}, {}, (60, 120), (600, 600)),
        ({"first_token_seconds": 300}, {}, (300, 120), (300, 600)),
        ({"first_token_seconds": 5, "silence_seconds": 9}, {}, (5, 9), (5, 9)),
        ({}, {"first_token_seconds": 7}, (7, 120), (7, 600)),
        ({"silence_seconds": 9}, {"silence_seconds": 8}, (60, 8), (600, 8)),
    ],
)
def test_limits_are_the_settings_or_else_the_pools_or_else_the_usual_ones(
    pool: dict[str, float],
    settings: dict[str, float],
    plain: tuple[float, float],
    thinking: tuple[float, float],
) -> None:
    async def build_limits() -> tuple[TimeLimits, TimeLimits]:
        provider = Provider(name="a", base_url=BASE_URL, **pool)  # type: ignore[arg-type]
        failures = FailureSettings.model_validate(settings)
        line = ProviderEndpoint(provider, "none", failures=failures)
        await line.close()
        return line.limits, line.thinking_limits

    pair = asyncio.run(build_limits())
    assert [(limits.first, limits.silence) for limits in pair] == [plain, thinking]
