"""Text data: tokenizer, packs of tokens, and corpora of sentences and documents."""
