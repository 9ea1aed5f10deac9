"""The weave as text: what is woven, and all that is refused."""

import ast
import textwrap

import pytest
from engine_text import loop_text

from sglang_mamba_boundary.edits import WovenText
from sglang_mamba_boundary.loop import carries_act, weave_source
from sglang_mamba_boundary.outcome import Refused

STOCK = loop_text()
ACT = (
    "            published_early = self.publish_pending_mamba_prefill(pop_and_process)"
)
SELECTION = "            plan = self.get_next_batch_to_run("
LAST_CONTINUE = "                continue\n"


def replaced(*edits: tuple[str, str]) -> str:
    """The stock loop with each text, which must stand in it, exchanged once."""
    text = STOCK
    for before, after in edits:
        assert before in text
        text = text.replace(before, after, 1)
    return text


def woven(source: str = STOCK) -> str:
    result = weave_source(source)
    assert isinstance(result, WovenText), result
    return result.source


def test_every_byte_of_the_engine_stays():
    text = iter(woven())
    assert all(byte in text for byte in STOCK), "the stock text is not a subsequence"
    assert woven().count("\n") == STOCK.count("\n") + 3


def test_act_stands_above_the_selection_and_its_comment():
    lines = woven().split("\n")
    act = lines.index(ACT)
    assert lines[act - 1].strip().startswith("# Publish")
    assert lines[act + 1] == ""
    assert lines[act + 2].strip().startswith("#")
    assert lines[act + 3] == SELECTION
    assert lines[act - 3].strip() == "continue"


def test_act_stands_above_a_selection_without_comment():
    comment = STOCK[: STOCK.index(SELECTION)].rstrip("\n").rsplit("\n", 1)[1] + "\n"
    lines = woven(replaced((comment, ""))).split("\n")
    assert lines[lines.index(ACT) + 2] == SELECTION


def test_both_pop_sites_skip_by_flag():
    text = woven()
    assert "if disable_overlap_for_batch and not published_early:" in text
    assert "if not disable_overlap_for_batch and not published_early:" in text


def test_older_form_of_the_selection_is_woven():
    start, end = STOCK.index("plan = self.get"), STOCK.index("self.cur_batch_for")
    older = STOCK[:start] + "batch = self.get_next_batch_to_run()\n" + " " * 12
    assert ACT in woven(older + STOCK[end:])


def test_module_level_text_is_woven_at_its_own_indentation():
    assert ACT[4:] in woven(textwrap.dedent(STOCK))


def test_bytes_not_characters_place_the_edits():
    site = "if disable_overlap_for_batch:"
    text = woven(
        replaced(
            (site, "if disable_überlap:"), (f"not {site[3:]}", "not disable_überlap:")
        )
    )
    assert "if disable_überlap and not published_early:" in text


def test_woven_lines_know_their_original():
    result = weave_source(STOCK)
    stock, text = STOCK.split("\n"), result.source.split("\n")
    assert len(text) == len(result.original_line)
    kept = [n for n, line in enumerate(text) if line in stock and line.strip()]
    assert len(kept) > 50
    for n in kept:
        assert stock[result.original_line[n] - 1] == text[n]


def test_woven_text_carries_the_act_and_stock_does_not():
    assert carries_act(woven())
    assert not carries_act(STOCK)
    assert not carries_act("no function at all")


REFUSED = {
    "not python": ("def event_loop_overlap(self:\n", "event_loop_overlap"),
    "two functions": (textwrap.dedent(STOCK) * 2, "event_loop_overlap"),
    "another function": (
        replaced(("def event_loop_overlap", "def other")),
        "event_loop_overlap",
    ),
    "woven already": (woven(), "without the fix"),
    "flag name taken": (
        replaced(("batch_result = None", "published_early = None")),
        "without the fix",
    ),
    "no while": (replaced(("while True:", "for _ in forever():")), "`while` loop"),
    "two whiles": (STOCK + "        while True:\n            break\n", "`while` loop"),
    "no closure": (replaced(("def pop_and_process", "def process_next")), "closure"),
    "closure with an argument": (
        replaced(("pop_and_process():", "pop_and_process(n=1):")),
        "closure",
    ),
    "closure that peeks": (replaced((".popleft()", "[0]")), "closure"),
    "selection renamed": (
        replaced(("get_next_batch_to_run", "choose_batch")),
        "one call of",
    ),
    "selection twice": (
        replaced(
            (
                "batch = plan.batch",
                "self.get_next_batch_to_run()\n            batch = plan.batch",
            )
        ),
        "one call of",
    ),
    "selection not assigned": (
        replaced(("plan = self.get", "plan: object = self.get")),
        "directly in the loop",
    ),
    "selection nested": (
        replaced(("plan = self.get", "if True: plan = self.get")),
        "directly in the loop",
    ),
    "selection shares its line": (
        replaced(("plan = self.get", "self.tick(); plan = self.get")),
        "line of its own",
    ),
    "carriage returns": (STOCK.replace("\n", "\r\n"), "line of its own"),
    "no paused continue": (
        replaced(("self._engine_paused", "self._engine_asleep")),
        "paused-engine",
    ),
    "paused without continue": (replaced((LAST_CONTINUE, "")), "paused-engine"),
    "first pop gone": (
        replaced(
            ("pop_and_process()\n                # Opp", "pass\n                # Opp")
        ),
        "begin with",
    ),
    "pops gone": (STOCK.replace(" pop_and_process()\n", " pass\n"), "begin with"),
    "third pop": (
        replaced(
            (
                "self.last_batch = batch",
                "pop_and_process()\n            self.last_batch = batch",
            )
        ),
        "begin with",
    ),
    "closure handed on": (
        replaced(
            (
                "self.last_batch = batch",
                "self.defer(pop_and_process)\n            self.last_batch = batch",
            )
        ),
        "begin with",
    ),
    "no launch": (replaced(("self.run_batch(", "self.launch(")), "run_batch"),
    "launch above selection": (
        replaced(
            ("self.run_batch(batch)", "None"),
            (SELECTION, "            self.run_batch(None)\n" + SELECTION),
        ),
        "in this order",
    ),
    "sites under unrelated tests": (
        replaced(("if not disable_overlap_for_batch", "if not self.other")),
        "`x` and `not x`",
    ),
    "first site under a call": (
        replaced(("if disable_overlap_for_batch:", "if self.sync(batch):")),
        "`x` and `not x`",
    ),
    "first site nested": (
        replaced(
            (
                "            if disable_overlap_for_batch:\n                pop_and_process()",
                "            if batch:\n              if disable_overlap_for_batch:\n                pop_and_process()",
            )
        ),
        "directly in the loop",
    ),
    "second site elsewhere": (
        replaced(("if self.last_batch:", "if self.previous:")),
        "under `if self.last_batch`",
    ),
    "second site not alone": (
        replaced(
            (
                "if self.last_batch:\n",
                "if self.last_batch:\n                self.tick()\n",
            )
        ),
        "under `if self.last_batch`",
    ),
    "other work at first site": (
        replaced(("flush_opportunistic", "rebalance")),
        "nothing but",
    ),
    "flush under another test": (
        replaced(("self.enable_unified_memory", "self.enable_other")),
        "nothing but",
    ),
    "second site with else": (
        replaced(
            (
                "elif batch is None:",
                "    else:\n                    self.tick()\n            elif batch is None:",
            )
        ),
        "nothing but",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_what_was_sought(case):
    text, sought = REFUSED[case]
    result = weave_source(text)
    assert isinstance(result, Refused), result
    assert sought in result.sought
    assert result.found and result.state and result.remedy


def test_mutants_are_what_they_claim_to_be():
    """All but the first are Python, so none is refused for a slip in this file."""
    for case in list(REFUSED)[1:]:
        ast.parse(
            "if True:\n" + textwrap.indent(textwrap.dedent(REFUSED[case][0]), " ")
        )
