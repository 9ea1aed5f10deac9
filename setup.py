"""Puts the registered tests, which live below test/, into the built package.

The export needs them, and upstream's layout needs them where they are. An
editable install reads them from the repository.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

REGISTERED = Path("test/registered")
INSIDE = Path("sglang_mamba_boundary/registered")


class BuildWithTests(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:
            for source, target in self._tests().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target, preserve_mode=False)

    def get_source_files(self):
        return [*super().get_source_files(), *self._tests()]

    def get_outputs(self, include_bytecode=True):
        return [*super().get_outputs(include_bytecode), *self._tests().values()]

    def _tests(self):
        inside = Path(self.build_lib, INSIDE)
        files = sorted(REGISTERED.rglob("test_*.py"))
        return {str(f): str(inside / f.relative_to(REGISTERED)) for f in files}


setup(cmdclass={"build_py": BuildWithTests})
