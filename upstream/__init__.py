"""A folder for a pull request: the patch, its description from recorded results, and how
to reproduce them. Needs the repository with its records, and so is never shipped."""

from pathlib import Path

from sglang_mamba_boundary.outcome import Refused

ROOT = Path(__file__).parent.parent


class Stop(Exception):
    """Nothing was written; `refusal` says why."""

    def __init__(self, sought: str, found: str, remedy: str):
        self.refusal = Refused(sought, found, remedy, "nothing was written")
        super().__init__(str(self.refusal))
