"""The recorded talk of chapter 7, and the numbers that its exercise and its notebook say."""

import nanovllm
from exercises.kit import talk_work
from exercises.kit.labs import choose_messages
from nanovllm.config import Config
from nanovllm.prompts import InputProcessor


def test_a_prompt_is_what_the_engine_makes_of_the_messages():
    processor = InputProcessor(Config("qwen3-tiny", device="cpu"), talk_work._tokenizer())
    for num_answers, with_system in ((0, True), (0, False), (9, True), (13, False)):
        messages = talk_work.conversation(num_answers, with_system)
        assert talk_work.prompt_of(messages) == processor.apply_chat_template(messages)
        assert talk_work.count_tokens(messages) == len(talk_work.prompt_of(messages))


def test_the_numbers_that_learners_read():
    window = talk_work.send_all(talk_work.sliding_window, nanovllm)
    assert talk_work.computed(window) == talk_work.WINDOW == 14_560
    assert sum(turn.tokens for turn in window) == 30_896
    assert talk_work.kept(window) == 1
    ours = talk_work.send_all(choose_messages, nanovllm)
    assert talk_work.computed(ours) == 2_831 < talk_work.BAR and round(talk_work.kept(ours), 2) == 0.69


def test_neither_forgetting_everything_nor_keeping_everything_counts():
    def only_the_question(messages, left_out, budget, count_tokens):
        return messages if count_tokens(messages) <= budget and not left_out else [messages[0], messages[-1]]

    forgets = talk_work.send_all(only_the_question, nanovllm)
    assert talk_work.kept(forgets) < talk_work.SHARE and talk_work.computed(forgets) < talk_work.BAR < talk_work.WINDOW
