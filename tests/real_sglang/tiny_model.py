"""Owns a model small enough to serve on a laptop's CPU: a Llama configuration without weights, and
a tokenizer trained on the spot.

Runs in the Python of the environment, for `tokenizers` is only there: tiny_model.py FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

VOCABULARY = 512
CONTEXT_TOKENS = 4096
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "max_position_embeddings": CONTEXT_TOKENS,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
    "bos_token_id": 0,
    "eos_token_id": 1,
}
SPECIAL = ["<|begin|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>"]
TEMPLATE = (
    "{{ '<|begin|>' }}{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
# What the merges are learnt from: plain sentences on what the project is about.
TEXT = [
    "a server is launched on a host, it loads a model, and then it answers requests one token after the other",
    "every request has a time to its first token and a time for each token that follows",
    "measure a thing more than once, in an order drawn at random, and say how sure you are",
    "the draft proposes several tokens, the target verifies them in one step and keeps those that it would have chosen itself",
    "what was asked for and what took effect are two things, and only one of them can be read from the file",
    "please explain how the weather, the sea and the wind are connected, and write a short list of what to pack for a journey",
]


def write_model(folder: Path) -> None:
    """config.json, tokenizer.json and tokenizer_config.json into `folder`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    words = {"bos_token": SPECIAL[0], "eos_token": SPECIAL[1], "chat_template": TEMPLATE}
    about = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        **words,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(about, indent=1))
    (folder / "config.json").write_text(
        json.dumps({**CONFIG, "vocab_size": tokenizer.get_vocab_size()}, indent=1)
    )


if __name__ == "__main__":
    write_model(Path(sys.argv[1]))
