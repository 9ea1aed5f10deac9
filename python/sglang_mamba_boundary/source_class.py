"""A scheduler from the text of `scheduler.py`, with nothing of it imported.

Members of class `Scheduler` and definitions of the module are compiled one by
one, when the driven loop first reaches them. Any other global is a harmless
module of the standard library, a stand-in of the probe, or unknown.
"""

from __future__ import annotations

import ast
import builtins
import inspect
from types import CodeType

from . import engines
from .batches import Mode
from .loop import LOOP
from .rig import TURN_TICKS, Driven, Run
from .unknown import Known, Unknown, same

CONSECUTIVE = "SGLANG_DISABLE_CONSECUTIVE_PREFILL_OVERLAP"
_FILE = "<scheduler.py under the probe>"

# They compute and hold, and do nothing to the machine.
_HARMLESS = frozenset(
    "abc collections contextlib copy dataclasses enum functools itertools math "
    "operator types typing".split()
)
# They set gradients or mark time spans around what they decorate.
_TRANSPARENT = frozenset(
    ("DynamicGradMode", "torch", "scheduler_nvtx_method", "scheduler_stage_method")
)
_DESCRIPTORS = frozenset(("property", "staticmethod", "classmethod", "contextmanager"))


class SourceClass:
    """The text of one `scheduler.py`, parsed. Raises SyntaxError or ValueError."""

    def __init__(self, text: str):
        body = ast.parse(text).body
        found = [
            s
            for s in body
            if isinstance(s, ast.ClassDef) and s.name == engines.SCHEDULER_CLASS
        ]
        if not found:
            raise ValueError(f"no class {engines.SCHEDULER_CLASS}")
        self._globals = _Definitions(body)
        self._members = _Definitions(found[-1].body, inside=engines.SCHEDULER_CLASS)
        if LOOP not in self._members.statements:
            raise ValueError(
                f"no {engines.SCHEDULER_CLASS}.{LOOP} under decorators that are known"
            )

    def scheduler(self, run: Run, disable_consecutive: bool) -> type[Driven]:
        """A class of its own for one run, so that no run sees another's changes."""
        namespace = _Namespace(self._globals, run, disable_consecutive)
        members = self._members

        class Scheduler(Driven):
            def _missing(self, name):
                # There already: the getter of a property raised AttributeError.
                if name not in members.statements or name in vars(Scheduler):
                    return super()._missing(name)
                namespace.run(members.code(name))
                made = namespace[engines.SCHEDULER_CLASS]
                namespace[engines.SCHEDULER_CLASS] = Scheduler
                setattr(Scheduler, name, vars(made)[name])
                return getattr(self, name)

        namespace[engines.SCHEDULER_CLASS] = Scheduler
        return Scheduler

    def names_of(self, member: str) -> set[str]:
        """All names and attributes that a member mentions."""
        statements = self._members.statements.get(self._members.key(member), ())
        nodes = [node for s in statements for node in ast.walk(s)]
        return {n.attr for n in nodes if isinstance(n, ast.Attribute)} | {
            n.id for n in nodes if isinstance(n, ast.Name)
        }


class _Definitions:
    """Code that defines each name of a body, compiled once, when first needed.

    Members are put `inside` a class again, for the private names in them.
    """

    def __init__(self, body: list[ast.stmt], inside: str | None = None):
        self._inside = inside
        self._code: dict[str, CodeType] = {}
        self.statements: dict[str, list[ast.stmt]] = {}
        for statement in body:
            for name, defining in _defined(statement):
                self.statements.setdefault(self.key(name), []).append(defining)

    def key(self, name: str) -> str:
        """The name by which it is looked up, which differs for a private one."""
        private = self._inside and name.startswith("__") and not name.endswith("__")
        return f"_{self._inside}{name}" if private else name

    def code(self, name: str) -> CodeType:
        if name not in self._code:
            body = [_Watched().visit(s) for s in self.statements.get(name, ())]
            if self._inside:
                holder = ast.parse(f"class {self._inside}: pass").body[0]
                holder.body = body
                body = [holder]
            module = ast.fix_missing_locations(ast.Module(body, []))
            flags = annotations.compiler_flag
            self._code[name] = compile(
                module, _FILE, "exec", flags=flags, dont_inherit=True
            )
        return self._code[name]


class _Namespace(dict):
    """The module's globals, each bound when it is first read."""

    def __init__(self, definitions: _Definitions, run: Run, disable_consecutive: bool):
        setting = Known("envs", run.journal, get=lambda: disable_consecutive)
        super().__init__(
            __name__=_FILE,
            __tick__=lambda: run.tick(TURN_TICKS),
            __same__=lambda one, other: same(run.journal, one, other),
            envs=Known("envs", run.journal, **{CONSECUTIVE: setting}),
            ForwardMode=Mode,
            logger=Unknown("logger", run.journal),
        )
        self._definitions, self._journal = definitions, run.journal

    def __missing__(self, name):
        if hasattr(builtins, name):
            return getattr(builtins, name)
        # Unknown at first, so that a definition that needs itself ends.
        self[name] = Unknown(name, self._journal)
        code = self._definitions.code(name)
        try:
            self.run(code)
        except Exception:
            # Its definition needs more than the probe has.
            self[name] = Unknown(name, self._journal)
        return self[name]

    def run(self, code: CodeType) -> None:
        # A class body reads globals past __missing__.
        for body in _class_bodies(code):
            for name in body.co_names:
                self.setdefault(name, self[name])
        exec(code, self)


class _Watched(ast.NodeTransformer):
    """Makes each turn of a loop, each handler and each `is` tell the probe."""

    def _ticking(self, node):
        self.generic_visit(node)
        tick = ast.Call(ast.Name("__tick__", ast.Load()), [], [])
        node.body.insert(0, ast.Expr(tick))
        return node

    # A handler too, so that none can swallow the end of the script for ever.
    visit_While = visit_For = visit_ExceptHandler = _ticking

    def visit_Compare(self, node):
        self.generic_visit(node)
        if len(node.ops) != 1 or not isinstance(node.ops[0], (ast.Is, ast.IsNot)):
            return node
        operands = [node.left, *node.comparators]
        same_ = ast.Call(ast.Name("__same__", ast.Load()), operands, [])
        return (
            same_ if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(ast.Not(), same_)
        )


def _defined(statement: ast.stmt) -> list[tuple[str, ast.stmt]]:
    match statement:
        case ast.FunctionDef(name=name, decorator_list=decorators):
            roots = [(_root(d), d) for d in decorators]
            statement.decorator_list = [d for r, d in roots if r not in _TRANSPARENT]
            known = _TRANSPARENT | _DESCRIPTORS | {name}
            return [(name, statement)] if all(r in known for r, _ in roots) else []
        case ast.ClassDef(name=name):
            return [(name, statement)]
        case ast.Assign(targets=targets):
            return [(t.id, statement) for t in targets if isinstance(t, ast.Name)]
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr()):
            return [(name, statement)]
        case ast.ImportFrom(module=module, names=names, level=0):
            return [
                (a.asname or a.name, ast.ImportFrom(module, [a], 0))
                for a in names
                if module in _HARMLESS
            ]
        case ast.Import(names=names):
            return [
                (a.asname or a.name, ast.Import([a]))
                for a in names
                if a.name in _HARMLESS
            ]
    return []


def _root(decorator: ast.expr) -> str | None:
    while isinstance(decorator, (ast.Call, ast.Attribute)):
        decorator = (
            decorator.func if isinstance(decorator, ast.Call) else decorator.value
        )
    return decorator.id if isinstance(decorator, ast.Name) else None


def _class_bodies(code: CodeType) -> list[CodeType]:
    inner = [c for c in code.co_consts if isinstance(c, CodeType)]
    return [c for c in inner if not c.co_flags & inspect.CO_OPTIMIZED]
