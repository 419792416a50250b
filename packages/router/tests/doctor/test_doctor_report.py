"""A check-up on disk: complete, offline, and written whole or not at all."""

import csv
import dataclasses
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from packages.router.tests.doctor.patients import patient, with_parts
from prefill_router.doctor import Checkup, examine
from prefill_router.doctor.confidence import probe
from prefill_router.doctor.report import write_checkup
from prefill_router.errors import DataError

pytestmark = pytest.mark.slow

FIGURES = ("plane", "shuffled", "lift", "confidence")


@pytest.fixture(scope="module")
def checkup() -> Checkup:
    subject = patient("knows", queries=300)
    return examine(
        subject,
        distances=np.arange(300, dtype=np.float64),
        probe=probe(lambda prompts: np.full(len(prompts), 0.5)),
        resamples=50,
        shuffles=50,
        notes=("a <note>",),
    )


@pytest.fixture(scope="module")
def written(checkup: Checkup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "out"
    write_checkup(checkup, folder, title="A <b> & c", facts={"router": "r<1>"})
    return folder


def test_the_folder_holds_everything(checkup: Checkup, written: Path) -> None:
    numbers = json.loads((written / "doctor.json").read_text())
    assert numbers["verdict"] == checkup.verdict
    assert list(numbers["checks"]) == [
        *("shuffled", "mix", "price", "domains", "lift", "switching", "calibration"),
        *("distance", "nonsense"),
    ]
    for name in FIGURES:
        stem = written / "figures" / name
        assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in stem.with_suffix(".svg").read_text()
        rows = stem.with_suffix(".csv").read_text().splitlines()
        assert len(list(csv.DictReader(rows))) > 1
    page = (written / "index.html").read_text()
    assert "A &lt;b&gt; &amp; c" in page
    assert "r&lt;1&gt;" in page
    assert "a &lt;note&gt;" in page
    assert page.count("<svg") == len(FIGURES)
    assert all(found.title in page for found in checkup.findings)


def test_the_page_needs_no_network(written: Path) -> None:
    page = (written / "index.html").read_text()

    class Links(HTMLParser):
        found: list[str] = []  # noqa: RUF012

        def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.found += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    Links().feed(page)
    assert [link for link in Links.found if not link.startswith("#")] == []
    assert not re.search(r"url\((?!#)|@import", page)


def test_an_earlier_checkup_is_replaced_and_nothing_else(
    checkup: Checkup, written: Path, tmp_path: Path
) -> None:
    write_checkup(checkup, written, title="Second")
    assert "Second" in (written / "index.html").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(DataError, match="isn't a check-up"):
        write_checkup(checkup, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "kept", ["one target in turn", "the chosen target", "all but one", "one query"]
)
def test_labels_that_leave_little_to_compare_are_a_finding_and_no_error(
    kept: str, tmp_path: Path
) -> None:
    whole = patient("knows", queries=60, trained=60)
    known = np.zeros(whole.trial.correct.shape, dtype=bool)
    if kept == "one target in turn":
        known[np.arange(60), np.arange(60) % 3] = True
    elif kept == "the chosen target":
        known[np.arange(60), whole.choice] = True
    elif kept == "all but one":
        known[:, :2] = True
    else:
        known[0] = True
    train = dataclasses.replace(whole.train, correct=np.where(known, whole.train.correct, np.nan))
    trial = dataclasses.replace(whole.trial, correct=np.where(known, whole.trial.correct, np.nan))
    subject = with_parts(dataclasses.replace(whole, trial=trial, train=train))
    found = examine(subject, resamples=20, shuffles=20)
    write_checkup(found, tmp_path / "out")
    assert found.verdict in ("can't tell", "not worth it")
    control = found.findings[0]
    assert (control.name, control.sign) == ("shuffled", "unclear")
    assert (found.shuffled is None) == (kept != "one query")
    if found.shuffled is None:
        assert "can't be shuffled" in control.result
    drawn = (tmp_path / "out" / "figures" / "shuffled.svg").exists()
    assert drawn == (found.shuffled is not None)
