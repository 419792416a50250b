from .accuracy import ExpectedAccuracy as ExpectedAccuracy, expect_accuracy as expect_accuracy
from .assignment import Assignment as Assignment, assign as assign
from .batch_lines import (
    FORMATS as FORMATS,
    MOST_LINES as MOST_LINES,
    BatchFormat as BatchFormat,
    BatchLines as BatchLines,
    default_format as default_format,
)
from .folder import (
    FOLDER as FOLDER,
    SavedAssignment as SavedAssignment,
    target_figures as target_figures,
    write_assignment as write_assignment,
)
from .forecast import predict_prompts as predict_prompts
from .grades import GradedResults as GradedResults, grade_results as grade_results
from .prompt_file import PromptFile as PromptFile, PromptRecord as PromptRecord
from .results import (
    CheckedResults as CheckedResults,
    ResultFigures as ResultFigures,
    check_results as check_results,
    read_labels as read_labels,
)
