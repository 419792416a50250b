"""The page in a real browser while requests end: rows, reasons, the slider, and what goes wrong."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.browser import serve_app, wait_until
from packages.gateway.tests.page.app import PageApp
from packages.gateway.tests.page.source import FakeSource
from packages.gateway.tests.page.tab import look_again, tab, texts, wait_for_numbers

pytestmark = pytest.mark.slow

MOST_SHIFT = 0.05


@pytest.fixture(scope="module")
def source() -> FakeSource:
    """The traffic of the shared page; tests add to it, and each leaves the page as it was."""
    return FakeSource(requests=60)


@pytest.fixture(scope="module")
def page(browser: Any, source: FakeSource) -> Iterator[Any]:
    """A page for several tests, since opening a page takes longest."""
    with serve_app(PageApp(source)) as url, tab(browser, url, quiet=False) as page:
        yield wait_for_numbers(page)


def show_all_rows(page: Any, source: FakeSource) -> None:
    """Move the pointer and the keyboard off the rows, and wait until all rows are visible."""
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    look_again(page)
    page.wait_for_selector(f"#rows tr[data-id={source.records[-1].detail['decision']['id']}]")


def test_decisions_appear_newest_first_and_go_on(page: Any, source: FakeSource) -> None:
    show_all_rows(page, source)
    assert page.locator("#rows tbody tr").count() == 50
    before = texts(page, "#rows tbody tr td:first-child")
    new = source.arrive()
    page.wait_for_selector(f"#rows tr[data-id={new}]")
    assert page.locator("#rows tbody tr").count() == 50
    assert page.locator("#rows tbody tr").first.get_attribute("data-id") == new
    assert texts(page, "#rows tbody tr td:first-child")[1:] == before[:-1]
    wait_until(page, "/^\\d+ new decisions?$/.test(document.getElementById('news').textContent)")


def test_steps_of_versions_open_to_their_evidence_and_stay_open(
    page: Any, source: FakeSource
) -> None:
    steps = page.locator("#versions-body li")
    steps.first.wait_for()
    assert steps.count() == 3
    sentence = "the learner gave version 0002 10 % of the conversations"
    assert sentence in steps.first.inner_text()
    assert not page.get_by_text("e values, cheaper").is_visible()
    steps.first.locator("summary").click()
    look_again(page)
    figures = dict(
        zip(texts(page, "#versions-body dt"), texts(page, "#versions-body dd"), strict=True)
    )
    assert figures == {
        "requests": "1,240",
        "quality": "0.0123",
        "e values, no worse": "31.5",
        "e values, cheaper": "2400",
    }
    assert steps.nth(2).locator("details").count() == 0  # an operator gives no evidence
    source.calls.clear()
    wait_until(page, "document.querySelector('#versions-body details').open")


def test_no_row_moves_under_a_pointer_or_a_keyboard(page: Any, source: FakeSource) -> None:
    show_all_rows(page, source)
    rows = page.locator("#rows tbody tr")
    rows.nth(2).hover()
    row_id = rows.nth(2).get_attribute("data-id")
    source.arrive()
    look_again(page)
    page.get_by_text("1 new, held").wait_for()
    assert rows.nth(2).get_attribute("data-id") == row_id
    show_all_rows(page, source)
    page.locator("#pause").focus()
    for _ in ("outcome", "id", "table", "row"):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#rows tbody') !== null")
    new_id = source.arrive()
    look_again(page)
    page.get_by_text("1 new, held").wait_for()
    assert page.locator(f"#rows tr[data-id={new_id}]").count() == 0
    show_all_rows(page, source)


def test_decisions_are_filtered_by_outcome_and_id(page: Any, source: FakeSource) -> None:
    show_all_rows(page, source)
    every = [record.detail["decision"] for record in source.records]
    cut_ids = {row["id"] for row in every if row["outcome"] == "cut"}
    page.locator("#filter-outcome").select_option("cut")
    wait_until(page, f"document.querySelectorAll('#rows tbody tr').length === {len(cut_ids)}")
    assert set(texts(page, "#rows tbody .pill")) == {"cut off"}
    decision_id = min(cut_ids)
    page.locator("#filter-id").fill(decision_id)
    wait_until(page, "document.querySelectorAll('#rows tbody tr').length === 1")
    page.keyboard.press("Enter")
    page.locator("#detail-title:focus").wait_for()
    page.locator("#detail-close").click()
    page.locator("#filter-id").fill("no such id")
    page.get_by_text("None of the latest requests matches.").wait_for()
    page.locator("#filter-id").fill("")
    page.locator("#filter-outcome").select_option("")
    wait_until(page, "document.querySelectorAll('#rows tbody tr').length === 50")
    show_all_rows(page, source)


def test_open_disclosures_outlive_new_numbers(page: Any, source: FakeSource) -> None:
    show_all_rows(page, source)
    summary = page.locator("#spend summary").first
    summary.click()
    table = page.get_by_role("table", name="Spend compared with a single target")
    cell = page.locator("#targets-body tbody th").first.element_handle()
    source.arrive()
    source.incomparable = 7
    sentence = f"The comparison is over the {len(source.records) - 7} requests"
    look_again(page)
    wait_until(
        page, "(text) => document.querySelector('#spend').innerText.includes(text)", arg=sentence
    )
    assert table.is_visible()
    assert cell.evaluate("(cell) => cell.isConnected")
    summary.click()


def test_lam_is_looked_at_then_applied_then_undone(page: Any, source: FakeSource) -> None:
    apply, slider = page.locator("#apply"), page.locator("#lam")
    assert slider.input_value() == "0.62"
    assert slider.get_attribute("aria-valuetext") == "0.62, the current value"
    assert apply.is_disabled()
    assert page.locator("#whatif-said").text_content() == ""
    slider.focus()
    for _ in range(28):
        page.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.9"
    words = "0.90, more accurate than the current 0.62"
    assert slider.get_attribute("aria-valuetext") == words
    wait_until(page, "document.querySelector('#whatif .moves') !== null")
    assert "→" in page.locator("#whatif dl").inner_text()
    wait_until(
        page, "document.getElementById('whatif-said').textContent.startsWith('At lam 0.90: expect')"
    )
    assert source.lam == 0.62
    apply.click()
    dialog = page.get_by_role("dialog", name="Apply this trade-off?")
    assert "lam 0.90 instead of 0.62" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    assert dialog.is_hidden()
    assert page.evaluate("document.activeElement.id") == "apply"
    assert source.lam == 0.62
    apply.click()
    dialog.get_by_role("button", name="Apply").click()
    page.get_by_text("lam is 0.90 now.").wait_for()
    assert source.lam == 0.9
    wait_until(page, "document.getElementById('fact-lam').textContent === '0.90'")
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("Undone: lam is 0.62 again.").wait_for()
    assert source.lam == 0.62
    assert slider.input_value() == "0.62"
    assert page.evaluate("document.activeElement.id") == "lam"


def test_a_gateway_that_is_gone_and_comes_back(page: Any) -> None:
    page.context.set_offline(True)
    look_again(page)
    page.locator("#lost", has_text="The gateway doesn't answer.").wait_for()
    assert page.locator("#state").inner_text() == "no answer"
    page.context.set_offline(False)
    page.get_by_role("button", name="Try now").click()
    page.locator("#state", has_text="degraded").wait_for()
    assert page.locator("#lost").is_hidden()
    assert page.evaluate("document.activeElement.id") == "main"


def test_numbers_that_can_not_be_read_are_told_of(page: Any, source: FakeSource) -> None:
    source.broken = True
    try:
        look_again(page)
        page.locator("#lost", has_text="the receipts can't be read").wait_for()
        page.get_by_role("button", name="Pause").click()  # so that it doesn't try by itself
        page.wait_for_load_state("networkidle")
    finally:
        source.broken = False
    page.get_by_role("button", name="Try now").click()
    page.locator("#lost").wait_for(state="hidden")
    assert page.locator("#state").inner_text() == "degraded"  # as its numbers say


def test_no_request_yet_then_one_and_a_pause_asks_for_none(browser: Any) -> None:
    source = FakeSource(requests=0)
    with serve_app(PageApp(source)) as url, tab(browser, url) as page:
        for sentence in (
            "No requests yet. They appear",
            "No request with a forecast has been recorded yet.",
            "Nothing was spent.",
            "0 of the 200 requests",
        ):
            page.get_by_text(sentence).wait_for()
        first = source.arrive()
        look_again(page)
        page.wait_for_selector(f"#rows tr[data-id={first}]")
        assert page.locator("#no-rows").is_hidden()
        page.get_by_role("button", name="Pause").click()
        assert page.locator("#pause").get_attribute("aria-pressed") == "true"
        page.wait_for_load_state("networkidle")
        page.clock.install()
        calls_before = len(source.calls)
        page.clock.fast_forward(60_000)
        second = source.arrive()
        assert len(source.calls) == calls_before
        page.get_by_role("button", name="Pause").click()
        page.wait_for_selector(f"#rows tr[data-id={second}]")


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_moves_by_itself(browser: Any, width: int) -> None:
    source = FakeSource(requests=30)
    view = {"width": width, "height": 812}
    with serve_app(PageApp(source)) as url, tab(browser, url, viewport=view) as page:
        wait_for_numbers(page)
        new = source.arrive()
        look_again(page)
        page.wait_for_selector(f"#rows tr[data-id={new}]")
        page.locator("#problems", has_text="heron-32b").wait_for()
        wait_until(page, "document.querySelector('#rows tbody').getAnimations().length === 0")
        assert page.evaluate("window.shifted") < MOST_SHIFT
        page.evaluate("document.querySelector('.head').style.paddingTop = '300px'")
        wait_until(page, f"window.shifted > {MOST_SHIFT}")


def test_what_the_reasons_say(page: Any, source: FakeSource) -> None:
    def open_row(reason: str) -> str:
        fits = [
            record.detail["decision"]["id"]
            for record in source.records[-40:]
            if record.detail["decision"]["reason"] == reason
        ]
        page.locator(f"#rows tr[data-id={fits[0]}]").click()
        page.locator("#detail .mono", has_text=fits[0]).wait_for()
        return page.locator("#detail").inner_text()

    show_all_rows(page, source)
    policy = open_row("policy")
    assert "The router's policy chose it by the forecast." in policy
    assert re.search(
        r"(At lam [\d.]+ and below, \S+ would win|No other target would win at a lower)", policy
    )
    assert "The client named the target" in open_row("named")
    fallback = open_row("fallback")
    assert "the forecast took longer than its deadline" in fallback
    assert "At another lam" not in fallback
    page.get_by_role("button", name="Close").click()
    assert page.locator("#detail").is_hidden()


def test_who_asked_is_in_the_list_and_in_the_detail(page: Any, source: FakeSource) -> None:
    show_all_rows(page, source)
    rows = {record.detail["decision"]["id"]: record.detail for record in source.records[-40:]}
    name = next(i for i, detail in rows.items() if detail["decision"]["kind"] == "subagent")
    row = page.locator(f"#rows tr[data-id={name}]")
    assert "subagent, claude-code" in row.inner_text()
    row.click()
    page.locator("#detail .mono", has_text=name).wait_for()
    shown = page.locator("#detail").inner_text()
    assert "claude-code: a subagent's task, type Explore" in shown
    assert "2 results in a row had failed" in shown
    plain = next(i for i, detail in rows.items() if detail["decision"]["agent"] is None)
    page.locator(f"#rows tr[data-id={plain}]").click()
    page.locator("#detail .mono", has_text=plain).wait_for()
    assert "Asked by" not in page.locator("#detail").inner_text()
