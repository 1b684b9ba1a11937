"""A model folder without weights: a configuration, and a tokenizer with one token for each byte.

Usage: python -m tests.engines.freetoken.standin.checkpoint FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>"]


def tokenizer(folder: Path) -> int:
    """Write the tokenizer; returns the number of its tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(SPECIALS + sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(vocabulary)


def write(folder: Path) -> None:
    from transformers import Qwen3Config

    tokenizer(folder)
    config = Qwen3Config(
        architectures=["Qwen3ForCausalLM"],
        dtype="bfloat16",
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=128,
        max_position_embeddings=40960,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    config.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
