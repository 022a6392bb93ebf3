"""VocabularyShards: who has which row, what is summed up, and what is cut off, as counted by hand."""

import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest

import nanovllm
from nanovllm.layers.embed_head import VocabParallelEmbedding
from nanovllm.viz import VocabularyShards


def groups(view, step, name):
    """The groups of a frame that have an attribute."""
    (drawing,) = view.draw(step).drawings
    return [g.attrib for g in ElementTree.fromstring(drawing.svg()).iter("g") if f"data-{name}" in g.attrib]


@pytest.mark.parametrize("vocab_size", [16, 23, 5])
def test_every_token_has_one_owner_and_the_padding_is_counted(vocab_size):
    token_ids = list(range(0, vocab_size, 2))
    view = VocabularyShards([str(n) for n in token_ids], token_ids, vocab_size, sizes=(1, 2, 3, 4, 8))
    for step in range(view.num_steps):
        size, stage = view.at(step)
        per_rank = -(-vocab_size // size)
        for cell in groups(view, step, "on"):
            token_id, rank = token_ids[int(cell["data-token"])], int(cell["data-on"])
            assert int(cell["data-found"]) == (token_id + 1 if token_id // per_rank == rank else 0)
        sums = groups(view, step, "sum")
        assert [one["data-right"] for one in sums] == ["1"] * len(token_ids) * (stage >= 1)
        cut = [int(one["data-cut"]) for one in groups(view, step, "cut")]
        assert cut == [per_rank * size - vocab_size] * (stage == 2 and per_rank * size > vocab_size)
        parts = groups(view, step, "logits")
        assert [int(one["data-logits"]) for one in parts] == [per_rank] * size * (stage == 2)
        real = [len(range(vocab_size)[rank * per_rank : (rank + 1) * per_rank]) for rank in range(len(parts))]
        assert [int(one["data-real"]) for one in parts] == real


def test_an_engine_without_a_mask_is_seen_to_fail():
    class Unmasked(VocabParallelEmbedding):
        def forward(self, token_ids):
            return self.weight[(token_ids - self.vocab_start).clamp(0, len(self.weight) - 1)]

    embed_head = SimpleNamespace(**vars(nanovllm.layers.embed_head) | {"VocabParallelEmbedding": Unmasked})
    engine = SimpleNamespace(layers=SimpleNamespace(embed_head=embed_head), utils=nanovllm.utils)
    view = VocabularyShards(["a", "b"], [1, 6], 8, sizes=(2,), engine=engine)
    assert [one["data-right"] for one in groups(view, 1, "sum")] == ["0", "0"]
    assert "0 of 2 tokens" in view.caption(1)


def test_only_so_many_ranks_are_drawn():
    with pytest.raises(ValueError, match="from 1 to 8"):
        VocabularyShards(sizes=(9,))
    assert "One rank has 2,048 rows" in VocabularyShards().caption(0)
