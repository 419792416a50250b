from .base import (
    ROUNDINGS as ROUNDINGS,
    Activations as Activations,
    MemoryActivations as MemoryActivations,
    Provenance as Provenance,
    Rounding as Rounding,
    round_states as round_states,
)
from .shard import (
    SHARDS as SHARDS,
    Digests as Digests,
    KeyIndex as KeyIndex,
    Layout as Layout,
    key_digests as key_digests,
    shard_folder as shard_folder,
    shard_name as shard_name,
    write_shard as write_shard,
)
from .sites import (
    DEFAULT_POOLINGS as DEFAULT_POOLINGS,
    POOLINGS as POOLINGS,
    Pooling as Pooling,
    Site as Site,
)
from .store import (
    MANIFEST as MANIFEST,
    ActivationStore as ActivationStore,
    prepare_store as prepare_store,
)
