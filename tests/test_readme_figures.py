"""The figures of the README and of what is proven are those that commands wrote."""

import json
import re
from pathlib import Path

import pytest

from benchmarks import headline, peers, readme

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROVEN = (ROOT / "docs" / "proven.md").read_text(encoding="utf-8")
RESULT = json.loads(readme.RESULT.read_text(encoding="utf-8"))


def block(name: str) -> str:
    found = re.search(rf"<!-- readme: {name} -->\n```\n(.*?)\n```", PROVEN, flags=re.DOTALL)
    assert found is not None, name
    return found[1]


def paragraph(name: str) -> str:
    found = re.search(rf"<!-- readme: {name} -->\n(.+?)\n\n", PROVEN, flags=re.DOTALL)
    assert found is not None, name
    return " ".join(found[1].split())


def points(value: float) -> str:
    return f"{100 * value:+.1f}"


def test_the_tables_of_peers_are_what_was_written() -> None:
    held = json.loads(peers.RESULT.read_text())
    assert peers.tabulate(held) in PROVEN
    assert peers.tabulate(held, ("routerbench", "mmlu_pro")) in README


def test_the_first_table_is_what_was_written() -> None:
    assert block("headline") == readme.headline_block(RESULT)


def test_the_table_of_routers_is_what_was_written() -> None:
    assert block("comparison") == readme.comparison_block(RESULT)


def test_the_table_of_benchmarks_is_what_was_written() -> None:
    kept = json.loads(headline.RESULT.read_text(encoding="utf-8"))
    assert block("benchmarks") == headline.readme_block(kept)


@pytest.mark.parametrize("reference", ["best_mix", "best_by_domain"])
def test_the_verdict_in_words_has_its_figures(reference: str) -> None:
    gain = RESULT["verdict"]["figures"][reference]["gain"]
    assert all(points(gain[end]) in paragraph("verdict") for end in ("value", "lower", "upper"))


def test_what_is_said_of_embeddings_has_its_figures() -> None:
    against = RESULT["differences"]["paper, embeddings"]
    words = paragraph("differences")
    for name in ("auc_mean", "choice_auc"):
        value, high, low = (-against[name][end] for end in ("value", "lower", "upper"))
        assert f"{value:+.3f} [{low:+.3f}, {high:+.3f}]" in words, name


def test_how_many_questions_are_compared_is_told() -> None:
    words = paragraph("counts")
    assert all(f"{RESULT[count]:,}" in words for count in ("queries", "compared"))
