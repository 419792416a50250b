"""A folder with a tiny random encoder, quick to make and to load: two blocks of a BERT."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]


def save_tiny_encoder(folder: Path, *, seed: int = 0) -> Path:
    """Write the folder; another seed is another encoder. It reads bytes, 128 at most."""
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast  # takes seconds

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = dict(zip(("pad_token", "cls_token", "sep_token", "unk_token"), SPECIAL, strict=True))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        BertModel(config).save_pretrained(folder)
    return folder
