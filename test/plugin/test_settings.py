import pytest

from sglang_mamba_boundary.outcome import SettingError
from sglang_mamba_boundary.settings import POLICY, REQUIRED, Settings, read_settings


@pytest.mark.parametrize(
    "environ, settings",
    [
        ({}, Settings("flush", False)),
        ({POLICY: "flush"}, Settings("flush", False)),
        ({POLICY: "off"}, Settings("off", False)),
        ({POLICY: "off", REQUIRED: "0"}, Settings("off", False)),
        ({REQUIRED: "1"}, Settings("flush", True)),
        ({POLICY: "publish", REQUIRED: "1"}, Settings("publish", True)),
    ],
)
def test_accepted(environ, settings):
    assert read_settings(environ) == settings


@pytest.mark.parametrize(
    "environ, variable, value",
    [
        ({POLICY: ""}, POLICY, ""),
        ({POLICY: "Flush"}, POLICY, "Flush"),
        ({POLICY: "flush "}, POLICY, "flush "),
        ({POLICY: "1"}, POLICY, "1"),
        ({REQUIRED: "yes"}, REQUIRED, "yes"),
        ({REQUIRED: ""}, REQUIRED, ""),
    ],
)
def test_refused_by_name_value_and_choices(environ, variable, value):
    with pytest.raises(SettingError) as caught:
        read_settings(environ)
    assert (caught.value.variable, caught.value.value) == (variable, value)
    for part in (variable, repr(value), *map(repr, caught.value.choices)):
        assert part in str(caught.value)


def test_a_fix_cannot_be_required_and_off():
    with pytest.raises(SettingError, match=f"{POLICY}='off' beside {REQUIRED}=1"):
        read_settings({POLICY: "off", REQUIRED: "1"})
