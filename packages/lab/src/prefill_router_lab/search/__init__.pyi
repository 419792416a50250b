from .config import SearchConfig as SearchConfig
from .holdout_guard import SealedTest as SealedTest, seal as seal
from .report import (
    ROUTER as ROUTER,
    begin as begin,
    plan_of as plan_of,
    words as words,
    write as write,
)
from .space import DEFAULT as DEFAULT, Space as Space, read_space as read_space
from .trial_loop import (
    SearchResult as SearchResult,
    choose as choose,
    conclude as conclude,
    openers as openers,
    search as search,
)
