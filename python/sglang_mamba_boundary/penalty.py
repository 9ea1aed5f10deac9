"""Text in, text out: the place where a decode step's penalties count a token.

An early result is there before the first decode is built, so the newest output
would be counted by the first and by the second decode. The woven text counts by
position instead. Separate from `loop.py`, since it edits another class.
"""

from __future__ import annotations

import ast

from . import edits
from .edits import Mismatch, WovenText, only
from .outcome import Refused

# The first that a release has: before 0.5.14 the place was part of the second.
METHODS = ("cumulate_penalty_output_tokens", "prepare_for_decode")
COUNT = "penalty_token"

_NEWEST = "req.output_ids[-1] if len(req.output_ids) else req.origin_input_ids[-1]"
_STOCK = f"[{_NEWEST} for req in self.reqs]"
_WOVEN = f"[self.{COUNT}(req) for req in self.reqs]"


def weave_source(source: str) -> WovenText | Refused:
    """Weave the text of the method of `METHODS` that counts."""
    try:
        function = edits.match_method(source, METHODS)
        counted = only(
            [
                n
                for n in ast.walk(function)
                if isinstance(n, ast.ListComp) and ast.unparse(n) == _STOCK
            ],
            f"one list of each request's newest token in {function.name}",
        )
    except Mismatch as mismatch:
        return mismatch.refusal
    return edits.apply(source, [edits.replace(counted, _WOVEN)])


def carries_act(source: str) -> bool:
    """Whether the place counts by position already, woven or from upstream."""
    return edits.method_calls(source, METHODS, COUNT)
