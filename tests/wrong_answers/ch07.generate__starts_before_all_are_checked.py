# ruff: noqa
DIAGNOSIS = """
Each request is queued as soon as it is made. If a later prompt is bad, others have been started, and for nothing:
make all of them first, which is the checking, and queue them then.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = []
    try:
        for p, q in zip(prompt_list, params_list):
            requests.append(self._make_request(p, q))
            self.llm_engine.add_request(requests[-1])
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
    try:
        for i, prompt in enumerate(prompt_list):
            request = self._make_request(prompt, params_list[i])
            requests.append(request)
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
