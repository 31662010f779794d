"""Flax's layers with biases in float32.

A bias has the sum of all places' gradients. In bfloat16 such a sum stops growing at some hundred
times its terms, and a batch has thousands of places.
"""

from typing import Any

import flax.linen as nn
from flax.linen.dtypes import promote_dtype


def promote_all_but_bias(x: Any, kernel: Any, bias: Any, *, dtype: Any) -> tuple[Any, Any, Any]:
    """Input and kernel to the dtype of the computation."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Dense(nn.Dense):
    """x W + b."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """In `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


class Conv(nn.Conv):
    """Cross-correlation with W, and b."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """In `dtype`."""
        return super().__call__(inputs).astype(self.dtype)
