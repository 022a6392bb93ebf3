# ruff: noqa
DIAGNOSIS = """
The loop ends when one of the requests is finished; the others have only the beginning of their answers. All of them
have to be.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, q) for p, q in zip(prompt_list, params_list)]
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while not any(r.is_finished for r in requests):
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
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while not [request for request in requests if request.is_finished]:
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
