"""Shows the fault and its absence: ``python -m sglang_cpu_testbed.demo``. Runs the
stock engine, the woven engine and the stock engine without overlap, prints the
slots their decode steps read and exits 0 only if every expectation holds."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version

from sglang_cpu_testbed import ENGINE_VERSION
from sglang_cpu_testbed.capture import Row, by_request, differing, stale_steps
from sglang_cpu_testbed.fork import CaseFailed, warm
from sglang_cpu_testbed.request import same_bits
from sglang_cpu_testbed.scenarios import (
    CONFIGURATIONS,
    NO_OVERLAP,
    SCENARIOS,
    STOCK,
    WOVEN,
    Configuration,
    Run,
    Scenario,
    run,
)

Runs = dict[tuple[Configuration, Scenario], Run]

INTRODUCTION = f"""\
SGLang {ENGINE_VERSION} on one CPU: the KV slots each decode step reads for the prompt's positions.
together: two identical prompts of 422 tokens arrive at once.
warm: a prompt shares 300 of its 422 tokens with an earlier one; the tree holds their KV, no state."""
SECOND_PART = f"""\
So far the old and the new slots hold the same content, so no output can show the difference.
Again, with contents that depend a little on the slot's number: logprobs against those of the
same request with {NO_OVERLAP.name}."""


@dataclass(frozen=True)
class Expectation:
    """A statement about the runs; it holds when ``found`` is ``expected``."""

    subject: str
    expected: str
    found: str

    @property
    def holds(self) -> bool:
        return self.expected == self.found


def missing() -> str | None:
    """What this environment lacks to run the demonstration, with what to do."""
    try:
        found = version("sglang")
    except PackageNotFoundError:
        return f"needs sglang {ENGINE_VERSION}, found none; install it"
    if found != ENGINE_VERSION:
        return f"needs sglang {ENGINE_VERSION}, found {found}; install that version"
    for group, name, package in (
        ("sglang.srt.platforms", "cpu_testbed", "sglang-cpu-testbed"),
        ("sglang.srt.plugins", "mamba_boundary", "sglang-mamba-boundary"),
    ):
        if not entry_points(group=group, name=name):
            return f"needs the plugin {name!r}, found none; install {package}"
    return None


def run_all(slots_matter: bool) -> Runs:
    """Every scenario in every configuration, each in its own process."""
    runs = {}
    for configuration in CONFIGURATIONS:
        for scenario in SCENARIOS:
            _progress(f"running {configuration.name}, {scenario.name}")
            runs[configuration, scenario] = run(scenario, configuration, slots_matter)
    return runs


def verdict(rows: list[Row]) -> str:
    """One word for a run: "stale" or "stable"."""
    return "stale" if stale_steps(rows) else "stable"


def row_lines(scenario: Scenario, ran: Run) -> Iterator[str]:
    """One line per decode step of the watched requests, then the verdict."""
    for steps in by_request(row for row in ran.rows if row.rid in scenario.watched):
        kept = steps[-1].prompt_slots
        for row in steps:
            slots = row.prompt_slots
            ends = (
                " ".join(map(str, slots[:3])) + " .. " + " ".join(map(str, slots[-3:]))
            )
            if row is steps[-1]:
                note = "the row in the end"
            else:
                note = f"{len(differing(slots, kept))} differ from the row in the end"
            yield f"  {scenario.name:8} {row.rid:7} step {row.step}  {ends:27}  {note}"
    yield f"  {scenario.name:8} verdict: {verdict(ran.rows)}"


def same_output(a: Run, b: Run) -> bool:
    """Whether two runs generated the same tokens with the same logprob bits."""
    return a.outputs.keys() == b.outputs.keys() and all(
        a.outputs[rid].tokens == b.outputs[rid].tokens
        and same_bits(a.outputs[rid].logprobs, b.outputs[rid].logprobs)
        for rid in a.outputs
    )


def same_slots(a: Run, b: Run) -> bool:
    """Whether every decode step of two runs read the same slots."""
    slots = [
        {(row.rid, row.attempt, row.step): row.slots for row in ran.rows}
        for ran in (a, b)
    ]
    return slots[0] == slots[1]


def largest_difference(a: Run, b: Run, rid: str) -> tuple[float, int]:
    """Largest logprob difference of one request in nats, and its decode step."""
    logprobs = zip(a.outputs[rid].logprobs, b.outputs[rid].logprobs, strict=False)
    return max((abs(x - y), -step) for step, (x, y) in enumerate(logprobs))


def logprob_lines(runs: Runs) -> Iterator[str]:
    """What the mapping did to the logprobs, per configuration and request."""
    for configuration in (STOCK, WOVEN):
        for scenario in SCENARIOS:
            ran, reference = runs[configuration, scenario], runs[NO_OVERLAP, scenario]
            for rid in scenario.watched:
                size, step = largest_difference(ran, reference, rid)
                shift = (
                    f"largest shift {size:.4f} at step {-step}"
                    if size
                    else "equal bits"
                )
                same = ran.outputs[rid].tokens == reference.outputs[rid].tokens
                tokens = "same tokens" if same else "other tokens"
                name = f"  {configuration.name:13} {scenario.name:8} {rid:7}"
                yield f"{name} {shift:31} {tokens}"


def expectations(plain: Runs, sensitive: Runs) -> Iterator[Expectation]:
    """Everything the demonstration stands for, in the order it was printed."""
    kinds = ((STOCK, "stale"), (WOVEN, "stable"), (NO_OVERLAP, "stable"))
    for runs, where in ((plain, ""), (sensitive, ", slots matter")):
        for configuration, expected in kinds:
            for scenario in SCENARIOS:
                subject = f"rows of {configuration.name}, {scenario.name}{where}"
                found = verdict(runs[configuration, scenario].rows)
                yield Expectation(subject, expected, found)
        for scenario in SCENARIOS:
            pair = runs[WOVEN, scenario], runs[NO_OVERLAP, scenario]
            name = f"woven and overlap disabled, {scenario.name}{where}"
            yield Expectation(f"slots of {name}", "same", _same(same_slots(*pair)))
            yield Expectation(f"output of {name}", "same", _same(same_output(*pair)))
    for runs, where, expected in (
        (plain, "", "same"),
        (sensitive, ", slots matter", "different"),
    ):
        for scenario in SCENARIOS:
            pair = runs[STOCK, scenario], runs[NO_OVERLAP, scenario]
            subject = f"output of stock and overlap disabled, {scenario.name}{where}"
            yield Expectation(subject, expected, _same(same_output(*pair)))


def report(plain: Runs, sensitive: Runs) -> int:
    """Print the demonstration; the exit status."""
    print(INTRODUCTION)
    for configuration in CONFIGURATIONS:
        print(f"\n{configuration.name}")
        for scenario in SCENARIOS:
            print(*row_lines(scenario, plain[configuration, scenario]), sep="\n")
    print(f"\n{SECOND_PART}")
    print(*logprob_lines(sensitive), sep="\n")
    print()
    checked = list(expectations(plain, sensitive))
    failed = [one for one in checked if not one.holds]
    for one in failed:
        print(f"FAILED: {one.subject}: expected {one.expected}, found {one.found}")
    if not failed:
        print(
            "stock is stale in both scenarios; woven and overlap disabled are stable and agree:"
        )
        print(
            "the same slots at every step, the same tokens, the same logprobs bit for bit."
        )
    print(f"{len(checked) - len(failed)} of {len(checked)} expectations hold")
    return 1 if failed else 0


def main() -> int:
    lack = missing()
    if lack is not None:
        print(f"cannot run the demonstration: {lack}", file=sys.stderr)
        return 1
    _progress("importing the engine")
    warm()
    try:
        plain, sensitive = run_all(False), run_all(True)
    except CaseFailed as failure:
        print(f"cannot run the demonstration: {failure}", file=sys.stderr)
        return 1
    return report(plain, sensitive)


def _same(equal: bool) -> str:
    return "same" if equal else "different"


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
