# ruff: noqa
DIAGNOSIS = """
There is a gap: requests are queued before the try begins. If Ctrl-C strikes there, nobody ends them. Whatever may
have to be undone belongs inside.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, q) for p, q in zip(prompt_list, params_list)]
    for request in requests:
        self.llm_engine.add_request(request)
    try:
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
    for i, prompt in enumerate(prompt_list):
        requests.append(self._make_request(prompt, params_list[i]))
    for i in range(len(requests)):
        self.llm_engine.add_request(requests[i])
    try:
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
