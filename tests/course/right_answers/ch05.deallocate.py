# ruff: noqa
# Right, and nothing like ours: a grader must not ask for our way of doing it.
from collections import OrderedDict


def deallocate(self, seq):
    let_go = []
    for position in range(len(seq.block_table) - 1, -1, -1):
        block = self.blocks[seq.block_table[position]]
        if block.ref_count == 1:
            let_go.append(block.block_id)
        block.ref_count -= 1
    self.used_block_ids = self.used_block_ids - set(let_go)
    self.free_block_ids = OrderedDict.fromkeys([*self.free_block_ids, *let_go])
    seq.block_table.clear()
    seq.num_cached_tokens = 0
