from .job import (
    CollectionSummary as CollectionSummary,
    collect as collect,
    estimate_collection as estimate_collection,
)
from .plan import CollectionEstimate as CollectionEstimate, CollectOptions as CollectOptions
from .target_questions import TargetQuestions as TargetQuestions, open_questions as open_questions
