"""Makes the forecasters of a snapshot, with their encoders' processes."""

from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.gateway.forecast import Forecaster, NoForecaster
from prefill_router.gateway.runtime.configuration import (
    GatewayPaths,
    LoadedGateway,
    encoder_socket,
)
from prefill_router.gateway.runtime.request_scope import Snapshot
from prefill_router.gateway.settings import GatewaySettings

AnyForecaster = Forecaster | NoForecaster


async def make_forecasters(
    loaded: LoadedGateway, places: GatewayPaths, before: Snapshot | None
) -> tuple[LoadedGateway, list[AnyForecaster]]:
    """Make the router's forecaster and the candidate's, or reuse those of the same routers.

    Returns:
        What was loaded, without the candidate if its encoder can't be started; and the forecasters.

    Raises:
        ConfigError: The router's encoder can't be started, or the router was replaced meanwhile.
    """
    forecaster = await _made(loaded, places, before)
    if loaded.candidate is None:
        return loaded, [forecaster]
    try:
        return loaded, [forecaster, await _made(loaded.candidate, places, before)]
    except (PrefillRouterError, OSError) as error:
        version = loaded.candidate.version
        return loaded.without_candidate(f"version {version}: {error}"), [forecaster]


async def _made(
    loaded: LoadedGateway, places: GatewayPaths, before: Snapshot | None
) -> AnyForecaster:
    for had in () if before is None else before.each:
        same = had.loaded.light.fingerprint == loaded.light.fingerprint
        if same and _sizes(had.settings) == _sizes(loaded.settings):
            return had.forecaster
    if loaded.router is None:
        return NoForecaster()
    routing = loaded.settings.routing
    forecaster = Forecaster(
        loaded.router,
        sources=places.encoder_sources,
        shared=None if places.encoders is None else encoder_socket(places.encoders, loaded),
        max_queue=routing.max_queue,
        max_batch=routing.max_batch,
        cache_entries=routing.cache_entries,
        reuse_bytes=routing.reuse_bytes,
        threads=places.threads,
    )
    await forecaster.start()
    if forecaster.hello.fingerprint != loaded.light.fingerprint:
        await forecaster.close()
        raise ConfigError(f"{loaded.router} was replaced while it was being loaded; try again")
    return forecaster


def _sizes(settings: GatewaySettings) -> tuple[int, ...]:
    routing = settings.routing
    return routing.max_queue, routing.max_batch, routing.cache_entries, routing.reuse_bytes
