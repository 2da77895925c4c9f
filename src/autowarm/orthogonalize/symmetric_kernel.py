"""The Triton kernel of `symmetric`. Import it only if a GPU can run it, because Triton is not a dependency.

One program computes one tile on or below the diagonal and stores it twice, the second time mirrored. It stores only the
lower half of a tile on the diagonal, so that the result equals its transpose to the bit.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# These are not tuned at run time, because all ranks must round in the same way. Three stages of two such tiles take
# 96 KiB of shared memory, which every GPU of compute capability 8.0 or more has.
_ROWS, _INNER, _WARPS, _STAGES = 128, 64, 8, 3


@triton.jit
def _lower_tile(  # type: ignore[no-untyped-def]  # Triton reads annotations as its own types
    left, right, plus, out, n, inner, alpha, beta,
    left_batch, left_row, left_inner, right_batch, right_inner, right_column,
    plus_batch, plus_row, plus_column, out_batch,
    ADD: tl.constexpr, WHOLE: tl.constexpr, WIDEN: tl.constexpr, ROWS: tl.constexpr, INNER: tl.constexpr,
):  # fmt: skip
    # The tiles on and below the diagonal are numbered row by row. Row i starts at tile i(i + 1)/2, where √(8 tile + 1)
    # is exactly 2i + 1. With 4 instead of 1 the root is never near these values, so its rounding does not matter.
    tile = tl.program_id(0)
    tile_row = ((tl.sqrt(8.0 * tile + 4.0) - 1.0) * 0.5).to(tl.int32)
    tile_column = tile - tile_row * (tile_row + 1) // 2
    batch = tl.program_id(1).to(tl.int64)

    rows = tile_row * ROWS + tl.arange(0, ROWS)
    columns = tile_column * ROWS + tl.arange(0, ROWS)
    inners = tl.arange(0, INNER)
    # Beyond the edge, read other rows again instead of masking; their products are not stored.
    lefts = left + batch * left_batch + (rows % n)[:, None] * left_row + inners[None, :] * left_inner
    rights = right + batch * right_batch + inners[:, None] * right_inner + (columns % n)[None, :] * right_column
    total = tl.zeros((ROWS, ROWS), dtype=tl.float32)
    for start in range(0, inner, INNER):
        if WHOLE:
            x = tl.load(lefts)
            y = tl.load(rights)
        else:
            x = tl.load(lefts, mask=inners[None, :] < inner - start, other=0.0)
            y = tl.load(rights, mask=inners[:, None] < inner - start, other=0.0)
        if WIDEN:
            x, y = x.to(tl.float32), y.to(tl.float32)
        total = tl.dot(x, y, total, input_precision="ieee")
        lefts += INNER * left_inner
        rights += INNER * right_inner
    total *= alpha
    lower = (rows[:, None] >= columns[None, :]) & (rows[:, None] < n)
    if ADD:
        added = plus + batch * plus_batch + rows[:, None] * plus_row + columns[None, :] * plus_column
        total += beta * tl.load(added, mask=lower, other=0.0).to(tl.float32)
    result = total.to(out.dtype.element_ty)
    out += batch * out_batch
    tl.store(out + rows[:, None] * n + columns[None, :], result, mask=lower)
    above = (columns[:, None] < rows[None, :]) & (rows[None, :] < n)
    tl.store(out + columns[:, None] * n + rows[None, :], tl.trans(result), mask=above)


@torch.library.custom_op("autowarm::symmetric_product", mutates_args=())
def multiply(left: Tensor, right: Tensor, plus: Tensor | None, alpha: float, beta: float) -> Tensor:
    """`symmetric.symmetric_product` on the GPU, as an operator so that `torch.compile` and fake tensors support it."""
    count, n, inner = left.shape
    out = torch.empty((count, n, n), dtype=left.dtype, device=left.device)
    tiles = triton.cdiv(n, _ROWS)
    added = out if plus is None else plus
    # On a CPU Triton's interpreter runs the kernel, and it gets products in bfloat16 wrong.
    widen = left.device.type == "cpu"
    with torch.cuda.device_of(left):
        _lower_tile[tiles * (tiles + 1) // 2, count](
            left, right, added, out, n, inner, alpha, beta,
            *left.stride(), *right.stride(), *added.stride(), out.stride(0),
            ADD=plus is not None, WHOLE=inner % _INNER == 0, WIDEN=widen, ROWS=_ROWS, INNER=_INNER,
            num_warps=_WARPS, num_stages=_STAGES,
        )  # fmt: skip
    return out


@multiply.register_fake
def _(left: Tensor, right: Tensor, plus: Tensor | None, alpha: float, beta: float) -> Tensor:
    return left.new_empty((left.shape[0], left.shape[1], left.shape[1]))
