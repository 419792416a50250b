from .checkup import SIGNS as SIGNS, Checkup as Checkup, examine as examine
from .confidence import PerQuery as PerQuery, Probe as Probe, distances as distances, probe as probe
from .report import KIND as KIND, write_checkup as write_checkup
from .subject import Finding as Finding, Subject as Subject
