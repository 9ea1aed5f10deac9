"""The picture of the loop: its events come from runs, and stand in the order that the
fault and the fix are about."""

from pathlib import Path

import pytest

from sglang_cpu_testbed import picture
from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.scenarios import (
    BARRIER_SWITCH,
    BOUNDARY_SWITCH,
    PUBLISHED,
    STOCK,
    TOGETHER,
    WOVEN,
)
from sglang_cpu_testbed.sequence import (
    LAUNCH,
    PREFILL,
    PROCESS,
    PUBLISH,
    SELECT,
    first_decode,
    rebinding,
    record_here,
    rows_in_the_end,
)

STORED = Path(__file__).parents[2] / "docs" / "loop.png"


@pytest.fixture(scope="module")
def drawn(warmed):
    """Steps by the name of the configuration."""
    return picture.runs()


def test_stock_publishes_after_the_first_decode_has_captured(drawn):
    steps = drawn[STOCK.name]
    assert steps.index(first_decode(steps)) < steps.index(rebinding(steps))


def test_woven_publishes_before(drawn):
    steps = drawn[WOVEN.name]
    assert steps.index(rebinding(steps)) < steps.index(first_decode(steps))


def test_the_capture_is_of_the_slots_that_the_demonstration_shows(drawn, runs):
    for configuration in (STOCK, WOVEN):
        captured = first_decode(drawn[configuration.name]).rows
        shown = runs[False][configuration, TOGETHER]
        for rid in TOGETHER.watched:
            assert captured[rid] == shown.rows_of(rid)[0].prompt_slots


def test_the_publication_leaves_the_row_of_the_end(drawn):
    for steps in drawn.values():
        published = rebinding(steps)
        ((rid, row),) = published.rows.items()
        assert rid == "second" and published.rebound == 384
        assert row == rows_in_the_end(steps)[rid]


@pytest.mark.parametrize("name", [STOCK.name, WOVEN.name])
def test_every_batch_is_selected_launched_and_processed_once(drawn, name):
    steps = drawn[name]
    acts = [(s.batch, s.act) for s in steps if s.act != PUBLISH]
    assert len(acts) == len(set(acts))
    batches = {batch for batch, _ in acts}
    assert set(acts) == {(b, a) for b in batches for a in (SELECT, LAUNCH, PROCESS)}
    for batch in batches:
        own = [act for number, act in acts if number == batch]
        assert own == [SELECT, LAUNCH, PROCESS]


def test_a_publication_ahead_of_its_processing_belongs_to_that_batch(warmed):
    env = {BOUNDARY_SWITCH: PUBLISHED.boundary, BARRIER_SWITCH: "1"}
    steps = fork(record_here, TOGETHER, env=env)
    published = rebinding(steps)
    assert (published.batch, published.kind) == (1, PREFILL)
    (processed,) = [s for s in steps if s.act == PROCESS and s.batch == 1]
    order = published, first_decode(steps), processed
    assert [*map(steps.index, order)] == sorted(map(steps.index, order))


def test_only_the_first_decode_of_stock_is_drawn_as_stale(drawn):
    stale = {
        name: [box.step for box in picture.boxes(steps) if box.stale]
        for name, steps in drawn.items()
    }
    assert stale == {STOCK.name: [first_decode(drawn[STOCK.name])], WOVEN.name: []}


def test_the_stored_picture_is_the_one_that_the_runs_draw(drawn, tmp_path):
    from PIL import Image, ImageChops

    picture.draw(tmp_path / "loop.png", drawn)
    with Image.open(tmp_path / "loop.png") as now, Image.open(STORED) as stored:
        assert now.size == stored.size
        assert ImageChops.difference(now, stored).getbbox() is None
