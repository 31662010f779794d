r"""Contrastive predictive coding on series of any rate and channels: sensors, EEG, prices.

Trains, watches the information, probes the frozen features and writes a report:

    cpc series --config series_ar1 --workdir runs/ar1
    cpc series --config series_files --workdir runs/mine \
        --config.data.path=/my/files --config.data.channels=3

A file (.npy, .npz, .csv or .parquet) is a sequence (time, channels). `cpc series --keys
[SECTION]` lists the keys of a config; any can be set, and the same command again resumes:

    cpc series --config series_ar1 --workdir runs/low \
        --config.optim.learning_rate=1e-4
"""

from experiments.run import main
from experiments.series.modality import SERIES

if __name__ == "__main__":
    main(SERIES)
