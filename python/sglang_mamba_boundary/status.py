"""What each scheduler process tells about itself in the server's `/server_info`."""

from __future__ import annotations

from .live import in_place, policy_in_place
from .outcome import Refused
from .policies import POLICIES

KEY = "mamba_boundary"
STATUS_ACTS, STATUS_LEFT_ALONE, STATUS_ABSENT = "acts", "left alone", "absent"


def status_of(scheduler, policy: str) -> dict[str, str]:
    """Whether the fix is in the loop of this scheduler, and acts in its set-up."""
    outcome = in_place(type(scheduler))
    policy = policy_in_place() or policy
    if isinstance(outcome, Refused):
        return {"policy": policy, "status": STATUS_ABSENT, "loop": str(outcome)}
    if scheduler.require_mlp_sync:
        reason = "MLP sync: all ranks take one overlap decision, which the fix leaves"
        return {"policy": policy, "status": STATUS_LEFT_ALONE, "loop": reason}
    told = str(outcome)
    # An engine that carries the fix itself has no policy's members.
    obstacles = POLICIES[policy].obstacles if policy in POLICIES else ()
    for obstacle, instead in obstacles:
        reason = getattr(scheduler, obstacle, lambda: None)()
        if reason is not None:
            told += f"; as by the policy {instead}, since {policy} was refused: "
            told += f"found {reason}"
            break
    return {"policy": policy, "status": STATUS_ACTS, "loop": told}
