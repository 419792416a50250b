"""`prefill-router serve`: the gateway, in front of real traffic."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from prefill_router.cli.app import app, err, out, print_json
from prefill_router.cli.usage import UsageError
from prefill_router.errors import PrefillRouterError

if TYPE_CHECKING:
    from prefill_router.gateway.runtime.configuration import LoadedGateway


@app.command()
def serve(
    router: Annotated[Path, typer.Argument(metavar="ROUTER", help="The router's folder.")],
    pool: Annotated[
        Path | None, typer.Option(help="The pool file: who serves the targets. Always needed.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A YAML file of settings.")] = None,
    host: Annotated[
        str | None, typer.Option(help="The address to listen on; 127.0.0.1 by default.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="8080 by default; 0 takes a free one.")] = None,
    lam: Annotated[
        float | None, typer.Option(help="0 is cheapest, 1 most probably correct.")
    ] = None,
    receipts: Annotated[
        str | None, typer.Option(help="sqlite:///FILE or postgresql://...", metavar="URL")
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="The file of clients' keys; none are asked for without.")
    ] = None,
    encoder_folder: Annotated[
        list[Path] | None, typer.Option(help="The folder of a local encoder; may be given again.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the encoder runs, such as cuda.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of the encoder; one fewer than cores by default.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Check everything that it is made of, and end.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what --check finds as JSON.")
    ] = False,
) -> None:
    """Serve the OpenAI protocol, and send each request to the target that the router picks.

    It listens on this machine alone, unless --host says otherwise; then --keys is needed. Every
    setting has a name in the file of --config, and PREFILL_ROUTER_PART__NAME in the environment.
    Ctrl-C ends it, once requests under way are answered; SIGHUP has it read everything again.

    Example: prefill-router serve router --pool pool.yaml --lam 0.7
    """
    from prefill_router.gateway.runtime.configuration import GatewayPaths, load

    if as_json and not check:
        raise UsageError("--json prints what --check finds; give both, or neither")
    places = GatewayPaths(
        router=router,
        pool=pool,
        config=config,
        overrides={
            "listen": _given(host=host, port=port),
            "routing": _given(lam=lam),
            "receipts": _given(url=receipts),
        },
        keys=keys,
        encoder_folders=tuple(encoder_folder or ()),
        device=device,
        threads=threads,
    )
    if check:
        _check(partial(load, places), as_json=as_json)
        return
    loaded = load(places)
    _warn(loaded)
    from prefill_router.gateway.api.server import run

    run(places, loaded, told=lambda address: out.print(f"serving at {address}", soft_wrap=True))


def _check(load: "Callable[[], LoadedGateway]", *, as_json: bool) -> None:
    """Say what is wrong, or that nothing is; for programs, what is wrong is the result too."""
    try:
        loaded = load()
    except PrefillRouterError as error:
        if not as_json:
            raise
        print_json({"ok": False, "errors": list(error.told), "warnings": []})
        raise typer.Exit(1) from None
    names, router = list(loaded.pool.names), loaded.light.fingerprint
    if as_json:
        found = {"ok": True, "errors": [], "warnings": list(loaded.warnings)}
        print_json({**found, "router": router, "targets": names})
        return
    _warn(loaded)
    told = f"all is well: the router {router}, in front of {', '.join(names)}"
    out.print(told, soft_wrap=True)


def _warn(loaded: "LoadedGateway") -> None:
    for told in loaded.warnings:
        err.print(f"warning: {told}", style="yellow", soft_wrap=True)


def _given(**options: Any) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}
