"""Builds the reference model's tokenizer: byte-level BPE with one token per id, so
that any text goes in and comes back. ``python -m sglang_cpu_testbed.tokenizer``
writes it beside the model's config; the text it learns from is part of this module,
so that the files are what this module says."""

import json
from pathlib import Path

from sglang_cpu_testbed.engine import MODEL

VOCAB_SIZE = 512
# Ids in this order, from 0: the reference model picks 1 now and then, 0 hardly ever.
END, SYSTEM, USER, ASSISTANT = "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"
SPECIAL = (SYSTEM, END, USER, ASSISTANT)
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "eos_token": END,
    "pad_token": END,
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
    "chat_template": CHAT_TEMPLATE,
}
TEXT = """\
The keeper of the lighthouse wrote one line in the log each evening: the wind, the
height of the water, the ships that had passed and the hour when the lamp was lit.
In the winter there was little to write. The ice came down from the river, the
fishing boats stayed in the harbour, and the only light on the water was his own.
When the spring came the ferries ran again, and with them came letters, newspapers,
a new barrel of oil, and now and then a visitor who wanted to see the great lens.
He told them all the same story. The first lamp had burned whale oil, the second
paraffin; the third was electric and needed no keeper at all. Nobody had ever asked
why he was there, and so he had stayed, and counted the ships as they went by.
There were seven in March, twelve in April, thirty in May. In June he stopped, for
the numbers were larger than the page, and the evenings were too short to write.
{"name": "lamp", "lit": true, "count": [1, 2, 3], "note": null, "height": 12.5}
"""


def files() -> dict[str, str]:
    """Contents by file name, the same on every machine."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    model = json.loads(tokenizer.to_str())
    return {
        # One line: the file is read by machines, and stays small.
        "tokenizer.json": json.dumps(model, ensure_ascii=True) + "\n",
        "tokenizer_config.json": json.dumps(CONFIG, indent=2) + "\n",
    }


def write(folder: Path = MODEL) -> None:
    for name, content in files().items():
        (folder / name).write_text(content)


if __name__ == "__main__":
    write()
