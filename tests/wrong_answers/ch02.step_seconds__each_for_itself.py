# ruff: noqa
DIAGNOSIS = """
You give each sequence a step of its own, and add their times. They share one step, and with it one reading of the
weights.
"""


# --- first
def step_seconds(scheduled, model, device):
    total = 0.0
    for stored, computed in scheduled:
        moved = (model.layer_parameters + model.head_parameters) * model.element_size + model.kv_bytes * (
            stored + computed
        )
        operations = 2 * (model.layer_parameters * computed + model.head_parameters)
        total += max(moved / device.bytes_per_second, operations / device.flops_per_second)
    return total


# --- second
def step_seconds(scheduled, model, device):
    def alone(stored, computed):
        weights = model.layer_parameters + model.head_parameters
        bytes_ = weights * model.element_size + (stored + computed) * model.kv_bytes
        flops = 2 * computed * model.layer_parameters + 2 * model.head_parameters
        return max(bytes_ / device.bytes_per_second, flops / device.flops_per_second)

    return float(sum(alone(*one) for one in scheduled))
