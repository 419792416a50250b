from .architectures import Heads as Heads, Parameters as Parameters
from .ensemble import CORRECTNESS as CORRECTNESS
from .losses import NetworkLabels as NetworkLabels
from .training import (
    NetworkRows as NetworkRows,
    NetworkRun as NetworkRun,
    NetworkTrainer as NetworkTrainer,
    Schedule as Schedule,
)
