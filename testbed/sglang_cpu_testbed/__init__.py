"""A CPU platform, an exact reference model and an in-process harness for
SGLang's real scheduler. Nothing here acts unless ``SGLANG_PLATFORM`` names the
testbed, so that an installed testbed never takes over a server."""

PLATFORM = "cpu_testbed"
ENGINE_VERSION = "0.5.23"
# "1" lets the numbers of the slots that were read leak a little into the logits.
SLOT_SWITCH = "SGLANG_TESTBED_SLOT_DEPENDENCE"
