# ruff: noqa
DIAGNOSIS = """
The newest message is obeyed first: requests overtake each other, and an abort is read before the request that it is
about. The oldest is inbox[0].
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[-1]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        elif message in self.requests:
            self.scheduler.finish(self.requests[message].seq, "abort")
            del self.requests[message]
        self.inbox.pop()


# --- second
def _read_inbox(self):
    while len(self.inbox) > 0:
        message = self.inbox[len(self.inbox) - 1]
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
        del self.inbox[-1]
