from .cells import Published as Published, all_tables as all_tables, published as published
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
