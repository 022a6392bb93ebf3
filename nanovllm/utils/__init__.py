"""The step context, the tensor-parallel group and the weight loader."""
