# ruff: noqa
DIAGNOSIS = """
An abort of somebody who is not there raises an error. That is nothing unusual: the answer may have ended while the
message was on its way. Ignore it.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        else:
            self.scheduler.finish(self.requests[message].seq, "abort")
            del self.requests[message]
        self.inbox.popleft()


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox[0]
        if isinstance(message, int):
            seq = self.requests[message].seq
            self.scheduler.finish(seq, "abort")
            self.requests.pop(message)
        else:
            seq_id = message.seq.seq_id
            if seq_id not in self.requests and not message.is_finished:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
        self.inbox.popleft()
