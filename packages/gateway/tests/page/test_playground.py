"""The page's box for prompts and its question for a key, in a real browser."""

from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.browser import PATIENCE_MS, serve_app, wait_until
from packages.gateway.tests.page.app import ANSWER, PageApp
from packages.gateway.tests.page.source import FakeSource
from packages.gateway.tests.page.tab import choose, tab, wait_for_numbers

pytestmark = pytest.mark.slow

KEY = "pr-not-a-real-key"


@pytest.fixture(scope="module")
def app() -> PageApp:
    return PageApp(FakeSource(requests=5))


@pytest.fixture(scope="module")
def page(browser: Any, app: PageApp) -> Iterator[Any]:
    """A page for all prompts."""
    with serve_app(app) as url, tab(browser, url, quiet=False) as page:
        yield page


def ask(page: Any, prompt: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    choose(page, "Ask")
    page.get_by_role("button", name="Send").click()


def test_a_route_is_tried_without_asking(page: Any, app: PageApp) -> None:
    page.get_by_role("textbox", name="Prompt").fill("What is 2 + 2?")
    choose(page, "Route only")
    page.get_by_label("lam", exact=True).fill("0.25")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("It would go to heron-70b.").wait_for()
    page.get_by_label("lam", exact=True).fill("")
    body, headers = app.prompts[-1]
    assert body == {"model": "auto", "messages": [{"role": "user", "content": "What is 2 + 2?"}]}
    assert headers["x-prefill-router-lam"] == "0.25"
    table = page.get_by_role("table", name="Every target that could answer, best first")
    assert table.locator("tbody tr").count() == 2


def test_an_answer_stays_text(page: Any, app: PageApp) -> None:
    ask(page, "hello")
    page.get_by_text("heron-70b has answered.").wait_for()
    assert page.get_by_role("region", name="Answer").text_content() == ANSWER
    assert page.locator("#try-answer :is(script, img, b)").count() == 0
    assert page.title() == "prefill-router"
    body, headers = app.prompts[-1]
    assert body["stream"] is True
    assert "x-prefill-router-lam" not in headers
    assert "heron-70b" in page.locator("#try-answer dl").inner_text()
    page.get_by_role("button", name="Why this target").click()
    wait_until(page, "document.activeElement.id === 'detail-title'")


def test_answers_that_fail_say_so(page: Any) -> None:
    ask(page, "break")
    page.locator("#try-said", has_text="the target broke off").wait_for()
    assert page.get_by_role("region", name="Answer").text_content() == ANSWER
    ask(page, "refuse")
    page.locator("#try-said", has_text="no target fits").wait_for()
    assert page.locator("#try-send").get_attribute("aria-disabled") == "false"


def test_an_answer_is_stopped(page: Any, app: PageApp) -> None:
    ask(page, "stay")
    wait_until(
        page,
        "(text) => document.querySelector('#try-answer .answer[role]')?.textContent === text",
        arg=ANSWER,
    )
    page.get_by_role("button", name="Stop").click()
    page.locator("#try-said", has_text="Stopped.").wait_for()
    for _ in range(PATIENCE_MS // 25):
        if app.client_left:
            break
        page.wait_for_timeout(25)
    assert app.client_left
    assert page.locator("#try-stop").is_hidden()
    assert page.evaluate("document.activeElement.id") == "try-send"


def test_the_page_asks_for_a_key_once(browser: Any) -> None:
    app = PageApp(FakeSource(requests=20), key=KEY)
    with serve_app(app) as url, tab(browser, url, quiet=False) as page:
        dialog = page.get_by_role("dialog", name="Admin key")
        dialog.wait_for()
        assert app.source.calls == []
        assert app.refusals == 1  # all other parts of the page wait for the key
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        dialog.get_by_text("this key is no admin's").wait_for()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        wait_for_numbers(page)
        assert dialog.is_hidden()
        assert app.refusals == 2
        assert KEY not in page.content()
        assert page.evaluate("JSON.stringify(localStorage)").count(KEY) == 0
        page.reload()
        wait_for_numbers(page)
        assert dialog.is_hidden()


def test_without_a_key_the_page_waits(browser: Any) -> None:
    app = PageApp(FakeSource(requests=20), key=KEY)
    with serve_app(app) as url, tab(browser, url, quiet=False) as page:
        page.get_by_role("dialog", name="Admin key").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("The gateway requires an admin key.").wait_for()
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        wait_for_numbers(page)
        assert page.locator("#lost").is_hidden()
        assert page.locator("#pause").get_attribute("aria-pressed") == "false"
