"""Limits that settings, options of commands and keys share; importing them loads pydantic alone."""

from pydantic import Field

COUNT = Field(ge=1, le=10_000_000)
SECONDS = Field(gt=0, le=86_400)
DOLLARS_PER_SECOND = Field(ge=0, le=1000)
