"""The audio step and InfoNCE in optimized PyTorch, with the same work as in cpc.

The network is the one in section 3.1 of van den Oord et al. (2018), as in `cpc.models`, with five
strided convolutions with biases and ReLU and no norm, a GRU, and one linear map per offset. The
loss is the cross-entropy over all latents of the batch, or of each of its shards, trained with
Adam. Zeros pad both sides of a layer's input, which saves torch a copy; cpc pads only the left,
with as many frames and operations.

    python -m experiments.bench.by_torch '{"case": "step", "width": 512, ...}'

The bench runs this command, which prints JSON. It needs no dependency of the project except torch.
"""

import json

import torch  # pyright: ignore[reportMissingImports]
from torch import nn  # pyright: ignore[reportMissingImports]
from torch.nn import functional  # pyright: ignore[reportMissingImports]

from experiments.bench.timing import median_times, peak_bytes, read_sizes, time_rounds

KERNELS, STRIDES = (10, 8, 4, 4, 4), (5, 4, 2, 2, 2)


class CPC(nn.Module):
    """An encoder, a context network and linear predictors."""

    def __init__(self, width: int, context_width: int, num_offsets: int, num_shards: int):
        super().__init__()
        layers = []
        for i, (kernel, stride) in enumerate(zip(KERNELS, STRIDES, strict=True)):
            padding = (kernel - stride + 1) // 2
            layers += [nn.Conv1d(width if i else 1, width, kernel, stride, padding), nn.ReLU()]
        self.encoder = nn.Sequential(*layers)
        self.context = nn.GRU(width, context_width, batch_first=True)
        self.predictors = nn.Linear(context_width, num_offsets * width, bias=False)
        self.num_offsets, self.num_shards = num_offsets, num_shards

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Encode waveforms (b, s) as latents (b, t, d)."""
        return self.encoder(x[:, None]).transpose(1, 2).contiguous()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the loss for waveforms (b, s)."""
        z = self.encode(x)
        return self.criterion(z, self.context(z)[0])

    def criterion(self, z: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        """Return the loss for latents and contexts (b, t, d)."""
        predictions = self.predictors(c[:, :-1]).unflatten(-1, (self.num_offsets, -1))
        return score(z, predictions, self.num_shards)


def score(z: torch.Tensor, predictions: torch.Tensor, num_shards: int) -> torch.Tensor:
    """Return the sum over offsets of the mean cross-entropy, with candidates in the same shard."""
    b, t, d = z.shape
    shape = (num_shards, -1, d) if num_shards > 1 else (-1, d)
    candidates = z.reshape(shape)
    index = torch.arange(b * t // num_shards, device=z.device).view(-1, t)
    loss = z.new_zeros(())
    for k in range(1, predictions.shape[2] + 1):
        scores = predictions[:, : t - k, k - 1].reshape(shape) @ candidates.mT
        target = index[:, k:].reshape(-1).repeat(num_shards)
        loss = loss + functional.cross_entropy(scores.flatten(0, -2), target)
    return loss


def time_step(sizes: dict) -> dict:
    """Time the step and its parts."""
    is_gpu = sizes["device"] == "gpu"
    device = "cuda" if is_gpu else "cpu"
    names = ("width", "context_width", "num_offsets", "num_shards")
    model = CPC(*(sizes[name] for name in names)).to(device)
    prepare = torch.compile if is_gpu else lambda function: function
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, fused=True)
    x = torch.randn(sizes["batch_size"], sizes["window_samples"], device=device)
    with torch.no_grad():
        z = model.encode(x)
        c, _ = model.context(z)
    z, c = z.detach().requires_grad_(), c.detach().requires_grad_()

    def differentiate(function, *inputs):
        run = prepare(function)

        def call():
            model.zero_grad(set_to_none=True)
            for leaf in inputs:
                leaf.grad = None
            with torch.autocast(device, torch.bfloat16, enabled=is_gpu):
                value = run(*inputs)
            value.backward()
            wait(is_gpu)

        return call

    gradient = differentiate(model, x)

    def step():
        gradient()
        optimizer.step()
        wait(is_gpu)

    parts = {
        "encoder": differentiate(lambda x: model.encode(x).square().sum(), x),
        "context": differentiate(lambda z: model.context(z)[0].square().sum(), z),
        "criterion": differentiate(model.criterion, z, c),
    }
    time_rounds({"step": step}, 1)
    peak = torch.cuda.max_memory_allocated() if is_gpu else peak_bytes()
    seconds = time_rounds({"step": step, **parts}, sizes["num_calls"])
    return {"seconds": median_times(seconds), "peak_bytes": peak}


def time_info_nce(sizes: dict) -> dict:
    """Time the value and gradient of the mean loss, with positives on the diagonal."""
    is_gpu = sizes["device"] == "gpu"
    device, dtype = ("cuda", torch.bfloat16) if is_gpu else ("cpu", torch.float32)
    n, d = sizes["n"], sizes["d"]
    queries, keys = (
        torch.randn(n, d, device=device).mul_(d**-0.25).to(dtype).requires_grad_() for _ in range(2)
    )
    index = torch.arange(n, device=device)

    def loss(queries, keys):
        with torch.autocast(device, torch.bfloat16, enabled=is_gpu):  # cross-entropy in float32
            return functional.cross_entropy(queries @ keys.T, index)

    run = torch.compile(loss) if is_gpu else loss

    def call():
        queries.grad = keys.grad = None
        run(queries, keys).backward()
        wait(is_gpu)

    before = torch.cuda.memory_allocated() if is_gpu else peak_bytes()
    seconds = median_times(time_rounds({"info_nce": call}, sizes["num_calls"]))
    after = torch.cuda.max_memory_allocated() if is_gpu else peak_bytes()
    return {"seconds": seconds, "bytes": after - before}


def wait(is_gpu: bool) -> None:
    """Wait for the GPU, if one is used."""
    if is_gpu:
        torch.cuda.synchronize()


def main() -> None:
    """Time the case given by the sizes, and print the figures."""
    sizes = read_sizes()
    torch.manual_seed(0)
    measure = time_step if sizes["case"] == "step" else time_info_nce
    print(json.dumps({**measure(sizes), "version": torch.__version__}))


if __name__ == "__main__":
    main()
