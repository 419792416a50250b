"""The site is whole: navigation, links and pictures; and it is read without a network."""

import csv
import inspect
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from html import escape
from html.parser import HTMLParser
from importlib import import_module, util
from pathlib import Path
from types import FunctionType, ModuleType

import pytest
from docutils.core import publish_doctree
from docutils.nodes import system_message
from sphinx.ext.napoleon import Config, GoogleDocstring

import prefill_router
from benchmarks import pictures
from packages.gateway.tests.browser import chromium
from prefill_router import Router

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), ROOT / "deploy" / "README.md", *DOCS.rglob("*.md")]
NAPOLEON = Config(napoleon_custom_sections=[("Attributes", "params_style")])
CALLED = (FunctionType, classmethod, staticmethod, property)
IMAGE = re.compile(r"!\[([^]]*)\]\(([^)]+)\)")


def load_module(name: str) -> ModuleType:
    spec = util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


site_pages = load_module("site_pages")


def below(page: Path) -> list[Path]:
    """The pages below a page in the navigation, in order."""
    if page.suffix != ".md":
        return []
    shows_another = page in site_pages.map_included_files(DOCS).values()
    if shows_another and page.stem != "index":
        return []
    found = site_pages.sections(site_pages.markdown(page, DOCS))
    return [(page.parent / link).resolve() for _, each in found for _, link in each]


def navigation(page: Path) -> Iterator[Path]:
    """All pages below a page, each as often as it is listed."""
    for child in below(page):
        yield child
        yield from navigation(child)


@pytest.mark.slow
def test_every_page_is_in_the_navigation_once() -> None:
    counts = Counter(navigation(DOCS / "index.md"))
    there = {*DOCS.rglob("*.md"), *DOCS.rglob("*.ipynb")} - {DOCS / "index.md"}
    assert {page: counts[page] for page in there} == dict.fromkeys(there, 1)
    assert {page for page in counts if page not in there} == {DOCS / "api" / "index.rst"}


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    elsewhere = {shown: file for file, shown in site_pages.map_included_files(DOCS).items()}
    text = site_pages.CODE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        place, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / place).resolve() if place else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(elsewhere.get(target, target)), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pictures_are_told_in_words(page: Path) -> None:
    found = IMAGE.findall(page.read_text(encoding="utf-8"))
    assert [image for words, image in found if len(words.split()) < 4] == []


def test_the_reference_has_what_is_imported_from_the_package() -> None:
    text = (DOCS / "api" / "index.rst").read_text(encoding="utf-8")
    summaries = re.findall(r"^   ~(prefill_router[\w.]*)\.(\w+)$", text, re.M)
    assert sorted(name for _, name in summaries) == prefill_router.__all__
    for package, name in summaries:
        assert getattr(import_module(package), name) is getattr(prefill_router, name)
        pages = [page.read_text(encoding="utf-8") for page in (DOCS / "api").glob("*.rst")]
        assert any(f".. automodule:: {package}\n" in page for page in pages), package


@pytest.mark.slow
def test_every_setting_and_option_has_its_type_and_a_sentence() -> None:
    text = load_module("settings_tables").render_tables()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| `")]
    assert [row for row in rows if not row[1] or len(row[-1].split()) < 2] == []
    parts = {part.partition("\n")[0]: part for part in text.split("### ")}

    assert "`keep` | number | `1.0` | from 0 to 1 |" in parts["routing.latency"]
    assert "`--lam` | list: number | none | from 0 to 1 |" in parts["prefill-router replay"]
    assert "`kernel` | `uniform` or `inverse`" in parts["knn_score"]
    assert "`keep_days` | whole number | `30` | from 1 to 36500 |" in parts["learning"]


@pytest.mark.parametrize("name", ["flow", "request"])
def test_pictures_say_what_their_script_says(name: str) -> None:
    picture = (DOCS / "images" / f"{name}.svg").read_text(encoding="utf-8")
    boxes = [words for row in pictures.FLOW for words in row]
    steps = [(step.text, step.otherwise) for step in pictures.STEPS]
    words = {"flow": boxes, "request": [*steps, tuple(pictures.LANES)]}[name]
    lines = [line for pair in words for text in pair for line in text.splitlines()]
    assert [line for line in lines if f">{escape(line, quote=False)}<" not in picture] == []


@pytest.mark.slow
def test_the_picture_of_lam_is_a_decision_of_the_shipped_router() -> None:
    with (DOCS / "images" / "lam.csv").open(encoding="utf-8") as file:
        stored = list(csv.DictReader(file))
    rows = pictures.decision_rows(Router.from_pretrained("minipool"))
    assert [row["target"] for row in stored] == [row["target"] for row in rows]
    for old, new in zip(stored, rows, strict=True):
        for name in set(new) - {"target"}:
            assert (old[name] == "") == (new[name] is None), name
            # Processors round bfloat16 differently, by up to 2 % of a probability.
            assert new[name] is None or float(old[name]) == pytest.approx(new[name], rel=0.03)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site with an outline of the reference; a warning is an error."""
    folder = tmp_path_factory.mktemp("site")
    program = (sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--tag", "outline")
    places = ("--doctree-dir", folder / "doctrees", DOCS, folder / "html")
    done = subprocess.run([*program, *places], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "html"


class Loads(HTMLParser):
    """What a page loads, as opposed to what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loads = {"link": ("href",), "a": ()}.get(tag, ("src", "srcset", "data", "poster"))
        self.addresses += [value or "" for name, value in attrs if name in loads]


def list_loads(page: str) -> list[str]:
    parser = Loads()
    parser.feed(page)
    return parser.addresses


def elsewhere(addresses: list[str]) -> list[str]:
    return [address for address in addresses if re.match(r"\s*(https?:)?//", address)]


def test_what_is_loaded_from_elsewhere_is_found() -> None:
    page = '<a href="https://a"><link href="https://b"><script src="//c"></script><img src="d">'
    assert elsewhere(list_loads(page)) == ["https://b", "//c"]


@pytest.mark.slow
def test_no_page_loads_anything_from_elsewhere(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(PAGES)
    for page in pages:
        assert elsewhere(list_loads(page.read_text(encoding="utf-8"))) == [], page
    for sheet in site.rglob("*.css"):
        text = sheet.read_text(encoding="utf-8")
        found = re.findall(r"url\(\s*[\"']?([^)\"']+)|@import\s+[\"']([^\"']+)", text)
        assert elsewhere([address for pair in found for address in pair]) == [], sheet


@pytest.mark.slow
def test_it_is_read_and_searched_from_the_folder(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    addresses: list[str] = []
    with chromium(tmp_path_factory.mktemp("home")) as browser:
        page = browser.new_page()
        page.on("request", lambda request: addresses.append(request.url))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto((site / "index.html").as_uri())
        page.get_by_role("link", name="In production").first.click()
        assert page.locator("header li.current").first.inner_text() == "In production"
        page.goto((site / "search.html").as_uri() + "?q=guaranteed")
        page.get_by_role("link", name="A guaranteed setting").first.click()
        page.wait_for_url("**/guides/guarantee.html*")
    assert errors == []
    assert addresses
    assert {address.split(":")[0] for address in addresses} <= {"file", "data"}


@pytest.mark.slow
def test_no_page_scrolls_sideways_on_a_phone(
    site: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    wide = {}
    with chromium(tmp_path_factory.mktemp("phone")) as browser:
        page = browser.new_page(viewport={"width": 400, "height": 800})
        for file in site.rglob("*.html"):
            page.goto(file.as_uri())
            overflows = page.evaluate(
                "[document.documentElement, ...document.querySelectorAll('.bd-article-container')]"
                ".map((e) => e.scrollWidth - e.clientWidth)"
            )
            if max(overflows) > 0:
                wide[str(file.relative_to(site))] = overflows
    assert wide == {}


@pytest.mark.parametrize(
    ("signature", "shown"),
    [
        ("(a: ~typing.Annotated[list[int], Gt(gt=0)] = 1, b: int)", "(a: list[int] = 1, b: int)"),
        ("(a: Annotated[int, F(f=[1, 2])] | None)", "(a: int | None)"),
        (
            "(a: Limits = Limits(least=(1, 2)), b: str = 'x')",
            "(a: Limits = Limits(), b: str = 'x')",
        ),
        ("(a: int = <factory>, b: F = <function A.<lambda>>)", "(a: int = ..., b: F = ...)"),
        ("(a: int, _b: dict[A, B] = <factory>)", "(a: int)"),
        ("(a: ~collections.abc.~collections.abc.Mapping)", "(a: ~collections.abc.Mapping)"),
    ],
)
def test_signatures_show_what_a_caller_needs(signature: str, shown: str) -> None:
    assert site_pages.shorten(None, "", "", None, None, signature, "")[0] == shown


def list_described() -> Iterator[tuple[str, object]]:
    """What the reference describes: the packages' public names, and what their classes define."""
    for page in (DOCS / "api").glob("*.rst"):
        for place in re.findall(r"automodule:: (\S+)", page.read_text(encoding="utf-8")):
            module = import_module(place)
            public = getattr(module, "__all__", [n for n in vars(module) if not n.startswith("_")])
            for name in public:
                value = getattr(module, name)
                if inspect.isclass(value) or inspect.isfunction(value):
                    yield f"{place}.{name}", value
                members = vars(value) if inspect.isclass(value) else {}
                for member, defined in members.items():
                    if member[0] != "_" and isinstance(defined, CALLED):
                        yield f"{place}.{name}.{member}", defined


def problems(docstring: str) -> list[str]:
    """What Sphinx would warn of in a docstring."""
    lines = inspect.cleandoc(docstring).splitlines()
    site_pages.keep_blocks(None, "", "", None, None, lines)
    text = f".. default-role:: code\n\n{GoogleDocstring(lines, NAPOLEON)}"
    quiet = {"report_level": 5, "_disable_config": True}
    read = publish_doctree(text, settings_overrides=quiet)
    return [message.astext() for message in read.findall(system_message) if message["level"] >= 2]


def test_a_docstring_that_would_stop_the_build_is_found() -> None:
    assert problems("Opens *one thing, and never closes it.") != []
    assert problems("A formula:\n\n    s[k] = a * b\n\nAnd `more` of it.\n\nArgs:\n    a: *") == []


@pytest.mark.slow
def test_docstrings_can_be_read_by_sphinx() -> None:
    texts = {
        name: value.__doc__
        for name, value in list_described()
        if (getattr(value, "__module__", None) or "prefill_router").startswith("prefill_router")
        and value.__doc__
        and ("\n" in value.__doc__ or set(value.__doc__) & set("*|_"))
    }
    assert len(texts) > 300
    assert {name: found for name, text in texts.items() if (found := problems(text))} == {}
