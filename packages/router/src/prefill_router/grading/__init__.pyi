from .base import (
    UNEXTRACTED as UNEXTRACTED,
    Grade as Grade,
    Grader as Grader,
    GraderTraits as GraderTraits,
    Settings as Settings,
)
from .caches import JudgeBill as JudgeBill
from .code import (
    FunctionGrader as FunctionGrader,
    last_code_block as last_code_block,
    place_and_name as place_and_name,
)
from .grade_table import (
    GRADES as GRADES,
    GradedTarget as GradedTarget,
    GradingReport as GradingReport,
)
from .job import Graders as Graders, grade_run as grade_run
from .judge import (
    JUDGES as JUDGES,
    RUBRIC as RUBRIC,
    judge_prompt as judge_prompt,
    pair_prompt as pair_prompt,
    read_preference as read_preference,
    read_verdict as read_verdict,
)
from .registry import GRADERS as GRADERS, GraderKind as GraderKind
from .task_record import TASK_FIELDS as TASK_FIELDS, read_task as read_task
from .text import (
    parse_number as parse_number,
    right_letters as right_letters,
    tolerance_of as tolerance_of,
)
