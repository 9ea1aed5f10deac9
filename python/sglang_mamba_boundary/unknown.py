"""Stand-ins for what a driven loop reads and the probe does not know.

An unknown thing can be passed on, called and read. Where it decides something,
the answer comes from a `Journal`, so that `explore` can run the loop under
every combination of answers and see whether its outcome rests on them.
"""

from __future__ import annotations

from collections.abc import Callable

# Above it the loop asks too much for an outcome to be told.
MAX_RUNS = 64

_PLAIN = (type(None), bool, int, float, str, bytes)


class Stop(BaseException):
    """Ends a driven loop; no loop that handles only `Exception` catches it."""


class Journal:
    """What one run asked of unknown things, what it was answered, what it handed to them."""

    def __init__(self, answers: dict[str, bool] | None = None, strict: bool = False):
        self.answers = answers or {}
        self.asked: dict[str, bool] = {}
        self.handed: list[str] = []
        self.strict = strict
        self.cause: str | None = None

    def decide(self, question: str) -> bool:
        return self.asked.setdefault(question, self.answers.get(question, False))

    def stop(self, cause: str) -> Stop:
        """What ends the loop for `cause`; the first one stands, if the loop swallows it."""
        self.cause = self.cause or cause
        return Stop()

    def missing(self, name: str) -> Unknown:
        """What stands for an attribute that a stand-in has not."""
        if self.strict:
            raise self.stop(f"it reads {name}, which only a running engine has")
        return Unknown(name, self, known_owner=True)


def explore(run: Callable[[dict[str, bool]], tuple[object, Journal]]) -> list | None:
    """Outcomes of `run` under each set of answers it can tell apart; None above MAX_RUNS."""
    outcomes, todo = [], [{}]
    while todo:
        if len(outcomes) == MAX_RUNS:
            return None
        answers = todo.pop()
        outcome, journal = run(answers)
        outcomes.append((outcome, journal))
        given = dict(answers)
        for question, answer in journal.asked.items():
            if question not in answers:
                todo.append({**given, question: not answer})
                given[question] = answer
    return outcomes


class Unknown:
    """Something that the probe knows by name only."""

    def __init__(self, name: str, journal: Journal, known_owner: bool = False):
        self._unknown = (name, journal, known_owner)

    def __repr__(self):
        return self._unknown[0]

    def __getattr__(self, attribute):
        if _is_dunder(attribute) or attribute == "_unknown":
            raise AttributeError(attribute)
        name, journal, _ = self._unknown
        return Unknown(f"{name}.{attribute}", journal)

    def __call__(self, *args, **kwargs):
        name, journal, known_owner = self._unknown
        # A method of the engine's own objects, or whatever is given one of
        # them, may do to it what the probe looks for.
        given = [*args, *kwargs.values()]
        if known_owner or not all(isinstance(g, (*_PLAIN, Unknown)) for g in given):
            journal.handed.append(name)
        return Unknown(f"{name}()", journal)

    def __bool__(self):
        name, journal, _ = self._unknown
        return journal.decide(name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False

    def __mro_entries__(self, bases):
        raise TypeError(f"{self!r} is not a known class")

    __hash__ = object.__hash__


def same(journal: Journal, one: object, other: object) -> bool:
    """`one is other`, where an unknown thing may turn out to be the other."""
    if one is not other and Unknown in (type(one), type(other)):
        return journal.decide(f"{_named(one)} is {_named(other)}")
    return one is other


class Known:
    """A stand-in with the attributes that are known; any other is missing."""

    def __init__(self, label: str, journal: Journal, **attributes):
        vars(self).update(attributes, _label=label, _journal=journal)

    def __getattr__(self, name):
        if _is_dunder(name):
            raise AttributeError(name)
        return self._journal.missing(f"{self._label}.{name}")


def _named(thing: object) -> str:
    """Short, and the same in every run: the answers go by it."""
    return (
        repr(thing) if isinstance(thing, (*_PLAIN, Unknown)) else type(thing).__name__
    )


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _comparison(operator: str):
    def compare(self, other):
        name, journal, _ = self._unknown
        return journal.decide(f"{name} {operator} {_named(other)}")

    return compare


def _derive(self, *others):
    name, journal, _ = self._unknown
    return Unknown(name, journal)


def _rest(self, *others):
    name, journal, _ = self._unknown
    raise journal.stop(f"it rests on {name}, which is not known")


for _name in ("eq", "ne", "lt", "le", "gt", "ge", "contains", "instancecheck"):
    setattr(Unknown, f"__{_name}__", _comparison(_name))
for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or"):
    setattr(Unknown, f"__{_name}__", _derive)
    setattr(Unknown, f"__r{_name}__", _derive)
for _name in ("neg", "invert", "getitem"):
    setattr(Unknown, f"__{_name}__", _derive)
for _name in ("iter", "len", "int", "float", "index"):
    setattr(Unknown, f"__{_name}__", _rest)
