"""How annotations are checked while tests run: an int will do where a float is asked for."""

from beartype import BeartypeConf, beartype

with_numeric_tower = beartype(conf=BeartypeConf(is_pep484_tower=True))
