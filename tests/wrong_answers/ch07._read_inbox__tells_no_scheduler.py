# ruff: noqa
DIAGNOSIS = """
The request is one of self.requests, but the scheduler does not know of its sequence, so it never takes part in a
step. Scheduler.add queues it.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
        elif message in self.requests:
            self.scheduler.finish(self.requests[message].seq, "abort")
            del self.requests[message]
        self.inbox.popleft()


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox[0]
        if isinstance(message, int):
            if message in self.requests:
                seq = self.requests[message].seq
                self.scheduler.finish(seq, "abort")
                self.requests.pop(message)
        else:
            seq_id = message.seq.seq_id
            if seq_id not in self.requests and not message.is_finished:
                self.requests[seq_id] = message
        self.inbox.popleft()
