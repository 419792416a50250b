from .records import Answer as Answer, Attempt as Attempt, Task as Task
from .run import PERMANENT as PERMANENT, Retry as Retry, Run as Run
from .target_questions import TargetQuestions as TargetQuestions
