"""The page in a real browser while requests end: rows, reasons, the slider, and what goes wrong."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.browser import serve_app, wait_until
from packages.gateway.tests.page.app import PageApp
from packages.gateway.tests.page.source import FakeSource
from packages.gateway.tests.page.tab import look_again, tab, texts, whole

pytestmark = pytest.mark.slow

MOST_SHIFT = 0.05


@pytest.fixture(scope="module")
def source() -> FakeSource:
    """The traffic of the shared page, which its tests add to; each leaves it in order."""
    return FakeSource(requests=60)


@pytest.fixture(scope="module")
def live(browser: Any, source: FakeSource) -> Iterator[Any]:
    """One page for several tests, since opening one takes longest."""
    with serve_app(PageApp(source)) as url, tab(browser, url, quiet=False) as page:
        yield whole(page)


def settle(page: Any, source: FakeSource) -> None:
    """Take the pointer and the keyboard off the rows, and wait until all are shown."""
    page.mouse.move(2, 2)
    page.evaluate("document.activeElement.blur()")
    look_again(page)
    page.wait_for_selector(f"#rows tr[data-id={source.kept[-1].detail['decision']['id']}]")


def test_decisions_appear_newest_first_and_go_on(live: Any, source: FakeSource) -> None:
    settle(live, source)
    assert live.locator("#rows tbody tr").count() == 50
    before = texts(live, "#rows tbody tr td:first-child")
    new = source.arrive()
    live.wait_for_selector(f"#rows tr[data-id={new}]")
    assert live.locator("#rows tbody tr").count() == 50
    assert live.locator("#rows tbody tr").first.get_attribute("data-id") == new
    assert texts(live, "#rows tbody tr td:first-child")[1:] == before[:-1]
    wait_until(live, "/^\\d+ new decisions?$/.test(document.getElementById('news').textContent)")


def test_steps_of_versions_open_to_their_evidence_and_stay_open(
    live: Any, source: FakeSource
) -> None:
    steps = live.locator("#versions-body li")
    steps.first.wait_for()
    assert steps.count() == 3
    said = "the learner gave version 0002 10 % of the conversations"
    assert said in steps.first.inner_text()
    assert not live.get_by_text("e values, cheaper").is_visible()
    steps.first.locator("summary").click()
    look_again(live)
    figures = dict(
        zip(texts(live, "#versions-body dt"), texts(live, "#versions-body dd"), strict=True)
    )
    assert figures == {
        "requests": "1,240",
        "quality": "0.0123",
        "e values, no worse": "31.5",
        "e values, cheaper": "2400",
    }
    assert steps.nth(2).locator("details").count() == 0  # an operator gives no evidence
    source.calls.clear()
    wait_until(live, "document.querySelector('#versions-body details').open")


def test_no_row_moves_under_a_pointer_or_a_keyboard(live: Any, source: FakeSource) -> None:
    settle(live, source)
    rows = live.locator("#rows tbody tr")
    rows.nth(2).hover()
    aimed = rows.nth(2).get_attribute("data-id")
    source.arrive()
    look_again(live)
    live.get_by_text("1 new, held").wait_for()
    assert rows.nth(2).get_attribute("data-id") == aimed
    settle(live, source)
    live.locator("#pause").focus()
    for _ in ("outcome", "id", "table", "row"):
        live.keyboard.press("Tab")
    assert live.evaluate("document.activeElement.closest('#rows tbody') !== null")
    later = source.arrive()
    look_again(live)
    live.get_by_text("1 new, held").wait_for()
    assert live.locator(f"#rows tr[data-id={later}]").count() == 0
    settle(live, source)


def test_decisions_are_filtered_by_outcome_and_id(live: Any, source: FakeSource) -> None:
    settle(live, source)
    every = [kept.detail["decision"] for kept in source.kept]
    cut = {row["id"] for row in every if row["outcome"] == "cut"}
    live.locator("#filter-outcome").select_option("cut")
    wait_until(live, f"document.querySelectorAll('#rows tbody tr').length === {len(cut)}")
    assert set(texts(live, "#rows tbody .pill")) == {"cut off"}
    one = min(cut)
    live.locator("#filter-id").fill(one)
    wait_until(live, "document.querySelectorAll('#rows tbody tr').length === 1")
    live.keyboard.press("Enter")
    live.locator("#detail-title:focus").wait_for()
    live.locator("#detail-close").click()
    live.locator("#filter-id").fill("no such id")
    live.get_by_text("None of the latest requests matches.").wait_for()
    live.locator("#filter-id").fill("")
    live.locator("#filter-outcome").select_option("")
    wait_until(live, "document.querySelectorAll('#rows tbody tr').length === 50")
    settle(live, source)


def test_open_disclosures_outlive_new_numbers(live: Any, source: FakeSource) -> None:
    settle(live, source)
    summary = live.locator("#spend summary").first
    summary.click()
    table = live.get_by_role("table", name="Spend compared with a single target")
    cell = live.locator("#targets-body tbody th").first.element_handle()
    source.arrive()
    source.incomparable = 7
    compared = f"The comparison is over the {len(source.kept) - 7} requests"
    look_again(live)
    wait_until(
        live, "(text) => document.querySelector('#spend').innerText.includes(text)", arg=compared
    )
    assert table.is_visible()
    assert cell.evaluate("(cell) => cell.isConnected")
    summary.click()


def test_lam_is_looked_at_then_applied_then_undone(live: Any, source: FakeSource) -> None:
    apply, slider = live.locator("#apply"), live.locator("#lam")
    assert slider.input_value() == "0.62"
    assert slider.get_attribute("aria-valuetext") == "0.62, the current value"
    assert apply.is_disabled()
    assert live.locator("#whatif-said").text_content() == ""
    slider.focus()
    for _ in range(28):
        live.keyboard.press("ArrowRight")
    assert slider.input_value() == "0.9"
    words = "0.90, more accurate than the current 0.62"
    assert slider.get_attribute("aria-valuetext") == words
    wait_until(live, "document.querySelector('#whatif .moves') !== null")
    assert "→" in live.locator("#whatif dl").inner_text()
    wait_until(
        live, "document.getElementById('whatif-said').textContent.startsWith('At lam 0.90: expect')"
    )
    assert source.lam == 0.62
    apply.click()
    dialog = live.get_by_role("dialog", name="Apply this trade-off?")
    assert "lam 0.90 instead of 0.62" in dialog.inner_text()
    dialog.get_by_role("button", name="Cancel").click()
    assert dialog.is_hidden()
    assert live.evaluate("document.activeElement.id") == "apply"
    assert source.lam == 0.62
    apply.click()
    dialog.get_by_role("button", name="Apply").click()
    live.get_by_text("lam is 0.90 now.").wait_for()
    assert source.lam == 0.9
    wait_until(live, "document.getElementById('fact-lam').textContent === '0.90'")
    live.get_by_role("button", name="Undo").click()
    live.get_by_text("Undone: lam is 0.62 again.").wait_for()
    assert source.lam == 0.62
    assert slider.input_value() == "0.62"
    assert live.evaluate("document.activeElement.id") == "lam"


def test_a_gateway_that_is_gone_and_comes_back(live: Any) -> None:
    live.context.set_offline(True)
    look_again(live)
    live.locator("#lost", has_text="The gateway doesn't answer.").wait_for()
    assert live.locator("#state").inner_text() == "no answer"
    live.context.set_offline(False)
    live.get_by_role("button", name="Try now").click()
    live.locator("#state", has_text="degraded").wait_for()
    assert live.locator("#lost").is_hidden()
    assert live.evaluate("document.activeElement.id") == "main"


def test_numbers_that_can_not_be_read_are_told_of(live: Any, source: FakeSource) -> None:
    source.broken = True
    try:
        look_again(live)
        live.locator("#lost", has_text="the receipts can't be read").wait_for()
        live.get_by_role("button", name="Pause").click()  # so that it doesn't try by itself
        live.wait_for_load_state("networkidle")
    finally:
        source.broken = False
    live.get_by_role("button", name="Try now").click()
    live.locator("#lost").wait_for(state="hidden")


def test_no_request_yet_then_one_and_a_pause_asks_for_none(browser: Any) -> None:
    source = FakeSource(requests=0)
    with serve_app(PageApp(source)) as url, tab(browser, url) as page:
        for said in (
            "No requests yet. They appear",
            "No request with a forecast has been recorded yet.",
            "Nothing was spent.",
            "0 of the 200 requests",
        ):
            page.get_by_text(said).wait_for()
        first = source.arrive()
        look_again(page)
        page.wait_for_selector(f"#rows tr[data-id={first}]")
        assert page.locator("#no-rows").is_hidden()
        page.get_by_role("button", name="Pause").click()
        assert page.locator("#pause").get_attribute("aria-pressed") == "true"
        page.wait_for_load_state("networkidle")
        page.clock.install()
        asked = len(source.calls)
        page.clock.fast_forward(60_000)
        second = source.arrive()
        assert len(source.calls) == asked
        page.get_by_role("button", name="Pause").click()
        page.wait_for_selector(f"#rows tr[data-id={second}]")


@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_moves_by_itself(browser: Any, width: int) -> None:
    source = FakeSource(requests=30)
    view = {"width": width, "height": 812}
    with serve_app(PageApp(source)) as url, tab(browser, url, viewport=view) as page:
        whole(page)
        new = source.arrive()
        look_again(page)
        page.wait_for_selector(f"#rows tr[data-id={new}]")
        page.locator("#problems", has_text="heron-32b").wait_for()
        wait_until(page, "document.querySelector('#rows tbody').getAnimations().length === 0")
        assert page.evaluate("window.shifted") < MOST_SHIFT
        page.evaluate("document.querySelector('.head').style.paddingTop = '300px'")
        wait_until(page, f"window.shifted > {MOST_SHIFT}")


def test_what_the_reasons_say(live: Any, source: FakeSource) -> None:
    def opened(reason: str) -> str:
        fits = [
            kept.detail["decision"]["id"]
            for kept in source.kept[-40:]
            if kept.detail["decision"]["reason"] == reason
        ]
        live.locator(f"#rows tr[data-id={fits[0]}]").click()
        live.locator("#detail .mono", has_text=fits[0]).wait_for()
        return live.locator("#detail").inner_text()

    settle(live, source)
    policy = opened("policy")
    assert "The router's policy chose it by the forecast." in policy
    assert re.search(
        r"(At lam [\d.]+ and below, \S+ would win|No other target would win at a lower)", policy
    )
    assert "The client named the target" in opened("named")
    fallback = opened("fallback")
    assert "the forecast took longer than its deadline" in fallback
    assert "At another lam" not in fallback
    live.get_by_role("button", name="Close").click()
    assert live.locator("#detail").is_hidden()


def test_who_asked_is_in_the_list_and_in_the_detail(live: Any, source: FakeSource) -> None:
    settle(live, source)
    rows = {kept.detail["decision"]["id"]: kept.detail for kept in source.kept[-40:]}
    name = next(i for i, told in rows.items() if told["decision"]["kind"] == "subagent")
    row = live.locator(f"#rows tr[data-id={name}]")
    assert "subagent, claude-code" in row.inner_text()
    row.click()
    live.locator("#detail .mono", has_text=name).wait_for()
    shown = live.locator("#detail").inner_text()
    assert "claude-code: a subagent's task, type Explore" in shown
    assert "2 results in a row had failed" in shown
    plain = next(i for i, told in rows.items() if told["decision"]["agent"] is None)
    live.locator(f"#rows tr[data-id={plain}]").click()
    live.locator("#detail .mono", has_text=plain).wait_for()
    assert "Asked by" not in live.locator("#detail").inner_text()
