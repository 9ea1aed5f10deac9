"""Wrong versions of the fix that the simulation has to catch. Each is an edit of the
woven text or of a member's text, made when asked for, in a process of its own; the
package compiles it as it compiles the right one."""

import inspect
from dataclasses import dataclass

QUESTION = "has_pending_mamba_publication"


@dataclass(frozen=True)
class Fault:
    """The last occurrence of ``before`` becomes ``after``, in the loop as it is woven
    or in a member of that name."""

    name: str
    where: str
    before: str
    after: str
    policy: str = "flush"


_GUARD = " and not published_early"

FAULTS = {
    fault.name: fault
    for fault in (
        # Pops the result of the batch just launched.
        Fault("second-site-unguarded", "loop", _GUARD, ""),
        # The queue is not empty at the second site: it holds that very result.
        Fault("guard-by-queue", "loop", _GUARD, " and self.result_queue"),
        Fault(
            "decode-rows-count",
            QUESTION,
            "and id(req) not in decoding_reqs",
            "and True",
        ),
        # Correct, and without any overlap.
        Fault(
            "drain-always",
            QUESTION,
            "if not self.result_queue:\n        return False\n",
            "return bool(self.result_queue)\n",
        ),
        Fault(
            "ahead-of-all-but-one",
            "publications_ahead",
            "return reqs",
            "return reqs[1:]",
            policy="publish",
        ),
        # Nobody has processed that result.
        Fault(
            "ahead-and-consumed",
            "publish_pending_mamba_prefill",
            "return False",
            "return True",
            policy="publish",
        ),
        # The loop pops once more: what it has just launched.
        Fault(
            "late-and-not-told",
            "publish_before_decode",
            "self.published_early = ",
            "",
            policy="late",
        ),
        # A prefill may be decoded before anything else is selected.
        Fault(
            "late-for-the-first-only",
            "publish_before_decode",
            "return\n    pending,",
            "return\n    if self.running_batch.reqs: return\n    pending,",
            policy="late",
        ),
        Fault(
            "rebind-without-the-tree",
            "publication_rebinds",
            "[0] > known",
            "[0] < 0",
            policy="rebind",
        ),
        Fault(
            "rebind-without-the-batch",
            "publication_rebinds",
            "queued[: queued.index(req)]",
            "()",
            policy="rebind",
        ),
    )
}


def plant(name: str) -> None:
    """Have the weave of this process carry the fault, from now on.

    Raises ValueError where the member to edit does not hold the text."""
    from sglang_mamba_boundary import fix, late, live, publish, rebind

    fault = FAULTS[name]
    modules = {"flush": fix, "publish": publish, "late": late, "rebind": rebind}
    module = modules[fault.policy]
    if fault.where == "loop":
        live._compile = _compiling(live._compile, fault)
        return
    member = fault.where
    source = edited(inspect.getsource(getattr(module, member)), fault)
    namespace = dict(vars(module))
    exec(compile(source, f"<{fault.name}>", "exec"), namespace)
    setattr(module, member, namespace[member])


def _compiling(compile_method, fault: Fault):
    """The stock text is compiled as well, for comparison: it stays."""

    def compile_wrongly(source: str, original_line, function):
        if fault.before in source:
            source = edited(source, fault)
        return compile_method(source, original_line, function)

    return compile_wrongly


def edited(text: str, fault: Fault) -> str:
    """The text with the fault in it."""
    before, found, after = text.rpartition(fault.before)
    if not found:
        raise ValueError(f"{fault.name}: {fault.before!r} is not in the text to edit")
    return before + fault.after + after
