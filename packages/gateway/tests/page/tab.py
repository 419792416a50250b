"""A tab on the page: opening it, waiting for it, and clicks of a reader."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packages.gateway.tests.browser import PATIENCE_MS, SHIFTS, Watch

PARTS = "#rows tbody tr", "#spend svg", "#whatif dl", "#targets-body table", "#drift svg"


@contextmanager
def tab(browser: Any, url: str, *, quiet: bool = True, **options: Any) -> Iterator[Any]:
    """A page in a context of its own; a quiet page must log no error or warning."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(SHIFTS)
    page = context.new_page()
    watch = Watch(page)
    try:
        page.goto(url)
        yield page
        assert watch.foreign_urls(url) == []
        assert watch.urls
        if quiet:
            assert watch.complaints == []
    finally:
        context.close()


def wait_for_numbers(page: Any) -> Any:
    """Wait until every part of the page has its numbers."""
    for part in PARTS:
        page.wait_for_selector(part)
    return page


def texts(page: Any, selector: str) -> list[str]:
    """The visible text of the elements."""
    return page.locator(selector).all_inner_texts()


def choose(page: Any, name: str) -> None:
    """Click the label of a choice, since its input is hidden."""
    button = page.get_by_role("radio", name=name)
    page.locator("label").filter(has=button).click()
    assert button.is_checked()


def look_again(page: Any) -> None:
    """Make every part load its numbers now, as when a reader returns to the tab."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
