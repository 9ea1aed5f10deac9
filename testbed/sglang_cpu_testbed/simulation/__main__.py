"""``python -m sglang_cpu_testbed.simulation --seeds N``: plays N seeds, divided over
the configurations, and writes build/simulation.json. Exits 1 at a violation, with
the shortest history found and the command that plays it again."""

import argparse
import json
import sys
import time
from pathlib import Path

from sglang_cpu_testbed.fork import CaseFailed, warm
from sglang_cpu_testbed.simulation.campaign import Campaign, Tally, history_of
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS
from sglang_cpu_testbed.simulation.faults import FAULTS

WIDTH = 30


def arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m sglang_cpu_testbed.simulation", description=__doc__
    )
    parser.add_argument("--seeds", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument(
        "--policy",
        default="flush",
        help=f"a value of SGLANG_MAMBA_BOUNDARY, or a planted fault: {', '.join(FAULTS)}",
    )
    parser.add_argument(
        "--config",
        action="append",
        choices=list(CONFIGURATIONS),
        help="only this configuration; may be given again",
    )
    parser.add_argument("--replay", type=int, metavar="SEED", help="only this seed")
    parser.add_argument(
        "--reference-every",
        type=int,
        default=5,
        metavar="K",
        help="also play every K-th history with overlap disabled and compare; 0: none",
    )
    parser.add_argument("--output", type=Path, default=Path("build/simulation.json"))
    parser.add_argument(
        "--keep-going", action="store_true", help="no shortest history, only counts"
    )
    return parser.parse_args(argv)


def main(argv=None) -> int:
    options = arguments(argv)
    names = options.config or list(CONFIGURATIONS)
    if options.replay is not None and len(names) != 1:
        print("--replay needs one --config", file=sys.stderr)
        return 2
    _say("importing the engine")
    warm()
    campaign = Campaign(options.policy, options.reference_every)
    started_s = time.monotonic()
    try:
        if options.replay is not None:
            return replay(campaign, names[0], options.replay)
        tallies = play_all(campaign, names, options)
        write(options, tallies)
        total = sum(tally.seeds for tally in tallies.values())
        violations = sum(sum(tally.violations.values()) for tally in tallies.values())
        print(f"{total} seeds under policy {options.policy}: {violations} violations")
        _say(f"{time.monotonic() - started_s:.0f} s, wrote {options.output}")
        if violations and not options.keep_going:
            explain(campaign, tallies)
    except CaseFailed as failure:
        print(f"\nthe simulation could not run: {failure}", file=sys.stderr)
        return 1
    return 1 if violations else 0


def play_all(campaign: Campaign, names: list[str], options) -> dict[str, Tally]:
    """Seed k goes to configuration k modulo their number."""
    seeds = range(options.first, options.first + options.seeds)
    bar, tallies = Bar(len(seeds)), {}
    for position, name in enumerate(names):
        tallies[name] = campaign.run(name, seeds[position :: len(names)], bar)
    return tallies


def replay(campaign: Campaign, name: str, seed: int) -> int:
    """Play one seed and print what it is and what came of it."""
    history = history_of(name, seed)
    print(*history.lines(), sep="\n")
    return _play_and_print(campaign, history)


def explain(campaign: Campaign, tallies: dict[str, Tally]) -> None:
    """The first failing seed, cut down, and the command that replays it."""
    name, tally = next((n, t) for n, t in tallies.items() if t.failed)
    seed, verdict = tally.failed[0]
    violation = verdict.violations[0]
    print(f"\nconfiguration {name}, seed {seed}: {violation}")
    _say("looking for a shorter history")
    shorter = campaign.shortest(history_of(name, seed), violation.kind)
    print(*shorter.lines(), sep="\n")
    _play_and_print(campaign, shorter)
    command = f"python -m sglang_cpu_testbed.simulation --policy {campaign.policy}"
    print(f"replay the seed: {command} --config {name} --replay {seed}")


def _play_and_print(campaign: Campaign, history) -> int:
    with campaign.player(CONFIGURATIONS[history.configuration]) as player:
        verdict = player.play(history).verdict
    print(
        f"{verdict.turns} turns, {verdict.launches} launches, digest {verdict.digest}"
    )
    for violation in verdict.violations:
        print(violation)
    return 1 if verdict.violations else 0


def write(options, tallies: dict[str, Tally]) -> None:
    summaries = {name: tally.summary() for name, tally in tallies.items()}
    total = {
        key: sum(summary[key] for summary in summaries.values())
        for key in ("seeds", "turns", "requests", "violations")
    }
    written = dict(
        policy=options.policy,
        first_seed=options.first,
        **total,
        configurations=summaries,
    )
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(written, indent=2) + "\n")


class Bar:
    """The progress of all seeds, on stderr: in place on a terminal, else now and then."""

    def __init__(self, total: int):
        self._total, self._done = total, 0
        self._terminal = sys.stderr.isatty()

    def __call__(self, name: str, tally: Tally) -> None:
        self._done += 1
        filled = WIDTH * self._done // self._total
        bar = "#" * filled + "." * (WIDTH - filled)
        violations = sum(tally.violations.values())
        text = f"[{bar}] {self._done}/{self._total} {name}: {violations} violations"
        if self._terminal:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
            if self._done == self._total:
                _say("")
        elif self._done % 100 == 0 or self._done == self._total:
            _say(text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
