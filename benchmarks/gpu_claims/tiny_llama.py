"""Writes ``tiny``, a language model with random weights, to the current folder.

``transformers serve ./tiny`` serves the model. This program runs in the server's environment, which may differ from
the environment of claims and tests.
"""

from __future__ import annotations

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def main() -> None:
    # Use only ASCII signs and no end token, because servers hold back bytes that are not text. A new salt in
    # the prompt gives a different completion, which may have such bytes.
    signs = sorted(sign for sign in pre_tokenizers.ByteLevel.alphabet() if sign.isascii() or sign == "\u0120")
    vocabulary = {sign: i for i, sign in enumerate(["<s>", "</s>", *signs])}
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(vocabulary), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, max_position_embeddings=512, bos_token_id=0, eos_token_id=None, pad_token_id=1,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained("tiny")
    tokenizer.save_pretrained("tiny")


if __name__ == "__main__":
    main()
