"""A pool: the targets of a router, in their order, and who serves them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date as day
from functools import cached_property
from typing import Any, TypeVar, final

from prefill_router.errors import ConfigError, nearest
from prefill_router.short_repr import short_repr
from prefill_router.targets.dialects import TRAITS, Endpoint
from prefill_router.targets.provider import Provider, public_address
from prefill_router.targets.target import Target, TargetEndpoint


@short_repr
@final
@dataclass(frozen=True)
class Pool:
    """The targets of a router, in their order.

    Attributes:
        targets: At least one target, with distinct names.
        prices_date: The day of the prices, as ISO 8601; None where unknown.
        providers: The providers that targets name.
    """

    targets: tuple[Target, ...]
    prices_date: str | None = None
    providers: tuple[Provider, ...] = ()

    def __post_init__(self) -> None:
        if not self.targets:
            raise ConfigError("the pool has no targets; name at least one")
        repeated = sorted(n for n, times in Counter(self.names).items() if times > 1)
        if repeated:
            raise ConfigError(f"the pool names {repeated} more than once; keep one of each")
        both = sorted(set(self.names) & set(sum(self.several.values(), ())))
        if both:
            raise ConfigError(f"{both} are targets and also endpoints of one; rename the targets")
        known = Counter(provider.name for provider in self.providers)
        twice = sorted(name for name, times in known.items() if times > 1)
        if twice:
            raise ConfigError(f"the pool has the providers {twice} twice; keep one of each")
        unknown = sorted(_providers_of(self.targets) - set(known))
        if unknown:
            raise ConfigError(f"unknown providers {unknown}; the pool has {list(known)}")

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The targets' names, in order."""
        return tuple(target.name for target in self.targets)

    def __len__(self) -> int:
        return len(self.targets)

    def __iter__(self) -> Iterator[Target]:
        return iter(self.targets)

    def __getitem__(self, name: str) -> Target:
        return self.targets[self.indices([name])[0]]

    def indices(self, names: Iterable[str]) -> list[int]:
        """Positions of these targets.

        Raises:
            ConfigError: The pool has no such target.
        """
        place = {name: i for i, name in enumerate(self.names)}
        wanted = list(names)
        unknown = sorted(set(wanted) - set(place))
        if unknown:
            raise ConfigError(
                f"unknown targets {unknown}{nearest(unknown[0], place)}; the pool has "
                f"{sorted(place)}"
            )
        return [place[name] for name in wanted]

    def select(self, names: Iterable[str]) -> "Pool":
        """The pool of these targets alone, in this order."""
        chosen = tuple(self.targets[i] for i in self.indices(names))
        serving = _providers_of(chosen)
        return Pool(chosen, self.prices_date, tuple(p for p in self.providers if p.name in serving))

    @cached_property
    def deployed(self) -> "Pool":
        """The pool with each endpoint of a target as a target of its own, such as `large@east`."""
        if not any(target.endpoints for target in self.targets):
            return self
        return replace(self, targets=tuple(d for t in self.targets for d in t.deployments))

    def at_first(self) -> "Pool":
        """The pool with each target at its first endpoint alone, with its prices there."""
        return replace(self, targets=tuple(target.at_first() for target in self.targets))

    @cached_property
    def several(self) -> Mapping[str, tuple[str, ...]]:
        """The deployments of each target that has several endpoints."""
        return {t.name: tuple(d.name for d in t.deployments) for t in self.targets if t.endpoints}

    @cached_property
    def target_of(self) -> Mapping[str, str]:
        """The target of each deployment, by name."""
        return {d.name: t.name for t in self.targets for d in t.deployments}

    def provider_of(self, name: str) -> Provider:
        """The provider of a target: the one it names, or one made from its own endpoint.

        Of a target with several endpoints, it is that of the first.

        Raises:
            ConfigError: The pool has no such target, or the target has no endpoint.
        """
        target = self[name]
        if target.provider is not None:
            return next(p for p in self.providers if p.name == target.provider)
        if target.base_url is None:
            raise ConfigError(
                f"target {name!r} has no endpoint; give it a base_url or a provider in the pool "
                "file"
            )
        return Provider(
            name=public_address(target.base_url),
            base_url=target.base_url,
            api_key_env=target.api_key_env,
        )

    def serves(self, name: str) -> tuple[Endpoint, ...]:
        """The API endpoints that a target serves: its own list, or that of its provider's dialect.

        A target with several endpoints serves what all of them do.

        Raises:
            ConfigError: The pool has no such target, or the target has no endpoint.
        """
        named = self[name].serves
        if named is not None:
            return named
        places = (self.deployed.provider_of(d.name) for d in self[name].deployments)
        each = [TRAITS[place.dialect].serves for place in places]
        return tuple(call for call in each[0] if all(call in serves for serves in each))

    def with_prices(
        self, prices: Mapping[str, tuple[float, float]], *, date: str | None = None
    ) -> "Pool":
        """The same targets with other prices, (input, output) in US dollars per million tokens.

        Raises:
            ConfigError: The pool has no such target, or `date` isn't a date.
        """
        self.indices(prices)
        targets = tuple(
            replace(t, input_price=prices[t.name][0], output_price=prices[t.name][1])
            if t.name in prices
            else t
            for t in self.targets
        )
        return replace(self, targets=targets, prices_date=None if date is None else day_of(date))

    def public(self) -> "Pool":
        """The same pool, safe to show and save: its URLs are without what may be a key."""
        return replace(
            self,
            targets=tuple(map(_public, self.targets)),
            providers=tuple(map(_public, self.providers)),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values, without what isn't known."""
        date = {} if self.prices_date is None else {"prices_date": self.prices_date}
        served = {"providers": [_known(p) for p in self.providers]} if self.providers else {}
        return {**date, **served, "targets": [target.to_dict() for target in self.targets]}


def day_of(text: str) -> str:
    """A date in ISO 8601.

    Raises:
        ConfigError: The text isn't a date.
    """
    try:
        return day.fromisoformat(text).isoformat()
    except ValueError:
        raise ConfigError(
            f"the date of the prices is {text!r}, which isn't a date; write it as 2026-11-20"
        ) from None


def _providers_of(targets: Iterable[Target]) -> set[str]:
    return {d.provider for t in targets for d in t.deployments if d.provider is not None}


_Served = TypeVar("_Served", Target, Provider, TargetEndpoint)


def _public(served: _Served) -> _Served:
    address = served.base_url
    if isinstance(served, Target) and served.endpoints:
        hidden = tuple(map(_public, served.endpoints))
        return replace(served, endpoints=hidden, base_url=hidden[0].base_url)
    return served if address is None else replace(served, base_url=public_address(address))


def _known(provider: Provider) -> dict[str, Any]:
    return {name: value for name, value in vars(provider).items() if value is not None}
