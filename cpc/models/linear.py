"""Flax's layers with biases in float32.

A bias has the sum of all places' gradients. In bfloat16 such a sum stops growing at some hundred
times its terms, and a batch has thousands of places.
"""

from typing import Any

import flax.linen as nn
from flax.linen.dtypes import promote_dtype


def promote_all_but_bias(x: Any, kernel: Any, bias: Any, *, dtype: Any) -> tuple[Any, Any, Any]:
    """Return input and kernel in the dtype of the computation, and the bias in its own."""
    return *promote_dtype(x, kernel, dtype=dtype), bias


class Dense(nn.Dense):
    """Dense layer, x W + b, whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the layer's output in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)


class Conv(nn.Conv):
    """Convolution (cross-correlation with W, plus b) whose bias stays in float32."""

    promote_dtype: Any = promote_all_but_bias

    def __call__(self, inputs: Any) -> Any:
        """Return the layer's output in `dtype`."""
        return super().__call__(inputs).astype(self.dtype)
