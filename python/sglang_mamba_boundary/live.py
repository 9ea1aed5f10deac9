"""The live weave: methods of the imported engine, recompiled in place.

Separate from `loop.py` and its like, which only know text. A function object
stays: its code is exchanged, so its identity, its grad-mode wrapper, and hooks
that other plugins have put around it go on working, and undoing is one assignment.
"""

import __future__

import ast
import functools
import importlib
import inspect
from dataclasses import dataclass, replace
from importlib import metadata
from types import CodeType, FunctionType

from . import edits, engines, loop
from .outcome import AlreadyFixed, Refused, Unwoven, Woven
from .policies import POLICIES, Policy
from .targets import LOOP, Target

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag


@dataclass(frozen=True)
class _Exchange:
    """One method's code before and after, and what was added to its class."""

    target: Target
    holder: type
    function: FunctionType
    original: CodeType
    woven: CodeType
    members: dict[str, object]

    @property
    def is_in_place(self) -> bool:
        return self.function.__code__ is self.woven

    def refusal(self, holder: type) -> Refused | None:
        """Why instances of `holder` would not run the woven code, if so."""
        function = _find_method(holder, self.target)
        if isinstance(function, Refused):
            return function
        if function is not self.function or not self.is_in_place:
            return _changed_since(self.function)
        return _unreached(holder, self.target)

    def do(self) -> None:
        for name, value in self.members.items():
            setattr(self.holder, name, value)
        self.function.__code__ = self.woven

    def undo(self) -> None:
        self.function.__code__ = self.original
        for name in self.members:
            delattr(self.holder, name)


@dataclass(frozen=True)
class _Weave:
    exchanges: tuple[_Exchange, ...]
    outcome: Woven
    policy: str


_current: _Weave | None = None


def policy_in_place() -> str | None:
    """The policy that this process is woven by, if it is."""
    return _current.policy if _current is not None else None


def weave(policy: str = next(iter(POLICIES))) -> Woven | AlreadyFixed | Refused:
    """Put the fix into the imported engine by one of POLICIES; again is a no-op."""
    global _current
    chosen = POLICIES[policy]
    engine = _find_engine(chosen)
    if isinstance(engine, Refused):
        return engine
    version, scheduler = engine
    name = f"{scheduler.__name__}.{loop.LOOP}"
    found = in_place(scheduler)
    if isinstance(found, Woven):
        if _current.policy != policy:
            return Refused(
                f"an engine without the fix, for the policy {policy}",
                f"the fix in {name} by the policy {_current.policy}",
                "unweave it first",
                state=f"the policy {_current.policy} stays",
            )
        return Woven(version, name, already=True)

    exchanges = []
    for target in chosen.targets:
        prepared = _prepare(target, engines.parse_release(version), chosen)
        if isinstance(prepared, Refused):
            return prepared
        if prepared is not None:
            exchanges.append(prepared)
        elif target.methods == LOOP.methods:
            return AlreadyFixed(version, name)
    for exchange in exchanges:
        exchange.do()
    _current = _Weave(tuple(exchanges), Woven(version, name), policy)
    return _current.outcome


def _prepare(
    target: Target, release: engines.Release, policy: Policy
) -> _Exchange | Refused | None:
    """What to exchange for `target`; None where the engine has it already."""
    holder = _holder(target)
    function = _find_method(holder, target)
    if isinstance(function, Refused):
        return function
    unreached = _unreached(holder, target)
    if unreached is not None:
        return unreached
    source = _find_source(function)
    if isinstance(source, Refused):
        return source
    if target.carries_act(source):
        return None
    woven = target.weave_source(source)
    if isinstance(woven, Refused):
        return woven
    additions = policy.members(target, release)
    taken = [name for name in additions if hasattr(holder, name)]
    if taken:
        return Refused(
            f"a {holder.__name__} without members of these names",
            ", ".join(taken),
            "remove the other plugin that sets them",
        )
    code = _compile(woven.source, woven.original_line, function)
    return _Exchange(target, holder, function, function.__code__, code, additions)


def unweave() -> Unwoven | Refused:
    """Give the engine its own code back; again is a no-op."""
    global _current
    if _current is None:
        return Unwoven(already=True)
    changed = [e.function for e in _current.exchanges if not e.is_in_place]
    if changed:
        return _changed_since(changed[0])
    for exchange in _current.exchanges:
        exchange.undo()
    _current = None
    return Unwoven()


def _changed_since(function: FunctionType) -> Refused:
    return Refused(
        f"the code that weave() compiled for {function.__qualname__}",
        "other code, set since by somebody else",
        "undo that change first, or restart the process",
        state="the engine runs that other code",
    )


def in_place(scheduler: type) -> Woven | AlreadyFixed | Refused:
    """Whether the loop that this class would run, through all its wrappers, has the fix."""
    function = _find_method(scheduler, LOOP)
    if isinstance(function, Refused):
        return function
    if _current is not None:
        for exchange in _current.exchanges:
            target = exchange.target
            same = target.holder == LOOP.holder
            refusal = exchange.refusal(scheduler if same else _holder(target))
            if refusal is not None:
                return refusal
        return _current.outcome
    if loop.ACT in function.__code__.co_names and hasattr(scheduler, loop.ACT):
        return AlreadyFixed(_installed_version(), f"{scheduler.__name__}.{loop.LOOP}")
    return Refused(
        f"the fix in {scheduler.__name__}.{loop.LOOP}",
        "a loop without it",
        "have the plugin loaded, with a policy that weaves, before the scheduler starts",
        state="the engine runs without the fix",
    )


def _installed_version() -> str:
    return metadata.version(engines.ENGINE)


def _find_engine(policy: Policy) -> tuple[str, type] | Refused:
    oldest, remark = policy.since, ""
    if oldest > engines.OLDEST:
        remark = f" for the policy {policy.name}"
    sought = f"{engines.ENGINE} {engines.dotted(oldest)} or newer{remark}"
    install = f"install {sought} beside this package"
    try:
        version = _installed_version()
    except metadata.PackageNotFoundError:
        return Refused(sought, "no such distribution", install)
    release = engines.parse_release(version)
    if release is None or release < oldest:
        return Refused(sought, f"{engines.ENGINE} {version}", install)
    try:
        module = importlib.import_module(engines.SCHEDULER_MODULE)
    except ImportError as error:
        return Refused(
            f"the module {engines.SCHEDULER_MODULE}", f"{error!r}", "repair the engine"
        )
    scheduler = getattr(module, engines.SCHEDULER_CLASS, None)
    if not isinstance(scheduler, type):
        return Refused(
            f"a class {engines.SCHEDULER_CLASS} in {engines.SCHEDULER_MODULE}",
            repr(scheduler),
            "use a release that this package knows",
        )
    return version, scheduler


def _holder(target: Target) -> type | None:
    return getattr(importlib.import_module(target.module), target.holder, None)


def _unreached(holder: type, target: Target) -> Refused | None:
    """Why the method of `target` would not be called where it has to be, if so."""
    for name, called in target.reached_by:
        caller = _find_method(holder, replace(target, methods=(name,)))
        if isinstance(caller, Refused):
            return caller
        if called not in caller.__code__.co_names:
            return Refused(
                f"a call of {called} in {target.holder}.{name}",
                "none",
                "use a release that this package knows",
            )
    return None


def _find_method(holder: type | None, target: Target) -> FunctionType | Refused:
    """The engine's own function below the wrappers around it."""
    names = [name for name in target.methods if hasattr(holder, name)]
    name = names[0] if names else target.methods[0]
    sought = f"the engine's own {target.holder}.{name}"
    function = inspect.getattr_static(holder, name, None)
    while hasattr(function, "__wrapped__"):
        # A wrapper names what it wraps, but a replacement never calls it; a
        # function can call only what it holds.
        if function.__wrapped__ not in _held_by(function):
            return Refused(
                sought,
                f"it replaced by {_describe(function)}",
                f"remove the plugin that replaces {name}, or ask its author for the fix",
                state="the replacement runs, without the fix",
            )
        function = function.__wrapped__
    module = importlib.import_module(target.module)
    if (
        not isinstance(function, FunctionType)
        or function.__globals__ is not vars(module)
        or function.__name__ != name
    ):
        return Refused(
            sought,
            f"{_describe(function)} in its place",
            f"remove what replaces {name}, or ask its author for the fix",
            state="that one runs, without the fix",
        )
    return function


def _held_by(function: object) -> list[object]:
    """What a function holds, and what the functions that it holds hold in turn."""
    held, todo = [], [function]
    for holder in todo:
        for cell in getattr(holder, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # an empty cell
                continue
            if not any(content is known for known in held):
                held.append(content)
                todo.append(content)
    return held


def _describe(function: object) -> str:
    hooks = [held for held in _held_by(function) if callable(held)]
    named = hooks[0] if hooks else function
    module = getattr(named, "__module__", type(named).__module__)
    return f"{module}.{getattr(named, '__qualname__', repr(named))}"


def _find_source(function: FunctionType) -> str | Refused:
    """The text that this very function was compiled from."""
    sought = f"the source of {function.__qualname__}"
    remedy = "reinstall the engine from a wheel with sources and restart"
    try:
        source = inspect.getsource(function)
    except (OSError, TypeError) as error:
        return Refused(sought, f"none ({error})", remedy)
    # An upgrade under a running process, or a patcher of live code, leaves
    # text that is not what runs; weaving that would bring foreign code in.
    lines = range(1, source.count("\n") + 2)
    try:
        same = _compile(source, lines, function) == function.__code__
    except (SyntaxError, ValueError):
        same = False
    if not same:
        return Refused(
            sought,
            f"text in {function.__code__.co_filename} that is not what runs",
            remedy,
        )
    return source


def _compile(source: str, original_line, function: FunctionType) -> CodeType:
    """Code of `source` with each line numbered as in the engine's own file."""
    method = edits.parse_method(source)
    first = function.__code__.co_firstlineno
    for node in ast.walk(method):
        for field in ("lineno", "end_lineno"):
            line = getattr(node, field, None)
            if line is not None:
                setattr(node, field, original_line[line - 1] + first - 1)
    # Inside its class again, so that the code's qualified name is the same.
    holder = ast.parse("class _: pass").body[0]
    holder.name = function.__qualname__.rpartition(".")[0]
    holder.body = [method]
    module = compile(
        ast.Module([*_imports(function.__module__), holder], []),
        function.__code__.co_filename,
        "exec",
        flags=function.__code__.co_flags & _FUTURE,
        dont_inherit=True,
    )
    return _only_code(_only_code(module))


@functools.cache
def _imports(module: str) -> list[ast.stmt]:
    """The imports at the top level of a module, wherever they are nested there.

    The compiler calls what a module imports by other instructions than a method.
    """
    found, todo = [], ast.parse(inspect.getsource(importlib.import_module(module))).body
    for node in todo:
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif not isinstance(node, ast.FunctionDef | ast.ClassDef):
            todo += [n for n in ast.iter_child_nodes(node) if isinstance(n, ast.stmt)]
            todo += [s for h in getattr(node, "handlers", ()) for s in h.body]
    return found


def _only_code(code: CodeType) -> CodeType:
    return next(c for c in code.co_consts if isinstance(c, CodeType))
