"""Section 3.1 of van den Oord et al. (2018): Table 1 and, with the settings below, Table 2.

    cpc train --config audio_librispeech --workdir runs/librispeech \
        --config.data.path=LibriSpeech/train-clean-100 \
        --config.data.train_list=train_split.txt --config.data.test_list=test_split.txt \
        --config.data.phones=converted_aligned_phones.txt

The data are train-clean-100 (https://www.openslr.org/12) and the authors' split lists and
alignments (https://drive.google.com/drive/folders/1BhJ2umKH3whguxMwifaKtSra0TgAbtfb, footnote 2 of
the paper). The first run packs the recordings, 12 GB, in ~/.cache/cpc or $CPC_DATA. Alternatively,
prepare train-clean-100 once with tfds and TensorFlow:

    pip install 'cpc-jax[tf]' && tfds build librispeech --file_format=array_record

and set --config.data.source=librispeech_tfds --config.data.path=~/tensorflow_datasets.

The paper trains on 8 GPUs with 8 windows each, with Adam at 2e-4, for about 300,000 steps. It
reports 64.6 % for phones (72.5 % with one hidden layer) and 97.4 % for speakers. For lack of the
data, this config has only run for 20 steps on a CPU, with 128 recordings in the same layout. An
H200 trained a network with these sizes, this batch and cosine scores on other recordings at 142
steps per second (docs/results/speed.md).

On one GPU (pip install 'cpc-jax[cuda]'), add --device gpu, which fails without a GPU instead of
training on the CPU, and for speed --config.model.dtype=bfloat16. The negatives remain those of 8
devices. To save memory, set --config.optim.accumulate to 2, 4 or 8, which does not change the loss.
A smaller batch has fewer negatives, and with a batch of 8 each window has only its own. To test
everything first, set --config.num_steps=200 --config.optim.warmup_steps=20
--config.probe.hours=0.5.

For Table 2, set --config.model.num_offsets to 2, 4, 8, 12 or 16, --config.data.one_speaker=True for
same speaker, and --config.negatives.rule to excluding_sequence or own_sequence.

We make these choices, which the paper leaves open: all latents of a device's windows are
candidates, scores are not scaled, the loss is averaged over time and summed over offsets, the
encoder has no norm and causal padding, the context starts from zero in each window, and the
learning rate is constant after a warm-up.
"""

from configs import audio


def get_config():
    """Return the sizes of the paper."""
    c = audio.get_config()
    c.num_steps = 300_000
    c.log_every = 200
    c.eval_every = c.save_every = 5_000
    c.data.source = "folder"
    c.data.batch_size = 64
    c.model.width = 512
    c.model.context_width = 256
    c.negatives.shards = 8
    c.optim.learning_rate = 2e-4
    c.optim.warmup_steps = 1_000
    c.optim.schedule = "constant"
    c.evaluate.num_windows = 256
    c.probe.features = ("c", "z", "mfcc", "random c")
    # c of 80 h takes 30 GB in float32 at each stage of the fit; 20 h take 8 GB.
    c.probe.hours = 20.0
    c.probe.minutes_per_speaker = 5.0
    return c
