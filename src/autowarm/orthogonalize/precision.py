"""Number formats: the fastest one for products, their precision, and the smallest safe divisor for a norm."""

from functools import cache
from typing import Any

import torch

from .._torch.devices import traced_as_constant

HALVES = (torch.float16, torch.bfloat16)

# PyTorch's names for instructions that multiply bfloat16, on x86 (Zen 4+, Cooper Lake+, Sapphire Rapids+) and Arm.
_BF16_INSTRUCTIONS = ("avx512_bf16", "amx_bf16", "avx10_2", "bf16", "sve_bf16")


@cache
def working_dtype(device: torch.device) -> torch.dtype:
    """Return bfloat16 if the device multiplies it in hardware, otherwise single precision, which is then faster.

    The answer depends on the hardware only, not on a timing, so all processes of a run agree.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import working_dtype
        >>> working_dtype(torch.device("cpu")) in (torch.bfloat16, torch.float32)
        True
    """
    if device.type == "cuda":
        if not torch.cuda.is_available():
            return torch.bfloat16  # tensors without data, used to plan a model's shapes
        with torch.cuda.device(device):
            return torch.bfloat16 if torch.cuda.is_bf16_supported(including_emulation=False) else torch.float32
    if device.type == "cpu":
        return torch.bfloat16 if _cpu_multiplies_bf16() else torch.float32
    return torch.bfloat16 if device.type in ("xpu", "hpu", "meta") else torch.float32


def _cpu_multiplies_bf16() -> bool:
    if hasattr(torch.cpu, "get_capabilities"):
        capabilities = torch.cpu.get_capabilities()
        return any(capabilities.get(name) for name in _BF16_INSTRUCTIONS)
    # PyTorch before 2.10 has no public function for this.
    asked = (getattr(torch.cpu, f"_is_{name}_supported", None) for name in ("avx512_bf16", "amx_tile"))
    return any(ask() for ask in asked if ask is not None)


@traced_as_constant
def product_precision(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """Return the dtype whose precision products of this dtype have under PyTorch's present settings.

    If the user allows it, by `torch.set_float32_matmul_precision` or a backend's own switch, single precision is
    multiplied as TensorFloat-32 (10 bits) or bfloat16 (7 bits). Both count as bfloat16 here.
    """
    if dtype != torch.float32:
        return dtype
    backend: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    return torch.bfloat16 if backend.matmul.fp32_precision in ("tf32", "bf16") else dtype


def least_norm(dtype: torch.dtype) -> float:
    """Return the smallest safe divisor for a norm: below it, squares may underflow and the norm come out too small.

    This matters if gradients stay zero, as in a dead layer or an idle expert, whose momentum shrinks through every
    magnitude. Divided by this number, it fades out; divided by its own norm, it would explode once that underflows. The
    number is √tiny times the root of the number of entries, assumed to be at most 2²⁴.

    Example:
        >>> import torch
        >>> from autowarm.orthogonalize import least_norm
        >>> f"{least_norm(torch.bfloat16):.1e}", f"{least_norm(torch.float64):.1e}"
        ('4.4e-16', '6.1e-151')
    """
    summed_in = torch.float64 if dtype == torch.float64 else torch.float32
    return max(torch.finfo(dtype).tiny, torch.finfo(summed_in).tiny ** 0.5 * 2**12)
