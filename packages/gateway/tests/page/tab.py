"""A tab on the page: opened and closed, waited for, and clicked as a reader would."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from packages.gateway.tests.browser import PATIENCE_MS, SHIFTS, Watch

PARTS = "#rows tbody tr", "#spend svg", "#whatif dl", "#targets-body table", "#drift svg"


@contextmanager
def tab(browser: Any, url: str, *, quiet: bool = True, **options: Any) -> Iterator[Any]:
    """A page in a context of its own; where it should be quiet, it complained of nothing."""
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


def whole(page: Any) -> Any:
    """The page once every part has its numbers."""
    for part in PARTS:
        page.wait_for_selector(part)
    return page


def texts(page: Any, selector: str) -> list[str]:
    """What the elements show."""
    return page.locator(selector).all_inner_texts()


def choose(page: Any, name: str) -> None:
    """Click a choice where its reader sees it: its input lies unseen below."""
    chosen = page.get_by_role("radio", name=name)
    page.locator("label").filter(has=chosen).click()
    assert chosen.is_checked()


def look_again(page: Any) -> None:
    """Have every part ask for its numbers now, as when its tab is looked at again."""
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
