from .pool_models import ENCODER as ENCODER, NAMES as NAMES, folder_of as folder_of, pool as pool
from .tasks import MiniTask as MiniTask, make_tasks as make_tasks
