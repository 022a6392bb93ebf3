# ruff: noqa
DIAGNOSIS = """
A request that has ended is started again when its message is read a second time: it is none of self.requests then,
but it is finished. Both have to be asked.
"""


# --- first
def _read_inbox(self):
    while self.inbox:
        message = self.inbox[0]
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests:
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
            if seq_id not in self.requests:
                self.requests[seq_id] = message
                self.scheduler.add(message.seq)
        self.inbox.popleft()
