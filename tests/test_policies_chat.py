"""Conversations as tokens: growing one turn by turn equals rendering it whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rollweave.errors import ModelError
from rollweave.policies.chat import ChatFormat
from rollweave.policies.tiny import CHAT_TEMPLATE, END, byte_tokenizer
from rollweave.trajectory import token_ids

CHATML = (
    "{% if messages[0]['role'] != 'system' %}{{ '<|system|>be brief<|end|>\n' }}{% endif %}"
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' + m['content'] + '<|end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
PADDED_END = CHATML.replace("m['content'] + '<|end|>'", "m['content'] + ' <|end|>'")


def chat(template: str) -> ChatFormat:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = template
    return ChatFormat(tokenizer)


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def whole(format: ChatFormat, messages: list[Any]) -> list[int]:
    tokens: list[int] = format.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return tokens


text = st.text(st.characters(codec="utf-8"), max_size=12)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML], ids=["tiny", "chatml"])
@settings(max_examples=40, deadline=None)
@given(first=text, turns=st.lists(st.tuples(text, text), max_size=4))
def test_growing_a_conversation_equals_rendering_it_whole(
    template: str, first: str, turns: list[tuple[str, str]]
) -> None:
    format = chat(template)
    tokens, messages = format.open(first).tolist(), [user(first)]
    assert tokens == whole(format, messages)
    for answer, observation in turns:
        tokens += format.tokenizer(answer + END)["input_ids"] + format.reply(observation, answered_end=True).tolist()
        messages += [{"role": "assistant", "content": answer}, user(observation)]
        assert tokens == whole(format, messages)


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, CHATML, PADDED_END], ids=["tiny", "chatml", "padded"])
def test_a_cut_answer_is_given_its_end(template: str) -> None:
    format = chat(template)
    cut = [*format.open("a"), *format.tokenizer("b")["input_ids"], *format.reply("c", answered_end=False)]
    assert cut == whole(format, [user("a"), {"role": "assistant", "content": "b"}, user("c")])


def test_the_end_of_turn_token_stops_generation_and_marks_an_answer_as_ended() -> None:
    for template in (CHAT_TEMPLATE, CHATML, PADDED_END):
        format = chat(template)
        end = format.tokenizer.convert_tokens_to_ids(END)
        assert format.stop_tokens == (end,)
        ended = [format.ended(token_ids(answer)) for answer in ([65, end], [end, 65], [])]
        assert ended == [True, False, False]


def test_observations_may_be_several_messages() -> None:
    format = chat(CHATML)
    opening = [{"role": "system", "content": "rules"}, user("a")]
    tokens = [
        *format.open(opening),
        *format.tokenizer("b" + END)["input_ids"],
        *format.reply([user("c"), user("d")], True),
    ]
    assert tokens == whole(format, [*opening, {"role": "assistant", "content": "b"}, user("c"), user("d")])


def test_what_is_remembered_for_the_next_episode_cannot_be_changed_by_this_one() -> None:
    format = chat(CHATML)
    for tokens in (format.open("a"), format.reply("b", True), format.reply("b", False)):
        with pytest.raises(ValueError, match="read-only"):
            tokens[0] = 1


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        (CHATML.replace("m['content'] +", "m['content'].split('</think>')[-1] +"), "thinking"),
        (CHATML.replace("{% for m in messages %}", "{% for m in messages[-1:] %}"), "does not appear"),
        (CHATML.replace("m['content']", "(loop.index0 // 2 if m['role'] == 'user' else '') ~ m['content']"), "later"),
        (CHATML.replace("'<|' + m['role']", "'<|' + ('old' if not loop.last else m['role'])"), "the text before"),
    ],
    ids=["strips thinking", "forgets", "counts", "renames"],
)
def test_a_template_that_rewrites_history_is_refused_at_the_first_reply(template: str, problem: str) -> None:
    format = chat(template)
    assert len(format.open("a"))  # a single turn is fine
    with pytest.raises(ModelError, match=f"(?s)rewrites the conversation.*{problem}.*chat_template.jinja"):
        format.reply("b", True)


def test_a_template_without_an_end_of_turn_token_is_refused() -> None:
    with pytest.raises(ModelError, match="does not end an answer with a special token"):
        _ = chat("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}").stop_tokens


def test_a_model_without_chat_template_is_refused() -> None:
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ModelError, match="no chat template"):
        ChatFormat(tokenizer)


def test_roles_a_template_refuses_are_explained() -> None:
    format = chat(CHATML + "{% if messages[-1]['role'] == 'tool' %}{{ raise_exception('no tools') }}{% endif %}")
    with pytest.raises(ModelError, match="roles tool: no tools"):
        format.open([{"role": "tool", "content": "x"}])


@pytest.mark.llm
def test_smollm2_conversations_grow_as_they_render() -> None:
    from rollweave.policies.smollm2 import ensure

    format = ChatFormat.of(ensure())
    messages = [user("What is 2 + 3?")]
    tokens = format.open("What is 2 + 3?").tolist()
    for answer, observation in (("5", " and 7?\n\n"), ("The answer is 12.", "Grid:\nS F\nF G")):
        ended = [*format.tokenizer(answer)["input_ids"], *format.stop_tokens]
        tokens += ended + format.reply(observation, True).tolist()
        messages += [{"role": "assistant", "content": answer}, user(observation)]
    assert tokens == whole(format, messages)
