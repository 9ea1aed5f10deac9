from sglang_mamba_boundary import AlreadyFixed, Refused, Unwoven, Woven


def test_a_refusal_is_told_in_the_order_a_reader_needs():
    text = str(Refused("A", "B", "do D", state="C holds"))
    assert text == "looked for A; found B; C holds; do D"


def test_outcomes_name_engine_and_loop():
    assert str(Woven("0.5.23", "S.loop")) == "woven into S.loop of sglang 0.5.23"
    assert str(Woven("1", "S.loop", already=True)).startswith("already woven")
    assert "carries the fix itself" in str(AlreadyFixed("1", "S.loop"))
    assert str(Unwoven()) == "the engine's loop is its own"
    assert str(Unwoven(already=True)) == "the engine's loop is already its own"
