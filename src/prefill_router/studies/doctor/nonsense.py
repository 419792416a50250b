"""Prompts that no target can answer correctly: does the router say so?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from prefill_router.studies.doctor.finding import Finding, Sign, percent
from prefill_router.studies.doctor.subject import Subject

_WORDS = (
    "lamp seven under quickly blue because tractor of mild eleven paper shout the orbit never "
    "kettle and across velvet thin number for window bread slowly upon gravel between idea nine"
)
_SIGNS = "!?#%&*+-=/<>()[]{}~^"
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_NEARLY_EMPTY = ("?", "a", "...", "ok", "-", "1", "hm", "the")
_UNANSWERABLE = (
    "Wat heb ik gisteren aan mijn buurman verteld, en waarom lachte hij?",
    "Welche Zahl steht auf dem Zettel, den ich in der Hand halte?",
    "Quel mot ai-je en tête en ce moment, et combien de lettres a-t-il ?",
    "¿De qué color era la puerta de la casa que no recuerdo?",
    "Quale dei miei due cassetti è chiuso, e dove si trova la chiave?",
    "Qual é o nome do gato da pessoa que passou há pouco?",
    "Ile kroków zrobiłem dziś rano, zanim zgubiłem klucz?",
    "Vad står det på den sista sidan i boken som jag inte har öppnat?",
)


Routes = Callable[[Sequence[str]], NDArray[np.float64]]
"""What can be probed: the highest probability that any target is given, for each prompt."""


@final
@dataclass(frozen=True, eq=False)
class Probe:
    """How sure the router is of prompts that have no right answer.

    Attributes:
        highest: By kind of prompt, the highest probability that any target is given.
    """

    highest: Mapping[str, Float[NDArray[np.float64], " prompt"]]

    @property
    def all(self) -> Float[NDArray[np.float64], " prompt"]:
        """Of all kinds together."""
        return np.concatenate(list(self.highest.values()))


def prompts(*, seed: int = 0, each: int = 8) -> dict[str, tuple[str, ...]]:
    """Prompts without a right answer, by kind."""
    random = np.random.default_rng(seed)

    def strings(alphabet: str, low: int, high: int) -> tuple[str, ...]:
        sizes = random.integers(low, high, each)
        return tuple("".join(random.choice(list(alphabet), size)) for size in sizes)

    words = [random.choice(_WORDS.split(), size) for size in random.integers(8, 40, each)]
    return {
        "random words": tuple(" ".join(line) for line in words),
        "random letters": strings(_LETTERS + " ", 20, 120),
        "signs and digits": strings(_SIGNS + "0123456789", 10, 60),
        "nearly empty": _NEARLY_EMPTY[:each],
        "unanswerable, other languages": _UNANSWERABLE[:each],
    }


def probe(highest: Routes, *, seed: int = 0) -> Probe:
    """Ask for the probabilities of these prompts.

    Args:
        highest: Gives the highest probability of each prompt.
        seed: Other random prompts.
    """
    asked = prompts(seed=seed)
    every = highest([prompt for kind in asked.values() for prompt in kind])
    ends = np.cumsum([len(kind) for kind in asked.values()])
    return Probe(dict(zip(asked, np.split(every, ends[:-1]), strict=True)))


def finding(found: Probe, subject: Subject) -> Finding:
    """Whether nonsense gets high probabilities."""
    usual = subject.trial.correctness.max(axis=1)
    middle = float(np.median(usual))
    above = float((found.all > middle).mean())
    sign: Sign = "bad" if above > 0.5 else "good" if above <= 0.25 else "unclear"
    kinds = ", ".join(f"{kind} {percent(float(p.mean()))}" for kind, p in found.highest.items())
    said = (
        f"on nonsense the most probable target gets {percent(float(found.all.mean()))} on average, "
        f"on these queries {percent(float(usual.mean()))}; {percent(above)} of the nonsense gets "
        f"more than the middle query ({kinds})"
    )
    numbers = {
        "mean_highest": float(found.all.mean()),
        "mean_highest_of_the_queries": float(usual.mean()),
        "share_above_the_middle_query": above,
        "kinds": {kind: p.tolist() for kind, p in found.highest.items()},
    }
    return Finding("nonsense", "Confidence on nonsense", sign, said, numbers)
