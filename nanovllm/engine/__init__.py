"""Sequences, blocks, scheduling, and the runner that turns a schedule into tensors."""
