"""The description of the pull request, in the order of SGLang's template. Numbers come
from the evidence; a box is ticked only for what this very run has seen."""

from benchmark import summary
from scripts import simulation_table, smoke_table
from sglang_mamba_boundary.export import REGISTERED, REGISTERED_TESTS
from sglang_mamba_boundary.fix import BATCH_MEMBERS, MEMBERS
from sglang_mamba_boundary.loop import LOOP as METHOD
from sglang_mamba_boundary.targets import LOOP, PENALTY
from upstream.evidence import Evidence

PICTURE = "loop.png"

MOTIVATION = f"""\
With a hybrid model, the `extra_buffer` Mamba cache strategy and the overlap scheduler, the first decode step after
a prefill may read KV slots that are no longer the request's own. Its logprobs then differ from those of a run with
overlap disabled, cold and warm runs of a prompt differ, and the slots may get another owner while they are read.

`{METHOD}` processes the result of batch N after it has selected and launched batch N+1. Processing a tracked prefill
publishes it: where the tree holds the same tokens already, the request's row of `req_to_token` is pointed at the
tree's slots and its own are freed. A decode, verify or mixed batch N+1 has captured the old ones by then.

Two identical prompts that arrive at once, recorded from the real scheduler without and with this change. A column is
an act, in order; durations are not shown. Below a launch stand the slots that its decode reads for the prompt:

![The order of the loop's acts, without and with the change]({PICTURE})"""

DISTURBED = """\
What an early result changes beside that: a custom logit processor sees the first output token one step sooner than
today, and no token later. An n-gram draft repeats the newest accepted token once, as it does behind any prefill today;
that was read in the code and not run."""

WHERE_IT_RAN = """\
Nothing below was run on a GPU. It was run on a CPU: SGLang's own scheduler, radix cache, pools and HTTP server, with
a small reference model in place of a real one, whose output is the same bits in any batch, cached or not."""

SMOKE = """\
SGLang's HTTP server, asked one prompt cold and twice warm. Where slots matter, contents depend a little on the
slot's number, so that a stale slot shows in the logprobs (largest difference in nats; the shared prompt against
overlap disabled: this last column is the fault). A warm prompt ends in other slots than a cold one in every row,
with overlap disabled as well, so those logprobs differ there and are equal where slots do not matter. Answers are a number of tokens and a digest of them. The stock engine is without this change, the
woven engine with it:"""

SIMULATION = """\
The scheduler in seeded random histories, on a device whose completion is drawn and with freed slots poisoned.
Captured slots, ownership of every slot, outputs and the order of results are judged after every turn:"""

SPEED = """\
No speed was measured on a GPU. Processing early costs the overlap of one turn behind a tracked prefill: the device
waits while the result is processed and the next batch is selected and launched. All other turns keep their overlap;
there the loop asks one question, which costs two tests behind a decode.

How much of the overlap that is was computed: the real scheduler over a virtual device, whose forwards take a fixed
time and a time per token while nobody waits. Two runs give the same bytes."""

SPEED_LIMITS = """\
What this cannot tell: durations are inputs, so a ratio says how much of the overlap is kept on such a machine and not
what a server gains or loses; kernels, copies and index updates do not compete for the device; a call that makes the
host wait for the device would not show. Nothing was profiled."""


def description(evidence: Evidence) -> str:
    sections = {
        "Motivation": MOTIVATION,
        "Modifications": _modifications(evidence),
        "Accuracy Tests": _accuracy(evidence),
        "Speed Tests and Profiling": _speed(evidence),
        "Checklist": _checklist(evidence),
    }
    parts = [f"## {heading}\n\n{text}" for heading, text in sections.items()]
    return (
        "\n\n".join([f"# {evidence.trial.title}", _made_for(evidence), *parts]) + "\n"
    )


def _made_for(evidence: Evidence) -> str:
    return (
        f"For commit `{evidence.commit}` (tree `{evidence.tree}`), whose sources read like SGLang "
        f"{evidence.exported.engine}. [REPRODUCE.md](REPRODUCE.md) has the command for each figure."
    )


def _modifications(evidence: Evidence) -> str:
    files = evidence.exported.files
    lines = []
    if any(file.endswith(LOOP.file) for file in files):
        *helpers, act = MEMBERS
        lines += [
            f"- `{LOOP.holder}.{METHOD}` calls `{act}` before it selects a batch, and both later pops of that turn "
            "are skipped if it has consumed the result.",
            f"- `{LOOP.holder}` gets {', '.join(f'`{name}`' for name in helpers)} and `{act}`: a pending extend "
            "result is processed early if at least one of its requests is still to be published. Decode results, "
            "middle chunks, untracked requests, and scheduling under MLP sync stay as they are.",
        ]
    if any(file.endswith(PENALTY.file) for file in files):
        lines.append(
            f"- `{PENALTY.holder}` gets `{BATCH_MEMBERS[-1]}`: penalties count output tokens by position, since the "
            "newest one is no longer always one step behind."
        )
    lines += [
        f"- `{REGISTERED}/{test.path}`: {test.tells}." for test in _tests(evidence)
    ]
    lines += [
        f"- Not in it: {note.removeprefix('without ')}."
        for note in evidence.exported.notes
    ]
    return "\n".join(lines) + f"\n\n{DISTURBED}"


def _tests(evidence: Evidence):
    files = evidence.exported.files
    return [t for t in REGISTERED_TESTS if f"{REGISTERED}/{t.path}" in files]


def _accuracy(evidence: Evidence) -> str:
    records = evidence.records
    smoke = smoke_table.lines(records.smoke)
    simulated = simulation_table.lines(records.simulation)
    return "\n\n".join(
        [
            WHERE_IT_RAN,
            f"The registered tests of this patch, on the commit above: {tests_told(evidence)}.",
            f"{SMOKE}\n\n" + "\n".join(smoke),
            f"{SIMULATION}\n\n" + "\n".join(simulated),
            f"The server and the simulation ran SGLang {records.smoke['engine']}, with the change put into its loop at "
            "run time; not the commit above.",
        ]
    )


def tests_told(evidence: Evidence) -> str:
    tests = evidence.trial.tests
    if tests.not_run:
        return f"not run, {tests.not_run}"
    return (
        f"without the patch {tests.fail_before} fail by an assertion and {tests.pass_before} "
        f"pass, with it {tests.pass_after} pass"
    )


def _speed(evidence: Evidence) -> str:
    table = summary.lines(evidence.records.benchmark, [])
    stated = "`flush` is this change, `overlap-off` is `--disable-overlap-schedule`."
    return "\n\n".join([SPEED, "\n".join(table), stated, SPEED_LIMITS])


def _checklist(evidence: Evidence) -> str:
    trial = evidence.trial
    lint = (
        f"not passed: {trial.lint_failed}"
        if trial.lint_failed
        else f"SGLang's tools passed on the changed files: {', '.join(trial.lint)}"
    )
    lines = [
        (
            not trial.lint_failed and bool(trial.lint),
            f"Formatted with pre-commit; {lint}.",
        ),
        (
            not trial.tests.not_run,
            f"Unit tests added and run; {tests_told(evidence)}.",
        ),
        (
            False,
            "Documentation updated; none was changed, as no flag or interface changes.",
        ),
        (False, "Accuracy and speed results; on a CPU, see above. None on a GPU."),
        (False, "Code style guide followed; for the reviewer to judge."),
    ]
    return "\n".join(f"- [{'x' if seen else ' '}] {text}" for seen, text in lines)
