"""Which token a decode step's penalties count, by what the request knows then."""

from types import SimpleNamespace

import pytest

from sglang_mamba_boundary import fix
from sglang_mamba_boundary.members import members

PROMPT, OUTPUTS = [7, 8, 9], [20, 21, 22]


def counted(step, known, overlap=True, spec=False, token=fix.penalty_token, kv=True):
    """The token counted when decode `step` is built with `known` outputs processed."""
    committed = {"kv_committed_len": len(PROMPT) + step - 1}
    req = SimpleNamespace(
        origin_input_ids=PROMPT,
        output_ids=OUTPUTS[:known],
        decode_batch_idx=step - 1,
        **({"kv": SimpleNamespace(**committed)} if kv else committed),
    )
    spec_algorithm = SimpleNamespace(is_none=lambda: not spec)
    batch = SimpleNamespace(enable_overlap=overlap, spec_algorithm=spec_algorithm)
    return token(batch, req)


@pytest.mark.parametrize("step, token", [(1, 9), (2, 20), (3, 21)])
@pytest.mark.parametrize("behind", [0, 1])
def test_overlap_counts_each_position_once_whatever_is_pending(step, token, behind):
    assert counted(step, known=step - behind) == token


@pytest.mark.parametrize("step, token", [(1, 20), (2, 21), (3, 22)])
def test_without_overlap_the_newest_token_is_counted(step, token):
    assert counted(step, known=step, overlap=False) == token


def test_verify_steps_count_the_newest_but_for_the_first():
    assert counted(1, known=1, spec=True) == 9
    assert counted(1, known=0, spec=True) == 9
    assert counted(2, known=2, spec=True) == 21


def test_older_releases_keep_the_length_on_the_request():
    older = members((0, 5, 18), fix.BATCH_MEMBERS)["penalty_token"]
    assert counted(2, known=2, token=older, kv=False) == 20
