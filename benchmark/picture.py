"""The timelines of the policies one below the other, around the same prefill of the
run: what the device does, and what the host does meanwhile."""

from __future__ import annotations

from pathlib import Path

from sglang_cpu_testbed.virtual import timeline as t

WIDTH, LEFT, RIGHT, BAR, GAP, TOP = 1500, 130, 20, 26, 40, 70
WINDOW_NS = 90_000_000
LEAD_NS = 8_000_000
# The prefill, counted from the first, that the window begins with.
AT = 20
COLOURS = {
    t.PREFILL: "#2b6cb0",
    t.DECODE: "#90cdf4",
    "bubble": "#e53e3e",
    t.INGEST: "#a0aec0",
    t.SELECT: "#d69e2e",
    t.PUBLISH: "#805ad5",
    t.LAUNCH: "#38a169",
    t.PROCESS: "#9ae6b4",
    t.WAIT: "#edf2f7",
}


def draw(path: Path, timelines: dict[str, t.Timeline]) -> None:
    from PIL import Image, ImageDraw, ImageFont

    height = TOP + len(timelines) * (2 * BAR + GAP) + 30
    image = Image.new("RGB", (WIDTH, height), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    _legend(pen, font)
    for number, (policy, timeline) in enumerate(timelines.items()):
        top = TOP + number * (2 * BAR + GAP)
        start = window_start(timeline)
        bars = [*timeline.spans, *bubbles(timeline)]
        # A publication lies within the processing that makes it, which with its wait
        # may lie within a selection.
        bars.sort(key=lambda span: (span.kind != t.SELECT, span.kind == t.PUBLISH))
        for span in bars:
            row = top + (BAR if span.track == t.DEVICE else 0)
            _bar(pen, span, start, row)
        pen.text((8, top + 12), policy, "black", font)
        pen.text((LEFT - 48, top + 4), "host", "#4a5568", font)
        pen.text((LEFT - 48, top + BAR + 4), "device", "#4a5568", font)
    for ms in range(0, WINDOW_NS // 1_000_000 + 1, 10):
        x = _x(ms * 1_000_000, 0)
        pen.text((x - 8, height - 26), f"{ms}", "#4a5568", font)
    pen.text((LEFT - 48, height - 26), "ms", "#4a5568", font)
    image.save(path)


def window_start(timeline: t.Timeline) -> int:
    prefills = [span for span in timeline.on(t.DEVICE) if span.kind == t.PREFILL]
    return prefills[min(AT, len(prefills) - 1)].start_ns - LEAD_NS


def bubbles(timeline: t.Timeline) -> list[t.Span]:
    """When the device had nothing to do, between its launches."""
    spans = timeline.on(t.DEVICE)
    return [
        t.Span(t.DEVICE, "bubble", before.end_ns, after.start_ns)
        for before, after in zip(spans, spans[1:])
        if after.start_ns > before.end_ns
    ]


def _x(moment_ns: int, start_ns: int) -> float:
    return LEFT + (moment_ns - start_ns) / WINDOW_NS * (WIDTH - LEFT - RIGHT)


def _bar(pen, span: t.Span, start_ns: int, row: int) -> None:
    first = max(_x(span.start_ns, start_ns), LEFT)
    last = min(_x(span.end_ns, start_ns), WIDTH - RIGHT)
    if last > first:
        pen.rectangle((first, row, last, row + BAR - 2), COLOURS[span.kind])


def _legend(pen, font) -> None:
    for number, (kind, colour) in enumerate(COLOURS.items()):
        x = LEFT + number * 140
        pen.rectangle((x, 20, x + 16, 36), colour, "#a0aec0")
        pen.text((x + 22, 20), kind, "black", font)
