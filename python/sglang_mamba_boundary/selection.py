"""Text in, text out: the place in the selection where rows are about to be decoded.

Decode, verify and mixed batches are built right behind one method, which names the
rows that finish with the pending result; what is processed within it is filtered by
its callers as what it names. Only the policies `late` and `rebind` are woven there.
"""

from __future__ import annotations

import ast

from . import edits
from .edits import Edit, Mismatch, WovenText
from .late import HOOK
from .outcome import Refused

METHODS = ("_reqs_finishing_inflight",)
# From the selection down to both places where a batch with rows to decode is built.
REACHED_BY = (
    ("get_next_batch_to_run", "update_running_batch"),
    ("get_next_batch_to_run", "get_new_batch_prefill"),
    ("get_new_batch_prefill", "_get_new_batch_prefill_raw"),
    ("update_running_batch", METHODS[0]),
    ("_get_new_batch_prefill_raw", METHODS[0]),
)
_PARAMETERS = "self, batch"
_COMMENT = "# Publish a tracked Mamba prefill before this batch captures its old slots."


def weave_source(source: str) -> WovenText | Refused:
    """Weave the text of the method of `METHODS`."""
    try:
        function = edits.match_method(source, METHODS)
        return edits.apply(source, [_match(function, source)])
    except Mismatch as mismatch:
        return mismatch.refusal


def carries_act(source: str) -> bool:
    """Whether the method of this text calls the policy already."""
    return edits.method_calls(source, METHODS, HOOK)


def _match(function: ast.FunctionDef, source: str) -> Edit:
    parameters = ", ".join(argument.arg for argument in function.args.args)
    if parameters != _PARAMETERS:
        raise Mismatch(f"{function.name}({_PARAMETERS})", f"({parameters})")
    first = function.body[1 if ast.get_docstring(function) is not None else 0]
    reads = "self.result_queue"
    if not isinstance(first, ast.If) or reads not in ast.unparse(first.test):
        raise Mismatch(
            f"{function.name} to begin with a question about {reads}",
            f"`{ast.unparse(first)}`",
        )
    indent = source.split("\n")[first.lineno - 1][: first.col_offset]
    if indent.strip() or "\r" in source:
        raise Mismatch(
            f"that question on a line of its own, ended by \\n, in {function.name}",
            "it elsewhere",
        )
    text = f"{indent}{_COMMENT}\n{indent}self.{HOOK}(batch)\n\n"
    return Edit(first.lineno, 0, first.lineno, 0, text, shown=first.lineno)
