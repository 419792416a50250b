"""Tiny networks that read text, and queries whose words say who is right."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers as tf
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from prefill_router.data import Query, RoutingDataset
from prefill_router.features import PromptStates
from prefill_router.targets import Pool, Target
from prefill_router_lab.features.text_network import TextNetwork, TextNetworkConfig

Array = NDArray[Any]
SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
FILLER = [f"w{i}" for i in range(280)]
SIGNS = ("sum", "verse", "cell")
"""Each target is right where its own word stands."""


WORDS = [*SPECIAL, *SIGNS, *FILLER]
SIZES: dict[str, Any] = {
    "vocab_size": len(WORDS),
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}


def deberta_v2() -> Any:
    return tf.DebertaV2Config(
        **SIZES,
        relative_attention=True,
        position_buckets=16,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        type_vocab_size=0,
    )


def modernbert() -> Any:
    return tf.ModernBertConfig(
        **SIZES, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2
    )


def gpt2() -> Any:
    return tf.GPT2Config(
        vocab_size=len(WORDS),
        n_embd=32,
        n_head=4,
        n_layer=2,
        n_positions=64,
        bos_token_id=1,
        eos_token_id=2,
    )


def save_tiny(folder: Path, config: Any, *, seed: int = 0) -> Path:
    """Two blocks that read words; another seed is another network."""
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    tf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.random.manual_seed(seed)
        network = tf.AutoModel.from_config(config)
        with torch.no_grad():
            for name, weight in network.named_parameters():
                if weight.ndim >= 2:
                    weight.normal_(0, 1.0 if "embed" in name or "wte" in name else 0.15)
        network.save_pretrained(folder)
    return folder


def texts(queries: int, *, seed: int, targets: int = 3) -> RoutingDataset:
    """Random words, some of which mostly predict which target is right."""
    random = np.random.default_rng(seed)
    has = random.random((queries, 3)) < 0.5
    rows = []
    for i in range(queries):
        words = random.choice(FILLER, size=int(random.integers(2, 9))).tolist()
        words += [sign for sign, there in zip(SIGNS, has[i], strict=True) if there]
        rows.append(Query(f"q{i}", " ".join(random.permutation(words).tolist())))
    right = np.where(random.random(has.shape) < 0.95, has, ~has).astype(np.float64)
    pool = Pool(tuple(Target(name=name) for name in "abc"[:targets]))
    return RoutingDataset.of(rows, pool, right[:, :targets])


def relabel(dataset: RoutingDataset, correct: Array) -> RoutingDataset:
    return RoutingDataset.of(dataset.queries, dataset.pool, correct)


def quick(network: Path | str, **options: Any) -> TextNetworkConfig:
    base = TextNetworkConfig(
        network=str(network),
        rank=4,
        epochs=8,
        batch_size=16,
        learning_rate=0.02,
        max_tokens=32,
        validation=0.2,
        patience=8,
        dropout=0.0,
    )
    return replace(base, **options)


def fit(config: TextNetworkConfig, train: RoutingDataset, *, seed: int = 0) -> TextNetwork:
    family = config.fit(train, (), seed=seed)
    assert isinstance(family, TextNetwork)
    return family


def read(family: TextNetwork, dataset: RoutingDataset) -> Array:
    return family.read(PromptStates.of_dataset(dataset, ()))


def equal(first: TextNetwork, second: TextNetwork) -> bool:
    pairs = [(array, second.arrays[name]) for name, array in first.arrays.items()]
    return all(np.array_equal(a, b) for a, b in pairs)


def none_of(arrays: dict[str, Array]) -> dict[str, Array]:
    """Without adaptions."""
    return {k: v if k.startswith("head") else np.zeros_like(v) for k, v in arrays.items()}
