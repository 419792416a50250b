from .kept_share import (
    ASSUMPTIONS as ASSUMPTIONS,
    CONFIDENCE as CONFIDENCE,
    KEEP as KEEP,
    LAMS as LAMS,
    Assumption as Assumption,
    Guarantee as Guarantee,
    LamTest as LamTest,
    best_single as best_single,
    guarantee as guarantee,
    word_places as word_places,
)
from .losses import LackingLabels as LackingLabels, MissingLabels as MissingLabels
