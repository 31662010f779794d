"""Config keys of kind audio."""

from configs import defaults
from configs.defaults import MAX_LAYERS, MAX_OFFSETS, MAX_STEPS, MAX_WIDTH
from configs.keys import Key, make_config, with_defaults

#: Values of `data.source` that name recordings, as opposed to synthetic sound.
RECORDED = ("voices", "folder", "librispeech_tfds")

KEYS = {
    "kind": Key("audio", "kind of data", words=("audio",)),
    **with_defaults(defaults.RUN, num_steps=1200, eval_every=400, save_every=400),
    **defaults.START,
    "data": {
        "source": Key(
            "voices", "where recordings come from",
            words=("voices", "folder", "librispeech_tfds", "synthetic")),
        "path": Key(
            "", "folder, librispeech_tfds: path of the recordings",
            is_path=True, sources=("folder", "librispeech_tfds")),
        "split": Key("train_clean100", "librispeech_tfds: split to use"),
        "speaker_level": Key(1, "folder: directory level that names the speaker", low=1, high=100),
        "train_list": Key(
            "", "file of training utterance ids, one per line; without lists, the split is fixed "
            "for the voices, otherwise random", is_path=True, sources=RECORDED),
        "test_list": Key(
            "", "file of test utterance ids, one per line", is_path=True, sources=RECORDED),
        "test_fraction": Key(
            0.15, "fraction of utterances to test on if there are no lists", low=0, below=1),
        "phones": Key(
            "", 'file of phone alignments in lines "utterance-id label ...", one label every 10 ms',
            is_path=True, sources=RECORDED),
        "file_labels": Key(
            "", "CSV file of lines name,label for the task files; folders and suffix are optional",
            is_path=True, sources=RECORDED),
        "item_file": Key(
            "", "ZeroSpeech item file with more tokens for abx", is_path=True, sources=RECORDED),
        "window_samples": Key(
            20480, "length of a training sequence (20480: 1.28 s, 128 latents); pads shorter clips",
            low=1, high=2**26),
        "one_speaker": Key(False, "whether each batch has a single speaker (the paper's Table 2)"),
        **with_defaults(defaults.INPUT, batch_size=8),
    },
    "augment": {
        "side": Key(
            "none", "input to augment in training: of the contexts (past), of the predicted "
            "latents (future), or both independently; this encodes each window twice",
            words=("none", "past", "future", "both")),
        "effects": Key(
            ("pitch", "noise", "reverb"), "effects in sequence; noise is a window of the batch",
            words=("pitch", "noise", "reverb", "band_reject", "dropout")),
        "pitch_cents": Key(300.0, "pitch: largest shift in cents, up or down", above=0, high=1200),
        "snr_low_db": Key(5.0, "noise: lowest signal-to-noise ratio"),
        "snr_high_db": Key(20.0, "noise: highest signal-to-noise ratio"),
        "reverb_seconds": Key(0.5, "reverb: longest time of decay by 60 dB", above=0, high=10),
        "band_hz": Key(1000.0, "band_reject: largest width of the band", above=0, high=8000),
        "dropout_ms": Key(50.0, "dropout: longest interval to silence", above=0),
    },
    "model": {
        "encoder": Key(
            "conv", "encoder: strided convolutions of the waveform, as in the paper (conv), of "
            "log-mel energies (log_mel), or of their cosine transform without pitch (cepstra)",
            words=("conv", "log_mel", "cepstra")),
        "num_cepstra": Key(13, "cepstra: number of coefficients", low=1, high=80),
        "width": Key(128, "width of z, which is 512 in the paper", low=1, high=MAX_WIDTH),
        "norm": Key(
            "none", "normalization in the encoder",
            words=("none", "layer", "channel", "batch", "group")),
        "padding": Key("causal", "padding in the encoder", words=("causal", "same", "valid")),
        "num_codes": Key(
            0, "size of the codebook that quantizes the latents (VQ-CPC), or 0 for no codebook",
            low=0, high=MAX_WIDTH),
        "code_width": Key(64, "width of z with a codebook", low=1, high=MAX_WIDTH),
        "code_decay": Key(
            0.99, "decay of the codes' running averages (VQ-CPC: 0.999)", low=0, below=1),
        "commitment": Key(
            0.25, "weight of the squared distance between latents and their codes", low=0, high=1),
        "restart_codes": Key(False, "whether rarely used codes are reset to latents of the batch"),
        "context": Key(
            "gru", "context network; the dilation of conv doubles in each layer, and ssm is a "
            "diagonal linear recurrence with a norm and a gate per layer",
            words=("gru", "lstm", "conv", "conv_undilated", "transformer", "ssm")),
        "context_width": Key(256, "width of c, which is 256 in the paper", low=1, high=MAX_WIDTH),
        "context_layers": Key(
            1, "number of layers in the context network", low=1, high=MAX_LAYERS),
        "context_blocks": Key(
            1, "gru: number of diagonal blocks of the recurrent weights", low=1, high=MAX_WIDTH),
        "predictor": Key(
            "linear", "predictor of latents from c: one matrix W_k per offset as in the paper "
            "(linear), with a bias (affine), on a shared hidden layer (hidden) or Transformer "
            "layer (transformer), or one Transformer layer per offset (transformers)",
            words=("linear", "affine", "hidden", "transformer", "transformers")),
        "directions": Key(
            ("forward",), "directions of time, each with its own context network and predictor, "
            "whose contexts are concatenated to c", words=("forward", "backward")),
        "modules": Key(
            1, "number of modules with separate losses and no gradient between them; 1 is the "
            "whole network, and 6 are its five layers and the context", low=1, high=MAX_LAYERS),
        "segment_threshold": Key(
            0.0, "prominence of change that ends a segment, to predict the next segments, or 0 for "
            "no segments", low=0, below=1),
        "segment_offsets": Key(
            0, "number of segments ahead to predict from contexts of segments, while contexts of "
            "frames predict frames; with 0, segments and frames predict only the next one, and "
            "frames have no contexts", low=0, high=MAX_OFFSETS),
        "num_offsets": Key(12, "number of latents ahead to predict", low=1, high=MAX_OFFSETS),
        "horizon": Key(
            0, "largest of the num_offsets offsets, evenly spaced from 1, or 0 for num_offsets",
            low=0, high=MAX_OFFSETS),
        **defaults.PRECISION,
    },
    "loss": {
        **defaults.LOSS,
        "align_to": Key(
            0, "number of latents ahead to which predictions are aligned in order (ACPC), or 0 to "
            "let prediction k predict the latent k ahead", low=0, high=MAX_OFFSETS),
        "align_by": Key(
            "sum", "alignments to use: all, weighted by likelihood (sum), or the likeliest (best)",
            words=("sum", "best")),
    },
    "negatives": {
        **defaults.NEGATIVES,
        "overlap": Key(False, "whether overlapping windows may have negatives in each other"),
    },
    "optim": defaults.OPTIM,
    "evaluate": {
        "num_windows": Key(
            128, "number of held-out windows for the bound, or 0 for none", low=0, high=2**30),
    },
    "probe": {
        "tasks": Key(
            ("phones", "speakers"), "tasks to probe: frame-wise phones and speakers, labels of "
            "files (files), phone sequences (ctc), discrimination of phones by distances (abx), "
            "changes at phone boundaries (boundaries), bit rate of quantized z (codes), agreement "
            "of clusters with phones (units), and equal error rate for speakers of utterance pairs "
            "(verification)",
            words=("phones", "speakers", "files", "ctc", "abx", "boundaries", "codes", "units",
                   "verification")),
        "features": Key(
            ("c", "mfcc", "random c"), "features of the run (c, z), of an untrained network "
            "(random c, random z) and baselines: each MFCC frame alone (mfcc) or with 8 frames on "
            "either side, 170 ms (mfcc context), the prediction of the next latent (W_1 c), a "
            "learned sum of all layers for phones and speakers (layers), and the network trained "
            "on labels from scratch (supervised) or from the run's weights (tuned)",
            words=("c", "z", "W_1 c", "layers", "mfcc", "mfcc context", "random c", "random z",
                   "supervised", "tuned")),
        "delay": Key(
            0, "delay in latents between a frame and the context c that classifies it",
            low=0, high=MAX_OFFSETS),
        "hours": Key(0.0, "hours of training sound for the phone probe, or 0 for all", low=0),
        "minutes_per_speaker": Key(
            4.0, "training and test minutes per speaker in the speaker probe, or 0 for all", low=0),
        "lose_last_frame": Key(
            False, "abx: whether to drop each token's last frame, as in Libri-light"),
        "num_units": Key(100, "units: number of k-means clusters", low=2, high=5000),
        "layer_decay": Key(
            1.0, "tuned: decay factor of the learning rate from each layer to the one below",
            above=0, high=1),
        "ctc_head": Key(
            "linear", "ctc: head, which takes 8 frames every 4 frames", words=("linear", "lstm")),
        "ctc_minutes": Key(
            (10.0, 30.0, 60.0), "ctc: minutes of labeled sound for each fit, or 0 for all", low=0),
        "ctc_steps": Key(
            1500, "ctc: maximum number of steps before early stopping", low=1, high=MAX_STEPS),
        "ctc_beam": Key(
            8, "ctc: beam width for a second error rate, or 1 for none", low=1, high=10**4),
        **with_defaults(defaults.PROBE, hidden_width=64),
    },
}  # fmt: skip


def get_config():
    """Return the defaults."""
    return make_config(KEYS)
