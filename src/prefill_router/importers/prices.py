"""Prices for an imported pool, matched by name."""

import json
from pathlib import Path

from prefill_router.data import RoutingDataset
from prefill_router.errors import ConfigError, DataError, FormatError
from prefill_router.importers import sources, values
from prefill_router.targets import Pool, Target, read_pool
from prefill_router.targets.target import MOST_PRICE

_INPUT, _OUTPUT = "input_token_price_per_million", "output_token_price_per_million"


def read_prices(path: Path) -> Pool:
    """Read a `pool.yaml`, a `prices.csv`, or RouterArena's JSON of prices per million tokens.

    Raises:
        FormatError: The file is missing or malformed.
    """
    if path.suffix.lower() != ".json":
        return read_pool(path)
    (document,) = sources.documents(path)
    content = sources.parse(document)
    if not isinstance(content, dict):
        raise FormatError(f"must be an object of target and {{{_INPUT}, {_OUTPUT}}}", file=path)
    try:
        return Pool(tuple(_target(name, entry) for name, entry in content.items()))
    except (ConfigError, DataError) as error:
        raise FormatError(str(error), file=path) from None


def with_prices(dataset: RoutingDataset, listed: Pool) -> tuple[RoutingDataset, list[str]]:
    """Give each target of a dataset what the list says of it.

    Returns:
        The dataset, and notes on names that are in one and not in the other.
    """
    names = set(listed.names)
    pool = Pool(
        tuple(listed[t.name] if t.name in names else t for t in dataset.pool), listed.prices_date
    )
    known = set(dataset.pool.names)
    unknown = [name for name in listed.names if name not in known]
    lacking = [target.name for target in pool if not target.has_price]
    notes = []
    if unknown:
        notes.append(f"priced but not in the data, left out: {', '.join(unknown)}")
    if lacking:
        notes.append(f"without a price: {', '.join(lacking)}")
    return dataset.with_pool(pool), notes


def _target(name: str, entry: object) -> Target:
    if not isinstance(entry, dict):
        raise ConfigError(
            f"the entry of {name!r} is {json.dumps(entry)[:40]}; it must be an object"
        )
    return Target(
        name=values.filled_text(name, "a target's name"),
        input_price=values.amount(entry.get(_INPUT), _INPUT, most=MOST_PRICE),
        output_price=values.amount(entry.get(_OUTPUT), _OUTPUT, most=MOST_PRICE),
    )
