from .records import Answer as Answer, Attempt as Attempt, Task as Task
from .run import Retry as Retry, Run as Run
