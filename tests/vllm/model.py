# SPDX-License-Identifier: Apache-2.0
"""Write a tiny model with seeded random weights, wide enough that each prompt has other tokens.

usage: model.py FOLDER gqa|mla        (in the environment that has vLLM)
"""
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import DeepseekV2Config, DeepseekV2ForCausalLM, LlamaConfig, LlamaForCausalLM

VOCAB = 2048
COMMON = {"vocab_size": VOCAB, "max_position_embeddings": 4096, "bos_token_id": 0,
          "eos_token_id": 1, "pad_token_id": 1, "tie_word_embeddings": False,
          "initializer_range": 0.3}


def build(kind):
    if kind == "gqa":
        return LlamaForCausalLM(LlamaConfig(
            hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=8,
            num_key_value_heads=2, **COMMON))
    return DeepseekV2ForCausalLM(DeepseekV2Config(
        hidden_size=128, intermediate_size=256, moe_intermediate_size=64, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=4, kv_lora_rank=512, q_lora_rank=None,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, n_routed_experts=4,
        n_shared_experts=1, num_experts_per_tok=2, first_k_dense_replace=3, n_group=1,
        topk_group=1, **{**COMMON, "initializer_range": 0.1}))


def main():
    folder, kind = Path(sys.argv[1]), sys.argv[2]
    torch.manual_seed(7)
    model = build(kind).float()
    model.config.dtype = "float32"
    model.save_pretrained(folder, safe_serialization=True)
    tokenizer = Tokenizer(models.WordLevel({f"t{i}": i for i in range(VOCAB)}, unk_token="t2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.Fuse()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t0", "eos_token": "t1",
        "pad_token": "t1", "unk_token": "t2", "model_max_length": 4096,
        "clean_up_tokenization_spaces": False}))


if __name__ == "__main__":
    main()
