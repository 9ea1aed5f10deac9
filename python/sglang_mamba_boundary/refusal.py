"""What a policy says, once per scheduler, where it leaves the work to a simpler one."""

import logging

logger = logging.getLogger(__name__)

_TOLD = "mamba_boundary_refusals"


def tell_once(scheduler, policy: str, obstacle: str, instead: str) -> None:
    """Log that `policy` was refused for `obstacle`, unless that was said before."""
    told = vars(scheduler).setdefault(_TOLD, set())
    if policy not in told:
        told.add(policy)
        logger.warning(
            "mamba-boundary: policy %s refused, found %s; %s.",
            policy,
            obstacle,
            instead,
        )
