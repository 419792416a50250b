from .folder import (
    check_place as check_place,
    find_files as find_files,
    is_free as is_free,
    reading as reading,
    replacing_folder as replacing_folder,
)
from .path import (
    ObjectRange as ObjectRange,
    PathOrUrl as PathOrUrl,
    RemotePath as RemotePath,
    fetch_ranges as fetch_ranges,
    location as location,
    read_ranges as read_ranges,
)
