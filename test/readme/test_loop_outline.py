"""The outline of the woven loop: what is added, at which statement, and nothing else."""

import importlib.util
from pathlib import Path

import pytest

from sglang_mamba_boundary.loop import FLAG, POP, SELECTION

SCRIPT = Path(__file__).parents[2] / "scripts" / "loop_outline.py"
DIFF = f"""\
--- a/scheduler.py
+++ b/scheduler.py
@@ -1,4 +1,6 @@
     before
+    # Why.
+    {FLAG} = act({POP})
+
     # Of the engine.
     plan = self.{SELECTION}(
@@ -9,3 +11,3 @@
     of the engine
-    if test:
+    if test and not {FLAG}:
         {POP}()
"""


@pytest.fixture
def script():
    spec = importlib.util.spec_from_file_location("loop_outline", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_added_lines_stand_below_the_statement_that_they_are_at(script):
    assert script.outline(DIFF) == [
        f"@@ at {SELECTION}() @@",
        "+# Why.",
        f"+{FLAG} = act({POP})",
        f"@@ at {POP}() @@",
        f"+if test and not {FLAG}:",
    ]


def test_a_place_that_is_not_known_is_refused(script):
    with pytest.raises(ValueError, match="found neither"):
        script.outline(DIFF.replace(SELECTION, "another"))


def test_the_real_one_has_three_places_and_no_line_of_the_engine(script, capsys):
    script.main()
    lines = capsys.readouterr().out.splitlines()
    places = [line for line in lines if line.startswith("@@")]
    assert places == [f"@@ at {SELECTION}() @@", *[f"@@ at {POP}() @@"] * 2]
    added = [line for line in lines if line.startswith("+")]
    assert len(places) + len(added) == len(lines)
    assert all(FLAG in line or line.startswith("+#") for line in added)
