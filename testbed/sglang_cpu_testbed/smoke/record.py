"""What is kept of a smoke: one row per server, short enough to be read and exact enough
that another run of the same server has to give the same row."""

from dataclasses import asdict, dataclass

from sglang_cpu_testbed.smoke.asks import Answer, Answers, largest_difference

# Logprob differences in nats are kept, shown and compared to this many digits.
DIGITS = 6


@dataclass(frozen=True)
class Row:
    """``answers`` and ``stop_tokens`` are cold, warm and warm again; differences are
    of the warm runs to the cold one, and of the shared prompt to overlap disabled."""

    configuration: str
    slots_matter: bool
    answers: list[str]
    cached_tokens: list[int]
    stop_tokens: list[int]
    cold_warm_difference: float
    shared_difference: float


def row(name: str, slots_matter: bool, answers: Answers, reference: Answers) -> Row:
    """``reference`` is of the server of the same kind with overlap disabled."""
    shared = largest_difference(answers.branch, reference.branch)
    return Row(
        configuration=name,
        slots_matter=slots_matter,
        answers=[answer.digest for answer in answers.fixed],
        cached_tokens=[answer.cached_tokens for answer in answers.fixed],
        stop_tokens=[len(answer.tokens) for answer in answers.stop],
        cold_warm_difference=round(answers.cold_warm_difference(), DIGITS),
        shared_difference=round(shared, DIGITS),
    )


def recorded(written: dict, reference: str) -> dict:
    """What is kept of the JSON that the smoke wrote; ``reference`` names the
    configuration with overlap disabled. Raises ValueError where it did not hold."""
    failed = [one["subject"] for one in written["expectations"] if not one["holds"]]
    if failed:
        raise ValueError(f"looked for a smoke that holds, found: {', '.join(failed)}")
    if written["load"] is None or written["model"] != "reference":
        raise ValueError(
            "looked for a smoke of the reference model with its load, found "
            f"model {written['model']}, load {written['load']}"
        )
    asked = {
        (one["slots_matter"], one["configuration"]): _answers(one)
        for one in written["servers"]
    }
    rows = [
        asdict(row(name, slots_matter, answers, asked[slots_matter, reference]))
        for (slots_matter, name), answers in asked.items()
    ]
    return {
        "engine": written["engine"],
        "minutes": round(written["seconds"] / 60, 1),
        "expectations": len(written["expectations"]),
        "load": written["load"],
        "servers": rows,
    }


def _answers(one: dict) -> Answers:
    def listed(name):
        return [Answer(**answer) for answer in one[name]]

    return Answers(listed("fixed"), listed("stop"), Answer(**one["branch"]))
