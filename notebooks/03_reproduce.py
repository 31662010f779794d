# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#       jupytext_version: 1.19.6
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # The paper beside ours
#
# `python -m experiments.reproduce` makes the paper's tables and figures again. This notebook reads
# a folder that it left. Where there is none, it makes the smallest one: Figure 3 after twenty
# steps on sound that is made up, which says that everything runs, and nothing else.

# %%
import json
import pathlib
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import HTML, Markdown

from cpc import report
from cpc.report.comparison import Estimate
from cpc.report.reproduction import TABLES, judge, kendall_tau, order_agreement

# %%
folder = pathlib.Path("../runs/reproduced").resolve()
if not (folder / "sweep.json").exists():
    folder = pathlib.Path(tempfile.mkdtemp())
    command = "-m experiments.reproduce --figure 3 --scale smoke --device cpu --workdir"
    subprocess.run([sys.executable, *command.split(), str(folder)], cwd="..", check=True)

# %% [markdown]
# ## What came out
# The page can be written again from the folder alone, finished or not.

# %%
page = report.write_reproduction(folder)
found = json.loads((folder / "reproduction.json").read_text())
print(found["plan"]["size"], found["plan"]["hardware"], *found["verdict"], sep="\n")

# %%
Markdown((folder / "reproduction.md").read_text())

# %% [markdown]
# The page itself holds the same with its figures, and points that can be pointed at.

# %%
HTML(page.read_text().partition("<main>")[2].partition("</main>")[0])

# %% [markdown]
# ## Figure 3, from its numbers

# %%
curve = found["figure_3"]
if curve:
    figure, axes = plt.subplots(figsize=(6, 3))
    for name in ("acc_top1", "acc_pairwise"):
        axes.plot(curve["offsets"], [row["value"] for row in curve[name]], "o-", label=name)
    axes.plot(curve["offsets"], 100 / np.array(curve["n"]), "k:", label="chance of acc_top1")
    axes.set(
        xlabel="offset k", ylabel="percent", title=f"falls with the offset: {curve['verdict']}"
    )
    axes.legend()

# %% [markdown]
# ## How a claim is judged
# The paper's own accuracies, each with an interval of plus and minus half a point: which of its
# claims could be told at that width?

# %%
steps, negatives = (table for table in TABLES if table.number == "2")
for table in (steps, negatives):
    ours = {row.label: Estimate(row.paper, row.paper - 0.5, row.paper + 0.5) for row in table.rows}
    for judgement in judge(table, "the paper", ours):
        print(f"{judgement.verdict:<16}{judgement.claim.sentence}")

# %% [markdown]
# Kendall's tau says how far two orders agree: 1 the same, -1 reversed. Its interval here draws each
# row anew within its own; p counts all orders that agree as well.

# %%
paper = [row.paper for row in steps.rows]
print(float(kendall_tau(np.array([1.0, 2, 3, 5, 4]), np.array(paper))))
for half in (0.2, 5.0, 30.0):
    tau, p = order_agreement(paper, [Estimate(v, v - half, v + half) for v in paper])
    print(f"half-width {half:>4}: {tau.value:.2f} ({tau.low:.2f} to {tau.high:.2f}), p {p:.3f}")
