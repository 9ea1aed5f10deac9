"""What breaks breaks as in the unmodified engine: the same exception ends the loop, no
batch was launched that depends on the broken result, nothing is published twice."""

import logging
from dataclasses import dataclass

import pytest
from staging import in_fork, stage

from sglang_cpu_testbed.simulation.history import Arrive, History, Prompt
from sglang_cpu_testbed.simulation.verdict import ENGINE

TWINS = History(
    "page1",
    ((Arrive("a", Prompt(0, 40), 5), Arrive("b", Prompt(0, 40), 5)), (), (), ()),
)


class Broken(Exception):
    pass


def breaks(*_, **__):
    raise Broken("as planted")


@dataclass
class Ended:
    """How a run ended: by what, after which launches, with what in the tree."""

    error: str
    launches: list[str]
    published: int
    queued: int


def forward(built):
    built.device._forward = breaks


def copy(built):
    from sglang_cpu_testbed.simulation.device import Completion

    Completion.synchronize = breaks


def publication_before(built):
    """Before the tree took anything."""
    built.scheduler.tree_cache.insert = breaks


def publication_halfway(built):
    """The tree has the pages and has freed the duplicates, the row names the old ones."""
    insert = built.scheduler.tree_cache.insert

    def inserts(*args, **kwargs):
        insert(*args, **kwargs)
        breaks()

    built.scheduler.tree_cache.insert = inserts


def ended(damage, name="page1"):
    built = stage(name)
    launches, run_batch = [], built.scheduler.run_batch

    def recording(batch, *args, **kwargs):
        launches.append(batch.forward_mode.name)
        return run_batch(batch, *args, **kwargs)

    built.scheduler.run_batch = recording
    damage(built)
    verdict = built.play(TWINS)
    scheduler = built.scheduler
    return Ended(
        "; ".join(v.text for v in verdict.violations if v.kind == ENGINE),
        launches,
        int(scheduler.tree_cache.total_size()[0]),
        len(scheduler.result_queue),
    )


@pytest.fixture(scope="module")
def both(warmed):
    """The same damage on the stock and on the woven loop."""
    return lambda damage: {
        policy: in_fork(ended, damage, policy=policy) for policy in ("off", "flush")
    }


@pytest.mark.parametrize(
    "damage", [forward, copy, publication_before], ids=lambda damage: damage.__name__
)
def test_a_broken_prefill_ends_the_loop_with_its_own_exception(both, damage):
    stock, woven = both(damage).values()
    assert woven.error.split(":")[0] == stock.error.split(":")[0]
    assert "Broken in" in woven.error and "as planted" in woven.error
    # The stock loop has launched the decode by then; the woven one has not.
    assert (stock.launches, woven.launches) == (["EXTEND", "DECODE"], ["EXTEND"])
    assert woven.published == 0
    assert woven.queued == 0


def test_a_publication_that_breaks_half_way_ends_the_loop(both):
    stock, woven = both(publication_halfway).values()
    assert "Broken" in stock.error and "Broken" in woven.error
    assert (stock.launches, woven.launches) == (["EXTEND", "DECODE"], ["EXTEND"])
    assert woven.published == stock.published > 0
    assert woven.queued == 0


def no_state_to_be_had(built):
    """From the publication on, the Mamba pool gives nothing."""
    allocator, process = (
        built.scheduler.req_to_token_pool.mamba_allocator,
        built.scheduler.process_batch_result,
    )

    def processing(*args, **kwargs):
        allocator.alloc = lambda need_size: None
        return process(*args, **kwargs)

    built.scheduler.process_batch_result = processing


def no_page_to_be_had(built):
    """From the first decode on, the KV pool gives nothing and the tree has nothing."""
    allocator, process = (
        built.scheduler.token_to_kv_pool_allocator,
        built.scheduler.process_batch_result,
    )

    def processing(*args, **kwargs):
        allocator.alloc = lambda need_size: None
        return process(*args, **kwargs)

    built.scheduler.process_batch_result = processing


@pytest.mark.parametrize(
    "damage", [no_state_to_be_had, no_page_to_be_had], ids=lambda d: d.__name__
)
def test_an_allocator_that_refuses_ends_both_loops_alike(both, damage):
    stock, woven = both(damage).values()
    assert woven.error and woven.error.split(" in ")[0] == stock.error.split(" in ")[0]
    # Not one launch more than the stock loop dared.
    assert woven.launches == stock.launches[: len(woven.launches)]


def flush_breaks(built):
    built.scheduler.token_to_kv_pool_allocator.flush_opportunistic = breaks


def test_a_broken_flush_is_logged_once_and_costs_nothing(warmed):
    """Two prefills to publish, two flushes that break."""

    def twice():
        built = stage("unified")
        records = []
        handler = logging.Handler()
        handler.emit = records.append
        logging.getLogger("sglang_mamba_boundary").addHandler(handler)
        flush_breaks(built)
        later = (Arrive("c", Prompt(1, 40), 3),)
        history = History("unified", (*TWINS.turns, later, (), ()))
        verdict = built.play(history)
        shown = [(r.levelname, r.getMessage(), bool(r.exc_info)) for r in records]
        return verdict, shown

    verdict, records = in_fork(twice, name="unified")
    assert verdict.violations == []
    assert verdict.early >= 2
    (record,) = records
    assert record[0] == "WARNING" and "flush" in record[1] and record[2]
