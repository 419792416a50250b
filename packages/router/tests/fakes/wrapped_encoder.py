"""An encoder that does what another does, for tests that change a part of it."""

from collections.abc import Mapping, Sequence

from prefill_router.activations import Provenance, Site
from prefill_router.data import Query
from prefill_router.encoders import Encoder, States, TokenizedPrompt
from prefill_router.progress import Progress


class WrappedEncoder(Encoder):
    def __init__(self, inner: Encoder) -> None:
        self.inner = inner

    @property
    def provenance(self) -> Provenance:
        return self.inner.provenance

    @property
    def layers(self) -> tuple[int, ...]:
        return self.inner.layers

    def tokenize(self, queries: Sequence[Query]) -> list[TokenizedPrompt]:
        return self.inner.tokenize(queries)

    def states(
        self,
        prompts: Sequence[TokenizedPrompt],
        sites: Sequence[Site],
        *,
        progress: Progress | None = None,
    ) -> Mapping[Site, States]:
        return self.inner.states(prompts, sites, progress=progress)
