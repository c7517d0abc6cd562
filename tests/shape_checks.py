"""The run-time type checker the tests switch on for every shape annotation."""

from beartype import BeartypeConf, beartype

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))
