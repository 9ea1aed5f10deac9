"""The second weave: where a decode step's penalties count a token."""

import pytest
from engine_text import method_text

from sglang_mamba_boundary.edits import WovenText
from sglang_mamba_boundary.outcome import Refused
from sglang_mamba_boundary.penalty import carries_act, weave_source

STOCK = method_text(
    "srt/managers/schedule_batch.py", "ScheduleBatch", "cumulate_penalty_output_tokens"
)
COUNTED = "req.output_ids[-1] if len(req.output_ids) else req.origin_input_ids[-1]"


def replaced(before: str, after: str) -> str:
    assert before in STOCK
    return STOCK.replace(before, after, 1)


def test_only_the_counted_tokens_change():
    woven = weave_source(STOCK)
    assert isinstance(woven, WovenText)
    assert "= [self.penalty_token(req) for req in self.reqs]\n" in woven.source
    removed = [line for line in STOCK.split("\n") if line not in woven.source]
    assert len(removed) == 3 and COUNTED in "".join(removed)
    assert carries_act(woven.source) and not carries_act(STOCK)


def test_lines_after_the_edit_keep_their_numbers():
    woven = weave_source(STOCK)
    lines, stock = woven.source.split("\n"), STOCK.split("\n")
    assert len(lines) == len(woven.original_line) == len(stock) - 3
    for n, line in enumerate(lines):
        if "penalty_token" not in line:
            assert stock[woven.original_line[n] - 1] == line


def test_the_older_form_within_the_decode_step_is_woven():
    older = (
        "    def prepare_for_decode(self):\n"
        "        if self.enable_overlap:\n"
        "            ids = tensor(\n"
        "                [\n"
        f"                    ({COUNTED})\n"
        "                    for req in self.reqs\n"
        "                ],\n"
        "            )\n"
    )
    woven = weave_source(older)
    assert "                [self.penalty_token(req) for req in self.reqs],\n" in (
        woven.source
    )


REFUSED = {
    "not a function": "x = 1\n",
    "another method": replaced("def cumulate_penalty", "def cumulate_other"),
    "another condition": replaced("if len(req.output_ids)", "if req.output_ids"),
    "another token": replaced("req.origin_input_ids[-1]", "req.origin_input_ids[0]"),
    "filtered requests": replaced(
        "for req in self.reqs", "for req in self.reqs if req.grammar"
    ),
    "twice": STOCK + f"        twice = [{COUNTED} for req in self.reqs]\n",
    "woven already": weave_source(STOCK).source,
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    refusal = weave_source(REFUSED[case])
    assert isinstance(refusal, Refused)
    assert refusal.sought and refusal.found and refusal.remedy


def test_text_that_is_no_function_carries_nothing():
    assert not carries_act("x = 1\n")
