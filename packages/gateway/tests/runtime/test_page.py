"""The page before a real gateway that asks for keys."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import pytest

from packages.gateway.tests.browser import PATIENCE_MS
from packages.gateway.tests.world import CHEAP, LocalGateway, World, chat, make_world

pytestmark = pytest.mark.slow

KEY = "pr-" + "k" * 43


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    keys = [{"name": "ann", "sha256": sha256(KEY.encode()).hexdigest(), "admin": True}]
    with make_world(tmp_path_factory.mktemp("page"), keys=keys) as world:
        yield world


def test_the_page_works_behind_keys(gateway: LocalGateway, browser: Any) -> None:
    bearer = f"Bearer {KEY}"
    assert gateway.ask(body=chat(CHEAP), authorization=bearer).status == 200
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(f"{gateway.url}/")
    page.get_by_label("Key", exact=True).fill(KEY)
    page.keyboard.press("Enter")
    page.get_by_role("cell", name=CHEAP).first.wait_for()
    page.get_by_label("Prompt", exact=True).fill("How difficult is it?")
    page.get_by_role("button", name="Send").click()
    page.get_by_text("named by client").wait_for()
    gateway.wait_until(lambda: len(gateway.gateway.recent.all()) == 2)
    assert KEY not in page.content()
    assert [receipt.key for receipt in gateway.receipts] == ["ann", "ann"]
