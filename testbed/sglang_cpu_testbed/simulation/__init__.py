"""A seeded simulation of the real scheduler: it is stepped one loop turn at a
time through random histories, on a device whose completion the history decides,
and every turn is judged by oracles that know nothing of the fix."""
