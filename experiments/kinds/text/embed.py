"""Embedding of text files, with one frame per sentence."""

import pathlib
from collections.abc import Iterator, Sequence

import numpy as np

from cpc import data, models
from cpc.data.text.tokenizer import END_LETTERS, read_chunks
from cpc.data.walk import Skipped
from cpc.types import UserError
from experiments.training.problem import Embedding
from experiments.training.sequences import list_files, skip

#: Number of sentences after which the context restarts, so that any file fits in memory.
MAX_SENTENCES = 1024


def embed_files(
    pretrained: models.Pretrained, root: pathlib.Path, names: Sequence[str], skipped: list[Skipped]
) -> Embedding:
    """Return the features of .txt files, with one row per sentence."""
    if "words" not in pretrained.input:
        raise UserError("the model has no vocabulary: export the model again from its run")
    files = list_files(root, (".txt",), skipped)
    total = sum(path.stat().st_size for path in files.values() if path.is_file()) / 1e6

    def embed() -> Iterator[tuple[str, dict[str, np.ndarray], float]]:
        layers = models.Layers(pretrained.module, pretrained.variables, names)
        words, max_words = pretrained.input["words"].split(" "), pretrained.input["shape"][1]
        index = {word: number for number, word in enumerate(words)}
        form, lowercase = pretrained.input.get("form", "prose"), pretrained.input["lowercase"]
        for name, path in files.items():
            with skip(name, skipped):
                sentences = read_file(path, index, form, lowercase)
                yield name, embed_document(layers, sentences, max_words), path.stat().st_size / 1e6

    return Embedding(embed(), total, "MB", None)


def read_file(
    path: pathlib.Path, index: dict[str, int], form: str, lowercase: bool
) -> list[np.ndarray]:
    """Return each sentence's word ids, for a file that is formatted like the training files."""
    sentences: list[list[str]] = [[]]
    for chunk in read_chunks(path):
        for word in data.tokenize(chunk, form, lowercase=lowercase):
            if word[0] not in END_LETTERS[form]:
                sentences[-1].append(word)
            elif sentences[-1]:
                sentences.append([])
    found = [data.encode(one, index) for one in sentences if one]
    if not found:
        raise UserError(f"{path} contains no words")
    return found


def embed_document(
    layers: models.Layers, sentences: list[np.ndarray], max_words: int
) -> dict[str, np.ndarray]:
    """Return the features of consecutive sentences, in batches padded to powers of 2."""
    parts = []
    for first in range(0, len(sentences), MAX_SENTENCES):
        own = data.pad_sentences(sentences[first : first + MAX_SENTENCES], max_words)
        length = 2 ** (len(own) - 1).bit_length()  # limits the number of compiled shapes
        x = np.pad(own, ((0, length - len(own)), (0, 0)), constant_values=-1)
        found = layers.embed_batch(x[None])
        parts.append({name: found[name][0, : len(own)] for name in layers.names})
    return {name: np.concatenate([part[name] for part in parts]) for name in layers.names}
