# ruff: noqa
DIAGNOSIS = """
You count a byte for each weight. model.element_size says how many it takes.
"""


# --- first
def step_seconds(scheduled, model, device):
    if not scheduled:
        return 0.0
    stored = sum(s for s, _ in scheduled)
    computed = sum(c for _, c in scheduled)
    moved = model.layer_parameters + model.head_parameters
    moved += model.kv_bytes * (stored + computed)
    operations = 2 * model.layer_parameters * computed + 2 * model.head_parameters * len(scheduled)
    return max(moved / device.bytes_per_second, operations / device.flops_per_second)


# --- second
def step_seconds(scheduled, model, device):
    moved, operations = 0, 0
    for stored, computed in scheduled:
        moved += (stored + computed) * model.kv_bytes
        operations += 2 * (computed * model.layer_parameters + model.head_parameters)
    if scheduled:
        moved += model.layer_parameters
        moved += model.head_parameters
    memory, arithmetic = moved / device.bytes_per_second, operations / device.flops_per_second
    return memory if memory > arithmetic else arithmetic
