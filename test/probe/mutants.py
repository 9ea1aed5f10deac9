"""Loops that differ from the installed engine's by small edits of its text.

Each says what the probe is to find, and whether the weave takes it. A loop that
it takes is probed again with the fix in it.
"""

from dataclasses import dataclass

import scheduler_text

from sglang_mamba_boundary import engines, loop
from sglang_mamba_boundary.probe import Broken, CannotTell, Stable, Stale

SITE_1 = "if disable_overlap_for_batch:"
SITE_2 = "if not disable_overlap_for_batch:"
GUARD = " and not published_early:"
POP = "pop_and_process()\n"
TURN = "        while True:\n"
INTAKE = "self.ingest_requests()\n"
SELECTION = "            plan = self.get_next_batch_to_run("

STOCK = scheduler_text.installed()
STOCK_LOOP = scheduler_text.loop_of(STOCK)
WOVEN = scheduler_text.with_fix(STOCK, loop.weave_source(STOCK_LOOP), engines.NEWEST)


def edit(text, *edits):
    """Each edit is (before, after), or (before, after, how often it stands there)."""
    for before, after, *often in edits:
        assert text.count(before) == (often or [1])[0], (before, text.count(before))
        text = text.replace(before, after)
    return text


@dataclass(frozen=True)
class Mutant:
    name: str
    text: str
    verdict: type
    woven: type | None = None
    says: str = ""
    loses_overlap: bool = False

    @property
    def loop(self):
        return scheduler_text.loop_of(self.text)


def stock(name, verdict, *edits, woven=None, more="", **expected):
    """The stock loop, edited; `woven` is the verdict about it with the fix, if any."""
    text = scheduler_text.with_loop(STOCK, edit(STOCK_LOOP, *edits) + more)
    return Mutant(name, text, verdict, woven, **expected)


def fixed(name, verdict, *edits, **expected):
    text = scheduler_text.loop_of(WOVEN)
    return Mutant(
        name,
        scheduler_text.with_loop(WOVEN, edit(text, *edits)),
        verdict,
        **expected,
    )


def early(act, condition="not early"):
    """Edits for a fix of another make: `act` sets `early`, which guards both sites."""
    return (
        (SELECTION, f"{act}{SELECTION}"),
        (SITE_1, f"if disable_overlap_for_batch and {condition}:"),
        (SITE_2, f"if not disable_overlap_for_batch and {condition}:"),
    )


INLINE_FIX = """\
            early = any(
                batch.forward_mode.is_extend()
                and any(r.kv.mamba_last_track_seqlen is not None for r in batch.reqs)
                for batch, _ in self.result_queue
            )
            if early:
                pop_and_process()
"""

HELPER_FIX = """
    watched_attribute = "mamba_last_track_seqlen"

    @staticmethod
    def _pending(queue):
        return queue[0][0] if queue else None

    @property
    def _must_drain(self):
        batch = self._pending(self.result_queue)
        if batch is None or not batch.forward_mode.is_extend():
            return False
        return any(
            getattr(r.kv, self.watched_attribute) is not None for r in batch.reqs
        )

    def drain_tracked(self):
        if not self._must_drain:
            return False
        self.process_batch_result(*self.result_queue.popleft())
        return True
"""

LATE_FIX = """
    def drain_late(self):
        while self.result_queue:
            self.process_batch_result(*self.result_queue.popleft())
"""

AHEAD = """\
            for ahead, _ in self.result_queue:
                if ahead.forward_mode.is_extend():
                    for req in ahead.reqs:
                        if req not in (ahead.decoding_reqs or ()):
                            self.tree_cache.checkpoint(req, up_to=64)
"""

INTAKE_HELPER = """
    def take_in(self):
        for _ in self.request_receiver.recv_requests():
            raise RuntimeError("no request is expected")
"""

MUTANTS = (
    stock("stock", Stale, woven=Stable),
    fixed("woven", Stable),
    # Pop sites.
    stock("no pop site", Broken, (POP, "pass\n", 2), says="processed nothing"),
    stock("pop sites renamed", Stale, ("pop_and_process", "drain_one", 3)),
    stock(
        "second pop site doubled",
        Broken,
        (f"{SITE_2}\n                    {POP}", f"{SITE_2}\n" + (" " * 20 + POP) * 2),
        says="pop from an empty deque",
    ),
    stock("newest result first", Stale, ("popleft", "pop")),
    stock("pop sites swapped", Stale, (SITE_1, "if False:"), (SITE_2, "if True:")),
    # The fix, half of it.
    fixed(
        "first pop site unguarded",
        Broken,
        (SITE_1[:-1] + GUARD, SITE_1),
        says="do not overlap",
    ),
    fixed("second pop site unguarded", Broken, (SITE_2[:-1] + GUARD, SITE_2)),
    fixed(
        "guarded by an empty queue",
        Broken,
        (SITE_1[:-1] + GUARD, SITE_1[:-1] + " and self.result_queue:"),
        (SITE_2[:-1] + GUARD, SITE_2[:-1] + " and self.result_queue:"),
        says="before it was sampled",
    ),
    fixed(
        "act after the selection",
        Stale,
        (
            "            published_early = self.publish_pending_mamba_prefill(pop_and_process)\n",
            "",
        ),
        (
            "            batch = plan.batch_to_run\n",
            "            batch = plan.batch_to_run\n"
            "            published_early = self.publish_pending_mamba_prefill(pop_and_process)\n",
        ),
    ),
    fixed(
        "each result processed twice",
        Broken,
        (
            "            self.process_batch_result(tmp_batch, tmp_result)\n",
            "            self.process_batch_result(tmp_batch, tmp_result)\n" * 2,
        ),
        says="processed p, p",
    ),
    # Other fixes.
    stock("fix inline", Stable, *early(INLINE_FIX)),
    stock(
        "fix in helpers",
        Stable,
        *early("            early = self.drain_tracked()\n"),
        more=HELPER_FIX,
    ),
    stock(
        "drained before every turn",
        Stable,
        (
            SELECTION,
            f"            while self.result_queue:\n                {POP}{SELECTION}",
        ),
        (SITE_1, "if False:"),
        (SITE_2, "if False:"),
        loses_overlap=True,
    ),
    stock(
        "published ahead of its result",
        Stable,
        (SELECTION, AHEAD + SELECTION),
        woven=Stable,
    ),
    stock(
        "fix for plain decode only",
        Stale,
        *early(INLINE_FIX.replace("is_extend()", "name == 'EXTEND'")),
        says="mixed batch",
    ),
    # Out of sight, or resting on what is not known.
    Mutant(
        "fix below the selection",
        edit(
            scheduler_text.with_loop(STOCK, STOCK_LOOP + LATE_FIX),
            (
                "self._process_hicache_events()\n",
                "self.drain_late()\n",
                STOCK.count("self._process_hicache_events()\n"),
            ),
        ),
        CannotTell,
        Stable,
    ),
    stock(
        "unknown global in its decision",
        CannotTell,
        *early(
            INLINE_FIX.replace(
                "if early:", "early = early and PUBLISH_EARLY\n            if early:"
            )
        ),
        says="PUBLISH_EARLY",
    ),
    stock(
        "unknown attribute in its decision",
        CannotTell,
        *early(
            INLINE_FIX.replace(
                "if early:",
                "early = early and self.publisher is not None\n            if early:",
            )
        ),
        says="self.publisher is None",
    ),
    stock(
        "handed to an unknown component",
        CannotTell,
        (
            SELECTION,
            f"            self.boundary.publish(self.result_queue)\n{SELECTION}",
        ),
        woven=Stable,
        says="self.boundary.publish",
    ),
    stock(
        "unknown method",
        CannotTell,
        (SELECTION, f"            self.publish_somehow()\n{SELECTION}"),
        woven=Stable,
        says="self.publish_somehow",
    ),
    stock(
        "unknown decorator",
        CannotTell,
        ("    @DynamicGradMode()\n", "    @publishing\n    @DynamicGradMode()\n"),
        woven=CannotTell,
        says="decorators",
    ),
    # Other loops.
    stock(
        "selection renamed",
        CannotTell,
        ("get_next_batch_to_run", "choose_batch"),
        says="selected nothing",
    ),
    stock(
        "intake in a helper",
        Stale,
        (INTAKE, "self.take_in()\n"),
        more=INTAKE_HELPER,
        woven=Stable,
    ),
    stock(
        "intake missing, as if renamed",
        Stale,
        (INTAKE, "self.polled = True\n"),
        woven=Stable,
    ),
    stock(
        "no intake, spins",
        CannotTell,
        (INTAKE, "continue\n"),
        woven=CannotTell,
        says="without end",
    ),
    stock(
        "waits inside a turn",
        CannotTell,
        (INTAKE, f"{INTAKE}            while self.last_batch:\n                pass\n"),
        woven=CannotTell,
        says="without end",
    ),
    stock(
        "ends by its condition",
        Stale,
        (TURN, "        while not self.gracefully_exit:\n"),
        woven=Stable,
    ),
    stock(
        "for instead of while",
        Stale,
        (TURN, "        for _ in range(1_000_000):\n"),
    ),
    stock(
        "two turns only",
        CannotTell,
        (TURN, "        for _ in range(2):\n"),
        says="before its script was over",
    ),
    stock(
        "raises",
        CannotTell,
        (INTAKE, f"{INTAKE}            assert not self.last_batch\n"),
        woven=CannotTell,
        says="AssertionError",
    ),
)
