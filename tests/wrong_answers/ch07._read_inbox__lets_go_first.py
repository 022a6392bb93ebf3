# ruff: noqa
DIAGNOSIS = """
The request is taken out of self.requests, and ended then. If Ctrl-C strikes in between, nobody knows it any more, and
it has never ended: whoever waits for it waits for ever. End it first.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        elif message in self.requests:
            request = self.requests.pop(message)
            self.scheduler.finish(request.seq, "abort")
        self.inbox.popleft()


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox[0]
        if isinstance(message, int):
            if message in self.requests:
                request = self.requests[message]
                del self.requests[message]
                self.scheduler.finish(request.seq, "abort")
        else:
            seq_id = message.seq.seq_id
            if seq_id not in self.requests and not message.is_finished:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
        self.inbox.popleft()
