"""Where a router's encoders are found."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from prefill_router.encoders import Encoder, EncoderName


@final
@dataclass(frozen=True, kw_only=True)
class EncoderSources:
    """Where a router finds its encoders.

    Attributes:
        loaded: Encoders that are loaded already; asked first.
        folders: Folders of local encoders, by the name that the router's card gives them.
        device: Where they run, such as `cpu` or `cuda:1`; by default a GPU where there is one.
        trust_remote_code: Whether code that comes with the weights may run.
    """

    loaded: tuple[Encoder, ...] = ()
    folders: Mapping[str, Path | str] = field(default_factory=dict)
    device: str | None = None
    trust_remote_code: bool = False

    def place_of(self, name: str) -> Path | str | None:
        """The folder of an encoder; that of `sentence:x` and `signals:x` may be given as x."""
        place = EncoderName.parse(name).place
        return self.folders.get(name, self.folders.get(place))
