"""Publish a tracked Mamba prefill before SGLang selects the next batch."""

from .live import in_place, unweave, weave
from .outcome import AlreadyFixed, MambaBoundaryError, Refused, Unwoven, Woven

__all__ = [
    "AlreadyFixed",
    "MambaBoundaryError",
    "Refused",
    "Unwoven",
    "Woven",
    "in_place",
    "unweave",
    "weave",
]
