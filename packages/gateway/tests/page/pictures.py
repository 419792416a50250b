"""Draws the guide's pictures of the page.

Run as `python -m packages.gateway.tests.page.pictures docs/images`.
"""

import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from packages.gateway.tests.browser import chromium, serve_app
from packages.gateway.tests.page.app import PageApp
from packages.gateway.tests.page.source import FakeSource


def draw(folder: Path) -> None:
    """Draw the page of made-up traffic as `gateway-light.png` and `gateway-dark.png`."""
    app = PageApp(FakeSource())
    with (
        serve_app(app) as url,
        tempfile.TemporaryDirectory() as scratch,
        chromium(Path(scratch)) as browser,
    ):
        for theme in ("light", "dark"):
            page = browser.new_page(
                viewport={"width": 1280, "height": 1566},
                color_scheme=theme,
                reduced_motion="reduce",
            )
            page.goto(url)
            page.locator("#rows tbody tr").nth(3).click()
            page.wait_for_selector("#detail:not([hidden])")
            page.locator("#lam").fill("0.8")
            page.wait_for_selector("#whatif .moves")
            page.evaluate("scrollTo(0, 0)")
            screenshot = Image.open(io.BytesIO(page.screenshot()))
            small = screenshot.convert("RGB").quantize(
                256, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
            )
            small.save(folder / f"gateway-{theme}.png", optimize=True)
            page.close()


if __name__ == "__main__":
    draw(Path(sys.argv[1]))
