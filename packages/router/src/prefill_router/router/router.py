"""The assembled router: it encodes a request, predicts, estimates costs, and chooses.

The states of a dataset come from a complete store, from the cache, or from an encoder that is
loaded when it is needed; `EncoderSources` says where the encoders are.
"""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, final

import numpy as np
from jaxtyping import Float64, Int
from numpy.typing import NDArray

from prefill_router.activations import Activations, Provenance, Rounding, Site
from prefill_router.calibration import Calibrator, Shrinkage
from prefill_router.cost import CostEstimator, Expected, OutputHead
from prefill_router.data import Query, RoutingDataset, Split, prompt_text
from prefill_router.encoders import Encoder, EncoderName, encode_dataset, load_encoder_for
from prefill_router.errors import ConfigError, DataError
from prefill_router.features import Columns, FeatureSet, PromptStates, find_store
from prefill_router.policy import Lambda, Policy, Predictions, check_lam
from prefill_router.predictors import Correctness, Predictor
from prefill_router.progress import Progress, SilentProgress
from prefill_router.remote import PathOrUrl
from prefill_router.router.checks import check_parts
from prefill_router.router.cross_fit import CrossFit
from prefill_router.router.decision import (
    Decision,
    Forecast,
    Request,
    as_prompt,
    decide,
    refuse_cascade,
)
from prefill_router.router.record import PoolChanges, Present, RouterRecord, record_html
from prefill_router.router.reference import TrainReference, compare_features
from prefill_router.targets import Pool

if TYPE_CHECKING:
    import polars as pl

    from prefill_router.evaluation import FixedRanking, References


@final
@dataclass(frozen=True, kw_only=True)
class EncoderSources:
    """The locations of a router's encoders.

    Attributes:
        loaded: Encoders that are loaded already; these are tried first.
        folders: Folders of local encoders, by their names on the router's card.
        device: The device to run them on, such as `cpu` or `cuda:1`; by default a GPU where there
            is one.
        trust_remote_code: Whether code that comes with the weights may run.
    """

    loaded: tuple[Encoder, ...] = ()
    folders: Mapping[str, Path | str] = field(default_factory=dict)
    device: str | None = None
    trust_remote_code: bool = False

    def place_of(self, name: str) -> Path | str | None:
        """The folder of an encoder; for `sentence:x` and `signals:x` also that given for x."""
        place = EncoderName.parse(name).place
        return self.folders.get(name, self.folders.get(place))


Load = Callable[[Provenance], Encoder]
"""Loads the encoder of a provenance."""
_WORD = re.compile(r"\w+|[^\w\s]")


def find_finished_store(
    stores: Sequence[Activations],
    provenance: Provenance,
    sites: Sequence[Site],
    rounding: Rounding,
    keys: Sequence[str],
) -> Activations | None:
    """The store that holds all these states, if one of `stores` does."""
    for store in stores:
        same = store.provenance == provenance and store.rounding == rounding
        if same and set(sites) <= set(store.sites) and not store.missing(keys):
            return store
    return None


def encode_cached(
    dataset: RoutingDataset,
    encoder: Encoder,
    cache: Path,
    *,
    sites: Sequence[Site],
    rounding: Rounding,
    progress: Progress,
) -> Activations:
    """Encode what the cache lacks; after an interruption the next call continues from there."""
    what = [encoder.provenance.to_dict(), [site.name for site in sites], rounding]
    name = hashlib.sha256(json.dumps(what, sort_keys=True).encode()).hexdigest()[:16]
    return encode_dataset(
        dataset, encoder, cache / name, sites=sites, rounding=rounding, progress=progress
    )


def dataset_states(
    dataset: RoutingDataset,
    features: FeatureSet,
    *,
    stores: Sequence[Activations],
    cache: Path | None,
    load: Load,
    progress: Progress,
) -> list[Activations]:
    """The states of a dataset that the features need: from complete stores, or encoded now.

    Args:
        dataset: The dataset.
        features: The features.
        stores: Stores of any encoders.
        cache: The folder for states that are encoded now; in memory if not given.
        load: Loads an encoder if it is needed.
        progress: Shows the progress of encoding.
    """
    states: list[Activations] = []
    for provenance, rounding, sites in _read_of(features):
        store = find_finished_store(stores, provenance, sites, rounding, dataset.prompt_keys)
        if store is not None:
            states.append(store)
        elif cache is None:
            in_memory = load(provenance).encode(
                dataset.queries, sites, rounding=rounding, progress=progress
            )
            states.append(in_memory)
        else:
            stored = encode_cached(
                dataset, load(provenance), cache, sites=sites, rounding=rounding, progress=progress
            )
            states.append(stored)
    return states


def encode_states(
    queries: Sequence[Query],
    features: FeatureSet,
    *,
    load: Load,
    progress: Progress | None = None,
) -> list[Activations]:
    """The states of some queries that the features need, encoded now."""
    return [
        load(provenance).encode(
            queries, sites, rounding=rounding, progress=progress or SilentProgress()
        )
        for provenance, rounding, sites in _read_of(features)
    ]


def _read_of(features: FeatureSet) -> Iterator[tuple[Provenance, Rounding, tuple[Site, ...]]]:
    for source in features.sources:
        yield source.provenance, source.rounding, features.sites_of(source.provenance)


def count_tokens(features: FeatureSet, reading: PromptStates) -> Int[NDArray[np.int64], " query"]:
    """The length of each prompt in tokens of the first encoder; without one, in words and symbols.

    Each target's own count is this times a learned ratio (`cost.CostEstimator`).
    """
    if features.provenances:
        store = find_store(reading.states, features.provenances[0])
        return store.tokens(reading.keys)
    lengths = [max(1, len(_WORD.findall(prompt_text(prompt)))) for prompt in reading.prompts]
    return np.array(lengths, dtype=np.int64)


_REPRICE_NOTE = "prices were changed; the metrics are at those of"


@final
@dataclass(frozen=True, eq=False)
class Router:
    """Decides which target answers a request. Frozen; made by `fitting.fit_router` or `load`.

    Attributes:
        features: The features of a request, the predictor's input (Equation 3).
        predictor: From features to every target's probability of a correct answer; from votes, of
            winning against the average target (`is_voted`).
        shrinkage: Shrinks these probabilities towards base rates; None leaves them.
        calibrator: Calibrates these probabilities; None leaves them.
        policy: Chooses a target, given probabilities and costs; Equation 2 by default.
        costs: Equation 1, with the pool and its prices.
        output: Predicts the length of each answer; None leaves Equation 1's medians.
        split: The split it was fitted on; its test part wasn't used to fit.
        record: The record of how it was made.
        reference: Statistics of the train rows; None in a router of an older format.
        changes: Targets that joined or left after the fit; None without any.
        cross_fit: Predictions for the rows that it learned from, by routers that didn't. None where
            it wasn't judged so, or its targets or prices changed.
        sources: The locations of its encoders.
    """

    features: FeatureSet
    predictor: Predictor
    costs: CostEstimator
    split: Split
    record: RouterRecord
    shrinkage: Shrinkage | None = None
    calibrator: Calibrator | None = None
    policy: Policy = field(default_factory=Lambda)
    reference: TrainReference | None = None
    output: OutputHead | None = None
    changes: PoolChanges | None = None
    cross_fit: CrossFit | None = None
    sources: EncoderSources = field(default_factory=EncoderSources)
    _encoders: dict[Provenance, Encoder] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.changes is not None and self.changes.targets != self.pool.names:
            raise ConfigError(
                f"the changes are for the targets {self.changes.targets}; the pool has "
                f"{self.pool.names}"
            )
        check_parts(
            self.fitted_targets,
            self.features,
            self.predictor,
            self.shrinkage,
            self.calibrator,
            self.output,
        )
        crossed = self.cross_fit
        if crossed is not None and crossed.predictions.targets != self.pool.names:
            raise ConfigError(
                "the predictions out of fold are for the targets "
                f"{crossed.predictions.targets}; the pool has {self.pool.names}"
            )
        nothing = np.zeros((1, len(self.pool)))
        self.policy.path(nothing, nothing, targets=self.pool.names)  # checks those that it names
        if self.reference is not None:
            self.reference.check(width=self.features.width, targets=len(self.pool))

    def __repr__(self) -> str:
        read = " + ".join(family.kind for family in self.features.families)
        by = f"{self.predictor.kind} on {read}, fitted {self.record.created}"
        return f"<Router: {len(self.pool)} targets, {by}>"

    def _repr_html_(self) -> str:
        accuracy = None if self.reference is None else self.reference.accuracy
        return record_html(repr(self), self.record, self.pool, accuracy)

    @property
    def pool(self) -> Pool:
        """The targets and their prices."""
        return self.costs.pool

    @property
    def fitted_targets(self) -> tuple[str, ...]:
        """The targets that it was fitted for, whatever joined or left since."""
        return self.pool.names if self.changes is None else self.changes.fitted

    @property
    def setting(self) -> float:
        """The lam that it is used at: the one that its fit chose, or else 0.5."""
        chosen = self.record.chosen
        return 0.5 if chosen is None else chosen.setting

    @property
    def references(self) -> "References | None":
        """What a verdict compares it with.

        None where its targets changed, it was imported, or it learned from votes (`ranking`).
        """
        from prefill_router.evaluation import References

        references = self.record.references
        return None if references is None or self.is_voted else References.from_dict(references)

    @property
    def is_voted(self) -> bool:
        """Whether it learned from votes, so that it predicts chances to win, and none to be right.

        The chance is that against the average target of those that it was fitted for.
        """
        return self.record.labels == "vote"

    @property
    def ranking(self) -> "FixedRanking | None":
        """The fixed ranking that its verdict compares it with; None unless it learned from votes.

        None too where its targets changed.
        """
        from prefill_router.evaluation import FixedRanking

        references = self.record.references
        return (
            FixedRanking.from_dict(references) if references is not None and self.is_voted else None
        )

    def route(
        self, request: Request, *, lam: float | None = None, only: Iterable[str] | None = None
    ) -> Decision:
        """Choose the target for one request.

        Args:
            request: Text, or chat messages.
            lam: From 0, cheapest, to 1, most probably correct; its own (`setting`) if not given.
            only: Choose among these targets only.

        Raises:
            ConfigError: `lam` is outside [0, 1], or `only` names unknown targets.
            PromptError: The request can't be encoded.
        """
        return self.route_many([request], lam=lam, only=only)[0]

    def route_many(
        self,
        requests: Sequence[Request],
        *,
        lam: float | None = None,
        only: Iterable[str] | None = None,
    ) -> list[Decision]:
        """Choose the target for each of several requests, encoded together.

        Args:
            requests: The requests; the decisions are in their order.
            lam: The weight of correctness against cost, 0 to 1; the router's setting by default.
            only: The targets to choose among; all by default.

        Raises:
            ConfigError: lam is outside [0, 1], a target is unknown, or none is named.
        """
        lam = check_lam(self.setting if lam is None else lam)
        refuse_cascade(self.policy)
        columns = self.pool.indices(self.pool.names if only is None else only)
        names = [self.pool.names[k] for k in columns]
        if not names:
            raise ConfigError("only names no target; name at least one, or leave it out")
        forecasts = self.forecast_many(requests)
        cost = self.estimated_cost(forecasts)
        return [
            decide(
                names,
                forecast.correctness[columns],
                cost[i, columns],
                self.costs.scale,
                policy=self.policy,
                lam=lam,
                input_tokens=forecast.tokens,
                truncated=forecast.truncated,
                priced=not self.costs.is_free,
                labels=self.record.labels,
            )
            for i, forecast in enumerate(forecasts)
        ]

    def forecast_many(
        self, requests: Sequence[Request], *, progress: Progress | None = None
    ) -> list[Forecast]:
        """The forecasts for several requests, encoded together; no target is chosen.

        Args:
            requests: Texts, or chat messages.
            progress: Shows the progress of encoding.

        Raises:
            PromptError: A request can't be encoded; it is named `request N`, counted from 1.
        """
        queries = [Query(f"request {i}", as_prompt(r)) for i, r in enumerate(requests, 1)]
        states = encode_states(queries, self.features, load=self.encoder, progress=progress)
        reading = PromptStates.of([query.prompt for query in queries], states)
        features = self.features.read(reading)
        correctness = self._predict_calibrated(features)
        tokens = count_tokens(self.features, reading)
        limit = states[0].provenance.max_tokens if states else math.inf
        novelty, bins = compare_features(self.reference, features)
        expected = self._expect_output(features, tokens)
        return [
            Forecast(
                correctness[i],
                int(count),
                bool(count > limit),
                novelty[i],
                bins[i],
                output=None if expected is None else expected.mean[i],
                output_high=None if expected is None else expected.high[i],
            )
            for i, count in enumerate(tokens)
        ]

    def predict_proba(
        self, requests: Sequence[Request], *, progress: Progress | None = None
    ) -> "pl.DataFrame":
        """Every target's probability of a correct answer: a row per request, a column per target.

        Of a router that learned from votes it is the chance to win against the average target. The
        arguments and errors are those of `forecast_many`.
        """
        import polars as pl

        correctness = [
            forecast.correctness for forecast in self.forecast_many(requests, progress=progress)
        ]
        return pl.DataFrame(
            np.reshape(correctness, (-1, len(self.pool))), schema=list(self.pool.names)
        )

    def estimated_cost(
        self, forecasts: Sequence[Forecast]
    ) -> Float64[NDArray[np.float64], "query target"]:
        """The estimated costs of answers to requests with these forecasts, US dollars."""
        missing = np.full(len(self.pool), np.nan)
        outputs = [
            missing if forecast.output is None else forecast.output for forecast in forecasts
        ]
        return self.costs.estimate(
            np.array([forecast.tokens for forecast in forecasts], dtype=np.int64),
            expected=np.reshape(outputs, (len(forecasts), len(self.pool))),
        )

    def _expect_output(self, features: Columns, tokens: NDArray[np.int64]) -> Expected | None:
        if self.output is None:
            return None
        expected = self.output.expect(features, tokens)
        return expected if self.changes is None else self.changes.expected(expected)

    def predict(
        self,
        dataset: RoutingDataset,
        *,
        stores: Sequence[Activations] = (),
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> Predictions:
        """Predict every query of a dataset.

        States are taken from a store that holds all of them; where none does, the queries are
        encoded now.

        Args:
            dataset: Its targets must include the router's.
            stores: Stores of any encoders.
            cache: The folder for states that are encoded now; in memory if not given.
            progress: Shows the progress of encoding.

        Raises:
            DataError: The dataset lacks some of the router's targets.
        """
        lacking = sorted(set(self.pool.names) - set(dataset.pool.names))
        if lacking:
            raise DataError(
                f"the dataset lacks the router's targets {lacking}; it has {dataset.pool.names}"
            )
        inputs = dataset.select(targets=self.pool.names).input_tokens
        features, tokens = self.read(dataset, stores=stores, cache=cache, progress=progress)
        expected = self._expect_output(features, tokens)
        return Predictions(
            query_ids=dataset.query_ids,
            targets=self.pool.names,
            correctness=self._predict_calibrated(features),
            estimated_cost=self.costs.estimate(
                tokens,
                input_tokens=inputs,
                expected=None if expected is None else expected.mean,
            ),
            scale=self.costs.scale,
        )

    def read(
        self,
        dataset: RoutingDataset,
        *,
        stores: Sequence[Activations] = (),
        cache: Path | None = None,
        progress: Progress | None = None,
    ) -> tuple[Columns, NDArray[np.int64]]:
        """The features and the encoder's token count of every query; arguments as in `predict`."""
        states = dataset_states(
            dataset,
            self.features,
            stores=stores,
            cache=cache,
            load=self.encoder,
            progress=progress or SilentProgress(),
        )
        reading = PromptStates.of_dataset(dataset, states)
        return self.features.read(reading), count_tokens(self.features, reading)

    def correctness(self, reading: PromptStates) -> Correctness:
        """Every target's probability of a correct answer, calibrated: [query, target]."""
        return self._predict_calibrated(self.features.read(reading))

    def _predict_calibrated(self, features: Columns) -> Correctness:
        return self.calibrate(self.predictor.correctness(features))

    def calibrate(self, raw: Correctness) -> Present:
        """A predictor's probabilities, shrunk and calibrated, of the present targets."""
        probabilities = self.calibrate_fitted(raw)
        return probabilities if self.changes is None else self.changes.correctness(probabilities)

    def calibrate_fitted(self, raw: Correctness) -> Correctness:
        """The same of `fitted_targets`, whatever joined or left since."""
        shrunk = raw if self.shrinkage is None else self.shrinkage.shrink(raw)
        return shrunk if self.calibrator is None else self.calibrator.calibrate(shrunk)

    def with_pool(self, pool: Pool) -> "Router":
        """The same router with other prices, without refitting; its record notes the change.

        Raises:
            ConfigError: The pool has other names.
        """
        crossed = self.cross_fit if pool == self.pool else None
        repriced = replace(self, costs=self.costs.with_pool(pool), cross_fit=crossed)
        if (
            pool != self.pool and not self.is_voted
        ):  # the references are the best at the prices before
            bare = self.record.model_copy(update={"references": None})
            repriced = replace(repriced, record=bare)
        notes = self.record.notes
        if pool == self.pool or self.is_repriced:
            return repriced
        note = f"{_REPRICE_NOTE} {self.pool.prices_date or 'an unknown day'}"
        noted = repriced.record.model_copy(update={"notes": (*notes, note)})
        return repriced.with_record(noted)

    @property
    def is_repriced(self) -> bool:
        """Whether its prices were changed since it was fitted."""
        return any(note.startswith(_REPRICE_NOTE) for note in self.record.notes)

    def with_sources(self, sources: EncoderSources) -> "Router":
        """The same router with other locations of its encoders and networks."""
        features = FeatureSet(
            tuple(f.with_folders(sources.folders) for f in self.features.families)
        )
        return replace(self, sources=sources, features=features)

    def with_record(self, record: RouterRecord) -> "Router":
        """The same router with another record."""
        return replace(self, record=record)

    def encoder(self, provenance: Provenance) -> Encoder:
        """The encoder of this provenance, loaded once and with only the blocks it needs."""
        for encoder in self.sources.loaded:
            if encoder.provenance == provenance:
                return encoder
        if provenance not in self._encoders:
            self._encoders[provenance] = load_encoder_for(
                provenance,
                layers=[site.layer for site in self.features.sites_of(provenance)],
                source=self.sources.place_of(provenance.encoder),
                device=self.sources.device,
                trust_remote_code=self.sources.trust_remote_code,
            )
        return self._encoders[provenance]

    def save(self, folder: PathOrUrl | str) -> None:
        """Write the router's folder, whole or not at all; see `router.storage`."""
        from prefill_router.router.storage import save_router

        save_router(self, folder)

    @classmethod
    def load(cls, folder: PathOrUrl | str, *, sources: EncoderSources | None = None) -> "Router":
        """Read a router's folder, on the disk or at a URL, checking everything.

        Raises:
            ConfigError: There is no router.
            CorruptError: A file is missing, isn't what was written, or is of another version.
        """
        from prefill_router.router.storage import load_router

        return load_router(folder).with_sources(sources or EncoderSources())

    def push_to_hub(self, repo_id: str, *, private: bool = False, token: str | None = None) -> str:
        """Upload the router's folder to a Hugging Face repository; returns the commit's URL.

        Raises:
            ConfigError: The hub can't be reached, or refuses the name or the token.
        """
        from prefill_router.router.hub import push

        return push(self, repo_id, private=private, token=token)

    @classmethod
    def from_pretrained(
        cls,
        name: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        sources: EncoderSources | None = None,
    ) -> "Router":
        """Load a router from a local folder or a Hugging Face repository, checking everything.

        Args:
            name: The folder; the repository, `you/your-router`; or `minipool`, which is packaged.
            revision: Branch, tag or commit of the repository.
            token: For a private repository; by default the one that you are logged in with.
            sources: The locations of its encoders.

        Raises:
            ConfigError: There is no router, or the hub can't be reached or refuses.
            CorruptError: A file is missing, isn't what was written, or is of another version.
        """
        from prefill_router.router.hub import load

        router = load(name, revision=revision, token=token)
        return router.with_sources(sources or EncoderSources())
