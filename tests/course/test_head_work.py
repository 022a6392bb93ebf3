"""The numbers of chapter 13 that learners read: parameters, multiplications, neighbors, and ranks together."""

import pytest
import torch
import torch.nn.functional as F

from exercises.kit import head_work
from exercises.kit.head_work import Multiplications


def test_the_parameters_of_known_models():
    """As their model cards have them: 0.6 and 8.2 billion."""
    small = {"hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    small |= {"intermediate_size": 3072, "num_hidden_layers": 28, "vocab_size": 151_936}
    large = small | {"hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 12_288}
    size = head_work.size_of(small)
    assert sum(size) == 596_049_920 and size.share(is_tied=True) == pytest.approx(0.261, abs=1e-3)
    size = head_work.size_of(large | {"num_hidden_layers": 36})
    assert 2 * size.table + size.rest == 8_190_735_360


@pytest.mark.parametrize(
    "product",
    [
        lambda a, b: a @ b.T,
        lambda a, b: F.linear(a, b),
        lambda a, b: torch.einsum("ik,jk->ij", a, b),
        lambda a, b: (a[:, None] * b[None]).sum(-1),
        lambda a, b: torch.stack([torch.mv(b, row) for row in a]),
        lambda a, b: torch.stack([torch.stack([torch.dot(x, y) for y in b]) for x in a]),
        lambda a, b: torch.bmm(a[None], b.T[None])[0],
    ],
)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_multiplications_are_counted_however_a_product_is_written(product, mode):
    a, b = torch.randn(3, 5), torch.randn(4, 5)
    with mode(), Multiplications() as done:
        got = product(a, b)
    assert torch.allclose(got, a @ b.T, atol=1e-5) and done.count == 3 * 4 * 5


def test_what_cannot_be_counted_is_refused():
    with Multiplications() as done:
        torch.arange(9).reshape(3, 3)[torch.tensor([2, 0])].sort().values.float().topk(2)
    assert done.count == 0
    with torch.no_grad(), pytest.raises(RuntimeError, match="nobody counts"), Multiplications():
        torch.linalg.svd(torch.eye(3))


def test_ranks_have_the_rows_of_one():
    table = torch.arange(14.0).reshape(7, 2)
    parts = head_work.shards(table, 3)
    assert [part.weight.tolist()[-1] for part in parts] == [[4.0, 5.0], [10.0, 11.0], [0.0, 0.0]]
    for rows in head_work.compute(parts, torch.tensor([6, 0, 3])).results:
        assert rows.tolist() == table[[6, 0, 3]].tolist()
    assert head_work.found_by_rank([0, 1, 2, 6], 7, 3) == [0.75, 0.0, 0.25]
    assert [n for n, _ in head_work.neighbors(torch.tensor([[1.0, 0], [2, 1], [0, 1], [5, 0.1]]), 0, 2)] == [3, 1]
