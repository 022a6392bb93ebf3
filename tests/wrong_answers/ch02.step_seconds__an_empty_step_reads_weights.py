# ruff: noqa
DIAGNOSIS = """
A step without sequences takes the time of reading the weights. Nothing runs then: the engine does not call the model.
"""


# --- first
def step_seconds(scheduled, model, device):
    stored = sum(s for s, _ in scheduled)
    computed = sum(c for _, c in scheduled)
    moved = (model.layer_parameters + model.head_parameters) * model.element_size
    moved += model.kv_bytes * (stored + computed)
    operations = 2 * model.layer_parameters * computed + 2 * model.head_parameters * len(scheduled)
    return max(moved / device.bytes_per_second, operations / device.flops_per_second)


# --- second
def step_seconds(scheduled, model, device):
    moved, operations = 0, 0
    for stored, computed in scheduled:
        moved += (stored + computed) * model.kv_bytes
        operations += 2 * (computed * model.layer_parameters + model.head_parameters)
    moved += (model.layer_parameters + model.head_parameters) * model.element_size
    memory, arithmetic = moved / device.bytes_per_second, operations / device.flops_per_second
    return memory if memory > arithmetic else arithmetic
