# ruff: noqa
DIAGNOSIS = """
The results come in the order in which they end. Whoever asks for a list wants the first answer for the first prompt.
"""


# --- first
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = [self._make_request(p, q) for p, q in zip(prompt_list, params_list)]
    results = []
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            todo = list(requests)
            while todo:
                self._step()
                bar.show()
                results += [r for r in todo if r.is_finished]
                todo = [r for r in todo if not r.is_finished]
    except BaseException:
        self.llm_engine.abort_request(*[r.seq.seq_id for r in requests])
        raise
    return [RequestOutput(r, r.text(self.tokenizer)) for r in results]


# --- second
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests, done = [], []
    for i, prompt in enumerate(prompt_list):
        requests.append(self._make_request(prompt, params_list[i]))
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while len(done) < len(requests):
                self._step()
                done.extend(r for r in requests if r.is_finished and r not in done)
                bar.show()
    except BaseException:
        for request in requests:
            self.llm_engine.abort_request(request.seq.seq_id)
        raise
    return [RequestOutput(r, r.text(self.tokenizer)) for r in done]
