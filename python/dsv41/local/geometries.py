"""The two configurations that the checkpoint maker knows, in the released composite form.

`fixture` is what the local engine serves; `gpu` is what real GPU kernels accept. Both have the real
vocabulary and token map. Neither has draft (mtp.*) or vision tensors: their keys stand in the
configuration as in the released one, with no draft stage and no vision layer.
"""

from __future__ import annotations

from typing import Any

NAMES = ("fixture", "gpu")

HIDDEN = 64  # the fitted head separates the 136 positions of its answers well at this width

# The context is factor x original = 16 x 256 = 4096, as the released one is 16 x 65536: positions
# really go beyond the original length, and eight streams of a full context stay small in memory.
CONTEXT = 4096

# As small as the architecture allows: 16 heads of 32 channels in 8 groups, padded to 12 groups at
# three ranks as in the released model; 12 experts divide by 1, 2, 3 and 4; two Engram layers of 24
# columns with primes from 5,003 on, 122,412 and 127,932 rows of really 264 bytes.
_FIXTURE_TEXT: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "head_dim": 32,
    "qk_rope_head_dim": 16,
    "q_lora_rank": 64,
    "o_lora_rank": 32,
    "o_groups": 8,
    "max_position_embeddings": CONTEXT,
    "original_max_position_embeddings": CONTEXT // 16,
    "sliding_window": 8,
    "moe_intermediate_size": 96,  # three blocks of 32: one a rank at TP3, padded to four at TP4
    "n_routed_experts": 12,
    "num_experts_per_tok": 2,
    "index_n_heads": 4,
    "index_head_dim": 32,
    "index_topk": 8,
    "candidate_topk_blocks": 8,
    "candidate_block_size": 4,
    "engram_layer_ids": [1, 2],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 4,
    "dspark_num_experts_per_tok": 2,
}

# Fixed by kernels (seen with vLLM 0.33.0 on SM90): head_dim 512 with rope 64, one key-value head,
# 32 index heads of 128, top-k 512, hc_mult 4, 8 heads a group. Hidden 1024, 16 experts of 256 work.
_GPU_TEXT: dict[str, Any] = {
    "hidden_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 16,
    "head_dim": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 256,
    "o_lora_rank": 256,
    "o_groups": 2,
    "max_position_embeddings": 65536,
    "original_max_position_embeddings": 4096,
    "sliding_window": 128,
    "moe_intermediate_size": 256,
    "n_routed_experts": 16,
    "num_experts_per_tok": 4,
    "index_n_heads": 32,
    "index_head_dim": 128,
    "index_topk": 512,
    "candidate_topk_blocks": 2048,
    "candidate_block_size": 8,
    "engram_layer_ids": [1, 3],
    "dspark_markov_rank": 64,
    "dspark_n_routed_experts": 8,
    "dspark_num_experts_per_tok": 2,
}


def config(geometry: str) -> dict[str, Any]:
    """Build the whole config.json of a geometry, `fixture` or `gpu`.

    Raises ValueError for another name.
    """
    texts = {"fixture": _FIXTURE_TEXT, "gpu": _GPU_TEXT}
    if geometry not in texts:
        raise ValueError(f"geometry {geometry!r} is none of {', '.join(NAMES)}")
    return {
        "architectures": ["DeepseekV41ForCausalLM"],
        "model_type": "deepseek_v41",
        "dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
        "image_token_id": 129264,
        "tie_word_embeddings": False,
        "quantization_config": {
            "quant_method": "fp8",
            "activation_scheme": "dynamic",
            "fmt": "e4m3",
            "weight_block_size": [32, 32],
            "scale_fmt": "ue8m0",
            "expert_dtype": "fp4",
        },
        "text_config": _text(**texts[geometry]),
        "vision_config": _vision(),
    }


def _text(*, original_max_position_embeddings: int, **sizes: Any) -> dict[str, Any]:
    """Sizes of a geometry together with what both share with the released configuration."""
    return {
        "model_type": "deepseek_v41_text",
        "vocab_size": 129280,
        **sizes,
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "swiglu_limit": 10.0,
        "rms_norm_eps": 1e-20,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "rope_scaling": {
            "type": "yarn",
            "rope_type": "yarn",
            "factor": 16,
            "beta_fast": 32,
            "beta_slow": 1,
            "original_max_position_embeddings": original_max_position_embeddings,
        },
        "n_shared_experts": 1,
        "scoring_func": "sqrtsoftplus",
        "topk_method": "noaux_tc",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "compress_ratios": [0, 0, 2, 2, 1, 1, 0, 0, 0],  # six layers and three draft entries
        "kv_source_layer_ids": [2, 4],
        "index_source_layer_ids": [2, 4, 5],
        "candidate_source_layer_id": 4,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06,
        "engram_num_embeddings": [122412, 127932],
        "engram_max_ngram_size": 4,
        "engram_n_heads": 8,
        "engram_head_dim": 256,
        "engram_vocab_size": 5000,
        "engram_pad_token_id": 2,
        "engram_compressed_vocab_size": 99092,
        "num_nextn_predict_layers": 0,
        "dspark_block_size": 5,
        "dspark_noise_token_id": 128799,
        "dspark_target_layer_ids": [3, 4, 5],
        "initializer_range": 0.02,
        "use_cache": True,
        "tie_word_embeddings": False,
    }


def _vision() -> dict[str, Any]:
    """The released vision keys with no layer: no vision tensor is in the checkpoint."""
    return {
        "model_type": "deepseek_v41_vision",
        "num_hidden_layers": 0,
        "hidden_size": 1024,
        "num_attention_heads": 16,
        "intermediate_size": 2816,
        "patch_size": 14,
        "rope_theta": 10000.0,
        "downsample_ratio": 3,
        "max_image_tokens": 1024,
        "min_pixels": 295936,
        "max_wh_ratio": None,
    }
