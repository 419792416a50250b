from .folder import (
    check_place as check_place,
    held_files as held_files,
    is_free as is_free,
    reading as reading,
    replacing_folder as replacing_folder,
)
from .path import PathOrUrl as PathOrUrl, RemotePath as RemotePath, location as location
from .ranges import (
    ObjectRange as ObjectRange,
    fetch_ranges as fetch_ranges,
    read_ranges as read_ranges,
)
