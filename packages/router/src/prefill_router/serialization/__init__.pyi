from .parts import (
    Kinds as Kinds,
    Names as Names,
    Part as Part,
    Saved as Saved,
    StrictModel as StrictModel,
    read_plain as read_plain,
    validate as validate,
)
from .tensors import (
    NO_TENSORS as NO_TENSORS,
    REMEDY as REMEDY,
    Shape as Shape,
    TensorFile as TensorFile,
    Tensors as Tensors,
    check_names as check_names,
    read_tensors as read_tensors,
    take_tensors as take_tensors,
    under as under,
)
