# ruff: noqa
DIAGNOSIS = """
A message that is read a second time adds its request to the scheduler a second time: one sequence, twice in the
queue. Ask whether it is one of self.requests already.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
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
            if not message.is_finished:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
        self.inbox.popleft()
