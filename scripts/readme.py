"""Writes the blocks of README.md that commands print; `--check` compares instead.

A block stands between `<!-- name:begin -->` and `<!-- name:end -->`.
"""

import argparse
import difflib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
BLOCKS = {
    "demo": [sys.executable, "-W", "ignore", "-m", "sglang_cpu_testbed.demo"],
    "red-green": [sys.executable, "test/red_green.py"],
}


def printed_by(command: list[str]) -> str:
    """Standard output of a command, fenced; exits where the command fails."""
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.stdout.write(done.stdout)
        raise SystemExit(f"{' '.join(command[1:])}: exit {done.returncode}")
    return f"\n```text\n{done.stdout.strip()}\n```\n"


def with_block(text: str, name: str, block: str) -> str:
    """`text` with what stands between the markers of `name` exchanged."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{README.name} must hold {begin} and {end} once each")
    head, rest = text.split(begin)
    return head + begin + block + end + rest.split(end)[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args()
    old = new = README.read_text()
    for name, command in BLOCKS.items():
        new = with_block(new, name, printed_by(command))
    if not options.check:
        README.write_text(new)
    elif new != old:
        lines = old.splitlines(True), new.splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(*lines, "README.md", "printed"))
        raise SystemExit("README.md is not what the commands print; run `make readme`")
    else:
        print(f"README.md: {len(BLOCKS)} blocks are what their commands print")


if __name__ == "__main__":
    main()
