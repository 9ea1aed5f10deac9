"""The woven loop as a diff, without the engine's own text: each line that
`mamba-boundary show` adds, below the name of the engine's statement that it stands at.
"""

import re
import subprocess
import sys

from sglang_mamba_boundary.loop import POP, SELECTION

SHOW = [sys.executable, "-W", "ignore", "-m", "sglang_mamba_boundary", "show"]
# The lines below an added one in which its statement has to stand.
NEAR = 4


def outline(diff: str) -> list[str]:
    """Raises ValueError where an added line stands at no known statement."""
    told, shown = [], None
    lines = [line for line in diff.splitlines() if not line.startswith(("---", "+++"))]
    for number, line in enumerate(lines):
        if line.startswith("@@"):
            shown = None
        if not line.startswith("+"):
            continue
        added = line[1:].strip()
        if shown is None:
            shown = _statement(lines[number:])
            told.append(f"@@ at {shown} @@")
        if added:
            told.append(f"+{added}")
    return told


def _statement(lines: list[str]) -> str:
    """The first of the known statements in or below the added lines."""
    added = [line for line in lines[: 2 * NEAR] if line.startswith("+")]
    below = [line for line in lines[: 2 * NEAR] if line.startswith(" ")][:NEAR]
    for line in below:
        for name in (SELECTION, POP):
            if re.search(rf"\b{name}\(", line):
                return f"{name}()"
    raise ValueError(
        f"looked for {SELECTION}() or {POP}() near {added[:1]}, found neither"
    )


def main() -> None:
    done = subprocess.run(SHOW, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"mamba-boundary show: exit {done.returncode}")
    print(*outline(done.stdout), sep="\n")


if __name__ == "__main__":
    main()
