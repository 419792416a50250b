__version__: str
from .activations import ActivationStore as ActivationStore
from .data import (
    Message as Message,
    Query as Query,
    RoutingDataset as RoutingDataset,
    Split as Split,
    read_dataset as read_dataset,
    split as split,
)
from .encoders import encode_dataset as encode_dataset, load_encoder as load_encoder
from .errors import PrefillRouterError as PrefillRouterError
from .evaluation import Evaluation as Evaluation, evaluate as evaluate
from .fitting import FitConfig as FitConfig, fit_router as fit_router
from .importers import Columns as Columns, Scale as Scale
from .quickstart import FitResult as FitResult, fit as fit
from .reporting import plot as plot
from .router import Decision as Decision, Router as Router
from .targets import Pool as Pool, Target as Target, read_pool as read_pool
