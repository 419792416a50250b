from .benchmark_results import read_questions as read_questions
from .builder import (
    DatasetBuilder as DatasetBuilder,
    ImportReport as ImportReport,
    Place as Place,
    Problem as Problem,
    TargetOutcome as TargetOutcome,
)
from .call_logs import (
    BatchResult as BatchResult,
    read_batch_results as read_batch_results,
    scored_text as scored_text,
)
from .dataset_import import (
    Imported as Imported,
    check_choice as check_choice,
    import_dataset as import_dataset,
    read_prices as read_prices,
)
from .registry import FORMATS as FORMATS, Format as Format
from .source_guess import (
    SourceDoubt as SourceDoubt,
    SourceGuess as SourceGuess,
    guess_source as guess_source,
    recognise_format as recognise_format,
)
from .sources import documents as documents, parse_list as parse_list
from .tables import Record as Record, columns_of as columns_of, records as records
from .values import (
    Columns as Columns,
    Scale as Scale,
    cell_amount as cell_amount,
    cell_prompt as cell_prompt,
    cell_text as cell_text,
    identifier as identifier,
    label as label,
    label_text as label_text,
    require_text as require_text,
    show_cell as show_cell,
)
