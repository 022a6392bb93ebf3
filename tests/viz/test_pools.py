"""Two pools beside each other: what differs is marked in both, in words too."""

from nanovllm.viz.pools import compare, differences, draw_scene, state_of


def scene(refs, free, tables, queues=None, named=(), stored=0):
    used = {block_id for block_id, ref in enumerate(refs) if ref}
    blocks = [(ref, i in free, i in used, i in named) for i, ref in enumerate(refs)]
    facts = dict.fromkeys(tables, f"4 tokens, {stored} stored")
    return {"blocks": blocks, "free": free, "tables": tables, "facts": facts, "queues": queues or {}}


RIGHT = scene([2, 1, 0], [2], {"A": [0], "B": [0, 1]})
WRONG = scene([1, 1, 0], [2, 0], {"A": [0], "B": [0, 1]})


def test_blocks_tables_queues_and_the_order_of_the_free_are_compared():
    assert differences(RIGHT, RIGHT) == []
    assert differences(RIGHT, WRONG) == ["#0", "free"]
    assert differences(scene([0, 0], [0, 1], {}), scene([0, 0], [1, 0], {})) == ["free"]
    assert differences(scene([1], [], {"A": [0]}), scene([1], [], {"A": [0]}, stored=4)) == ["A"]
    queues = [{"running": ["A", "C"], "waiting": []}, {"running": ["A", "B"], "waiting": []}]
    assert differences(*(scene([0], [0], {}, queue) for queue in queues)) == ["running"]


def test_a_state_that_must_not_be_is_told():
    assert [state_of(RIGHT, i) for i in range(3)] == ["A+B", "B", "free"]
    assert state_of(WRONG, 0) == "A+B, free?"
    assert state_of(scene([0], [0], {}, named=[0]), 0) == "cached"
    assert state_of(scene([0], [], {}), 0) == "lost" and state_of(scene([1], [], {}), 0) == "used?"
    assert state_of(scene([1], [], {"A": [0]}, named=[0]), 0) == "A hashed"


def test_what_differs_has_a_sign_and_a_frame_in_both():
    svg = draw_scene(WRONG, "Got", differences(RIGHT, WRONG), [0, 1, 2]).svg()
    assert svg.count('data-other="yes"') == 1 and "≠ #0" in svg and "≠ free, the next one first: #2 #0" in svg
    page = compare(RIGHT, WRONG)
    assert page.count("<svg") == 2 and "Expected" in page and "≠ Not the same: #0, the free blocks." in page


def test_one_pool_is_enough_where_both_are_the_same_or_the_right_one_is_unknown():
    assert compare(RIGHT, RIGHT).count("<svg") == 1 and "as they should be" in compare(RIGHT, RIGHT)
    assert compare(None, WRONG).count("<svg") == 1 and "should be" not in compare(None, WRONG)


def test_of_a_large_pool_only_what_there_is_to_see_is_drawn():
    large = scene([1] + [0] * 39, list(range(1, 40)), {"A": [0]})
    page = compare(large, scene([1] + [0] * 39, [*range(2, 40), 1], {"A": [0]}))
    assert page.count("data-block=") == 2 and "39 blocks are not drawn" in page and "...\xa029\xa0more\xa0..." in page


def test_a_table_may_hold_anything():
    assert "#None" in compare(RIGHT, scene([2, 1, 0], [2], {"A": [None, 7], "B": [0, 1]}))
