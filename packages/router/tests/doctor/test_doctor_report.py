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
def report_folder(checkup: Checkup, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("doctor") / "out"
    write_checkup(checkup, folder, title="A <b> & c", facts={"router": "r<1>"})
    return folder


def test_the_folder_holds_everything(checkup: Checkup, report_folder: Path) -> None:
    numbers = json.loads((report_folder / "doctor.json").read_text())
    assert numbers["verdict"] == checkup.verdict
    assert list(numbers["checks"]) == [
        *("shuffled", "mix", "price", "domains", "lift", "switching", "calibration"),
        *("distance", "nonsense"),
    ]
    for name in FIGURES:
        stem = report_folder / "figures" / name
        assert stem.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in stem.with_suffix(".svg").read_text()
        rows = stem.with_suffix(".csv").read_text().splitlines()
        assert len(list(csv.DictReader(rows))) > 1
    page = (report_folder / "index.html").read_text()
    assert "A &lt;b&gt; &amp; c" in page
    assert "r&lt;1&gt;" in page
    assert "a &lt;note&gt;" in page
    assert page.count("<svg") == len(FIGURES)
    assert all(finding.title in page for finding in checkup.findings)


def test_the_page_needs_no_network(report_folder: Path) -> None:
    page = (report_folder / "index.html").read_text()

    class Links(HTMLParser):
        urls: list[str] = []  # noqa: RUF012

        def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
            self.urls += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href")]

    Links().feed(page)
    assert [link for link in Links.urls if not link.startswith("#")] == []
    assert not re.search(r"url\((?!#)|@import", page)


def test_an_earlier_checkup_is_replaced_and_nothing_else(
    checkup: Checkup, report_folder: Path, tmp_path: Path
) -> None:
    write_checkup(checkup, report_folder, title="Second")
    assert "Second" in (report_folder / "index.html").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    with pytest.raises(DataError, match="isn't a check-up"):
        write_checkup(checkup, tmp_path / "mine")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["file"]


@pytest.mark.parametrize(
    "labels", ["one target in turn", "the chosen target", "all but one", "one query"]
)
def test_labels_that_leave_little_to_compare_are_a_finding_and_no_error(
    labels: str, tmp_path: Path
) -> None:
    healthy = patient("knows", queries=60, trained=60)
    is_labelled = np.zeros(healthy.trial.correct.shape, dtype=bool)
    if labels == "one target in turn":
        is_labelled[np.arange(60), np.arange(60) % 3] = True
    elif labels == "the chosen target":
        is_labelled[np.arange(60), healthy.choice] = True
    elif labels == "all but one":
        is_labelled[:, :2] = True
    else:
        is_labelled[0] = True
    train = dataclasses.replace(
        healthy.train, correct=np.where(is_labelled, healthy.train.correct, np.nan)
    )
    trial = dataclasses.replace(
        healthy.trial, correct=np.where(is_labelled, healthy.trial.correct, np.nan)
    )
    subject = with_parts(dataclasses.replace(healthy, trial=trial, train=train))
    checkup = examine(subject, resamples=20, shuffles=20)
    write_checkup(checkup, tmp_path / "out")
    assert checkup.verdict in ("can't tell", "not worth it")
    control = checkup.findings[0]
    assert (control.name, control.sign) == ("shuffled", "unclear")
    assert (checkup.shuffled is None) == (labels != "one query")
    if checkup.shuffled is None:
        assert "can't be shuffled" in control.result
    has_figure = (tmp_path / "out" / "figures" / "shuffled.svg").exists()
    assert has_figure == (checkup.shuffled is not None)
