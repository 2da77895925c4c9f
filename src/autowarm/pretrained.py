"""Tells from the weights alone whether a model was trained before.

The entries of a new matrix are *exchangeable*, whatever distribution they are drawn from: none is special by its row or
column. Training ends that: some neurons grow, and gradients of low rank align the rows. For an m × n matrix of
exchangeable entries w, these quantities are 1, in any shape and on any scale:

- F, an analysis of variance of w² by rows, F = n·var(row means of w²)/var(w²), and the same by columns. The cube root
  of F is nearly normal, as F is about χ²/(m − 1) with m − 1 degrees of freedom (Wilson and Hilferty, 1931). Rows of new
  matrices may differ in scale, such as queries, keys and values in one matrix, or columns may, but not both: the lesser
  of the two z-scores counts.
- C, the mean of n·cos² over the angles between the rows, or between the columns if they are fewer. The other side is
  scaled to equal norms first. The standard error of C is √(2/P) for P pairs, or more if entries are heavy-tailed.

Updates by Adam, Lion or SGD show in C first; those of Muon, which are nearly orthogonal, show in F. Orthogonal and
identity matrices have F and C below 1, which is no evidence of training. A matrix scores the larger of the two
z-scores, between 0 and 6, so that a few structured ones (a table of sines, a state-space model's decays) do not decide.
A model of K matrices looks trained if their mean score exceeds 1 + 2.5/√K. Models score about 0.2 when new and 6 after
long training (docs/data/tables/trained-weights.csv).

Two further signs take precedence, in this order:

- The gains of norms start at a constant. If most of them still have it, the model is new.
- Zero matrices (out, r) beside random ones (r, in), with r below a quarter of the other sizes, are LoRA's adapters. If
  most matrices are such pairs, they belong to a trained model, whose weights the optimizer need not hold.
"""

import math
from collections import Counter
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ._torch.devices import check_member, collective_device
from ._torch.modes import in_normal_mode
from .optim.ranks.dtensors import local

_FEWEST = 8  # rows and columns of a matrix, and entries of a vector, that count
_SAMPLE = 1024  # at most so many rows and columns are read, evenly spaced
_CAP = 6.0  # the highest score of one matrix
_TYPICAL, _SURE = 1.0, 2.5  # mean score of a trained model, and how many standard errors above it
_FRESH = 0.003  # relative spread of gains that are as new; one update of a warm-up does not exceed it


class Verdict(NamedTuple):
    """Whether weights were trained before, and why.

    Attributes:
        trained: the answer. Without evidence it is False.
        evidence: what decided: "gains", "adapters" or "matrices"; "none" if no tensor counts.
        score: the mean score of the matrices, from 0 to 6; 0 if none counts.
        threshold: the score above which the matrices say "trained".
    """

    trained: bool
    evidence: Literal["gains", "adapters", "matrices", "none"]
    score: float
    threshold: float


def detect(
    source: "torch.optim.Optimizer | nn.Module | Iterable[Tensor]", process_group: dist.ProcessGroup | None = None
) -> Verdict:
    """Tell whether weights were trained before. Reads each tensor once and waits for the device once.

    All floating-point tensors of an optimizer count, frozen ones too. Of sharded tensors (DTensor), each rank reads its
    own part, and the ranks share one verdict: each of them must call this.

    Args:
        source: an optimizer, a model, or the tensors.
        process_group: the ranks that share the verdict; None means all, if `torch.distributed` is in use.

    Example:
        >>> import torch
        >>> from autowarm.pretrained import detect
        >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
        >>> optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        >>> detect(optimizer).trained
        False
        >>> for _ in range(100):
        ...     x = torch.randn(64, 64)
        ...     optimizer.zero_grad()
        ...     (model(x) - x.cumsum(1)).square().mean().backward()
        ...     optimizer.step()
        >>> detect(optimizer).trained
        True
    """
    return examine(source, process_group).verdict(process_group)


@in_normal_mode
@torch.no_grad()
def examine(source: Any, process_group: dist.ProcessGroup | None = None) -> "Evidence":
    """What a rank's own tensors say. It sends nothing, so that it may be asked earlier than the ranks' verdict."""
    check_member(process_group)
    world = dist.get_world_size(process_group) if dist.is_available() and dist.is_initialized() else 1
    evidence = Evidence()
    if isinstance(source, nn.Module):
        source = source.parameters()
    elif hasattr(source, "param_groups"):
        source = (p for group in source.param_groups for p in group["params"])
    tensors = [p for p in source if p.is_floating_point() and p.layout is torch.strided and not p.is_meta]
    matrices = [p for p in tensors if p.ndim > 1 and min(p.shape[0], p.shape[1:].numel()) > 1]
    vectors = [v for p in tensors if p.ndim == 1 and (v := local(p.detach())).numel() >= _FEWEST]
    pairs = [*(_score(local(p.detach())) for p in matrices), *map(_gain, vectors)]
    read = torch.stack([pair.to(pairs[0].device) for pair in pairs]).tolist() if pairs else []
    zero, random = Counter[int](), Counter[int]()
    for p, (score, is_zero) in zip(matrices, read[: len(matrices)], strict=True):
        rows, columns = p.shape[0], p.shape[1:].numel()
        zero[columns] += bool(is_zero and 4 * columns < rows)
        random[rows] += bool(not is_zero and 4 * rows < columns)
        if not math.isnan(score):
            # By how many ranks hold the same entries; of a plain tensor we assume that all do.
            places: Any = enumerate(getattr(p, "placements", ()))
            replicas = math.prod(p.device_mesh.size(i) for i, place in places if place.is_replicate())
            weight = 1 / (replicas if hasattr(p, "placements") else world)
            evidence.score += weight * score
            evidence.scored += weight
    evidence.paired = 2 * sum((zero & random).values())
    evidence.matrices = len(matrices)
    for is_gain, is_fresh in read[len(matrices) :]:
        evidence.gains += is_gain
        evidence.fresh += is_gain * is_fresh
    return evidence


class Evidence:
    """What a rank knows, in numbers that add up over the ranks."""

    def __init__(self) -> None:
        self.score = self.scored = self.paired = self.matrices = self.gains = self.fresh = 0.0

    def verdict(self, group: dist.ProcessGroup | None = None) -> Verdict:
        """The verdict of all ranks, each of which must call this."""
        if dist.is_available() and dist.is_initialized() and dist.get_world_size(group) > 1:
            sums = torch.tensor(list(vars(self).values()), dtype=torch.float32, device=collective_device(group))
            dist.all_reduce(sums, group=group)
            vars(self).update(zip(vars(self), sums.tolist(), strict=True))
        score = self.score / self.scored if self.scored else 0.0
        threshold = _TYPICAL + _SURE / math.sqrt(self.scored) if self.scored else math.inf
        if 2 * self.fresh > self.gains:
            return Verdict(False, "gains", score, threshold)
        if 2 * self.paired > self.matrices:
            return Verdict(True, "adapters", score, threshold)
        return Verdict(score > threshold, "matrices" if self.scored else "none", score, threshold)


def _gain(v: Tensor) -> Tensor:
    """Whether a vector is a norm's gains, which lie around a value other than 0, and whether they are as new."""
    v = v.float()
    spread, mean = v.std(), v.mean().abs()
    return torch.stack([(mean > 3 * spread).float(), (spread <= _FRESH * mean).float()])


def _score(w: Tensor) -> Tensor:
    """A matrix's score, NaN if it is too small or constant, and whether it is zero."""
    if not w.numel():
        return w.new_tensor([math.nan, 0.0], dtype=torch.float32)
    # Kernels (out, in, k, k) and stacks (experts, out, in) become the matrix with the longest shorter side.
    shapes = [(w.shape[:i].numel(), w.shape[i:].numel()) for i in range(1, w.ndim)]
    w = w.reshape(max(shapes, key=min))
    if w.shape[0] > w.shape[1]:
        w = w.T
    w = w[:: -(-w.shape[0] // _SAMPLE), :: -(-w.shape[1] // _SAMPLE)].float()
    largest = w.abs().amax()
    w = w / largest  # the fourth powers of small entries would underflow
    squares = w.square()
    live = squares > 0  # rows and columns of zeros, as an embedding's padding, do not count
    m, n = live.any(1).sum(), live.any(0).sum()
    squares = squares / (squares.sum() / (m * n))
    variance = (squares.square().sum() - m * n) / (m * n - 1)
    rows, columns = squares.sum(1) / n, squares.sum(0) / m
    scales = torch.minimum(_z_of_variances(rows, n, m, variance), _z_of_variances(columns, m, n, variance))
    mean, error = w.sum() / (m * n), w.norm() / (m * n)
    # A mean that is only chance would align rows that are much smaller than others.
    w = (w - torch.where(mean.abs() > 4 * error, mean, 0.0)) * live
    w = w / torch.where(columns > 0, columns, 1.0).sqrt()
    score = torch.maximum(scales, _z_of_angles(w, m, n)).clamp(0.0, _CAP)
    counts = (m >= _FEWEST) & (n >= _FEWEST) & (variance > 1e-4)
    return torch.stack([torch.where(counts, score, math.nan), (largest == 0).float()])


def _z_of_variances(means: Tensor, length: Tensor, lines: Tensor, variance: Tensor) -> Tensor:
    """z of F: of lines of this length, with these mean squares; the entries' squares have mean 1 and this variance."""
    ratio = length * ((means - 1).square() * (means > 0)).sum() / (lines - 1) / variance
    error = 2 / (9 * (lines - 1))
    return (ratio.clamp_min(0) ** (1 / 3) - (1 - error)) / error.sqrt()


def _z_of_angles(w: Tensor, lines: Tensor, length: Tensor) -> Tensor:
    """z of C: of the angles between the rows."""
    w = w / w.norm(dim=1, keepdim=True).clamp_min(1e-30)
    cosines = (w @ w.T).float().square().fill_diagonal_(0.0) * length
    pairs = lines * (lines - 1)  # each twice
    mean = cosines.sum() / pairs
    variance = cosines.square().sum() / pairs - mean.square()
    return (mean - 1) * (pairs / 2).sqrt() / variance.clamp_min(2.0).sqrt()
