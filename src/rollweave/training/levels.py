"""Sums and means of tokens that belong together, given back to each of them.

`index` says which one a token belongs to: numbers from 0 that never fall. A trajectory is never cut in two by
micro-batches, so what is taken together here does not depend on how they were cut.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sum_within(values: Tensor, index: Tensor) -> Tensor:
    sums = values.new_zeros(int(index[-1]) + 1).index_add_(0, index, values)
    return sums[index]


def mean_within(values: Tensor, index: Tensor) -> Tensor:
    return sum_within(values, index) / torch.bincount(index)[index]
