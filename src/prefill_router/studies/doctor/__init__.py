"""Is a router more than a fixed choice? Controls that tell the two apart, and one verdict."""

from prefill_router.studies.doctor.checkup import Checkup, examine
from prefill_router.studies.doctor.subject import Finding, Subject

__all__ = ["Checkup", "Finding", "Subject", "examine"]
