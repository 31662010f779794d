"""Make lightly.npz, NT-Xent and MoCo losses of lightly 1.6.0, with torch 2.13 on CPU.

    python tests/goldens/lightly_torch.py

Views z0 and z1 (b, d) are not normalized. Values and gradients are those of
NTXentLoss(temperature)(z0, z1), also with a memory bank (k, d) of unit rows.
"""

import json
import pathlib

import lightly
import numpy as np
import torch
from lightly.loss import NTXentLoss

#: Items, width, temperature, rows of the memory bank.
CASES = {
    "two_items": (2, 5, 0.5, 0),
    "simclr": (16, 32, 0.1, 0),
    "cold": (8, 16, 0.02, 0),
    "moco": (8, 16, 0.07, 24),
}


def main():
    arrays, cases = {}, {}
    for seed, (name, (b, d, temperature, num_kept)) in enumerate(CASES.items()):
        torch.manual_seed(seed)
        loss = NTXentLoss(temperature, (num_kept, d) if num_kept else 0)
        z0 = torch.randn(b, d)
        z1 = (z0 + 2.0 * torch.randn(b, d)).mul(torch.rand(b, 1) + 0.5)
        inputs = {"z0": z0, "z1": z1}
        if num_kept:
            inputs["bank"] = loss.memory_bank.bank.clone()  # before the views of this batch join
        z0, z1 = (z.clone().requires_grad_() for z in (z0, z1))
        value = loss(z0, z1)
        value.backward()
        outputs = {"loss": value, "grad0": z0.grad, "grad1": z1.grad}
        arrays |= {f"{name}/in/{key}": value.numpy() for key, value in inputs.items()}
        arrays |= {f"{name}/out/{key}": value.detach().numpy() for key, value in outputs.items()}
        cases[name] = {"temperature": temperature}
    made_by = f"lightly {lightly.__version__}, torch {torch.__version__}"
    meta = json.dumps({"source": made_by, "cases": cases})
    np.savez_compressed(pathlib.Path(__file__).with_name("lightly.npz"), meta=meta, **arrays)


if __name__ == "__main__":
    main()
