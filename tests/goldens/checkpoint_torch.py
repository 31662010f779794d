"""Make checkpoint_{hub,training}.pt and checkpoint{,_weights}.npz with torch 2.13 on CPU.

    python tests/goldens/checkpoint_torch.py

The network is that of facebookresearch/CPC_audio with channel norm and a two-layer LSTM of width 4.
The checkpoints have the hub's content ("config", "weights") in the format since torch 1.6, and that
of training in the older format. checkpoint.npz has x (b, s), z and c (b, t, 4);
checkpoint_weights.npz has the state dict.
"""

import argparse
import pathlib

import numpy as np
import torch
from torch import nn

WIDTH = 4
#: Kernel, stride and padding of each layer.
LAYERS = (10, 5, 3), (8, 4, 2), (4, 2, 1), (4, 2, 1), (4, 2, 1)


class ChannelNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.2 * torch.randn(1, WIDTH, 1))
        self.bias = nn.Parameter(0.2 * torch.randn(1, WIDTH, 1))

    def forward(self, x):
        centred = x - x.mean(dim=1, keepdim=True)
        var = x.var(dim=1, keepdim=True)  # unbiased
        return centred * torch.rsqrt(var + 1e-5) * self.weight + self.bias


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        for i, (kernel, stride, padding) in enumerate(LAYERS):
            conv = nn.Conv1d(WIDTH if i else 1, WIDTH, kernel, stride, padding)
            setattr(self, f"conv{i}", conv)
            setattr(self, f"batchNorm{i}", ChannelNorm())

    def forward(self, x):
        for i in range(len(LAYERS)):
            x = torch.relu(getattr(self, f"batchNorm{i}")(getattr(self, f"conv{i}")(x)))
        return x.transpose(1, 2)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.baseNet = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.gEncoder, self.gAR = Encoder(), Recurrent()

    def forward(self, x):
        z = self.gEncoder(x[:, None])
        return z, self.gAR.baseNet(z)[0]


def main():
    torch.manual_seed(0)
    folder = pathlib.Path(__file__).parent
    network = Network()
    x = 0.1 * torch.randn(2, 3200)
    z, c = network(x)
    # One step, so that the optimizer has a state.
    optimizer = torch.optim.Adam(network.parameters(), lr=0.0)
    c.square().sum().backward()
    optimizer.step()
    config = {"hiddenEncoder": WIDTH, "nLevelsGRU": 2, "arMode": "LSTM", "cpc_mode": None}
    weights = network.state_dict()
    torch.save({"config": config, "weights": weights}, folder / "checkpoint_hub.pt")
    torch.save(
        {
            "gEncoder": weights,
            "cpcCriterion": nn.Linear(2, 2).half().state_dict(),
            "optimizer": optimizer.state_dict(),
            "best": weights,
            "args": argparse.Namespace(**config),
        },
        folder / "checkpoint_training.pt",
        _use_new_zipfile_serialization=False,
    )
    np.savez(folder / "checkpoint_weights.npz", **{n: one.numpy() for n, one in weights.items()})
    arrays = {"x": x, "z": z, "c": c}
    np.savez(folder / "checkpoint.npz", **{n: one.detach().numpy() for n, one in arrays.items()})


if __name__ == "__main__":
    main()
