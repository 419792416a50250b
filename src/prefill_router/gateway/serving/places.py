"""Where everything is that a gateway is made of."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from prefill_router.gateway.settings import Settings, read_settings


@final
@dataclass(frozen=True, kw_only=True)
class Places:
    """What a gateway is made of, and read from again at a reload.

    Attributes:
        router: The router's folder.
        pool: The pool file; None where none is named, so that nothing can be asked.
        config: The settings' file; None for defaults and the environment's.
        overrides: Settings that come before both, by part: `{"routing": {"lam": 0.7}}`.
        keys: The file of clients' keys, in place of the settings'; None for theirs.
        encoder_folders: Folders of local encoders.
        device: Where the encoder runs; None to choose.
        threads: Processor threads of the encoder; None for one fewer than there are cores, so that
            one is left for the gateway.
    """

    router: Path
    pool: Path | None = None
    config: Path | None = None
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    keys: Path | None = None
    encoder_folders: tuple[Path, ...] = ()
    device: str | None = None
    threads: int | None = None

    def settings(self) -> Settings:
        """The settings, as they are now.

        Raises:
            ConfigError: Some can't be used; it tells every one.
        """
        named = {} if self.keys is None else {"keys": self.keys}
        return read_settings(self.config, options={**self.overrides, **named})
