# ruff: noqa
DIAGNOSIS = """
The message is thrown away before it has been obeyed. If Ctrl-C strikes in between, nobody will ever obey it: a
request is lost, or an abort. Look at inbox[0], obey, and throw it away then.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox.popleft()
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        elif message in self.requests:
            self.scheduler.finish(self.requests[message].seq, "abort")
            del self.requests[message]


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox.popleft()
        if isinstance(message, int):
            if message in self.requests:
                seq = self.requests[message].seq
                self.scheduler.finish(seq, "abort")
                self.requests.pop(message)
        else:
            seq_id = message.seq.seq_id
            if seq_id not in self.requests and not message.is_finished:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
