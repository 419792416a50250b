from .base import UNEXTRACTED as UNEXTRACTED, Grade as Grade, Grader as Grader, Settings as Settings
from .caches import JudgeBill as JudgeBill
from .code import last_code_block as last_code_block
from .grade_table import GRADES as GRADES
from .graders import Graders as Graders
from .job import grade_run as grade_run
from .judge import judge_prompt as judge_prompt, read_verdict as read_verdict
from .pair_judge import pair_prompt as pair_prompt, read_preference as read_preference
from .python_function import FunctionGrader as FunctionGrader, place_and_name as place_and_name
from .registry import GRADERS as GRADERS
from .report import GradedTarget as GradedTarget, GradingReport as GradingReport
from .text import (
    parse_number as parse_number,
    right_letters as right_letters,
    tolerance_of as tolerance_of,
)
