# ruff: noqa
DIAGNOSIS = """
The scheduler has ended the request, and it is still one of self.requests: the engine believes that there is something
to do.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        elif message in self.requests and not self.requests[message].is_finished:
            self.scheduler.finish(self.requests[message].seq, "abort")
        self.inbox.popleft()


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox[0]
        if isinstance(message, int):
            if message in self.requests and not self.requests[message].is_finished:
                seq = self.requests[message].seq
                self.scheduler.finish(seq, "abort")
        else:
            seq_id = message.seq.seq_id
            if seq_id not in self.requests and not message.is_finished:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
        self.inbox.popleft()
