# ruff: noqa
DIAGNOSIS = """
When the call is interrupted, its requests stay in the engine. They have no reader any more, and cost memory and time
in every step to come: abort them.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, q) for p, q in zip(prompt_list, params_list)]
    for request in requests:
        self.llm_engine.add_request(request)
    with ProgressBar(requests, disable=not use_tqdm) as bar:
        while not all(r.is_finished for r in requests):
            self._step()
            bar.show()
    return [RequestOutput(r, r.text(self.tokenizer)) for r in requests]


# --- second
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(*pair) for pair in zip(prompt_list, params_list)]
    for i in range(len(requests)):
        self.llm_engine.add_request(requests[i])
    with ProgressBar(requests, disable=not use_tqdm) as bar:
        while any(not request.is_finished for request in requests):
            self._step()
            bar.show()
    return [RequestOutput(request, request.text(self.tokenizer)) for request in requests]
