"""`prefill-router litellm`: LiteLLM's configuration as a pool."""

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prefill_router import files
from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.options import Overwrite, check_same, replacing
from prefill_router.cli.usage import UsageError, check_suffix

if TYPE_CHECKING:
    from prefill_router.gateway.litellm import ImportedConfig


@app.command()
def litellm(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="LiteLLM's config.yaml.")],
    to: Annotated[Path, typer.Option("--out", metavar="FILE", help="The pool file to write.")],
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The gateway's settings file to write.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Make a pool file, and settings of the gateway, of LiteLLM's configuration.

    Each model_name becomes a target. Keys stay where they are: the pool has the names of their
    variables. What has no counterpart is told.

    Example: prefill-router litellm config.yaml --out pool.yaml --settings gateway.yaml
    """
    import yaml

    from prefill_router.gateway.litellm.config import import_config
    from prefill_router.targets import write_pool

    _check_places(config, to, settings)
    found = import_config(config)
    with ExitStack() as places:  # both, or neither
        pool = places.enter_context(replacing(to, overwrite=overwrite))
        write_pool(found.pool, pool)
        if settings is not None:
            told = yaml.safe_dump({k: dict(v) for k, v in found.settings.items()}, sort_keys=False)
            place = places.enter_context(replacing(settings, overwrite=overwrite))
            place.write_text(told, encoding="utf-8")
        check_same(to, pool, overwrite=overwrite)
    if as_json:
        _print_json(found, to, settings)
    else:
        _show(found, to, settings)


def _check_places(config: Path, to: Path, settings: Path | None) -> None:
    for place in (to, settings):
        if place is None:
            continue
        check_suffix("--out" if place is to else "--settings", place, (".yaml", ".yml"))
        if place.resolve() == config.resolve():
            raise UsageError(f"{place} is LiteLLM's own file; name another")
    if settings is not None and settings.resolve() == to.resolve():
        raise UsageError(f"{to} can't hold both; give --out and --settings names of their own")
    for place in (to, settings):
        if place is not None:
            files.check_place(place)


def _show(found: "ImportedConfig", to: Path, settings: Path | None) -> None:
    out.print(f"{to}: {', '.join(found.pool.names)}", soft_wrap=True)
    variables = sorted({p.api_key_env for p in found.pool.providers if p.api_key_env})
    if variables:
        out.print(f"keys are read from {', '.join(variables)}", soft_wrap=True)
    parts = [f"{part}.{name}" for part, values in found.settings.items() for name in values]
    if settings is not None:
        out.print(f"{settings}: {', '.join(parts) or 'nothing has a counterpart'}", soft_wrap=True)
    elif parts:
        err.print(f"note: --settings would keep {', '.join(parts)}", soft_wrap=True)
    for name, notes in found.notes.items():
        for note in notes:
            err.print(f"note: {name}: {note}", soft_wrap=True)
    for left in found.left_out:
        whose = f" of {', '.join(left.models)}" if left.models else ""
        err.print(f"left out: {left.what}{whose}: {left.why}", soft_wrap=True)


def _print_json(found: "ImportedConfig", to: Path, settings: Path | None) -> None:
    print_json(
        {
            "pool": str(to),
            "targets": list(found.pool.names),
            "settings_file": None if settings is None else str(settings),
            "settings": {part: dict(values) for part, values in found.settings.items()},
            "notes": {name: list(notes) for name, notes in found.notes.items()},
            "left_out": [
                {"what": left.what, "why": left.why, "models": list(left.models)}
                for left in found.left_out
            ],
        }
    )
