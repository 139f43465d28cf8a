"""The one sentence of a result."""

from infercanary.judge.sentence import SENTENCE_BYTES, distinct, listed, measure_words, progress, sentence

__all__ = ["SENTENCE_BYTES", "distinct", "listed", "measure_words", "progress", "sentence"]
