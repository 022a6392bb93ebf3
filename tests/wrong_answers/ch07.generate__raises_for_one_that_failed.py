# ruff: noqa
DIAGNOSIS = """
You raise an error because one request has failed on its way. All others have their answers, and their caller gets
none of them. A failed request is a result, too: its finish reason is "error", and it says why.
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
            while not all(request.is_finished for request in requests):
                self._step()
                bar.show()
        for request in requests:
            if request.seq.finish_reason == "error":
                raise RuntimeError(request.seq.error)
    except BaseException:
        self.llm_engine.abort_request(*[request.seq.seq_id for request in requests])
        raise
    return [RequestOutput(request, request.text(self.tokenizer)) for request in requests]


# --- second
def generate(self, prompts, sampling_params=None, use_tqdm=True):
    prompt_list = as_prompt_list(prompts)
    params_list = as_params_list(sampling_params, len(prompt_list))
    requests = []
    for prompt, params in zip(prompt_list, params_list, strict=True):
        requests.append(self._make_request(prompt, params))
    try:
        for request in requests:
            self.llm_engine.add_request(request)
        with ProgressBar(requests, disable=not use_tqdm) as bar:
            while any(not request.is_finished for request in requests):
                self._step()
                bar.show()
    except BaseException:
        for request in requests:
            self.llm_engine.abort_request(request.seq.seq_id)
        raise
    failed = [request.seq.error for request in requests if request.seq.finish_reason == "error"]
    if failed:
        raise RuntimeError(failed[0])
    return [RequestOutput(request, request.text(self.tokenizer)) for request in requests]
