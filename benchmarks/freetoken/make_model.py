"""A checkpoint with random weights and a byte-level tokenizer, made offline, for runs in which only the numbers matter.

python make_model.py FOLDER [--kind dense|hybrid] [--size tiny|mid|big]
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

SHAPES = {  # hidden, layers, heads, key-value heads, head size, inner
    "tiny": (256, 4, 4, 2, 64, 768),
    "mid": (1024, 16, 16, 8, 128, 3072),
    "big": (2560, 36, 32, 8, 128, 9728),
}
NAMES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
)
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tokenizer(folder: Path, words: Sequence[str] = ()) -> int:
    """One token a byte, and one for each of the words and its beginnings; returns how many there are."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    names = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    merges = [(word[:end], word[end]) for word in words for end in range(1, len(word))]
    names += ["".join(merge) for merge in merges]
    inner = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token="<|pad|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>", "<|endoftext|>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return len(names)


def model(kind: str, size: str, vocabulary: int) -> Any:
    shape = dict(zip(NAMES, SHAPES[size], strict=True))
    common = {
        **shape,
        "vocab_size": (vocabulary + 63) // 64 * 64,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }
    if kind == "dense":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**common))
    from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
    from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

    layers = ["full_attention" if i % 4 == 3 else "linear_attention" for i in range(shape["num_hidden_layers"])]
    return Qwen3_5ForCausalLM(
        Qwen3_5TextConfig(
            **common,
            layer_types=layers,
            linear_num_key_heads=max(2, shape["num_key_value_heads"]),
            linear_num_value_heads=max(4, shape["num_attention_heads"]),
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_conv_kernel_dim=4,
        )
    )


def spread(weights: Any) -> None:
    """Initial weights whose next-token scores lie nats apart, as a trained model's do."""
    with torch.no_grad():
        for name, weight in weights.named_parameters():
            if weight.dim() != 2:
                continue
            if "lm_head" in name:
                scale = 3.0 / weight.shape[1] ** 0.5
            elif "embed" in name:
                scale = 1.0
            elif name.endswith(("q_proj.weight", "k_proj.weight")):
                scale = 1.5 / weight.shape[1] ** 0.5
            else:
                scale = 1.0 / weight.shape[1] ** 0.5
            weight.normal_(0, scale)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kind", choices=["dense", "hybrid"], default="dense")
    parser.add_argument("--size", choices=list(SHAPES), default="tiny")
    arguments = parser.parse_args()
    vocabulary = tokenizer(arguments.folder)
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        torch.set_default_dtype(torch.bfloat16)
        weights = model(arguments.kind, arguments.size, vocabulary)
    spread(weights)
    weights.to("cpu").save_pretrained(arguments.folder, max_shard_size="4GB")
    (arguments.folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "pad_token_id": 0}))
    print(arguments.kind, arguments.size, f"{sum(p.numel() for p in weights.parameters()) / 1e6:.0f}M parameters")


if __name__ == "__main__":
    main()
