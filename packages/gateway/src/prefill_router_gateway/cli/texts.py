"""How commands show a long text."""

_MOST_SHOWN = 500  # characters


def shorten_text(text: str | None) -> str:
    """The beginning of a text, with its length where something is left out."""
    if text is None:
        return "none"
    if len(text) <= _MOST_SHOWN:
        return text
    return f"{text[:_MOST_SHOWN]} ... ({len(text):,} characters)"
