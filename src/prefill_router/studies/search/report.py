"""A search on disk.

plan.json       the space, the options and the data, which identify the search
trials/         each trial's scores, fold by fold, from which the search resumes
cache/          feature columns; may be removed
search.json     every number
ranking.csv     every configuration that was tried, the best first
winner.yaml     the winner's recipe, and split.json its split, for `fit`
opened.json     when the test part was opened, and for which configuration
router/         the fitted winner, once the test part was opened
figures/        .png, .svg, .csv
index.html      one page with all of it; works offline
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from prefill_router import files
from prefill_router.data import RoutingDataset, Split, save_split
from prefill_router.errors import ConfigError
from prefill_router.reporting import Report, Rows, write_report_files
from prefill_router.studies.recipe_fits import priced
from prefill_router.studies.search.cross_validation import SearchConfig
from prefill_router.studies.search.space import Space
from prefill_router.studies.search.winner import SearchResult

FORMAT = "prefill-router search 1"
PLAN, WINNER, SPLIT, ROUTER = "plan.json", "winner.yaml", "split.json", "router"


def plan_of(
    space: Space, config: SearchConfig, dataset: RoutingDataset, drawn: Split
) -> dict[str, Any]:
    """Plain values that identify a search."""
    return {
        "format": FORMAT,
        "space": space.to_dict(),
        "config": config.to_dict(),
        "data": dataset.fingerprint,
        "split": drawn.to_dict()["parts"],
        "prices": priced(dataset),
    }


def begin(folder: Path, plan: Mapping[str, Any]) -> None:
    """Record the search that the folder is for, or check that it is for this one.

    Raises:
        ConfigError: The folder holds something else, or another search.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        before = _read(folder)
        if before is None:
            raise ConfigError(
                f"{folder} exists and is no search; name another folder, or remove it"
            )
        differ = sorted(k for k in {*before, *plan} if before.get(k) != plan.get(k))
        if differ:
            raise ConfigError(
                f"{folder} holds another search (other: {', '.join(differ)}); continue it with "
                "the same space, data, split and options, or name another folder"
            )
        return
    files.check_place(folder, replaced=False)
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / PLAN, dict(plan))


def _read(folder: Path) -> dict[str, Any] | None:
    try:
        value = json.loads((folder / PLAN).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) and value.get("format") == FORMAT else None


def write(
    verdict: SearchResult, drawn: Split, folder: Path, *, title: str, known: Mapping[str, str]
) -> None:
    """Write the report, each file whole or not at all.

    Args:
        verdict: The reported search.
        drawn: The winner's split.
        folder: The folder to write.
        title: Title of the page.
        known: Facts about the data, by name.
    """
    # Here and not above: matplotlib takes longer to import than most commands to run.
    from prefill_router.studies.search import page

    text = yaml.safe_dump(page.recipe_of(verdict), sort_keys=False, allow_unicode=True)
    files.write_text(folder / WINNER, text)
    save_split(drawn, folder / SPLIT)
    report = Report(
        name="search",
        title=title,
        summary=page.words(verdict),
        known=known,
        parts=page.page_parts(verdict),
        numbers=verdict.to_dict(),
        tables={"ranking": _ranking(verdict)},
    )
    write_report_files(report, folder)


def _ranking(verdict: SearchResult) -> Rows:
    """One row for every configuration that was tried."""
    return [
        {
            "rank": one.rank,
            "configuration": one.key,
            "features": one.features,
            "predictor": one.predictor,
            "calibration": one.calibration,
            **{number: one.mean(number) for number in ("auc", "brier", "headroom")},
            "folds": len(one.scores),
            "state": one.state,
            "trial": one.trial,
            "recipe": json.dumps(one.recipe.to_dict()),
        }
        for one in verdict.ranking
    ]
