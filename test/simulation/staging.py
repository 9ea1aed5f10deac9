"""A stage in this process, for tests that reach into the engine. Run in a fork."""

from dataclasses import replace

from sglang_cpu_testbed.fork import fork
from sglang_cpu_testbed.scenarios import BOUNDARY_SWITCH
from sglang_cpu_testbed.simulation.configurations import CONFIGURATIONS, MODEL


def stage(name="page1", **arguments):
    from sglang_cpu_testbed.config import ReferenceConfig
    from sglang_cpu_testbed.simulation.expected import Expected
    from sglang_cpu_testbed.simulation.play import Stage

    configuration = CONFIGURATIONS[name]
    chosen = configuration.server_args | arguments
    expected = Expected(ReferenceConfig(**MODEL))
    return Stage(replace(configuration, server_args=chosen), expected)


def in_fork(case, *args, name="page1", policy="flush", env=None):
    variables = CONFIGURATIONS[name].variables | {BOUNDARY_SWITCH: policy}
    return fork(case, *args, env=variables | (env or {}))
