from .architectures import (
    Architecture as Architecture,
    Backward as Backward,
    Heads as Heads,
    Parameters as Parameters,
)
from .ensemble import (
    CORRECTNESS as CORRECTNESS,
    DIFFICULTY as DIFFICULTY,
    Arrays as Arrays,
    Logits as Logits,
    NetworkConfig as NetworkConfig,
    NetworkEnsemble as NetworkEnsemble,
    Rates as Rates,
    perceptron_outputs as perceptron_outputs,
    perceptron_shapes as perceptron_shapes,
)
from .layers import Pass as Pass, Workspace as Workspace
from .losses import NetworkLabels as NetworkLabels, Outputs as Outputs, Slopes as Slopes
from .training import (
    NetworkRows as NetworkRows,
    NetworkRun as NetworkRun,
    NetworkTrainer as NetworkTrainer,
    Schedule as Schedule,
)
from .unified import (
    DifficultyNetworks as DifficultyNetworks,
    MultiTaskConfig as MultiTaskConfig,
    PerceptronConfig as PerceptronConfig,
    Perceptrons as Perceptrons,
    UnifiedConfig as UnifiedConfig,
)
