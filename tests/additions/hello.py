"""`prefill-router hello`."""

from prefill_router.cli.application import app, out


@app.command()
def hello() -> None:
    """Greet whoever asks."""
    out.print("Good morning.")
