from .dataset import (
    CUT as CUT,
    MOST_COST as MOST_COST,
    MOST_TOKENS as MOST_TOKENS,
    Message as Message,
    Prompt as Prompt,
    Query as Query,
    Regime as Regime,
    RoutingDataset as RoutingDataset,
    Table as Table,
    binary as binary,
    merge as merge,
    missing_table as missing_table,
    prompt_key as prompt_key,
    prompt_text as prompt_text,
    regimes as regimes,
)
from .folder import (
    BLOCK_ROWS as BLOCK_ROWS,
    Origin as Origin,
    QueryFile as QueryFile,
    open_queries as open_queries,
)
from .meaning import CHANCES as CHANCES, Kind as Kind, LabelMeaning as LabelMeaning
from .splits import (
    FRACTIONS as FRACTIONS,
    PARTS as PARTS,
    WITH_CALIBRATION as WITH_CALIBRATION,
    Part as Part,
    Split as Split,
    find_unseen as find_unseen,
    load_split as load_split,
    save_split as save_split,
    split as split,
    split_by_time as split_by_time,
    split_from_dict as split_from_dict,
    stratified_folds as stratified_folds,
)
from .storage import (
    check_replaceable as check_replaceable,
    is_dataset as is_dataset,
    read_dataset as read_dataset,
    write_dataset as write_dataset,
)
from .summary import (
    LEAST_SHARE as LEAST_SHARE,
    MEASURED as MEASURED,
    PartSummary as PartSummary,
    Summary as Summary,
    TargetSummary as TargetSummary,
    summarise as summarise,
    well_measured as well_measured,
)
