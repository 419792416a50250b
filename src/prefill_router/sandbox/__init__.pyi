from .command import Limits as Limits, Outcome as Outcome, Status as Status
from .sandbox import Sandbox as Sandbox
