# ruff: noqa
DIAGNOSIS = """
Everything travels, in every step, as it would without this method. It works, but the bytes grow with the text. Which two lists
are not needed, and when?
"""


# --- first
def __getstate__(self):
    return self.__dict__.copy()


# --- second
def __getstate__(self):
    return {name: value for name, value in vars(self).items()}
