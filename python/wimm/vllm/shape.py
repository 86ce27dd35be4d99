# SPDX-License-Identifier: Apache-2.0
"""What vLLM's cache looks like, in the words of wimm.kv. Pages are moved whole: how K and V lie
inside one is the attention kernel's affair, which both sides must share."""

from __future__ import annotations

import json
import re
import zlib
from typing import Any, NamedTuple

import torch
from vllm.config import VllmConfig
from vllm.v1.kv_cache_interface import KVCacheConfig, MLAAttentionSpec

from .. import kv


class Shape(NamedTuple):
    """A worker's cache."""

    layout: kv.Layout
    memory: tuple[int, int, str]   #: address, length, device
    layers: list[str]              #: names in the order of the model
    keep: Any                      #: what holds the memory


def describe(config: VllmConfig, cache_config: KVCacheConfig,
             caches: dict[str, torch.Tensor], rank: int) -> Shape:
    """Raises ValueError where this connector cannot move such a cache."""
    groups = cache_config.kv_cache_groups
    if len(groups) != 1:
        raise ValueError(f"the wimm connector moves caches of one group, this has {len(groups)}")
    spec = groups[0].kv_cache_spec
    names = sorted(caches, key=_layer_number)
    tensors = [caches[name] for name in names]
    first, storage = tensors[0], tensors[0].untyped_storage()
    for name, tensor in zip(names, tensors):
        _check(name, tensor, first, spec)
    starts = [tensor.data_ptr() - storage.data_ptr() for tensor in tensors]
    gaps = {after - before for before, after in zip(starts, starts[1:])} or {storage.nbytes()}
    if len(gaps) != 1 or min(gaps) <= 0:
        raise ValueError("the layers of this cache do not lie at equal distances in one memory")
    latent = isinstance(spec, MLAAttentionSpec)
    heads = 1 if latent else config.model_config.get_total_num_kv_heads()
    itemsize, page = first.element_size(), first.stride(0) * first.element_size()
    size = int(first.shape[-1]) if latent else int(spec.head_size)
    half = spec.block_size * size * itemsize
    layout = kv.Layout(
        layers=len(names), kv_heads=heads, head_dim=size, elem_bytes=itemsize,
        elem_type=zlib.crc32(str(first.dtype).encode()), page_tokens=spec.block_size,
        pages=first.shape[0], tp=config.parallel_config.tensor_parallel_size, tp_rank=rank,
        kind=kv.KvKind.MLA if latent else kv.KvKind.GQA, model_tag=_tag(config, first, spec),
        offset=starts[0], strides=kv.Strides(min(gaps), page, half, 2 * half, size * itemsize))
    return Shape(layout, (storage.data_ptr(), storage.nbytes(), first.device.type), names, tensors)


def _layer_number(name: str) -> tuple[int, str]:
    numbers = re.findall(r"\.(\d+)(?=\.)", name)
    return int(numbers[0]) if numbers else -1, name


def _check(name: str, tensor: torch.Tensor, first: torch.Tensor, spec: Any) -> None:
    if tensor.device.type != "cpu":
        raise ValueError(f"{name} is in {tensor.device.type} memory: this connector moves caches "
                         f"in host memory")
    if tensor.untyped_storage().data_ptr() != first.untyped_storage().data_ptr():
        raise ValueError(f"{name} is in a memory of its own: the wimm connector wants one memory "
                         f"for all layers")
    if isinstance(spec, MLAAttentionSpec):
        wanted: tuple[int, ...] = (spec.block_size, tensor.shape[-1])
        got = tuple(n for n in tensor.shape[1:-1] if n != 1) + (tensor.shape[-1],)
    else:
        wanted = (spec.num_kv_heads, spec.block_size, 2 * spec.head_size)
        got = tuple(tensor.shape[1:])
    if got != wanted or tensor.shape != first.shape or tensor.stride() != first.stride():
        raise ValueError(f"{name} has the shape {tuple(tensor.shape)}: the wimm connector knows "
                         f"[pages, heads, tokens, K and V] with {wanted} behind the pages")
    if not tensor[0].is_contiguous():
        raise ValueError(f"{name}: a page is not one run of bytes (strides {tensor.stride()})")


def _tag(config: VllmConfig, tensor: torch.Tensor, spec: Any) -> int:
    """A digest of what else must agree: the model's shape, and the order inside a page, which the
    CPU kernel chooses by the machine."""
    model = config.model_config
    text = model.hf_text_config
    says = [list(model.architectures or []), str(model.dtype), str(tensor.dtype),
            type(spec).__name__, spec.block_size, list(tensor.shape[2:]),
            *(getattr(text, name, None) for name in (
                "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size",
                "rope_theta", "intermediate_size"))]
    amx = getattr(getattr(torch, "cpu", None), "_is_amx_tile_supported", None)
    if tensor.dtype == torch.bfloat16 and amx is not None:
        says.append(bool(amx()))
    return zlib.crc32(json.dumps(says, default=str).encode())
