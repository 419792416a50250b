from .estimate import CollectionEstimate as CollectionEstimate
from .job import (
    CollectionSummary as CollectionSummary,
    collect as collect,
    estimate_collection as estimate_collection,
)
from .plan import CollectOptions as CollectOptions
