"""The building blocks of the model, each with its tensor-parallel shape and its weight loader."""
