"""`prefill-router serve`, `import-litellm` and `key`: the gateway, its pool and clients' keys."""

import shlex
import signal
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer
from rich.table import Table

from prefill_router import files
from prefill_router.cli import options as opt
from prefill_router.cli.application import app, err, out, print_json
from prefill_router.cli.commands import UsageError, check_suffix
from prefill_router.errors import PrefillRouterError
from prefill_router.money import list_price
from prefill_router.options import AT_LEAST_ONE, PORT, POSITIVE, SHARE
from prefill_router.remote import PathOrUrl

if TYPE_CHECKING:
    from prefill_router.targets import Pool
    from prefill_router_gateway.guard import ClientKey
    from prefill_router_gateway.litellm import ImportedConfig
    from prefill_router_gateway.runtime import GatewayPaths, LoadedGateway


@app.command()
def serve(
    router: Annotated[
        PathOrUrl | None,
        typer.Argument(
            metavar="ROUTER",
            help="The router's folder. To serve without a router, leave it out and give --default.",
            parser=opt.path_or_url,
        ),
    ] = None,
    pool: Annotated[
        Path | None, typer.Option(help="The pool file with the targets' endpoints; always needed.")
    ] = None,
    versions: Annotated[
        PathOrUrl | None,
        typer.Option(
            metavar="VERSIONS",
            help="Instead of ROUTER: the folder or URL of the router's versions. The gateway "
            "serves the current one, and follows each change.",
            parser=opt.path_or_url,
        ),
    ] = None,
    default: Annotated[
        str | None,
        typer.Option(help="Without a router: the target for requests that name no target."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[
        int | None, PORT, typer.Option(help="8080 by default; 0 picks a free one.")
    ] = None,
    lam: Annotated[
        float | None,
        SHARE,
        typer.Option(
            help="From 0, cheapest, to 1, most probably correct; the router's setting if not given."
        ),
    ] = None,
    receipts: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://...", metavar="URL")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The file of clients' keys; without it no key is needed.")
    ] = None,
    encoder_folder: opt.EncoderFolders = None,
    device: Annotated[
        str | None, typer.Option(help="Where the encoder runs, such as cuda.")
    ] = None,
    threads: Annotated[
        int | None,
        AT_LEAST_ONE,
        typer.Option(help="Threads of the encoder; by default one fewer than cores."),
    ] = None,
    workers: Annotated[
        int, AT_LEAST_ONE, typer.Option(help="Processes that serve the port, sharing one encoder.")
    ] = 1,
    check: Annotated[
        bool, typer.Option("--check", help="Check the settings and every file, and exit.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --check: print its result as JSON.")
    ] = False,
) -> None:
    """Serve the OpenAI protocol, and send each request to the target that the router chooses.

    It listens only on this machine, unless --host says otherwise; then --keys is needed. Every
    setting has a name in the file of --config, and PREFILL_ROUTER_PART__NAME in the environment.
    Before a router is fitted, serve --pool pool.yaml --default TARGET sends everything there, and
    keeps receipts.
    Ctrl-C ends it once the requests under way are answered; SIGHUP reloads everything.

    Example: prefill-router serve router --pool pool.yaml
    """
    from prefill_router.lazy_imports import find_module
    from prefill_router_gateway.runtime import GatewayPaths, load, refuse_unshared

    def load_checked() -> "LoadedGateway":
        loaded = load(places)
        if workers > 1:
            refuse_unshared(loaded)
        return loaded

    find_module("uvicorn", needed_for="the gateway")
    if as_json and not check:
        raise UsageError("--json prints what --check finds; give both, or neither")
    _check_router(router, versions, default)
    places = GatewayPaths(
        router=router,
        versions=versions,
        pool=pool,
        config=config,
        overrides={
            "listen": _drop_none(host=host, port=port),
            "routing": _drop_none(lam=lam, fallback=default),
            "receipts": _drop_none(url=receipts),
        },
        keys=keys,
        encoder_folders=tuple(encoder_folder or ()),
        device=device,
        threads=threads,
    )
    if check:
        _check(load_checked, as_json=as_json)
        return
    # until the server takes signals; the first process of a container ignores it by default
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        _run(places, load_checked(), workers)
    finally:
        signal.signal(signal.SIGTERM, before)


def _check_router(
    router: PathOrUrl | None, versions: PathOrUrl | None, default: str | None
) -> None:
    if router is not None and versions is not None:
        raise UsageError("give ROUTER or --versions, not both")
    if router is not None and default is not None:
        raise UsageError(
            "--default is only for serving without a router; leave it out. With a router, set "
            "routing.fallback, the target of requests without a forecast"
        )


def _run(places: "GatewayPaths", loaded: "LoadedGateway", workers: int) -> None:
    from prefill_router_gateway.api import run, run_workers

    def print_address(address: str) -> None:
        out.print(f"serving at {address}", soft_wrap=True)

    _warn(loaded)
    if loaded.light.fingerprint:
        err.say(loaded.lam_reason)
    if workers == 1:
        run(places, loaded, on_ready=print_address)
    else:
        run_workers(places, loaded, workers=workers, on_ready=print_address)


def _check(load: "Callable[[], LoadedGateway]", *, as_json: bool) -> None:
    """Print what is wrong, or that nothing is; in JSON, errors are part of the result."""
    try:
        loaded = load()
    except PrefillRouterError as error:
        if not as_json:
            raise
        print_json({"ok": False, "errors": list(error.messages), "warnings": []})
        raise typer.Exit(1) from None
    names, router = list(loaded.pool.names), loaded.light.fingerprint or None
    if as_json:
        report = {
            "ok": True,
            "errors": [],
            "warnings": [*loaded.warnings, *loaded.candidate_problems],
        }
        print_json({**report, "router": router, "targets": names, "lam": loaded.lam_reason})
        return
    _warn(loaded)
    what = "no router yet" if router is None else f"the router {router}"
    out.say(f"all is well: {what}, in front of {', '.join(names)}")
    if router is not None:
        out.say(loaded.lam_reason)


def _warn(loaded: "LoadedGateway") -> None:
    for warning in (*loaded.warnings, *loaded.candidate_problems):
        err.say(f"warning: {warning}", style="yellow")


def _drop_none(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@app.command(name="import-litellm")
def import_litellm(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="LiteLLM's config.yaml.")],
    to: Annotated[Path, typer.Option("--out", metavar="FILE", help="The pool file to write.")],
    settings: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The gateway's settings file to write.")
    ] = None,
    through: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="LiteLLM's own endpoint, for Bedrock, Vertex and other providers with a "
            "protocol of their own. Its key is read from LITELLM_API_KEY.",
        ),
    ] = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.AsDocument = False,
) -> None:
    """Convert LiteLLM's configuration to a pool file and settings of the gateway.

    Each model_name becomes a target. Keys stay where they are: the pool has the names of their
    variables. What has no counterpart, or can't be called, is listed. Prices and abilities that
    the file lacks are those of LiteLLM's list: of the installed litellm, or of a dated copy.

    Example: prefill-router import-litellm config.yaml --out pool.yaml --settings gateway.yaml
    """
    import yaml

    from prefill_router.targets import write_pool
    from prefill_router_gateway.litellm import LitellmProxy, import_config

    _check_places(config, to, settings)
    proxy = None if through is None else LitellmProxy(base_url=_proxy_url(through))
    conversion = import_config(config, proxy=proxy)
    with ExitStack() as places:  # both, or neither
        pool = places.enter_context(opt.replacing(to, overwrite=overwrite))
        write_pool(conversion.pool, pool)
        if settings is not None:
            text = yaml.safe_dump(
                {k: dict(v) for k, v in conversion.settings.items()}, sort_keys=False
            )
            place = places.enter_context(opt.replacing(settings, overwrite=overwrite))
            place.write_text(text, encoding="utf-8")
        opt.check_same(to, pool, overwrite=overwrite)
    if as_json:
        _print_json(conversion, to, settings)
    else:
        _show_import(conversion, to, settings)


def _proxy_url(url: str) -> str:
    """The address of LiteLLM's own endpoint, with its path."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise UsageError(f"--through is {url!r}; write the address, such as http://127.0.0.1:4000")
    return url if parts.path.strip("/") else f"{url.rstrip('/')}/v1"


def _check_places(config: Path, to: Path, settings: Path | None) -> None:
    for place in (to, settings):
        if place is None:
            continue
        check_suffix("--out" if place is to else "--settings", place, (".yaml", ".yml"))
        if place.resolve() == config.resolve():
            raise UsageError(f"{place} is LiteLLM's own file; name another")
    if settings is not None and settings.resolve() == to.resolve():
        raise UsageError(f"--out and --settings are both {to}; give two different files")
    for place in (to, settings):
        if place is not None:
            files.check_place(place)


def _show_import(conversion: "ImportedConfig", to: Path, settings: Path | None) -> None:
    out.say(f"{to}: {', '.join(conversion.pool.names)}")
    variables = sorted({p.api_key_env for p in conversion.pool.providers if p.api_key_env})
    if variables:
        out.say(f"keys are read from {', '.join(variables)}")
    parts = [f"{part}.{name}" for part, values in conversion.settings.items() for name in values]
    if settings is not None:
        out.say(f"{settings}: {', '.join(parts) or 'nothing has a counterpart'}")
    elif parts:
        err.say(f"note: --settings would keep {', '.join(parts)}")
    if conversion.listed:
        names = ", ".join(conversion.listed)
        err.say(f"note: prices and abilities of {names} are from {conversion.list_source}")
    for name, notes in conversion.notes.items():
        for note in notes:
            err.say(f"note: {name}: {note}")
    for left in conversion.left_out:
        whose = f" of {', '.join(left.models)}" if left.models else ""
        err.say(f"left out: {left.what}{whose}: {left.why}")
    _show_next(conversion.pool, to, settings)


def _show_next(pool: "Pool", to: Path, settings: Path | None) -> None:
    """Say how to check what was written; without chats no target can be the default."""
    default = next((name for name in pool.names if "chat" in pool.serves(name)), None)
    if default is None:
        return
    config = [] if settings is None else ["--config", str(settings)]
    words = ["serve", "--pool", str(to), *config, "--default", default, "--check"]
    out.say(f"next: {shlex.join(['prefill-router', *words])}")
    out.say("  with a router, its folder takes the place of --default")


def _print_json(conversion: "ImportedConfig", to: Path, settings: Path | None) -> None:
    print_json(
        {
            "pool": str(to),
            "targets": list(conversion.pool.names),
            "settings_file": None if settings is None else str(settings),
            "settings": {part: dict(values) for part, values in conversion.settings.items()},
            "listed": list(conversion.listed),
            "list_source": conversion.list_source,
            "notes": {name: list(notes) for name, notes in conversion.notes.items()},
            "left_out": [
                {"what": left.what, "why": left.why, "models": list(left.models)}
                for left in conversion.left_out
            ],
        }
    )


_key = typer.Typer()

_File = Annotated[Path, typer.Option("--file", help="The file of keys.")]
_Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The key's name in receipts and budgets.")
]
_DEFAULT = Path("keys.yaml")


@_key.command()
def new(
    name: _Name,
    file: _File = _DEFAULT,
    requests_per_minute: Annotated[
        int | None, AT_LEAST_ONE, typer.Option(help="Most requests in a minute.")
    ] = None,
    concurrent: Annotated[
        int | None, AT_LEAST_ONE, typer.Option(help="Most requests at once.")
    ] = None,
    dollars_per_day: Annotated[
        float | None, POSITIVE, typer.Option(help="US dollars a day.")
    ] = None,
    dollars_per_hour: Annotated[
        float | None, POSITIVE, typer.Option(help="US dollars an hour.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option(help="A target that it may use, repeatable; by default all.")
    ] = None,
    admin: Annotated[
        bool, typer.Option("--admin", help="The key may also read metrics and use the page.")
    ] = False,
    expires: Annotated[
        str | None, typer.Option(help="The last day that it is valid, such as 2027-01-31.")
    ] = None,
    no_learning: Annotated[
        bool, typer.Option("--no-learning", help="Keep none of its requests for learning.")
    ] = False,
    as_json: opt.AsDocument = False,
) -> None:
    """Make a key, print it once, and keep its hash.

    Standard output has the key alone.

    Example: prefill-router key new alice --file keys.yaml --dollars-per-day 5
    """
    from prefill_router_gateway.guard import add_key, digest, new_key

    key = new_key()
    fields = {
        "name": name,
        "sha256": digest(key),
        "created": datetime.now(UTC).date(),
        "requests_per_minute": requests_per_minute,
        "concurrent": concurrent,
        "dollars_per_day": dollars_per_day,
        "dollars_per_hour": dollars_per_hour,
        "targets": tuple(target) if target else None,
        "admin": admin,
        "expires": expires,
        "learning": not no_learning,
    }
    add_key(file, _make_key(fields))
    if as_json:
        print_json({"name": name, "key": key, "file": str(file)})
    else:
        out.say(key)
    err.print(f"{file} has only the key's hash; the key itself isn't shown again", soft_wrap=True)


@_key.command(name="list")
def list_keys(
    file: _File = _DEFAULT,
    as_json: opt.AsDocument = False,
) -> None:
    """List the keys of a file, and what they may do.

    Example: prefill-router key list --file keys.yaml
    """
    from prefill_router_gateway.guard import read_rows

    rows = [key.model_dump(mode="json", exclude={"sha256"}) for key in read_rows(file)]
    if as_json:
        print_json(rows)
        return
    table = Table("name", "created", "may", "expires", box=None, pad_edge=False)
    for row in rows:
        table.add_row(row["name"], row["created"] or "-", _describe_key(row), row["expires"] or "-")
    out.say(table)


@_key.command()
def revoke(name: _Name, file: _File = _DEFAULT, as_json: opt.AsDocument = False) -> None:
    """Remove a key from a file; a running gateway refuses it after its next reload.

    Example: prefill-router key revoke alice --file keys.yaml
    """
    from prefill_router_gateway.guard import remove_key

    remove_key(file, name)
    if as_json:
        print_json({"name": name, "file": str(file)})
        return
    out.say(f"{file} no longer has the key {name!r}")


def _make_key(fields: dict[str, Any]) -> "ClientKey":
    from pydantic import ValidationError

    from prefill_router_gateway.guard import ClientKey

    try:
        return ClientKey.model_validate(fields)
    except ValidationError as error:
        problems = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise UsageError(problems) from None


def _describe_key(row: dict[str, Any]) -> str:
    limits = [
        f"{row[field]:,} {words}"
        for field, words in (
            ("requests_per_minute", "requests a minute"),
            ("concurrent", "at once"),
        )
        if row[field] is not None
    ]
    dollars = [
        f"{list_price(row[f'dollars_per_{per}'])} a {per}"
        for per in ("hour", "day")
        if row[f"dollars_per_{per}"] is not None
    ]
    targets = [f"ask {', '.join(row['targets'])}"] if row["targets"] else []
    return (
        "; ".join([*(["all an admin may"] if row["admin"] else []), *targets, *limits, *dollars])
        or "ask"
    ) + ("" if row["learning"] else "; not learned from")
