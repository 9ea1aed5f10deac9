"""The policy rebind: which publications move a row, on stand-ins. That no other does is
what the simulation shows."""

import logging
import sys
from types import SimpleNamespace

import pytest
from pending import PAGE, decodes, request, scheduler_of

from sglang_mamba_boundary import refusal

LAZY = {
    "req_to_token_pool": SimpleNamespace(
        enable_mamba_extra_buffer=True, enable_mamba_extra_buffer_lazy=True
    )
}
REBIND_OBSTACLES = {
    "lazy buffers": LAZY,
    "session radix": {"enable_session_radix_cache": True},
}


class Key(list):
    """What the tree is asked for; the engine's own needs the engine."""

    def __init__(self, tokens, extra_key, *, limit, cache_salt):
        super().__init__(tokens[:limit])


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    module = SimpleNamespace(RadixKey=Key)
    monkeypatch.setitem(sys.modules, "sglang.srt.mem_cache.radix_cache", module)


def test_notes_at_the_boundary_as_late_does():
    scheduler = scheduler_of("rebind")(request(), in_tree=16)
    assert scheduler.act() == (False, [])
    decodes(scheduler)
    assert scheduler.events == ["pop"] and scheduler.published_early is True


def test_a_row_waits_where_the_tree_holds_more_than_it_knows():
    for in_tree, protected, expected in (
        (0, 0, []),
        (16, 0, ["pop"]),
        (16, 16, []),
        (48, 32, ["pop"]),
    ):
        req = request(protected=protected)
        scheduler = scheduler_of("rebind")(req, in_tree=in_tree)
        scheduler.act()
        decodes(scheduler)
        assert scheduler.events == expected, (in_tree, protected)
        (key,) = scheduler.tree_cache.asked
        # Only what the publication inserts.
        assert len(key) == 64


@pytest.mark.parametrize(
    "first, second, expected",
    [
        ({}, {}, True),
        ({"extra_key": "x"}, {}, False),
        ({"cache_salt": "x"}, {}, False),
        ({"tokens": [9, *range(1, 70)]}, {}, False),
        ({"tokens": [*range(PAGE - 1), 99, *range(PAGE, 70)]}, {}, False),
        ({"tokens": [*range(PAGE), 99]}, {}, True),
        # Less than the page that follows what the second knows.
        ({"tokens": [*range(PAGE + 5)]}, {"protected": PAGE}, False),
        ({"tokens": [*range(2 * PAGE)]}, {"protected": PAGE}, True),
        ({"tokens": [9, *range(1, 70)]}, {"protected": PAGE}, False),
    ],
)
def test_a_row_waits_for_what_its_own_batch_brings(first, second, expected):
    """In the order of processing: what comes later moves nothing."""
    scheduler = scheduler_of("rebind")(request("a", **first), request("b", **second))
    scheduler.act()
    decodes(scheduler)
    assert (scheduler.events == ["pop"]) == expected


def test_rows_of_no_interest_are_asked_nothing():
    scheduler = scheduler_of("rebind")(request(ends=True), in_tree=64)
    scheduler.act()
    decodes(scheduler)
    assert scheduler.events == scheduler.tree_cache.asked == []


@pytest.mark.parametrize("named", REBIND_OBSTACLES)
def test_rebind_does_as_late_where_it_cannot_know(named, caplog):
    scheduler = scheduler_of("rebind")(request(), **REBIND_OBSTACLES[named])
    with caplog.at_level(logging.WARNING, refusal.__name__):
        for expected in (["pop"], ["pop", "pop"]):
            assert scheduler.act()[0] is False
            decodes(scheduler)
            assert scheduler.events == expected
    (line,) = [record.getMessage() for record in caplog.records]
    assert "policy rebind refused, found" in line and named in line
