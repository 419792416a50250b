from .parts import (
    Kinds as Kinds,
    Names as Names,
    Part as Part,
    Saved as Saved,
    StrictModel as StrictModel,
    read_plain as read_plain,
    validated as validated,
)
from .tensors import (
    AGAIN as AGAIN,
    NO_TENSORS as NO_TENSORS,
    Shape as Shape,
    TensorFile as TensorFile,
    Tensors as Tensors,
    check_names as check_names,
    read_tensors as read_tensors,
    take_tensors as take_tensors,
    under as under,
)
