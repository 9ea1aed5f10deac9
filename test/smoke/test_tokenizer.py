"""The tokenizer that ships with the testbed is what its module says, and loses nothing."""

import json

import pytest

from sglang_cpu_testbed import tokenizer
from sglang_cpu_testbed.engine import MODEL


@pytest.fixture(scope="module")
def shipped():
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(MODEL)


def test_files_are_what_the_module_writes():
    for name, content in tokenizer.files().items():
        assert (MODEL / name).read_text() == content, name


def test_one_token_for_each_id_of_the_model(shipped):
    config = json.loads((MODEL / "config.json").read_text())
    assert sorted(shipped.get_vocab().values()) == list(range(config["vocab_size"]))


@pytest.mark.parametrize(
    "text",
    [
        "",
        tokenizer.TEXT,
        "  two  spaces\n\n\ttab ",
        "".join(map(chr, range(0x250))),
        "\u65e5\u672c\u8a9e \U0001f4a1 e\u0301",
        tokenizer.USER + "it's" + tokenizer.END,
    ],
)
def test_text_comes_back(shipped, text):
    assert shipped.decode(shipped.encode(text)) == text


def test_common_words_are_shorter_than_their_bytes(shipped):
    assert len(shipped.encode(tokenizer.TEXT)) < len(tokenizer.TEXT) / 3


def test_a_chat_ends_where_the_model_is_to_go_on(shipped):
    turns = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
    ]
    text = shipped.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True
    )
    assert text == "<|system|>s<|end|><|user|>u<|end|><|assistant|>"
    ids = shipped.encode(text)
    assert ids.count(shipped.eos_token_id) == 2
    assert shipped.decode([ids[0]]) == tokenizer.SYSTEM
