from .checkup import Checkup as Checkup, examine as examine
from .confidence import Probe as Probe, distances as distances, probe as probe
from .report import KIND as KIND, write_checkup as write_checkup
from .subject import (
    SIGNS as SIGNS,
    Finding as Finding,
    PerQuery as PerQuery,
    Subject as Subject,
)
