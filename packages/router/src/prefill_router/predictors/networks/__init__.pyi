from .architectures import (
    Architecture as Architecture,
    Backward as Backward,
    Heads as Heads,
    Parameters as Parameters,
)
from .ensemble import (
    NetworkConfig as NetworkConfig,
    NetworkEnsemble as NetworkEnsemble,
    Rates as Rates,
)
from .layers import Pass as Pass, Workspace as Workspace
from .losses import NetworkLabels as NetworkLabels, Outputs as Outputs, Slopes as Slopes
from .network import (
    CORRECTNESS as CORRECTNESS,
    DIFFICULTY as DIFFICULTY,
    Arrays as Arrays,
    Layer as Layer,
    Logits as Logits,
    Network as Network,
    Rows as Rows,
)
from .training import (
    NetworkRows as NetworkRows,
    NetworkRun as NetworkRun,
    NetworkTrainer as NetworkTrainer,
    Schedule as Schedule,
    train_seeds as train_seeds,
)
from .unified import (
    DifficultyNetworks as DifficultyNetworks,
    MultiTaskConfig as MultiTaskConfig,
    PerceptronConfig as PerceptronConfig,
    Perceptrons as Perceptrons,
    UnifiedConfig as UnifiedConfig,
)
