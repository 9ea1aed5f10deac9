"""What the smoke's answers have to be, and the table that shows them."""

from collections.abc import Iterator

from sglang_cpu_testbed.demo import Expectation
from sglang_cpu_testbed.scenarios import (
    CONFIGURATIONS,
    NO_OVERLAP,
    STOCK,
    WOVEN,
    Configuration,
)
from sglang_cpu_testbed.smoke.asks import (
    FIXED_TOKENS,
    Answers,
    largest_difference,
    same_answer,
)

ALIGNED_LEN = 384
# Answers by configuration, for one kind of server.
Asked = dict[Configuration, Answers]

HEADINGS = (
    "configuration",
    "cold",
    "warm 1",
    "warm 2",
    "cached tokens",
    "stop tokens",
    "cold/warm",
    "shared",
)


def rows(asked: Asked) -> Iterator[tuple[str, ...]]:
    """One row of the table per configuration."""
    for configuration in CONFIGURATIONS:
        answers = asked[configuration]
        shared = largest_difference(answers.branch, asked[NO_OVERLAP].branch)
        yield (
            configuration.name,
            *(answer.digest for answer in answers.fixed),
            " ".join(str(answer.cached_tokens) for answer in answers.fixed),
            " ".join(str(len(answer.tokens)) for answer in answers.stop),
            f"{answers.cold_warm_difference():.6f}",
            f"{shared:.6f}",
        )


def table(asked: Asked) -> str:
    lines = [HEADINGS, *rows(asked)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def of_each(asked: Asked, where: str) -> Iterator[Expectation]:
    """What holds for every server, a real model's too."""
    for configuration, answers in asked.items():
        name = f"{configuration.name}{where}"
        for kind in ("fixed", "stop"):
            runs = getattr(answers, kind)
            cached = str([answer.cached_tokens for answer in runs])
            expected = str([0, ALIGNED_LEN, ALIGNED_LEN])
            yield Expectation(f"cached tokens of {name}, {kind}", expected, cached)
        lengths = str([len(answer.tokens) for answer in answers.fixed])
        yield Expectation(f"lengths of {name}", str([FIXED_TOKENS] * 3), lengths)
        finishes = str([answer.finish for answer in answers.stop])
        yield Expectation(f"ends of {name}", str(["stop"] * 3), finishes)
        digests = [answer.digest for answer in answers.stop]
        yield Expectation(f"stop of {name}, warm", str(digests[:1] * 3), str(digests))


def exactly(asked: Asked, slots_matter: bool) -> Iterator[Expectation]:
    """What holds bit for bit on the reference model, which is exact."""
    where = ", slots matter" if slots_matter else ""
    for configuration in (STOCK, WOVEN):
        # Under overlap a finished request was decoded once more, so that the next
        # one gets other slots: where they matter only first answers are alike.
        pairs = _pairs(asked[configuration], asked[NO_OVERLAP], slots_matter)
        expected = _same(not slots_matter or configuration is WOVEN)
        subject = f"answers of {configuration.name} and {NO_OVERLAP.name}{where}"
        yield Expectation(subject, expected, _same(all(pairs)))
    if slots_matter:
        pairs = list(_pairs(asked[STOCK], asked[WOVEN], False))
        subject = f"answers of {STOCK.name} and {WOVEN.name}"
        yield Expectation(
            f"{subject} but shared{where}", "same", _same(all(pairs[:-1]))
        )
        yield Expectation(f"{subject}, shared{where}", "different", _same(pairs[-1]))
        return
    for configuration, answers in asked.items():
        found = str(answers.cold_warm_difference())
        yield Expectation(f"cold/warm of {configuration.name}", "0.0", found)


def _pairs(a: Answers, b: Answers, first_only: bool) -> Iterator[bool]:
    """Whether answers are the same, one by one, the shared prompt's last."""
    for one, other in ((a.fixed, b.fixed), (a.stop, b.stop)):
        count = 1 if first_only else len(one)
        yield from map(same_answer, one[:count], other[:count])
    yield same_answer(a.branch, b.branch)


def _same(equal: bool) -> str:
    return "same" if equal else "different"
