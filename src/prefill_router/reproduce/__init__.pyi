from .cells import all_tables as all_tables
from .paper_numbers import Published as Published, published as published
from .pools import Bench as Bench, PaperPool as PaperPool, find_pools as find_pools
from .report import (
    STUDY as STUDY,
    WORK as WORK,
    Claim as Claim,
    check as check,
    to_dict as to_dict,
    write as write,
)
from .reproduction import ReproduceMeans as ReproduceMeans, reproduce as reproduce
from .systems import PoolRun as PoolRun, ReproduceOptions as ReproduceOptions
