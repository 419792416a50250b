"""A real browser on a real server, and how pages are judged in it."""

import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, final

import pytest
import uvicorn

CHROMIUM = "/usr/bin/chromium"
ARGUMENTS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)
PATIENCE_MS = 60_000
"""A limit for machines far slower than this one; nothing that works waits as long."""


@contextmanager
def serve_app(app: Any) -> Iterator[str]:
    """Serve an application in a thread of this process; yields its address."""
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    sockets = [config.bind_socket()]
    thread = threading.Thread(target=server.run, kwargs={"sockets": sockets})
    thread.start()
    try:
        yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@contextmanager
def chromium(folder: Path) -> Iterator[Any]:
    """A headless browser whose user data lie in a folder; the test is skipped without Chromium."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright isn't installed")
    if shutil.which(CHROMIUM) is None:
        pytest.skip(f"there is no browser at {CHROMIUM}")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[*ARGUMENTS, f"--disk-cache-dir={folder}"],
            env={"HOME": str(folder), "TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
        )
        try:
            yield browser
        finally:
            browser.close()


@final
class Watch:
    """The errors and warnings of a page, and the addresses that it requests."""

    def __init__(self, page: Any) -> None:
        self.complaints: list[str] = []
        self.urls: list[str] = []
        page.on("console", lambda message: self._record(message.type, message.text))
        page.on("pageerror", lambda error: self.complaints.append(f"error: {error}"))
        page.on("request", lambda request: self.urls.append(request.url))

    def _record(self, kind: str, text: str) -> None:
        if kind in ("error", "warning"):
            self.complaints.append(f"{kind}: {text}")

    def foreign_urls(self, base: str) -> list[str]:
        """The addresses that belong to others than the server."""
        return [url for url in self.urls if not url.startswith((base, "data:"))]


def wait_until(page: Any, condition: str, arg: Any = None) -> None:
    """Wait for a condition in JavaScript; Playwright's own wait would need the page's `eval`."""
    for _ in range(PATIENCE_MS // 25):
        if page.evaluate(condition, arg):
            return
        page.wait_for_timeout(25)
    raise AssertionError(f"the condition never held: {condition}")


SHIFTS = """window.shifted = 0;
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifted += shift.value;
}).observe({ type: 'layout-shift', buffered: true });"""
"""Runs before a page's own scripts; `window.shifted` is the sum of its layout shifts."""


CONTROLS = frozenset(
    {"button", "link", "textbox", "slider", "spinbutton", "radio", "checkbox", "combobox", "region"}
)


def accessible_nodes(page: Any) -> list[tuple[str, str]]:
    """Role and name of everything in the accessibility tree that is not hidden."""
    session = page.context.new_cdp_session(page)
    nodes = session.send("Accessibility.getFullAXTree")["nodes"]
    session.detach()
    return [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node.get("ignored")
    ]


def contrast(first: Sequence[float], second: Sequence[float]) -> float:
    """The contrast ratio of two sRGB colours, 0 to 255 (WCAG 2.2)."""
    light, dark = sorted((_luminance(first), _luminance(second)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: Sequence[float]) -> float:
    parts = (c / 255 for c in colour[:3])
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


_TEXTS = """() => {
  const texts = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim());
    const box = node.getBoundingClientRect();
    const style = getComputedStyle(node);
    if (!own || box.width < 2 || box.height < 2 || style.visibility !== 'visible') continue;
    if (node.closest('title, desc, script, :disabled, .unseen')) continue;
    let behind = node;
    let back = 'rgba(0, 0, 0, 0)';
    while (behind && back === 'rgba(0, 0, 0, 0)') {
      back = getComputedStyle(behind).backgroundColor;
      behind = behind.parentElement;
    }
    const svg = node instanceof SVGElement;
    texts.push([node.textContent.trim().slice(0, 40), svg ? style.fill : style.color, back]);
  }
  return texts;
}"""


def text_contrasts(page: Any) -> list[tuple[str, float]]:
    """The contrast of every visible text with its background."""
    return [
        (text, contrast(_colour(ink), _colour(back))) for text, ink, back in page.evaluate(_TEXTS)
    ]


def _colour(css: str) -> list[float]:
    match = re.fullmatch(r"rgba?\(([\d., ]+)\)", css)
    if match is None:
        raise ValueError(f"{css!r} is no colour: write rgb(r, g, b) or rgba(r, g, b, a)")
    return [float(part) for part in match[1].split(",")][:3]
