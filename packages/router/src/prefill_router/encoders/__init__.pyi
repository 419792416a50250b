from .base import Encoder as Encoder, States as States
from .batching import batches as batches
from .encoder_names import (
    KEY as KEY,
    OWN as OWN,
    Address as Address,
    EncoderName as EncoderName,
    candidate_layers as candidate_layers,
    default_sites as default_sites,
    gives_own_vectors as gives_own_vectors,
)
from .hub import HubEncoder as HubEncoder, TokenBatch as TokenBatch, pad as pad
from .load import (
    MINILM as MINILM,
    TEMPLATES as TEMPLATES,
    load_encoder as load_encoder,
    load_encoder_for as load_encoder_for,
    recorded_name as recorded_name,
)
from .prefix_encoder import cache_argument as cache_argument
from .run import (
    EncodingPlan as EncodingPlan,
    EncodingReport as EncodingReport,
    encode_dataset as encode_dataset,
    plan_encoding as plan_encoding,
    run_encoding as run_encoding,
)
from .threads import default_threads as default_threads
from .tokenisation import (
    TokenizedPrompt as TokenizedPrompt,
    check_prompt as check_prompt,
    pair_tokens as pair_tokens,
)
from .vllm_states import VllmStates as VllmStates, write_vllm_prompts as write_vllm_prompts
from .workers import EncoderSource as EncoderSource, run_encoding_on as run_encoding_on
