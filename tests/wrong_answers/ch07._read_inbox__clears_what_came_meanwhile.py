# ruff: noqa
DIAGNOSIS = """
You go through a copy of the inbox and empty it at the end. What others have added meanwhile is thrown away unread.
Throw away each message by itself.
"""


# --- first
def _read_inbox(self):
    for message in list(self.inbox):
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
    for message in tuple(self.inbox):
        if isinstance(message, int):
            if message in self.requests:
                self.scheduler.finish(self.requests[message].seq, "abort")
                self.requests.pop(message)
        elif not (message.is_finished or message.seq.seq_id in self.requests):
            self.requests[message.seq.seq_id] = message
            self.scheduler.add(message.seq)
    while self.inbox:
        self.inbox.pop()
