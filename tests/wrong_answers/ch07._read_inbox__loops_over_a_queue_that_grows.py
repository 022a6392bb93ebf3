# ruff: noqa
DIAGNOSIS = """
A for loop over the inbox breaks as soon as somebody adds a message meanwhile. Look at the oldest message again and
again, as long as there is one.
"""


# --- first
def _read_inbox(self):
    for message in self.inbox:
        if isinstance(message, Request):
            if message.seq.seq_id not in self.requests and not message.is_finished:
                self.requests[message.seq.seq_id] = message
                self.scheduler.add(message.seq)
        elif message in self.requests:
            self.scheduler.finish(self.requests[message].seq, "abort")
            del self.requests[message]
    self.inbox.clear()


# --- second
def _read_inbox(self):
    for message in iter(self.inbox):
        if isinstance(message, int):
            if message in self.requests:
                self.scheduler.finish(self.requests[message].seq, "abort")
                self.requests.pop(message)
        elif not (message.is_finished or message.seq.seq_id in self.requests):
            self.requests[message.seq.seq_id] = message
            self.scheduler.add(message.seq)
    while self.inbox:
        self.inbox.pop()
