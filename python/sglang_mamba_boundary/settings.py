"""The two environment variables, read once and checked wholly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .outcome import SettingError
from .policies import POLICIES as WOVEN

POLICY = "SGLANG_MAMBA_BOUNDARY"
REQUIRED = "SGLANG_MAMBA_BOUNDARY_REQUIRED"

# Those that put the fix into the loop, the default first.
WEAVING = tuple(WOVEN)
POLICIES = (*WEAVING, "audit", "off")
_REQUIRED_VALUES = {"1": True, "0": False}


@dataclass(frozen=True)
class Settings:
    policy: str
    required: bool

    @property
    def weaves(self) -> bool:
        return self.policy in WEAVING


def read_settings(environ: Mapping[str, str]) -> Settings:
    """Raises SettingError for any value that is not one of the choices."""
    policy = environ.get(POLICY, POLICIES[0])
    if policy not in POLICIES:
        raise SettingError(POLICY, policy, POLICIES)
    required = environ.get(REQUIRED, "0")
    if required not in _REQUIRED_VALUES:
        raise SettingError(REQUIRED, required, tuple(_REQUIRED_VALUES))
    if policy not in WEAVING and _REQUIRED_VALUES[required]:
        raise SettingError(POLICY, policy, WEAVING, beside=f"{REQUIRED}=1")
    return Settings(policy, _REQUIRED_VALUES[required])
