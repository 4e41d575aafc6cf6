"""Weights: averages of two models, low-rank adapters, and the precision in which they are used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from closecall.errors import ConfigError
from closecall.precision import Precision
from finetune.config import LoraConfig

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

State = Mapping[str, Tensor]


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    """The weights as they are now, in main memory; low-rank adapters are added to what they adapt."""
    state = {
        name.replace(".base_layer.", "."): tensor.detach().to("cpu", copy=True)
        for name, tensor in model.state_dict().items()
        if ".lora_" not in name
    }
    for name, module in _adapted(model).items():
        for adapter in module.active_adapters:
            state[f"{name}.weight"] += module.get_delta_weight(adapter).detach().cpu()
    return state


def averaged(base: State, tuned: State, share: float) -> dict[str, Tensor]:
    """`share` of the tuned weights and the rest of the base's (LM-Cocktail, Xiao et al. 2023; WiSE-FT 2021).

    What is no floating-point number is the tuned model's.
    """
    return {
        name: torch.lerp(base[name].double(), tensor.double(), share).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in tuned.items()
    }


def add_adapters(model: SentenceTransformer, config: LoraConfig) -> None:
    """Put low-rank adapters into the model and freeze all else; ConfigError without `peft`."""
    try:
        from peft import LoraConfig as Settings
        from peft import inject_adapter_in_model
    except ImportError:
        raise ConfigError("finetune.lora: needs the package peft; pip install 'closecall[lora]'") from None
    inner = model[0].model
    modules = list(config.modules)
    if isinstance(config.modules, str):
        named = inner.named_modules()
        modules = [name for name, module in named if isinstance(module, nn.Linear) and "pooler" not in name]
    settings = Settings(r=config.rank, lora_alpha=config.alpha, lora_dropout=config.dropout, target_modules=modules)
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    try:
        inject_adapter_in_model(settings, inner)
    except ValueError as error:
        raise ConfigError(f"finetune.lora.modules: {str(error).splitlines()[0]}") from None


def remove_adapters(model: nn.Module) -> None:
    """Take the adapters out: the model has its old form and its old weights again."""
    for name, module in _adapted(model).items():
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, module.get_base_layer())
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def _adapted(model: nn.Module) -> dict[str, Any]:
    """The modules that have an adapter, by name."""
    return {name: module for name, module in model.named_modules() if hasattr(module, "get_delta_weight")}


def set_dropout(model: nn.Module, rate: float) -> None:
    """Use this dropout in training, in layers and in attention."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = rate
        for name in ("attention_dropout", "dropout_prob"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, rate)


@contextmanager
def float32_attention(device: torch.device) -> Iterator[None]:
    """On a CPU that computes in bfloat16 attention stays float32, and so does its gradient.

    torch's bfloat16 attention takes 2 to 14 times as long backward as in float32 there (torch 2.13, two AMX cores, 16
    texts of 16 to 256 tokens, medians of 5), which was a third of a training step on short texts.
    """
    if device.type != "cpu":
        yield
        return
    lower: Any = functional.scaled_dot_product_attention

    def attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        if not torch.is_autocast_enabled("cpu"):
            return lower(query, key, value, attn_mask=attn_mask, **options)  # type: ignore[no-any-return]
        if attn_mask is not None and attn_mask.is_floating_point():
            attn_mask = attn_mask.float()
        with torch.autocast("cpu", enabled=False):
            found = lower(query.float(), key.float(), value.float(), attn_mask=attn_mask, **options)
        return found.to(query.dtype)  # type: ignore[no-any-return]

    setattr(functional, lower.__name__, attention)
    try:
        yield
    finally:
        setattr(functional, lower.__name__, lower)


def autocast(device: torch.device, precision: Precision) -> torch.autocast:
    """The context in which a model computes in this precision; its weights stay float32."""
    low = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision)
    return torch.autocast(device.type, dtype=low or torch.bfloat16, enabled=low is not None)
