"""InfoNCE over N candidates in plain PyTorch, written with care: what ours is compared with.

    python -m experiments.bench.info_nce_torch '{"n": 4096, "d": 256, "device": "cpu", ...}'

needs torch and nothing else of the project's dependencies. The bench runs it; it prints json.
"""

import json

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.bench.process import peak_bytes, read_sizes, time_cases


def main() -> None:
    """Value and gradient of the mean loss, the diagonal being the positives."""
    sizes = read_sizes()
    is_gpu = sizes["device"] == "gpu"
    device, dtype = ("cuda", torch.bfloat16) if is_gpu else ("cpu", torch.float32)
    torch.manual_seed(0)
    n, d = sizes["n"], sizes["d"]
    queries, keys = (
        torch.randn(n, d, device=device).mul_(d**-0.25).to(dtype).requires_grad_() for _ in range(2)
    )
    index = torch.arange(n, device=device)

    def loss(queries, keys):
        with torch.autocast(device, torch.bfloat16, enabled=is_gpu):  # of float32 scores, there
            return functional.cross_entropy(queries @ keys.T, index)

    run = torch.compile(loss) if is_gpu else loss

    def call():
        queries.grad = keys.grad = None
        run(queries, keys).backward()
        if is_gpu:
            torch.cuda.synchronize()

    def peak():
        return torch.cuda.max_memory_allocated() if is_gpu else peak_bytes()

    before = torch.cuda.memory_allocated() if is_gpu else peak_bytes()
    seconds = time_cases({"info_nce": call}, sizes["num_calls"])
    used = {"info_nce": peak() - before}
    print(json.dumps({"seconds": seconds, "bytes": used, "version": torch.__version__}))


if __name__ == "__main__":
    main()
