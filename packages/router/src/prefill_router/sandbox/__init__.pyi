from .sandbox import Sandbox as Sandbox
from .sandbox_process import Limits as Limits, Outcome as Outcome, Status as Status
