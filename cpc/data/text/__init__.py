"""Text: files of words to packed tokens, sentences and documents."""
