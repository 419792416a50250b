from .base import Grade as Grade, Grader as Grader
from .caches import JudgeBill as JudgeBill
from .grade_table import GRADES as GRADES
from .job import grade_run as grade_run
from .python_function import place_and_name as place_and_name
from .registry import GRADERS as GRADERS, Graders as Graders, Settings as Settings
from .report import GradedTarget as GradedTarget, GradingReport as GradingReport
from .text import (
    UNEXTRACTED as UNEXTRACTED,
    parse_number as parse_number,
    right_letters as right_letters,
    tolerance_of as tolerance_of,
)
