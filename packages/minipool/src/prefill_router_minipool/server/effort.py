"""Reasoning effort of the tiny models: the answer that most of several samples give.

`reasoning_effort` says how many samples are drawn, at temperature 1 unless the request has another
above 0. All their tokens are counted; those of the samples beside the answer are reasoning tokens.
That is self-consistency (Wang et al., 2023, arXiv:2203.11171) of answers without a chain of
thought.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, final

from prefill_router_minipool.server.generation import Job, Prompt, Sampling

SAMPLES: Mapping[str, int] = {"low": 1, "medium": 5, "high": 15}
"""The samples of each effort."""


def read_samples(options: Mapping[str, Any]) -> int | None:
    """The samples that a request's fields ask for; None where it asks for no effort."""
    return SAMPLES.get(str(options.get("reasoning_effort")))


@final
class SampledAnswer:
    """The answer that most samples give, the first of several that are as frequent.

    Args:
        prompt: The input.
        samples: How many are drawn.
        max_tokens: Most tokens of each sample.
        stop: Texts before which an answer ends.
        sampling: How tokens are chosen.
        deliver: Called with the whole answer once all samples have ended.

    Attributes:
        jobs: The generation of each sample.
    """

    def __init__(
        self,
        prompt: Prompt,
        *,
        samples: int,
        max_tokens: int,
        stop: tuple[str, ...],
        sampling: Sampling,
        deliver: Callable[[str, bool], None],
    ) -> None:
        self._deliver = deliver
        self._texts = [""] * samples
        self._left = samples
        self._answer_place = 0
        self.jobs = tuple(
            Job(
                prompt=prompt,
                max_tokens=max_tokens,
                stop=stop,
                sampling=_seed_sample(sampling, prompt, place),
                deliver=self._make_taker(place),
            )
            for place in range(samples)
        )

    @property
    def generated(self) -> int:
        """Tokens of all samples so far."""
        return sum(job.generated for job in self.jobs)

    @property
    def reasoning(self) -> int:
        """Tokens of the samples beside the answer."""
        return self.generated - self.answer.generated

    @property
    def answer(self) -> Job:
        """The sample whose text is the answer."""
        return self.jobs[self._answer_place]

    def leave(self) -> None:
        """Abandon all samples."""
        for job in self.jobs:
            job.leave()

    def _make_taker(self, place: int) -> Callable[[str, bool], None]:
        def take(piece: str, last: bool) -> None:
            self._texts[place] += piece
            if last:
                self._left -= 1
                if not self._left:
                    self._give()

        return take

    def _give(self) -> None:
        text, _ = Counter(self._texts).most_common(1)[0]
        self._answer_place = self._texts.index(text)
        self._deliver(text, True)


def _seed_sample(sampling: Sampling, prompt: Prompt, place: int) -> Sampling:
    """The sampling of one sample, whose seed differs between samples and prompts."""
    seed = zlib.crc32(f"{sampling.seed} {place} {prompt.text}".encode())
    return replace(sampling, temperature=sampling.temperature or 1.0, seed=seed)
