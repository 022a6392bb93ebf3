# ruff: noqa
DIAGNOSIS = """
All requests get the first parameters. There may be one for each prompt: as_params_list gives a list of the right
length.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, params_list[0]) for p in prompt_list]
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while not all(r.is_finished for r in requests):
                self._step()
                bar.show()
    except BaseException:
        self.llm_engine.abort_request(*[r.seq.seq_id for r in requests])
        raise
    return [RequestOutput(r, r.text(self.tokenizer)) for r in requests]


# --- second
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = []
    for prompt in prompt_list:
        requests.append(self._make_request(prompt, params_list[0]))
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while not all([request.is_finished for request in requests]):
                self._step()
                bar.show()
    except BaseException:
        for request in requests:
            self.llm_engine.abort_request(request.seq.seq_id)
        raise
    results = []
    for request in requests:
        results.append(RequestOutput(request, request.text(self.tokenizer)))
    return results
