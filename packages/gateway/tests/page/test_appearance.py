"""How the page looks and reads in a real browser: contrast, names, tables, focus, width."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from packages.gateway.tests.browser import (
    CONTROLS,
    PATIENCE_MS,
    Watch,
    accessible_nodes,
    contrast,
    serve_app,
    text_contrasts,
    wait_until,
)
from packages.gateway.tests.page.app import PageApp
from packages.gateway.tests.page.source import NAMES, FakeSource
from packages.gateway.tests.page.tab import choose, tab, texts, wait_for_numbers

pytestmark = pytest.mark.slow

NONE = "\N{EN DASH}"
SOURCE = FakeSource(requests=120)


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with serve_app(PageApp(SOURCE)) as url:
        yield url


@pytest.fixture(scope="module")
def page(browser: Any, address: str) -> Iterator[Any]:
    """A page for tests that only look; each brings it into the state that it needs."""
    with tab(browser, address, reduced_motion="reduce") as page:
        yield wait_for_numbers(page)


def open_detail(page: Any, *, disclosures: bool) -> None:
    page.locator("#rows tbody tr").nth(3).click()
    page.wait_for_selector("#detail:not([hidden])")
    page.evaluate(
        "(open) => document.querySelectorAll('details').forEach((d) => { d.open = open; })",
        disclosures,
    )


def test_what_a_page_must_not_do_is_noticed(browser: Any, address: str) -> None:
    page = browser.new_page()
    watch = Watch(page)
    page.goto(address)
    page.evaluate("document.body.append(Object.assign(new Image(), {src: '//127.0.0.2:9/x.png'}))")
    page.evaluate("fetch('http://127.0.0.2:9/x').catch(() => {})")
    for _ in range(PATIENCE_MS // 25):
        complaints = " ".join(watch.complaints)
        if "img-src" in complaints and "connect-src" in complaints:
            break
        page.wait_for_timeout(25)
    page.close()
    assert "img-src" in complaints
    assert "connect-src" in complaints
    assert watch.foreign_urls(address)


def test_details_by_keyboard_alone(page: Any) -> None:
    page.locator("#pause").focus()
    for _ in ("outcome", "id", "table", "row"):
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('#rows tbody')?.nodeName") == "TBODY"
    for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp", "Home", "ArrowDown"):
        page.keyboard.press(key)
    row = page.locator("#rows tbody tr").nth(1)
    name = row.get_attribute("data-id")
    assert page.evaluate("document.activeElement.closest('tr').dataset.id") == name
    page.keyboard.press("Enter")
    wait_until(page, "document.activeElement.id === 'detail-title'")
    assert row.locator("button").get_attribute("aria-expanded") == "true"
    shown = page.locator("#detail").inner_text()
    for words in (*NAMES, name, "left out: its breaker is open"):
        assert words in shown
    page.keyboard.press("Escape")
    assert page.locator("#detail").is_hidden()
    assert page.evaluate("document.activeElement.closest('tr').dataset.id") == name
    assert page.locator("#rows [tabindex='0']").count() == 1


def test_every_call_of_a_request_that_failed_over(page: Any) -> None:
    detail = next(
        record.detail for record in SOURCE.records[-50:] if len(record.detail["attempts"]) > 1
    )
    page.locator(f"#rows tr[data-id={detail['decision']['id']}]").click()
    page.locator("#detail .mono", has_text=detail["decision"]["id"]).wait_for()
    calls = page.get_by_role("table", name="Every call, in order")
    assert [c.replace("\xa0", " ") for c in calls.locator("tbody tr").all_inner_texts()] == [
        f"1. {detail['attempts'][0]['target']}\toverloaded\t503\t210 ms",
        f"2. {detail['attempts'][1]['target']}\tno first token in time\t{NONE}\t4.00 s",
        f"3. {detail['attempts'][2]['target']}\tanswered\t200\t2.40 s",
    ]
    failures = page.locator("#detail ol li").all_inner_texts()
    assert failures == [attempt["failure"] for attempt in detail["attempts"][:2]]


def test_what_was_only_looked_at_is_left(page: Any) -> None:
    page.locator("#lam").fill("0.1")
    page.wait_for_selector("#whatif .moves")
    page.get_by_role("button", name="Reset").click()
    assert page.locator("#lam").input_value() == "0.62"
    page.wait_for_selector("#whatif .moves", state="detached")
    assert page.evaluate("document.activeElement.id") == "lam"
    assert SOURCE.lam == 0.62


def test_themes_are_switched_and_kept(browser: Any, address: str) -> None:
    back = "getComputedStyle(document.documentElement).backgroundColor"
    with tab(browser, address, color_scheme="light") as page:
        light = page.evaluate(back)
        page.emulate_media(color_scheme="dark")
        dark = page.evaluate(back)
        assert light != dark
        choose(page, "Light")
        assert page.evaluate(back) == light
        page.reload()
        assert page.evaluate(back) == light
        assert page.get_by_role("radio", name="Light").is_checked()
        choose(page, "Auto")
        assert page.evaluate(back) == dark


def test_the_measure_of_contrast() -> None:
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((118, 118, 118), (255, 255, 255)) == pytest.approx(4.54, abs=0.01)
    assert contrast((9, 9, 9), (9, 9, 9)) == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    open_detail(page, disclosures=True)
    page.locator("#lam").fill("0.9")
    page.wait_for_selector("#whatif .moves")
    contrasts = text_contrasts(page)
    assert len(contrasts) > 300
    assert [(text, round(ratio, 2)) for text, ratio in contrasts if ratio < 4.5] == []


def test_every_control_has_a_name(page: Any) -> None:
    open_detail(page, disclosures=True)
    nodes = accessible_nodes(page)
    controls = [(role, name) for role, name in nodes if role in CONTROLS]
    assert {"button", "link", "textbox", "slider", "spinbutton", "radio", "region"} <= {
        role for role, _ in controls
    }
    assert [role for role, name in controls if not name.strip()] == []
    named = [name for role, name in nodes if role in ("table", "image", "dialog")]
    assert named
    assert all(name.strip() for name in named)
    roles = [role for role, _ in nodes]
    assert {"banner", "main", "navigation", "contentinfo"} <= set(roles)
    levels = page.evaluate(
        "[...document.querySelectorAll('main :is(h2, h3), h1')].filter((h) =>"
        " h.checkVisibility()).map((h) => h.tagName)"
    )
    assert levels[0] == "H1"
    assert levels.count("H1") == 1
    loose = page.evaluate(
        "[...document.querySelectorAll('th:not([scope]), table:not(:has(caption))')].length"
    )
    assert loose == 0


def test_tables_carry_what_charts_show(page: Any) -> None:
    open_detail(page, disclosures=False)
    for chart, rows in (("#spend", 2), ("#curve", 1), ("#drift", 1)):
        figures = page.locator(f"{chart} figure:not([hidden])")
        assert figures.count() == rows
        for figure in figures.all():
            description = figure.locator("svg[role=img] > desc").text_content()
            assert figure.locator("svg[role=img] > title").text_content()
            summary = figure.locator("summary")
            summary.focus()
            page.keyboard.press("Enter")
            cells = figure.locator("table :is(td.num)").all_inner_texts()
            assert cells
            for number in re.findall(r"\$\d+(?:\.\d+)?", description):
                assert number in cells
    single_count = page.locator("#curve svg .single").count() - 1  # the legend has one too
    names = [n for n in texts(page, "#curve tbody th") if n.startswith("all ")]
    assert single_count == len(names) == len(NAMES)


def test_targets_show_their_health(page: Any) -> None:
    rows = page.get_by_role("table", name=re.compile("^Targets")).locator("tbody tr")
    assert rows.count() == len(NAMES)
    down = rows.filter(has_text="heron-32b").inner_text().replace("\xa0", " ")
    for words in ("open, 10 s", "7 (58 %)", "240 ms", "$0.2", "$0.8", "32,000", "tools"):
        assert words in down
    assert "heron-32b: its breaker is open" in page.locator("#problems").inner_text()
    assert page.locator("#targets-body p").all_inner_texts() == [
        "heron-32b: its endpoint at http://127.0.0.1:8000/v1 is overloaded; try again later"
    ]
    assert page.locator("#state").inner_text() == "degraded"


def test_the_last_hour_has_a_time_axis(page: Any) -> None:
    labels = page.locator("#time-body svg text").all_text_contents()
    assert sum(re.fullmatch(r"\d\d:\d0", text) is not None for text in labels) >= 4


def test_spend_is_told_by_key_and_for_1000_requests(page: Any) -> None:
    assert "Per 1,000 requests" in texts(page, "#spend-body dt")
    table = page.get_by_role("table", name="Spend by client key")
    assert table.get_by_role("row").nth(1).inner_text().split("\t")[0] == "web"


def test_drift_is_told_in_words(page: Any) -> None:
    text = page.locator("#drift-body > p").inner_text()
    assert "no longer resembles the router's train rows: 1 of 6 features have" in text
    assert "the largest component 3, at 1.2 times the threshold" in text


@pytest.mark.parametrize("width", [1280, 400, 320])
def test_nothing_runs_over_the_edge(page: Any, width: int) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    open_detail(page, disclosures=False)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    cut_count = page.evaluate(
        "[...document.querySelectorAll('#rows, #detail table')].filter((t) =>"
        " t.offsetWidth > t.parentElement.clientWidth).length"
    )
    assert cut_count == 0
    assert page.locator("#rows tbody tr").first.locator(".pill").is_visible()


@pytest.mark.parametrize("disclosures", [False, True])
def test_a_phone_scrolls_nothing_sideways(page: Any, disclosures: bool) -> None:
    page.set_viewport_size({"width": 400, "height": 800})
    open_detail(page, disclosures=disclosures)
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    wide = page.evaluate(
        "[...document.querySelectorAll('.scroll')].filter((e) => e.checkVisibility() &&"
        " e.scrollWidth > e.clientWidth).map((e) => `${e.id} ${e.scrollWidth}`)"
    )
    assert wide == []
    shown = page.locator("body").inner_text()
    assert re.findall(r"\$0\.0+(?!\d)", shown) == []  # a cost that is rounded to nothing


def test_the_focus_can_be_seen(page: Any) -> None:
    page.set_viewport_size({"width": 1280, "height": 900})
    page.evaluate("document.querySelector('.skip').focus()")
    for _ in range(14):
        page.keyboard.press("Tab")
        outline = page.evaluate(
            "(() => { const a = document.activeElement;"
            " const shown = a.closest('.switch') ?? a;"
            " return getComputedStyle(shown).outlineStyle; })()"
        )
        assert outline != "none"
