# ruff: noqa
DIAGNOSIS = """
The inputs of the ranks are added up. They are different features; what has to be added up is what the ranks make of
them.
"""


# --- first
def forward(self, x):
    return self.multiply(self.group.all_reduce(x.clone()), self.bias)


# --- second
def forward(self, x):
    total = x + 0
    self.group.all_reduce(total)
    return F.linear(total, self.weight, self.bias)
