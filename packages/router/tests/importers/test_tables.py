"""Tables in the separators, encodings and spreadsheets that people have."""

import gzip
import json
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from prefill_router.errors import FormatError, MissingExtraError
from prefill_router.importers import Columns, guess_source, import_dataset
from prefill_router.quickstart import read_table

ROWS = [
    ["question", "model", "score", "cost"],
    ["Why, and how; or not?", "small", "0", "0.25"],
    ["Why, and how; or not?", "large", "1", "0.5"],
    ["Who wrote it?", "small", "1", "0.25"],
    ["Who wrote it?", "large", "0.5", "0.5"],
]


def text_of(separator: str, rows: Sequence[Sequence[str]] = ROWS) -> str:
    """The table, with each cell in quotes."""
    lines = [separator.join(f'"{cell}"' for cell in row) for row in rows]
    return "".join(f"{line}\n" for line in lines)


def check(path: Path) -> None:
    dataset = read_table(path)
    assert dataset.pool.names == ("small", "large")
    assert dataset.correct.tolist() == [[0, 1], [1, 0.5]]
    assert dataset.recorded_cost.tolist() == [[0.25, 0.5], [0.25, 0.5]]
    assert dataset.queries[0].prompt == "Why, and how; or not?"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
@pytest.mark.parametrize(("name", "separator"), [("t.csv", ";"), ("t.tsv", "\t"), ("t.csv", ",")])
def test_separators_and_encodings(name: str, separator: str, encoding: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(text_of(separator).encode(encoding))
    check(path)


def test_where_semicolons_separate_a_comma_is_a_decimal_point(tmp_path: Path) -> None:
    rows = [[cell.replace(".", ",") for cell in row] for row in ROWS]
    (tmp_path / "t.csv").write_text(text_of(";", rows))
    check(tmp_path / "t.csv")


@pytest.mark.parametrize("wrapped", [list, lambda rows: {"rows": rows, "count": 4}])
def test_a_list_in_json_is_a_table(
    wrapped: Callable[[list[dict[str, str]]], object], tmp_path: Path
) -> None:
    rows = [dict(zip(ROWS[0], row, strict=True)) for row in ROWS[1:]]
    (tmp_path / "t.json").write_text(json.dumps(wrapped(rows)))
    check(tmp_path / "t.json")


def test_a_gzip_is_unpacked_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.gz"
    packed = gzip.compress(text_of(",").encode())
    path.write_bytes(packed)
    check(path)
    path.write_bytes(packed[:-12])
    columns = Columns(prompt="question", correct="score")
    for strict in (False, True):
        with pytest.raises(FormatError, match="isn't a complete gzip"):
            import_dataset("long", [path], columns=columns, strict=strict)


def write_xlsx(path: Path) -> Path:
    """The smallest workbook: one sheet, with texts in its cells and numbers as numbers."""
    cells = "".join(f"<row>{''.join(map(xlsx_cell, row))}</row>" for row in ROWS)
    main = 'xmlns="http://schemas.openxmlformats.org/spreadsheetml/2006/main"'
    office = "http://schemas.openxmlformats.org/officeDocument/2006/relationships"
    package = "http://schemas.openxmlformats.org/package/2006"
    kinds = "application/vnd.openxmlformats-officedocument.spreadsheetml"
    parts = {
        "[Content_Types].xml": f'<Types xmlns="{package}/content-types"><Default Extension="xml" '
        f'ContentType="{kinds}.sheet.main+xml"/><Default Extension="rels" ContentType='
        '"application/vnd.openxmlformats-package.relationships+xml"/></Types>',
        "_rels/.rels": f'<Relationships xmlns="{package}/relationships"><Relationship Id="a" '
        f'Type="{office}/officeDocument" Target="xl/workbook.xml"/></Relationships>',
        "xl/_rels/workbook.xml.rels": f'<Relationships xmlns="{package}/relationships">'
        f'<Relationship Id="b" Type="{office}/worksheet" Target="worksheets/sheet1.xml"/>'
        "</Relationships>",
        "xl/workbook.xml": f'<workbook {main} xmlns:r="{office}"><sheets><sheet name="one" '
        'sheetId="1" r:id="b"/></sheets></workbook>',
        "xl/worksheets/sheet1.xml": f"<worksheet {main}><sheetData>{cells}</sheetData></worksheet>",
    }
    return write_zip(path, parts)


def xlsx_cell(cell: str) -> str:
    if cell.replace(".", "").isdecimal():
        return f"<c><v>{cell}</v></c>"
    return f'<c t="inlineStr"><is><t>{cell}</t></is></c>'


def write_ods(path: Path) -> Path:
    rows = "".join(
        f"<table:table-row>{''.join(map(ods_cell, row))}</table:table-row>" for row in ROWS
    )
    names = "urn:oasis:names:tc:opendocument:xmlns"
    spaces = " ".join(f'xmlns:{name}="{names}:{name}:1.0"' for name in ("office", "table", "text"))
    content = (
        f'<?xml version="1.0"?><office:document-content {spaces}><office:body>'
        f'<office:spreadsheet><table:table table:name="one">{rows}</table:table>'
        "</office:spreadsheet></office:body></office:document-content>"
    )
    kind = "application/vnd.oasis.opendocument.spreadsheet"
    manifest = f'<m:manifest xmlns:m="{names}:manifest:1.0"/>'
    parts = {"mimetype": kind, "META-INF/manifest.xml": manifest, "content.xml": content}
    return write_zip(path, parts)


def ods_cell(cell: str) -> str:
    if cell.replace(".", "").isdecimal():
        return f'<table:table-cell office:value-type="float" office:value="{cell}"/>'
    text = f"<text:p>{cell}</text:p>"
    return f'<table:table-cell office:value-type="string">{text}</table:table-cell>'


def write_zip(path: Path, parts: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in parts.items():
            archive.writestr(name, text)
    return path


@pytest.mark.parametrize(("name", "write"), [("t.xlsx", write_xlsx), ("t.ods", write_ods)])
def test_spreadsheets(name: str, write: object, tmp_path: Path) -> None:
    pytest.importorskip("fastexcel")
    check(write(tmp_path / name))  # type: ignore[operator]
    (tmp_path / name).write_bytes(b"no zip")
    with pytest.raises(FormatError, match="isn't a readable spreadsheet"):
        guess_source([tmp_path / name])


def test_a_missing_reader_of_spreadsheets_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "fastexcel", None)
    with pytest.raises(MissingExtraError, match=r"prefill-router\[sheets\]"):
        read_table(write_xlsx(tmp_path / "t.xlsx"))
