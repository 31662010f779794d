"""Your own series: sensors, EEG, prices, from .npy, .npz, .csv or .parquet files.

    cpc train --config series_files --workdir runs/mine \
        --config.data.path=/my/files --config.data.channels=3 --config.data.rate_hz=250

Each file is a sequence (time, channels). Folders are read at any depth. Optional labels are per
step (--config.data.step_label=stage --config.probe.tasks="('steps',)") or per file
(--config.data.file_label=folder --config.probe.tasks="('files',)"). The sizes suit a few hours of
data at 100 to 500 Hz on a laptop.
"""

from configs import series


def get_config():
    """Return a latent every 16 steps with a receptive field of 44, and windows of 64 latents."""
    c = series.get_config()
    c.num_steps = 2000
    c.eval_every = c.save_every = 500
    c.data.source = "files"
    c.data.window_steps = 1024
    c.model.kernels = (8, 4, 4)
    c.model.strides = (4, 2, 2)
    c.model.context_width = 128
    c.optim.learning_rate = 1e-3
    c.probe.tasks = ()
    return c
