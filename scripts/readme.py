"""Writes the blocks of README.md and docs/ that commands print; `--check` compares.

A block stands between `<!-- name:begin -->` and `<!-- name:end -->` in its file.
"""

import argparse
import difflib
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
README, DEMO, PERFORMANCE = "README.md", "docs/demo.md", "docs/performance.md"
TESTBED = [sys.executable, "-W", "ignore", "-m"]


@dataclass(frozen=True)
class Block:
    """What `command` prints, as it is or within a code fence of that language."""

    file: str
    command: list[str]
    fence: str = "text"

    def printed(self) -> str:
        """Exits where the command fails."""
        done = subprocess.run(self.command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            sys.stdout.write(done.stdout)
            raise SystemExit(f"{' '.join(self.command[1:])}: exit {done.returncode}")
        text = done.stdout.strip()
        return f"\n```{self.fence}\n{text}\n```\n" if self.fence else f"\n{text}\n"


def _script(file: str, *arguments: str) -> list[str]:
    return [sys.executable, file, *arguments]


BLOCKS = {
    "check": Block(README, [*TESTBED, "sglang_mamba_boundary", "check"]),
    "diff": Block(README, _script("scripts/loop_outline.py"), "diff"),
    "versions": Block(README, _script("test/versions/table.py"), ""),
    "bench-shared": Block(README, [*TESTBED, "benchmark.summary", "shared"], ""),
    "red-green": Block(README, _script("test/red_green.py")),
    "simulation": Block(README, _script("scripts/simulation_table.py"), ""),
    "smoke": Block(README, _script("scripts/smoke_table.py"), ""),
    "demo": Block(DEMO, [*TESTBED, "sglang_cpu_testbed.demo"]),
    "bench": Block(PERFORMANCE, [*TESTBED, "benchmark.summary"], ""),
    "wall": Block(PERFORMANCE, [*TESTBED, "benchmark.recorded", "wall"]),
    "costs": Block(PERFORMANCE, [*TESTBED, "benchmark.recorded", "costs"]),
}


def with_block(file: str, text: str, name: str, block: str) -> str:
    """`text` of `file` with what stands between the markers of `name` exchanged."""
    begin, end = f"<!-- {name}:begin -->", f"<!-- {name}:end -->"
    if text.count(begin) != 1 or text.count(end) != 1:
        raise SystemExit(f"{file} must hold {begin} and {end} once each")
    head, rest = text.split(begin)
    return head + begin + block + end + rest.split(end)[1]


def unknown_blocks() -> list[str]:
    """Markers of blocks that no command writes, as file and name."""
    found = []
    for file in [ROOT / README, *sorted(ROOT.glob("docs/*.md"))]:
        name = str(file.relative_to(ROOT))
        for marked in re.findall(r"<!-- ([\w-]+):begin -->", file.read_text()):
            if marked not in BLOCKS or BLOCKS[marked].file != name:
                found.append(f"{name}: {marked}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("blocks", nargs="*", choices=[*BLOCKS, []], help="or all")
    options = parser.parse_args()
    unknown = unknown_blocks()
    if unknown:
        raise SystemExit(f"blocks that no command writes: {', '.join(unknown)}")
    names = options.blocks or list(BLOCKS)
    files = dict.fromkeys(BLOCKS[name].file for name in names)
    old = {file: (ROOT / file).read_text() for file in files}
    new = dict(old)
    for name in names:
        block = BLOCKS[name]
        new[block.file] = with_block(block.file, new[block.file], name, block.printed())
    if not options.check:
        for file in files:
            (ROOT / file).write_text(new[file])
        return
    for file in files:
        lines = old[file].splitlines(True), new[file].splitlines(True)
        sys.stdout.writelines(difflib.unified_diff(*lines, file, "printed"))
    wrong = [file for file in files if new[file] != old[file]]
    if wrong:
        told = f"{', '.join(wrong)}: not what the commands print"
        raise SystemExit(f"{told}; run `make readme`")
    print(f"{', '.join(files)}: {len(names)} blocks are what their commands print")


if __name__ == "__main__":
    main()
