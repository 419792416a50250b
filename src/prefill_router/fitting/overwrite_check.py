"""A check before a router is written: another router there isn't replaced by mistake."""

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from prefill_router.activations import Activations
from prefill_router.data import RoutingDataset, Split
from prefill_router.encoders import recorded_name
from prefill_router.errors import ConfigError, PrefillRouterError
from prefill_router.fitting.fit import draw
from prefill_router.fitting.recipe import FitConfig
from prefill_router.remote import PathOrUrl
from prefill_router.router import Router, is_router


def check_same_fit(
    folder: PathOrUrl,
    dataset: RoutingDataset,
    stores: Sequence[Activations],
    *,
    config: FitConfig,
    drawn: Split | None,
) -> None:
    """Check that a folder holds no router, or the result of the same fit.

    Args:
        folder: The folder of the router.
        dataset: The scored answers, as for `fit_router`.
        stores: The states.
        config: The options.
        drawn: The split; None where it is drawn.

    Raises:
        ConfigError: The folder holds another router, or one whose prices were changed since.
    """
    if not is_router(folder):
        return
    try:
        there = Router.load(folder)
    except PrefillRouterError:
        raise ConfigError(f"{folder} is a router that can't be read; {_MEND}") from None
    needed = {recorded_name(need.encoder) for need in config.recipe.needs}
    encoders = {store.provenance.encoder for store in stores} | needed
    if (
        there.record.trained_on.fingerprint != dataset.fingerprint
        or _compared(there.record.options) != _compared(to_jsonable_python(config.to_dict()))
        or there.split != (drawn or draw(dataset, config))
        or there.is_repriced
        or not {one.encoder for one in there.features.provenances} <= encoders
    ):
        raise ConfigError(
            f"{folder} is another router, fitted on {there.record.created} on other data or with "
            f"other options, or repriced since; {_MEND}"
        )


def _compared(options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given; a recipe that was chosen isn't one of them."""
    return {
        name: one for name, one in options.items() if name != "recipe" or "effort" not in options
    }


_MEND = "name another folder, or pass --overwrite"
