"""Two clocks that never really wait: a wait moves them. Under the virtual clock nothing
else does but costs that are charged; under the wall clock the scheduler's own CPU time
counts as well."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

NS_PER_US = 1000


class VirtualClock:
    """Stands still between charges and waits: the same run gives the same times."""

    name = "virtual"

    def __init__(self):
        self._now_ns = 0
        self.left_out_ns = 0

    def now(self) -> int:
        return self._now_ns

    def charge(self, us: int) -> None:
        self._now_ns += us * NS_PER_US

    def wait_until(self, moment_ns: int) -> None:
        self._now_ns = max(self._now_ns, moment_ns)

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """Around what is not the scheduler's own work."""
        yield


class WallClock:
    """CPU time of this thread, less what is left out, plus what was waited for.

    CPU time and not the time of day: another process on the machine must not count.
    """

    name = "wall"

    def __init__(self):
        self._shift_ns = -time.thread_time_ns()
        self.left_out_ns = 0

    def now(self) -> int:
        return time.thread_time_ns() + self._shift_ns

    def charge(self, us: int) -> None:
        """Real time passes by itself."""

    def wait_until(self, moment_ns: int) -> None:
        self._shift_ns += max(0, moment_ns - self.now())

    @contextmanager
    def left_out(self) -> Iterator[None]:
        start = time.thread_time_ns()
        try:
            yield
        finally:
            spent = time.thread_time_ns() - start
            self._shift_ns -= spent
            self.left_out_ns += spent
