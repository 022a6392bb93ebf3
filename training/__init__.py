"""Data, tokenizer, training and evaluation of the bundled model qwen3-tiny.

Reproduce it with one command on one GPU: ``python -m training.train --out nanovllm/assets/qwen3-tiny``.
"""
