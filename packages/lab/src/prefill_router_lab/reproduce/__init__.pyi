from .cells import (
    PublishedTable as PublishedTable,
    all_tables as all_tables,
    read_published as read_published,
)
from .options import QWEN_PRICE as QWEN_PRICE, ReproduceOptions as ReproduceOptions
from .report import (
    STUDY as STUDY,
    WORK as WORK,
    Claim as Claim,
    check as check,
    to_dict as to_dict,
    write as write,
)
from .reproduction import ReproduceMeans as ReproduceMeans, reproduce as reproduce
from .systems import (
    Bench as Bench,
    PaperPool as PaperPool,
    PoolRun as PoolRun,
    find_pools as find_pools,
)
