"""Many seeds over many configurations, and what their verdicts add up to."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS, Configuration
from sglang_cpu_testbed.simulation.draw import draw
from sglang_cpu_testbed.simulation.history import History
from sglang_cpu_testbed.simulation.player import Played, Player
from sglang_cpu_testbed.simulation.shrink import shrink
from sglang_cpu_testbed.simulation.verdict import Verdict

COUNTS = "turns requests launches overlapped early within alone retractions".split()


@dataclass
class Tally:
    """What one configuration came to under one policy."""

    seeds: int = 0
    counts: Counter = field(default_factory=Counter)
    reached: Counter = field(default_factory=Counter)
    violations: Counter = field(default_factory=Counter)
    # The failing seeds and their verdicts.
    failed: list[tuple[int, Verdict]] = field(default_factory=list)

    def add(self, seed: int, verdict: Verdict) -> None:
        self.seeds += 1
        self.counts.update({name: getattr(verdict, name) for name in COUNTS})
        self.reached.update(verdict.reached)
        self.violations.update(v.kind for v in verdict.violations)
        if verdict.violations:
            self.failed.append((seed, verdict))

    def summary(self) -> dict:
        """As build/simulation.json has it."""
        return dict(
            seeds=self.seeds,
            **{name: self.counts[name] for name in COUNTS},
            reached={k: v for k, v in sorted(self.reached.items()) if v},
            violations=sum(self.violations.values()),
            violations_by_kind=dict(sorted(self.violations.items())),
            failing_seeds=[seed for seed, _ in self.failed],
        )


Progress = Callable[[str, Tally], None]


class Campaign:
    """Plays histories under one policy: SGLANG_MAMBA_BOUNDARY's, or a planted fault.
    Every ``reference_every``-th is played with overlap disabled as well. ``answers``
    are those of the model so far, added to by all players."""

    def __init__(self, policy: str, reference_every: int = 0, answers=None):
        self.policy, self.reference_every = policy, reference_every
        self._answers: dict = {} if answers is None else answers

    def player(self, configuration: Configuration, policy: str | None = None) -> Player:
        return Player(configuration, policy or self.policy, self._answers)

    def run(self, name: str, seeds: range, progress: Progress) -> Tally:
        """Play these seeds of one configuration."""
        configuration, tally = CONFIGURATIONS[name], Tally()
        compared: list[tuple[int, Played]] = []
        with self.player(configuration) as player:
            for index, seed in enumerate(seeds):
                played = player.play(history_of(name, seed))
                if self.reference_every and index % self.reference_every == 0:
                    compared.append((seed, played))
                else:
                    tally.add(seed, played.verdict)
                    progress(name, tally)
        # One engine at a time.
        with self.player(configuration.without_overlap, "off") as player:
            for seed, played in compared:
                reference = player.play(history_of(name, seed))
                played.verdict.compare(played.outputs, reference.outputs)
                tally.add(seed, played.verdict)
                progress(name, tally)
        return tally

    def shortest(self, history: History, kind: str) -> History:
        """A history with the same kind of violation, cut down."""
        with self.player(CONFIGURATIONS[history.configuration]) as player:
            return shrink(history, lambda h: kind in player.play(h).verdict.kinds())


def history_of(name: str, seed: int) -> History:
    """The history that this seed stands for in this configuration."""
    return draw(name, CONFIGURATIONS[name].traffic, seed)
