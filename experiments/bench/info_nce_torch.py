"""InfoNCE over N candidates in plain PyTorch, written with care: what ours is compared with.

    python -m experiments.bench.info_nce_torch '{"n": 4096, "d": 256, "num_calls": 5}'

needs torch and nothing else of the project's dependencies. The bench runs it; it prints json.
"""

import json

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.bench.process import peak_bytes, read_sizes, time_cases


def main() -> None:
    """Value and gradient of the mean loss, the diagonal being the positives."""
    sizes = read_sizes()
    torch.manual_seed(0)
    n, d = sizes["n"], sizes["d"]
    queries, keys = (torch.randn(n, d).mul_(d**-0.25).requires_grad_() for _ in range(2))
    index = torch.arange(n)

    def call():
        queries.grad = keys.grad = None
        functional.cross_entropy(queries @ keys.T, index).backward()

    before = peak_bytes()
    seconds = time_cases({"info_nce": call}, sizes["num_calls"])
    bytes_used = peak_bytes() - before
    print(json.dumps({"seconds": seconds, "bytes": bytes_used, "version": torch.__version__}))


if __name__ == "__main__":
    main()
