# ruff: noqa
DIAGNOSIS = """
Each prompt is finished before the next is queued. So every step computes one sequence, and the engine's whole gain,
the batch, is lost: queue all, then make steps.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, q) for p, q in zip(prompt_list, params_list)]
    try:
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            for request in requests:
                self.llm_engine.add_request(request)
                while not request.is_finished:
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
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while any(not request.is_finished for request in requests):
                request = next(request for request in requests if not request.is_finished)
                if request.seq.seq_id not in self.llm_engine.requests:
                    self.llm_engine.add_request(request)
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
