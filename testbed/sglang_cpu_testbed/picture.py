"""The order of the loop's acts, without the fix and with it, as a picture:
``python -m sglang_cpu_testbed.picture FILE``. Both are recorded runs of two identical
prompts that arrive at once. A column is an act; durations are not shown."""

import argparse
from dataclasses import dataclass
from pathlib import Path

from sglang_cpu_testbed.capture import differing
from sglang_cpu_testbed.fork import warm
from sglang_cpu_testbed.scenarios import STOCK, TOGETHER, WOVEN
from sglang_cpu_testbed.sequence import (
    DECODE,
    LAUNCH,
    PROCESS,
    PUBLISH,
    SELECT,
    Step,
    record,
    rows_in_the_end,
)

# Of each run the batches up to this one are drawn: later decodes repeat themselves.
BATCHES = 3
LEFT, RIGHT, COLUMN, BOX, LANE, TITLE, TOP = 110, 20, 112, 26, 76, 64, 16
INK, GREY, RED = "#1a202c", "#4a5568", "#c53030"
COLOURS = {
    SELECT: "#d69e2e",
    LAUNCH: "#38a169",
    PROCESS: "#9ae6b4",
    PUBLISH: "#805ad5",
}


@dataclass(frozen=True)
class Box:
    """An act in its column and lane; captions stand below it, with those in red."""

    column: int
    lane: int
    step: Step
    captions: tuple[tuple[str, bool], ...]

    @property
    def stale(self) -> bool:
        return any(red for _, red in self.captions)


def boxes(steps: list[Step]) -> list[Box]:
    """What is drawn of one run, in order."""
    end = rows_in_the_end(steps)
    shown = [step for step in steps if step.batch <= BATCHES]
    return [
        Box(column, step.batch - 1, step, _captions(step, end))
        for column, step in enumerate(shown)
    ]


def draw(path: Path, runs: dict[str, list[Step]]) -> None:
    from PIL import Image, ImageDraw, ImageFont

    panels = {name: boxes(steps) for name, steps in runs.items()}
    columns = max(len(panel) for panel in panels.values())
    panel_height = TITLE + BATCHES * LANE
    size = (LEFT + columns * COLUMN + RIGHT, TOP + len(panels) * panel_height)
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    fonts = ImageFont.load_default(14), ImageFont.load_default(11)
    for number, (name, panel) in enumerate(panels.items()):
        _panel(pen, fonts, name, panel, TOP + number * panel_height)
    image.save(path)


def _panel(pen, fonts, name: str, panel: list[Box], top: int) -> None:
    font, small = fonts
    pen.text((8, top), name, INK, font)
    bottom = top + TITLE + BATCHES * LANE - 24
    first_of_turn = {box.step.turn: box for box in reversed(panel)}
    for turn, box in first_of_turn.items():
        x = _x(box.column) - 6
        pen.line((x, top + 24, x, bottom), "#cbd5e0")
        pen.text((x + 6, top + 26), f"turn {turn}", GREY, small)
    for lane, box in {box.lane: box for box in panel}.items():
        batch = f"{box.step.kind} {box.step.batch}"
        pen.text((8, _y(top, lane) + 5), batch, GREY, font)
    for box in panel:
        _box(pen, fonts, box, top)


def _box(pen, fonts, box: Box, top: int) -> None:
    font, small = fonts
    x, y = _x(box.column), _y(top, box.lane)
    outline = RED if box.stale else None
    corner = (x, y, x + COLUMN - 12, y + BOX)
    pen.rectangle(corner, COLOURS[box.step.act], outline, 3 if box.stale else 0)
    ink = "white" if box.step.act in (LAUNCH, PUBLISH) else INK
    pen.text((x + 8, y + 5), box.step.act, ink, font)
    for line, (caption, red) in enumerate(box.captions):
        where = (x, y + BOX + 2 + 13 * line)
        pen.text(where, caption, RED if red else GREY, small)


def _x(column: int) -> int:
    return LEFT + column * COLUMN


def _y(top: int, lane: int) -> int:
    return top + TITLE - 16 + lane * LANE


def _captions(step: Step, end: dict) -> tuple[tuple[str, bool], ...]:
    """Which slots a decode reads, and which of them are not the request's in the end."""
    if step.act == PUBLISH:
        ((rid, _),) = step.rows.items()
        return (rid, False), (f"{step.rebound} slots rebound", False)
    if step.act != LAUNCH or step.kind != DECODE:
        return ()
    lines = []
    for rid, row in step.rows.items():
        stale = len(differing(row, end[rid]))
        lines.append((f"{rid}: {row[0]} .. {row[-1]}", stale > 0))
        if stale:
            lines.append((f"{stale} of them stale", True))
    return tuple(lines)


def runs() -> dict[str, list[Step]]:
    """The two runs that are drawn; call ``warm()`` first."""
    return {each.name: record(TOGETHER, each) for each in (STOCK, WOVEN)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="picture", description=__doc__)
    parser.add_argument("file", type=Path)
    options = parser.parse_args()
    warm()
    draw(options.file, runs())


if __name__ == "__main__":
    main()
