"""The page in a real browser: what it shows, that it works by keyboard, and what it never does."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, get_args

import pytest
from browser import (
    CONTROLS,
    PATIENCE_MS,
    Watch,
    accessible_nodes,
    chromium,
    contrast,
    served,
    text_contrasts,
    until,
)
from page_app import ANSWER, PageApp
from page_source import NAMES, FakeSource

from prefill_router.gateway import outcome, words
from prefill_router.gateway.page import shapes
from prefill_router.gateway.page.files import read_page_files

KEY = "pr-not-a-real-key"
NONE = "\N{EN DASH}"
PARTS = "#rows tbody tr", "#spend svg", "#whatif dl", "#targets-body table", "#drift svg"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with chromium(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared() -> PageApp:
    """For tests that only look."""
    return PageApp(FakeSource(requests=120))


@pytest.fixture(scope="module")
def address(shared: PageApp) -> Iterator[str]:
    with served(shared) as url:
        yield url


@contextmanager
def tab(browser: Any, url: str, *, quiet: bool = True, **options: Any) -> Iterator[Any]:
    """A page in a context of its own; where it should be quiet, it complained of nothing."""
    context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    watch = Watch(page)
    try:
        page.goto(url)
        yield page
        assert watch.elsewhere(url) == []
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


@pytest.fixture(scope="module")
def looked(browser: Any, address: str) -> Iterator[Any]:
    """One page for several tests that only look; each brings it into the state that it needs."""
    with tab(browser, address, reduced_motion="reduce") as page:
        yield whole(page)


def opened(page: Any, *, disclosures: bool) -> None:
    page.locator("#rows tbody tr").nth(3).click()
    page.wait_for_selector("#detail:not([hidden])")
    page.evaluate(
        "(open) => document.querySelectorAll('details').forEach((d) => { d.open = open; })",
        disclosures,
    )


def choose(page: Any, name: str) -> None:
    """Click a choice where its reader sees it: what arrives may move it until the last moment."""
    chosen = page.get_by_role("radio", name=name)
    page.locator("label").filter(has=chosen).click()
    assert chosen.is_checked()


def texts(page: Any, selector: str) -> list[str]:
    return page.locator(selector).all_inner_texts()


def test_what_a_page_must_not_do_is_noticed(browser: Any, address: str) -> None:
    page = browser.new_page()
    watch = Watch(page)
    page.goto(address)
    page.evaluate("document.body.append(Object.assign(new Image(), {src: '//127.0.0.2:9/x.png'}))")
    page.evaluate("fetch('http://127.0.0.2:9/x').catch(() => {})")
    for _ in range(PATIENCE_MS // 25):
        said = " ".join(watch.complaints)
        if "img-src" in said and "connect-src" in said:
            break
        page.wait_for_timeout(25)
    page.close()
    assert "img-src" in said
    assert "connect-src" in said
    assert watch.elsewhere(address)


def test_decisions_appear_newest_first_and_go_on(browser: Any) -> None:
    source = FakeSource(requests=60)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        whole(page)
        assert page.locator("#rows tbody tr").count() == 50
        before = texts(page, "#rows tbody tr td:first-child")
        new = source.arrive()
        page.wait_for_selector(f"#rows tr[data-id={new}]")
        assert page.locator("#rows tbody tr").count() == 50
        assert page.locator("#rows tbody tr").first.get_attribute("data-id") == new
        assert texts(page, "#rows tbody tr td:first-child")[1:] == before[:-1]
        until(page, "document.getElementById('news').textContent === '1 new decision'")


def test_a_paused_page_asks_nothing(browser: Any) -> None:
    source = FakeSource(requests=20)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        whole(page).get_by_role("button", name="Pause").click()
        assert page.locator("#pause").get_attribute("aria-pressed") == "true"
        page.wait_for_load_state("networkidle")
        page.clock.install()
        asked = len(source.calls)
        page.clock.fast_forward(60_000)
        new = source.arrive()
        assert len(source.calls) == asked
        page.get_by_role("button", name="Pause").click()
        page.wait_for_selector(f"#rows tr[data-id={new}]")


def test_no_request_yet(browser: Any) -> None:
    source = FakeSource(requests=0)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        page.get_by_text("No request has come yet.").wait_for()
        page.get_by_text("No request with a forecast is on record yet.").wait_for()
        page.get_by_text("0 of 200 requests").wait_for()
        source.arrive()
        page.wait_for_selector("#rows tbody tr")
        assert page.locator("#no-rows").is_hidden()


def test_details_by_keyboard_alone(browser: Any, address: str, shared: PageApp) -> None:
    decided = [kept.detail for kept in shared.source.kept]
    with tab(browser, address) as page:
        whole(page)
        for _ in range(40):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.closest('#rows tbody') !== null"):
                break
        assert page.evaluate("document.activeElement.tagName") == "BUTTON"
        for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp", "Home", "ArrowDown"):
            page.keyboard.press(key)
        row = page.locator("#rows tbody tr").nth(1)
        assert page.evaluate("document.activeElement.closest('tr').dataset.id") == (
            row.get_attribute("data-id")
        )
        page.keyboard.press("Enter")
        page.wait_for_selector("#detail:not([hidden])")
        until(page, "document.activeElement.id === 'detail-title'")
        assert row.locator("button").get_attribute("aria-expanded") == "true"
        detail = next(d for d in decided if d["decision"]["id"] == row.get_attribute("data-id"))
        shown = page.locator("#detail").inner_text()
        for target in NAMES:
            assert target in shown
        assert detail["decision"]["id"] in shown
        assert "left out: its breaker is open" in shown
        page.keyboard.press("Escape")
        assert page.locator("#detail").is_hidden()
        assert page.evaluate("document.activeElement.closest('tr').dataset.id") == (
            row.get_attribute("data-id")
        )
        assert page.locator("#rows [tabindex='0']").count() == 1


def test_details_by_mouse_say_why(browser: Any, address: str, shared: PageApp) -> None:
    def opened(page: Any, reason: str) -> str:
        fits = [
            kept.detail["decision"]["id"]
            for kept in shared.source.kept[-50:]
            if kept.detail["decision"]["reason"] == reason
        ]
        page.locator(f"#rows tr[data-id={fits[-1]}]").click()
        page.locator("#detail .mono", has_text=fits[-1]).wait_for()
        return page.locator("#detail").inner_text()

    with tab(browser, address) as page:
        whole(page)
        policy = opened(page, "policy")
        assert "The router's policy chose it on its forecast." in policy
        assert re.search(
            r"(From lam [\d.]+ down, \S+ would win|Nobody else would win at a lower)", policy
        )
        assert "The client named the target" in opened(page, "named")
        fallback = opened(page, "fallback")
        assert "the forecast took longer than its deadline" in fallback
        assert "At another lam" not in fallback
        page.get_by_role("button", name="Close").click()
        assert page.locator("#detail").is_hidden()


def test_every_call_of_a_request_that_failed_over(browser: Any) -> None:
    source = FakeSource(requests=20)
    retried = next(k.detail for k in source.kept if len(k.detail["attempts"]) > 1)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        page.locator(f"#rows tr[data-id={retried['decision']['id']}]").click()
        calls = page.get_by_role("table", name="Every call, in order")
        assert [c.replace("\xa0", " ") for c in calls.locator("tbody tr").all_inner_texts()] == [
            f"1. {retried['attempts'][0]['target']}\toverloaded\t503\t210 ms",
            f"2. {retried['attempts'][1]['target']}\tno first token in time\t{NONE}\t4.00 s",
            f"3. {retried['attempts'][2]['target']}\tanswered\t200\t2.40 s",
        ]


def test_lam_is_looked_at_then_applied_then_undone(browser: Any) -> None:
    source = FakeSource(requests=60)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        whole(page)
        apply, slider = page.get_by_role("button", name="Apply"), page.locator("#lam")
        assert slider.input_value() == "0.62"
        assert apply.is_disabled()
        slider.focus()
        for _ in range(28):
            page.keyboard.press("ArrowRight")
        assert slider.input_value() == "0.9"
        until(page, "document.querySelector('#whatif .moves') !== null")
        assert "→" in page.locator("#whatif dl").inner_text()
        assert source.lam == 0.62
        apply.click()
        dialog = page.get_by_role("dialog", name="Apply this trade-off?")
        assert "lam 0.90, in place of 0.62" in dialog.inner_text()
        dialog.get_by_role("button", name="Cancel").click()
        assert dialog.is_hidden()
        assert source.lam == 0.62
        apply.click()
        dialog.get_by_role("button", name="Apply").click()
        page.get_by_text("lam is 0.90 now.").wait_for()
        assert source.lam == 0.9
        until(page, "document.getElementById('facts').textContent.includes('lam0.90')")
        page.get_by_role("button", name="Undo").click()
        page.get_by_text("Undone: lam is 0.62 again.").wait_for()
        assert source.lam == 0.62
        assert slider.input_value() == "0.62"


def test_what_was_only_looked_at_is_left(browser: Any, address: str, shared: PageApp) -> None:
    with tab(browser, address) as page:
        whole(page).locator("#lam").fill("0.1")
        page.wait_for_selector("#whatif .moves")
        page.get_by_role("button", name="Back to what is set").click()
        assert page.locator("#lam").input_value() == "0.62"
        page.wait_for_selector("#whatif .moves", state="detached")
    assert shared.source.lam == 0.62


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
def test_every_text_can_be_read(looked: Any, scheme: str) -> None:
    looked.emulate_media(color_scheme=scheme)
    opened(looked, disclosures=True)
    looked.locator("#lam").fill("0.9")
    looked.wait_for_selector("#whatif .moves")
    found = text_contrasts(looked)
    assert len(found) > 300
    assert [(text, round(ratio, 2)) for text, ratio in found if ratio < 4.5] == []


def test_every_control_has_a_name(looked: Any) -> None:
    opened(looked, disclosures=True)
    nodes = accessible_nodes(looked)
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
    levels = looked.evaluate(
        "[...document.querySelectorAll('main :is(h2, h3), h1')].filter((h) =>"
        " h.checkVisibility()).map((h) => h.tagName)"
    )
    assert levels[0] == "H1"
    assert levels.count("H1") == 1
    loose = looked.evaluate(
        "[...document.querySelectorAll('th:not([scope]), table:not(:has(caption))')].length"
    )
    assert loose == 0


def test_tables_carry_what_charts_show(looked: Any) -> None:
    opened(looked, disclosures=False)
    for chart, rows in (("#spend", 2), ("#curve", 1), ("#drift", 1)):
        figures = looked.locator(f"{chart} figure:not([hidden])")
        assert figures.count() == rows
        for figure in figures.all():
            told = figure.locator("svg[role=img] > desc").text_content()
            assert figure.locator("svg[role=img] > title").text_content()
            summary = figure.locator("summary")
            summary.focus()
            looked.keyboard.press("Enter")
            cells = figure.locator("table :is(td.num)").all_inner_texts()
            assert cells
            for number in re.findall(r"\$\d+(?:\.\d+)?", told):
                assert number in cells
    drawn = looked.locator("#curve svg .single").count() - 1  # the legend has one too
    names = [n for n in texts(looked, "#curve tbody th") if n.startswith("all ")]
    assert drawn == len(names) == len(NAMES)


def test_open_disclosures_outlive_new_numbers(browser: Any) -> None:
    source = FakeSource(requests=30)
    with served(PageApp(source)) as url, tab(browser, url) as page:
        whole(page).locator("#spend summary").first.click()
        table = page.get_by_role("table", name="Spend beside a single target")
        before = table.inner_text()
        source.arrive()
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        until(page, "(old) => document.querySelector('#spend table').innerText !== old", arg=before)
        assert table.is_visible()


def test_targets_show_their_health(looked: Any) -> None:
    rows = looked.get_by_role("table", name=re.compile("^Targets")).locator("tbody tr")
    assert rows.count() == len(NAMES)
    down = rows.filter(has_text="heron-32b").inner_text().replace("\xa0", " ")
    for said in ("open, 10 s", "7 (58 %)", "240 ms", "$0.2", "$0.8", "32,000", "tools"):
        assert said in down
    assert "heron-32b: its breaker is open" in looked.locator("#problems").inner_text()
    assert looked.locator("#state").inner_text() == "degraded"


def test_a_route_is_tried_without_asking(browser: Any) -> None:
    app = PageApp(FakeSource(requests=5))
    with served(app) as url, tab(browser, url) as page:
        page.get_by_role("textbox", name="Prompt").fill("What is 2 + 2?")
        page.get_by_label("lam", exact=True).fill("0.25")
        page.get_by_role("button", name="Send").click()
        page.get_by_text("It would go to heron-70b.").wait_for()
        body, headers = app.asked[0]
        assert body == {
            "model": "auto",
            "messages": [{"role": "user", "content": "What is 2 + 2?"}],
        }
        assert headers["x-prefill-router-lam"] == "0.25"
        table = page.get_by_role("table", name="Every target that could answer, best first")
        assert table.locator("tbody tr").count() == 2


def ask(page: Any, prompt: str) -> None:
    page.get_by_role("textbox", name="Prompt").fill(prompt)
    choose(page, "Ask")
    page.get_by_role("button", name="Send").click()


def test_an_answer_stays_text(browser: Any) -> None:
    app = PageApp(FakeSource(requests=5))
    with served(app) as url, tab(browser, url) as page:
        ask(page, "hello")
        page.get_by_text("heron-70b has answered.").wait_for()
        assert page.get_by_role("region", name="Answer").text_content() == ANSWER
        assert page.locator("#try-answer :is(script, img, b)").count() == 0
        assert page.title() == "prefill-router"
        assert app.asked[0][0]["stream"] is True
        assert "x-prefill-router-lam" not in app.asked[0][1]
        assert "heron-70b" in page.locator("#try-answer dl").inner_text()
        page.get_by_role("button", name="Why this target").click()
        until(page, "document.activeElement.id === 'detail-title'")


def test_answers_that_fail_say_so(browser: Any) -> None:
    with served(PageApp(FakeSource(requests=5))) as url, tab(browser, url, quiet=False) as page:
        ask(page, "break")
        page.locator("#try-said", has_text="the target broke off").wait_for()
        assert page.get_by_role("region", name="Answer").text_content() == ANSWER
        ask(page, "refuse")
        page.locator("#try-said", has_text="no target fits").wait_for()
        assert page.locator("#try-send").is_enabled()


def test_an_answer_is_stopped(browser: Any) -> None:
    app = PageApp(FakeSource(requests=5))
    with served(app) as url, tab(browser, url) as page:
        ask(page, "stay")
        until(
            page,
            "(text) => document.querySelector('#try-answer .answer[role]')?.textContent === text",
            arg=ANSWER,
        )
        page.get_by_role("button", name="Stop").click()
        page.locator("#try-said", has_text="Stopped.").wait_for()
        for _ in range(PATIENCE_MS // 25):
            if app.left:
                break
            page.wait_for_timeout(25)
        assert app.left
        assert page.locator("#try-stop").is_hidden()


def test_the_page_asks_for_a_key_once(browser: Any) -> None:
    app = PageApp(FakeSource(requests=20), key=KEY)
    with served(app) as url, tab(browser, url, quiet=False) as page:
        dialog = page.get_by_role("dialog", name="Admin key")
        dialog.wait_for()
        assert app.source.calls == []
        page.get_by_label("Key", exact=True).fill("wrong")
        page.keyboard.press("Enter")
        dialog.get_by_text("this key is no admin's").wait_for()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        whole(page)
        assert dialog.is_hidden()
        assert KEY not in page.content()
        assert page.evaluate("JSON.stringify(localStorage)").count(KEY) == 0
        page.reload()
        whole(page)
        assert dialog.is_hidden()


def test_without_a_key_the_page_waits(browser: Any) -> None:
    app = PageApp(FakeSource(requests=20), key=KEY)
    with served(app) as url, tab(browser, url, quiet=False) as page:
        page.get_by_role("dialog", name="Admin key").wait_for()
        page.keyboard.press("Escape")
        page.get_by_text("The gateway asks for an admin key.").wait_for()
        page.get_by_role("button", name="Enter a key").click()
        page.get_by_label("Key", exact=True).fill(KEY)
        page.keyboard.press("Enter")
        whole(page)
        assert page.locator("#lost").is_hidden()
        assert page.locator("#pause").get_attribute("aria-pressed") == "false"


def test_a_gateway_that_is_gone_and_comes_back(browser: Any) -> None:
    app = PageApp(FakeSource(requests=20))
    with served(app) as url, tab(browser, url, quiet=False) as page:
        whole(page)
        page.context.set_offline(True)
        page.locator("#lost", has_text="The gateway doesn't answer.").wait_for()
        assert page.locator("#state").inner_text() == "no answer"
        page.context.set_offline(False)
        page.get_by_role("button", name="Try now").click()
        page.locator("#state", has_text="degraded").wait_for()
        assert page.locator("#lost").is_hidden()


def test_numbers_that_can_not_be_read_are_told_of(browser: Any) -> None:
    source = FakeSource(requests=20)
    with served(PageApp(source)) as url, tab(browser, url, quiet=False) as page:
        whole(page)
        source.broken = True
        page.locator("#lost", has_text="the receipts can't be read").wait_for()


@pytest.mark.parametrize("width", [1280, 400])
def test_nothing_runs_over_the_edge(looked: Any, width: int) -> None:
    looked.set_viewport_size({"width": width, "height": 800})
    opened(looked, disclosures=False)
    assert looked.evaluate("document.documentElement.scrollWidth") == width
    cut = looked.evaluate(
        "[...document.querySelectorAll('#rows, #detail table')].filter((t) =>"
        " t.offsetWidth > t.parentElement.clientWidth).length"
    )
    assert cut == 0
    assert looked.locator("#rows tbody tr").first.locator(".pill").is_visible()


def test_the_focus_can_be_seen(browser: Any, address: str) -> None:
    with tab(browser, address) as page:
        whole(page)
        seen = 0
        for _ in range(14):
            page.keyboard.press("Tab")
            drawn = page.evaluate(
                "(() => { const a = document.activeElement;"
                " const shown = a.closest('.switch') ?? a;"
                " return getComputedStyle(shown).outlineStyle; })()"
            )
            assert drawn != "none"
            seen += 1
        assert seen == 14


def test_every_word_of_the_gateway_is_known_to_the_page() -> None:
    source = next(f for f in read_page_files() if f.name == "words.js").body.decode()
    said = {
        name: set(re.findall(r"^  (\w+):", body, re.MULTILINE))
        for name, body in re.findall(r"export const (\w+) = \{(.*?)^\};", source, re.M | re.S)
    }
    assert said == {
        "REASONS": set(words.REASONS),
        "BECAUSE": set(words.REASONS),
        "FALLBACKS": set(words.FALLBACK_REASONS),
        "OUTCOMES": set(words.OUTCOMES),
        "ENDS": set(get_args(outcome.AttemptEnd)),
        "SCORED": set(words.SCORED),
        "STATES": set(get_args(shapes.State)),
        "BREAKERS": set(get_args(shapes.Breaker)),
    }
