"""Text complexity as a family: any text, bounds of the train rows, and the contract."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from packages.router.tests.fakes.planted_signal import permute_rows
from packages.router.tests.features.family_contract import check_family
from prefill_router.data import Message, Query, RoutingDataset, read_dataset
from prefill_router.errors import CorruptError, FitError
from prefill_router.features import PromptStates
from prefill_router.features.base import FAMILIES, load_family
from prefill_router.features.complexity import COLUMNS, Complexity, ComplexityConfig, measure
from prefill_router.testing import make_routing_dataset

pytestmark = pytest.mark.slow

LONG = 20_000
ODD = {
    "empty": "",
    "spaces": " \t\r\n",
    "one word": "Why",
    "one letter": "a" * LONG,
    "dots": "." * LONG + "a",
    "lines": "\n" * LONG,
    "spaces in a line": "\n" + " " * LONG + "x",
    "hyphens": "a-" * LONG,
    "brackets": "(" * LONG,
    "dollars": "$" * LONG,
    "prices": "$a\n" * LONG,
    "numbers": "1,1." * LONG,
    "definitions": "def class function import " * LONG,
    "emoji": "😀" * LONG,
    "surrogates": "\ud800" * LONG,
    "Chinese": "漢字。" * LONG,
    "Arabic": "ذهب هند الى المدرسة. " * LONG,
    "accents": "e\u0301" * LONG,
    "quotes": '."' * LONG,
    "relations": "x= " * LONG,
    "null": "\0" * LONG,
}


def datasets(prompts: list[str]) -> RoutingDataset:
    queries = [Query(f"q{i}", prompt) for i, prompt in enumerate(prompts)]
    pool = make_routing_dataset(queries=1).pool
    return RoutingDataset.of(queries, pool, np.zeros((len(queries), len(pool.names))))


def column(prompt: str, name: str) -> float:
    return float(measure([prompt])[0, COLUMNS.index(name)])


def test_keeps_the_contract() -> None:
    train = make_routing_dataset(queries=40)
    family = ComplexityConfig().fit(train, [])
    prompts = [*(q.prompt for q in train.queries[:5]), *{text[:50] for text in ODD.values()}]
    check_family(family, PromptStates.of(prompts, []))


def test_the_module_s_entry_is_found() -> None:
    entry = FAMILIES.find("complexity")
    assert (entry.config, entry.family) == (ComplexityConfig, Complexity)


@pytest.mark.parametrize("name", ODD)
def test_any_text_has_finite_measures(name: str) -> None:
    measures = measure([ODD[name]])
    assert measures.shape == (1, len(COLUMNS))
    assert np.isfinite(measures).all()


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=60))
def test_any_short_text_has_finite_measures(text: str) -> None:
    assert np.isfinite(measure([text])).all()


def test_a_chat_is_measured_as_its_turns() -> None:
    chat = (Message("user", "Why is it so?"), Message("assistant", "No idea."))
    assert np.array_equal(measure([chat]), measure(["Why is it so?\n\nNo idea."]))


def test_measures_tell_texts_apart() -> None:
    plain = "The cat sat on the mat. It was warm. The dog ran to it."
    hard = (
        "Notwithstanding considerable methodological heterogeneity, contemporary investigations "
        "demonstrate (albeit inconclusively [see 12, 13]) that x = 3 isn't representative."
    )
    for name in ("flesch_kincaid", "coleman_liau", "automated_readability", "smog"):
        assert column(hard, name) > column(plain, name) + 5
    for name in ("mathematics", "negations", "bracket_depth", "number_density", "characters"):
        assert column(hard, name) > column(plain, name)
    assert column(hard, "type_token_ratio") == column(hard, "hapax_ratio") == 1
    assert column(plain, "yule_k") > column(hard, "yule_k") == 0


def test_train_rows_set_the_scale_and_its_bounds() -> None:
    train = make_routing_dataset(queries=300)
    family = ComplexityConfig().fit(train, [])
    own = family.read(PromptStates.of_dataset(train, []))
    varied = own.std(axis=0) > 0
    assert varied.sum() >= 8
    np.testing.assert_allclose(own[:, varied].mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(own[:, varied].std(axis=0), 1, atol=1e-4)
    odd = family.read(PromptStates.of(list(ODD.values()), []))
    scale = family.standard
    assert (odd <= (family.high - scale.mean) / scale.scale + 1e-5).all()
    assert (odd >= (family.low - scale.mean) / scale.scale - 1e-5).all()
    other = ComplexityConfig().fit(permute_rows(train), [])
    np.testing.assert_allclose(other.read(PromptStates.of_dataset(train, [])), own, atol=1e-4)


def test_one_odd_train_text_doesn_t_set_the_scale() -> None:
    prompts = [f"Is {i} a prime, and why would that be?" for i in range(400)]
    usual = ComplexityConfig().fit(datasets(prompts), [])
    with_one = ComplexityConfig().fit(datasets([*prompts, "a" * 100_000]), [])
    for name in ("flesch_kincaid", "characters"):
        at = COLUMNS.index(name)
        assert with_one.high[at] == pytest.approx(usual.high[at])


def test_code_in_few_train_texts_is_still_told() -> None:
    prompts = [f"What is {i} about?" for i in range(400)] + ["Run main() now"]
    family = ComplexityConfig().fit(datasets(prompts), [])
    plain, code = family.read(PromptStates.of(["Why is it?", "Call f() twice"], []))
    assert code[COLUMNS.index("code")] > plain[COLUMNS.index("code")]


def test_what_makes_no_sense_is_refused() -> None:
    train = make_routing_dataset(queries=10)
    with pytest.raises(FitError, match="no query"):
        ComplexityConfig().fit(train.select([]), [])
    family = ComplexityConfig().fit(train, [])
    tensors = family.tensors()
    crossed = tensors | {"low": family.high + 1}
    with pytest.raises(CorruptError, match="above its upper"):
        load_family(family.to_dict(), crossed)


def test_real_questions_fill_every_column(mmlu_pro: Path) -> None:
    dataset = read_dataset(mmlu_pro)
    some = dataset.select(dataset.query_ids[::40])
    own = ComplexityConfig().fit(some, []).read(PromptStates.of_dataset(some, []))
    rare = COLUMNS.index("code")
    assert (np.delete(own.std(axis=0), rare) > 0.99).all()
    assert own[:, rare].max() > 5
