"""Writes the blocks of README.md that commands print; `--check` compares instead.

A block stands between `<!-- name:begin -->` and `<!-- name:end -->`.
"""

import argparse
import difflib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TESTBED = [sys.executable, "-W", "ignore", "-m"]


@dataclass(frozen=True)
class Block:
    """What `command` prints, as it is or within a code fence."""

    command: list[str]
    fence: bool = True

    def printed(self) -> str:
        """Exits where the command fails."""
        done = subprocess.run(self.command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.stdout.write(done.stdout)
            raise SystemExit(f"{' '.join(self.command[1:])}: exit {done.returncode}")
        text = done.stdout.strip()
        return f"\n```text\n{text}\n```\n" if self.fence else f"\n{text}\n"


BLOCKS = {
    "check": Block([*TESTBED, "sglang_mamba_boundary", "check"]),
    "demo": Block([*TESTBED, "sglang_cpu_testbed.demo"]),
    "red-green": Block([sys.executable, "test/red_green.py"]),
    "simulation": Block([sys.executable, "scripts/simulation_table.py"], fence=False),
    "bench": Block([*TESTBED, "benchmark.summary"], fence=False),
    "versions": Block([sys.executable, "test/versions/table.py"], fence=False),
}


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
    parser.add_argument("blocks", nargs="*", choices=[*BLOCKS, []], help="or all")
    options = parser.parse_args()
    old = new = README.read_text()
    names = options.blocks or list(BLOCKS)
    for name in names:
        new = with_block(new, name, BLOCKS[name].printed())
    if not options.check:
        README.write_text(new)
    elif new != old:
        lines = old.splitlines(True), new.splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(*lines, "README.md", "printed"))
        raise SystemExit("README.md is not what the commands print; run `make readme`")
    else:
        print(f"README.md: {len(names)} blocks are what their commands print")


if __name__ == "__main__":
    main()
