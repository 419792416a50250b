"""Pages of the site that Sphinx doesn't make of our Markdown by itself.

The pages are plain Markdown, so that a forge shows them, too. Each is read into what Sphinx takes:

- A list item that begins with a link to a page, `1. [title](page.md)`, makes that page the next one
  below this page in the navigation; its caption is the heading above. Links in sentences don't.
- A page that is nothing but a link to a Markdown file outside this folder shows that file, and
  links to the file lead to the page. The first page shows the README.
- A notebook's cells are Markdown, code and the outputs that are stored with it. Nothing is run.
- A page with `<!-- settings_tables.py -->` has the tables of that file there, made as it is read.
- In a docstring, an indented block after a paragraph is text as it stands.
"""

import json
import os
import re
from collections.abc import Iterable, Iterator
from html import escape
from importlib import import_module
from pathlib import Path
from typing import Any

from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")
CODE = re.compile(r"(^```.*?^```|`[^`\n]+`)", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^(?:\d+\.|-) \[([^]]+)\]\(([^)\s#:]+\.(?:md|ipynb|rst))\)", re.MULTILINE)
ALONE = re.compile(r"\[[^]]+\]\(([^)\s#:]+\.md)\)\n")
ANNOTATION = re.compile(r"(?:~?typing\.)?Annotated\[")
CALL_DEFAULT = re.compile(r"= [A-Z]\w*\(")
TWICE = re.compile(r"~[\w.]+\.(?=~)")
PRIVATE = re.compile(r", _\w+: [^=]*= \.\.\.")
UNWRITTEN = re.compile(r"<(?:[^<>]|<\w+>)+>")
TABLES = "<!-- settings_tables.py -->"
SECTION = re.compile(r"\w[\w ]*:$")


def map_included_files(docs: Path) -> dict[Path, Path]:
    """The Markdown files outside the folder that a page of it shows, each with that page."""
    pages = {page: ALONE.fullmatch(page.read_text(encoding="utf-8")) for page in docs.rglob("*.md")}
    return {(page.parent / match[1]).resolve(): page for page, match in pages.items() if match}


def relink_text(text: str, source: Path, page: Path, elsewhere: dict[Path, Path]) -> str:
    """A file's text as a page of the site: its links lead from the page to where they led."""

    def relink(match: re.Match[str]) -> str:
        target = (source.parent / match[2]).resolve()
        place = os.path.relpath(elsewhere.get(target, target), page.parent)
        return f"{match[1]}{place}{match[3]}"

    parts = CODE.split(text)
    return "".join(part if n % 2 else LINK.sub(relink, part) for n, part in enumerate(parts))


def markdown(page: Path, docs: Path) -> str:
    """A page's Markdown: its own, or that of the file that it shows."""
    text, elsewhere = page.read_text(encoding="utf-8"), map_included_files(docs)
    match = ALONE.fullmatch(text)
    if match is None:
        return relink_text(text, page, page, elsewhere)
    origin = (page.parent / match[1]).resolve()
    return relink_text(origin.read_text(encoding="utf-8"), origin, page, elsewhere)


def sections(text: str) -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """The headings of a page, each with the links, text and page, that list items begin with."""
    for part in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        title, _, body = part.partition("\n")
        if links := ITEM.findall(body):
            yield title, links


def add_navigation(text: str, page: Path, elsewhere: dict[Path, Path]) -> str:
    """A page's text and, hidden, the tree of the pages below it.

    They are called by their titles there, and those from elsewhere as they are in the link.
    """

    def entry(title: str, link: str) -> str:
        return f"{title} <{link}>" if page.parent / link in elsewhere.values() else link

    trees = (
        [
            "```{toctree}",
            ":hidden:",
            f":caption: {title}",
            "",
            *(entry(*e) for e in each),
            "```",
            "",
        ]
        for title, each in sections(text)
    )
    return "\n".join([text, "", *(line for tree in trees for line in tree)])


def _output(output: dict[str, Any]) -> Iterable[str]:
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        label = escape("".join(data["text/plain"]), quote=True)
        encoded = "".join(data["image/png"]).replace("\n", "")
        html = f'<img alt="{label}" src="data:image/png;base64,{encoded}">'
    elif "text/html" in data:
        html = "".join(data["text/html"])
    else:
        return ("```text", "".join(data["text/plain"]).rstrip("\n"), "```")
    return ("```{raw} html", f'<div class="notebook-output">{html}</div>', "```")


def notebook_markdown(text: str) -> str:
    """A notebook as Markdown, with its stored outputs."""
    lines: list[str] = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            lines += [source, ""]
            continue
        lines += ["```python", source, "```", ""]
        for output in cell["outputs"]:
            lines += [*_output(output), ""]
    return "\n".join(lines)


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Turn a page's text into what Sphinx takes."""
    page = Path(app.env.doc2path(name))
    if page.suffix == ".rst":
        return
    docs = Path(app.srcdir)
    elsewhere = map_included_files(docs)
    if page.suffix == ".ipynb":
        text = relink_text(notebook_markdown(source[0]), page, page, elsewhere)
    else:
        text = markdown(page, docs)
        for origin in (origin for origin, shown in elsewhere.items() if shown == page):
            app.env.note_dependency(str(origin))
    if TABLES in text:
        text = text.replace(TABLES, import_module("settings_tables").render_tables())
    first = page.stem == app.config.root_doc or page not in elsewhere.values()
    source[0] = add_navigation(text, page, elsewhere) if first else text


def keep_blocks(
    _app: Sphinx, _what: str, _name: str, _of: Any, _how: Any, lines: list[str]
) -> None:
    """Mark the indented blocks of a docstring, formulas and examples, as text as it stands."""
    new_lines: list[str] = []
    paragraph = ""
    for line in lines:
        begins = line.startswith("    ") and new_lines[-1:] == [""]
        if begins and paragraph and not paragraph.startswith(" ") and not SECTION.match(paragraph):
            new_lines += ["::", ""]
        new_lines.append(line)
        paragraph = line or paragraph
    lines[:] = new_lines


def find_end(text: str, start: int) -> int:
    """The place after the bracket that closes the one before a place."""
    depth, place = 1, start
    while depth:
        depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(text[place], 0)
        place += 1
    return place


def remove_checks(signature: str) -> str:
    """A signature in which `Annotated[T, ...]` is T."""
    while match := ANNOTATION.search(signature):
        end = find_end(signature, match.end())
        first = match.end()
        while signature[first] != ",":
            first = find_end(signature, first + 1) if signature[first] in "[(" else first + 1
        annotated = signature[match.end() : first]
        signature = f"{signature[: match.start()]}{annotated}{signature[end:]}"
    return signature


def remove_contents(signature: str) -> str:
    """A signature in which a default `Name(...)` has no contents."""
    place = 0
    while match := CALL_DEFAULT.search(signature, place):
        place = match.end()
        signature = signature[:place] + signature[find_end(signature, place) - 1 :]
    return signature


def shorten(
    _app: Sphinx, _what: str, _name: str, _of: Any, _how: Any, signature: str | None, returns: str
) -> tuple[str | None, str]:
    """Leave out of a signature what no caller needs.

    That is private parameters, the checks beside a type, the contents of defaults, and defaults
    without a text of their own, such as a factory's, of which an ellipsis remains.
    """
    if signature is None:
        return None, returns
    written = UNWRITTEN.sub("...", remove_contents(remove_checks(signature)))
    return PRIVATE.sub("", TWICE.sub("", written)), returns


def setup(app: Sphinx) -> dict[str, Any]:
    """Take part in the build."""
    app.add_lexer("csv", TextLexer)
    app.connect("source-read", read_page)
    app.connect("autodoc-process-signature", shorten)
    app.connect("autodoc-process-docstring", keep_blocks, priority=100)
    return {"parallel_read_safe": True}
