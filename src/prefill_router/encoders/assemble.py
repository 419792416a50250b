"""Putting a `HubEncoder` together."""

from prefill_router.encoders.blocks import (
    cut_config,
    find_blocks,
    keep_blocks,
    load_network,
    text_config,
)
from prefill_router.encoders.hub import HubEncoder
from prefill_router.encoders.parts import (
    batch_tokens_on,
    device_of,
    dtype_of,
    last_layer,
    provenance_of,
)
from prefill_router.encoders.pretrained import (
    commit_of,
    config_and_tokenizer,
    explained,
    prepare,
    tokenizer_files,
)
from prefill_router.encoders.request import Request


def assemble(request: Request) -> HubEncoder:
    """Load everything.

    Raises:
        ConfigError: It can't be found or reached, or an option doesn't fit.
        ProvenanceError: It isn't the encoder that is expected.
    """
    prepare(request)
    device = device_of(request.device)
    dtype = dtype_of(request.dtype, device)
    with explained(request):
        config, tokenizer = config_and_tokenizer(request)
        commit = commit_of(request, "config.json")
        text = text_config(config)
        files = tokenizer_files(request.source, commit)
        made_by = provenance_of(request, text, tokenizer, files, commit, dtype)
        if request.expected is not None:
            request.expected.require(made_by, what=f"the encoder {request.source}")
        last = last_layer(request.layers, text.num_hidden_layers)
        cut = cut_config(text, max(last, 2))
        network = load_network(
            request.source,
            cut,
            revision=commit,
            dtype=dtype,
            is_part=text is not config,
            trust_remote_code=request.trust_remote_code,
        )
    blocks = find_blocks(network, cut.num_hidden_layers)
    keep_blocks(blocks, max(last, 2))
    return HubEncoder(
        made_by,
        tokenizer,
        network.to(device),
        blocks,
        last,
        request.batch_tokens or batch_tokens_on(device),
    )
