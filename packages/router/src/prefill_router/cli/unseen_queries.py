"""The queries of a dataset that a router may be judged on: those that it hasn't learned from."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from prefill_router.cli.application import err
from prefill_router.cli.commands import one_of
from prefill_router.cli.options import check_part
from prefill_router.errors import ConfigError, DataError

if TYPE_CHECKING:
    from prefill_router.data import Part, RoutingDataset, Split
    from prefill_router.router import Router

PARTS = ("test", "calibration", "unseen")
_WHOLE = "to take every query that the router wasn't trained on, say --part unseen"


@final
@dataclass(frozen=True, eq=False)
class UnseenQueries:
    """A dataset at the router's prices and with its targets, in two parts.

    Attributes:
        judged: The queries that the router is judged on.
        train: The queries of the dataset that the router was trained on; None without any.
    """

    judged: "RoutingDataset"
    train: "RoutingDataset | None"

    @classmethod
    def of(cls, router: "Router", whole: "RoutingDataset", part: str) -> "UnseenQueries":
        """Select both parts from a dataset.

        Args:
            router: The router, with the split that it was fitted on.
            whole: Scored answers.
            part: `test` or `calibration` of the router's split, or `unseen`: every query that it
                was neither trained nor calibrated on.

        Raises:
            ConfigError: The part isn't one of these, the split lacks it, or the router was
                calibrated on it.
            DataError: The dataset lacks queries of the part, or has no unseen query.
        """
        lacking = sorted(set(router.pool.names) - set(whole.pool.names))
        if lacking:
            raise DataError(
                f"the dataset lacks the router's targets {lacking}; it has {whole.pool.names}"
            )
        priced = whole.select(targets=router.pool.names).with_pool(router.pool)
        held = set(whole.query_ids)
        trained = [i for i in router.split["train"] if i in held]
        train = priced.select(trained) if trained else None
        if trained and len(trained) < len(router.split["train"]):
            err.print(
                f"note: the dataset has {len(trained):,} of the {len(router.split['train']):,} "
                "queries that the router was trained on"
            )
        if part == "calibration" and router.calibrator is not None:
            raise ConfigError(
                "the router's probabilities were calibrated on its calibration part, so it isn't "
                "unseen; say --part test, or --part unseen with new queries"
            )
        return cls(priced.select(_judged(router.split, priced, train, part)), train)


def _judged(
    drawn: "Split", dataset: "RoutingDataset", train: "RoutingDataset | None", part: str
) -> Sequence[str]:
    named: tuple[Part, ...] = ("test", "calibration")
    for name in named:
        if name == part:
            check_part(dataset, drawn[name], part, fix=_WHOLE)
            return drawn[name]
    one_of("--part", part, PARTS)
    seen = {i for name in ("train", "calibration") for i in drawn.parts.get(name, ())}
    prompts = set() if train is None else set(train.prompt_keys)
    rows = zip(dataset.query_ids, dataset.prompt_keys, strict=True)
    ids = [i for i, prompt in rows if i not in seen and prompt not in prompts]
    if not ids:
        raise DataError("the router was trained on every query of the dataset; give it new ones")
    return ids
