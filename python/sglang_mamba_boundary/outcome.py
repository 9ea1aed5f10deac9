"""What can come of an attempt: values first, one exception root for the edges."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Refused:
    """Nothing was changed. The fields say why, in the order a reader needs them."""

    sought: str
    found: str
    remedy: str
    state: str = "the engine is unchanged and runs without the fix"

    def __str__(self) -> str:
        return (
            f"looked for {self.sought}; found {self.found}; {self.state}; {self.remedy}"
        )


@dataclass(frozen=True)
class Woven:
    """The fix is in `loop` of the engine of that version."""

    engine: str
    loop: str
    already: bool = False

    def __str__(self) -> str:
        already = "already " if self.already else ""
        return f"{already}woven into {self.loop} of sglang {self.engine}"


@dataclass(frozen=True)
class AlreadyFixed:
    """The engine's own loop carries the fix; there is nothing to weave."""

    engine: str
    loop: str

    def __str__(self) -> str:
        return f"{self.loop} of sglang {self.engine} carries the fix itself"


@dataclass(frozen=True)
class Unwoven:
    """The engine's loop is the engine's own; `already` if it was before the call."""

    already: bool = False

    def __str__(self) -> str:
        already = "already " if self.already else ""
        return f"the engine's loop is {already}its own"


class MambaBoundaryError(Exception):
    """Root of all errors of this package."""


class SettingError(MambaBoundaryError):
    """An environment variable holds a value that is not one of its choices.

    `beside` is the setting of another variable that leaves no other choices.
    """

    def __init__(
        self, variable: str, value: str, choices: tuple[str, ...], beside: str = ""
    ):
        self.variable, self.value, self.choices = variable, value, choices
        where = f" beside {beside}" if beside else ""
        unset = f", or unset {beside.partition('=')[0] or variable}"
        super().__init__(
            f"{variable}={value!r}{where} is not one of {', '.join(map(repr, choices))}; "
            f"the engine is unchanged; set {variable} to one of these{unset}"
        )


class RequiredFixMissing(MambaBoundaryError):
    """The fix is required and not in place; `refusal` says why."""

    def __init__(self, refusal: Refused):
        self.refusal = refusal
        super().__init__(f"the fix is required and not in place: {refusal}")
